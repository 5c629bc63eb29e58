#!/bin/bash
# A run on several machines by ssh, with a supervisor on each: examples/cluster/ssh.sh node0 node1 node2
# All have this repository, built, at the same path, and a file system that they share at RUN. The first one is the coordinator.
set -euo pipefail
hosts=("$@")
[ "${#hosts[@]}" -gt 0 ] || { echo "usage: $0 HOST..." >&2; exit 2; }
PER_HOST=${PER_HOST:-1}
RUN=${RUN:-$PWD/runs/gpt}
CONFIG=${CONFIG:-examples/gpt2-124m.toml}
TOKEN=$(openssl rand -hex 32)
pids=()
# Ctrl-C here stops the run there: the supervisors save and end.
stop() { for host in "${hosts[@]}"; do ssh "$host" "pkill -TERM -f 'lockstep launch --hosts'"; done; }
trap stop INT TERM
for host in "${hosts[@]}"; do
  # The token goes through stdin: an argument would be seen in the list of processes.
  ssh "$host" "cd $PWD && IFS= read -r LOCKSTEP_TOKEN && export LOCKSTEP_TOKEN && exec target/release/lockstep launch \
    --hosts ${#hosts[@]} --processes-per-host $PER_HOST --coordinator ${hosts[0]}:61400 \
    -- train $CONFIG --set 'mesh.data=\"auto\"' --out $RUN --resume" <<< "$TOKEN" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
