#!/bin/bash
# A job whose hosts come and go, on one machine: examples/cluster/laptop.sh
# Four supervisors are four hosts. One is killed and the others go on; then it comes back. The curve is that of an undisturbed run.
set -euo pipefail
LOCKSTEP=${LOCKSTEP:-target/release/lockstep}
RUN=${RUN:-$(mktemp -d)}
# The least and the most hosts, and those that wait until one is lost. mesh.data of the digits is 4, that of four hosts.
SIZE=${SIZE:-2:4}
SPARES=${SPARES:-0}
LOCKSTEP_TOKEN=$(openssl rand -hex 32)
export LOCKSTEP_TOKEN
coordinator=127.0.0.1:${PORT:-61400}
"$LOCKSTEP" coordinator --listen "$coordinator" & coordinator_pid=$!
host() {
  exec "$LOCKSTEP" launch --hosts "$SIZE" --spares "$SPARES" --processes-per-host 1 --coordinator "$coordinator" --external-coordinator \
    -- train examples/digits.toml --set train.epochs=100 --out "$RUN" --resume
}
hosts=()
for _ in 1 2 3 4; do host & hosts+=($!); done
trap 'kill "$coordinator_pid" "${hosts[@]}" 2> /dev/null || true' EXIT
until [ -s "$RUN/metrics.jsonl" ]; do
  kill -0 "${hosts[0]}" 2> /dev/null || exit 1
  sleep 0.2
done
echo "the last host is killed" >&2
kill -KILL "${hosts[3]}"
sleep 4
echo "it comes back" >&2
host & hosts[3]=$!
status=0
for pid in "${hosts[@]}"; do wait "$pid" || status=$?; done
echo "$RUN/summary.json says in generation_starts who took part, and where the state came from" >&2
exit "$status"
