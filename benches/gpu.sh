#!/bin/sh
# All measurements for a machine with NVIDIA GPUs, in one go:
#
#     benches/gpu.sh [NUM_GPUS] > gpu.txt 2>&1
#
# It needs the driver, Python 3 with pip, and some 5 GB for the plugin with NVIDIA's libraries. It builds,
# installs the plugin, lists drivers and GPUs, trains the examples with the lockstep proof at every step, and
# times a step with and without its collectives, on 1 GPU and on all.
set -eu
cd "$(dirname "$0")/.."

num_gpus=${1:-$(nvidia-smi --list-gpus | wc -l)}
cargo build --release
lockstep=target/release/lockstep

$lockstep plugin install cuda
$lockstep doctor || true
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active \
    --format=csv

for config in examples/digits.toml examples/gpt-bytes.toml examples/resnet20-synthetic.toml; do
    echo "== $config, every step proved"
    $lockstep train "$config" --backend cuda --set mesh.data="$num_gpus" \
        --set train.steps=200 --set train.check_lockstep_every=1 --json
    for n in 1 "$num_gpus"; do
        echo "== $config, $n GPUs"
        $lockstep bench "$config" --backend cuda --set mesh.data="$n" --json
    done
done

# The losses should agree to the roundings of bf16.
for kernels in xla all; do
    echo "== gpt-bytes in bf16, compile.kernels = $kernels"
    set -- examples/gpt-bytes.toml --backend cuda --set mesh.data="$num_gpus" --set train.precision=bf16 \
        --set compile.kernels="$kernels" --json
    $lockstep train "$@" --set train.steps=200
    $lockstep bench "$@"
done
