#!/bin/bash
# A job whose hosts come and go, on one machine: examples/cluster/laptop.sh
# Three supervisors are three hosts. One is killed, the others go on; then it comes back. Ten seconds; the curve is that of an undisturbed run.
set -euo pipefail
LOCKSTEP=${LOCKSTEP:-target/release/lockstep}
RUN=${RUN:-$(mktemp -d)}
SIZE=${SIZE:-2:3}
SPARES=${SPARES:-0}
LOCKSTEP_TOKEN=$(openssl rand -hex 32)
export LOCKSTEP_TOKEN
coordinator=127.0.0.1:${PORT:-61400}
"$LOCKSTEP" coordinator --listen "$coordinator" & coordinator_pid=$!
host() {
  exec "$LOCKSTEP" launch --hosts "$SIZE" --spares "$SPARES" --processes-per-host 1 --coordinator "$coordinator" --external-coordinator \
    -- train examples/digits.toml --set train.epochs=400 --out "$RUN" --resume
}
host & first=$!
host & second=$!
host & third=$!
trap 'kill "$coordinator_pid" "$first" "$second" "$third" 2> /dev/null || true' EXIT
# Not before training goes on by itself.
until [ -s "$RUN/metrics.jsonl" ]; do sleep 0.2; done
echo "host 3 is killed" >&2
kill -KILL "$third"
sleep 4
echo "host 3 comes back" >&2
host & third=$!
status=0
for pid in "$first" "$second" "$third"; do wait "$pid" || status=$?; done
echo "$RUN/summary.json says in generation_starts who took part, and where the state came from" >&2
exit "$status"
