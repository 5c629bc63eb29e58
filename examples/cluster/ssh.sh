#!/bin/bash
# A run on several machines by ssh, with a supervisor on each: examples/cluster/ssh.sh node0 node1 node2
# With SIZE=2:3 it goes on when one is lost, and SPARES=1 of the machines waits until then: SIZE=2:3 SPARES=1 MESH=24 examples/cluster/ssh.sh node0 node1 node2 node3
# All have this repository, built, at the same path, and a file system that they share at RUN. The first one is the coordinator.
set -euo pipefail
hosts=("$@")
[ "${#hosts[@]}" -gt 0 ] || { echo "usage: $0 HOST..." >&2; exit 2; }
PER_HOST=${PER_HOST:-1}
SPARES=${SPARES:-0}
SIZE=${SIZE:-$((${#hosts[@]} - SPARES))}
# mesh.data; with SIZE=MIN:MAX a number, that of MAX machines.
MESH=${MESH:-auto}
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
    --hosts $SIZE --spares $SPARES --processes-per-host $PER_HOST --coordinator ${hosts[0]}:61400 \
    -- train $CONFIG --set mesh.data=$MESH --out $RUN --resume" <<< "$TOKEN" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit "$status"
