#!/bin/bash
# A run on all hosts of a Cloud TPU slice: examples/cluster/tpu_slice.sh NAME ZONE gs://BUCKET/run
# Each worker has this repository, built, in ~/lockstep. The hosts find each other from what the VM says of the slice.
set -euo pipefail
[ "$#" -eq 3 ] || { echo "usage: $0 NAME ZONE CHECKPOINTS" >&2; exit 2; }
name=$1 zone=$2 checkpoints=$3
TOKEN=$(openssl rand -hex 32)
on_all() { gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --command="$1"; }
# A file that only this user can read, instead of an argument that is seen in the list of processes.
file=$(mktemp) && printf '%s\n' "$TOKEN" > "$file"
trap 'rm -f "$file"' EXIT
gcloud compute tpus tpu-vm scp "$file" "$name":lockstep-token --zone "$zone" --worker=all
on_all "cd lockstep && target/release/lockstep train examples/gpt2-124m.toml --backend tpu --set 'mesh.data=\"auto\"' \
  --set cluster.token_file=\$HOME/lockstep-token --set checkpoint.dir=$checkpoints --out run --resume"
