#!/bin/bash
# All measurements for a machine with NVIDIA GPUs, in one call of at most ten minutes:
#
#     benches/gpu.sh
#
# It needs the driver, Python 3, the program, and the CUDA plugin: installed, or in the Python environment, or fetched with
# pip (5 GB). Neither Rust nor a network is needed if the program and the plugin are there. Each section has a time limit,
# and goes on after the failure of another one. The exit code is 0 if all sections have ended well, 1 if not, and 2 if
# nothing could be measured.
#
# Environment variables, with their defaults:
#
#     LOCKSTEP=target/release/lockstep   the program; built here if it is missing and there is a cargo
#     RESULTS=gpu-results                the folder for summary.txt, results.jsonl (a figure a line), log.txt and losses.jsonl
#     CPU_LOSSES=                        a folder with losses of the CPU backend, which `benches/gpu.sh losses FOLDER` has made
#                                        before on any machine; otherwise they are computed, in a part of the time
#     LIMIT=570                          seconds for everything
#     SECTIONS=                          only these, separated by spaces
#     NUM_GPUS=                          that many; by default all
#     BACKEND=cuda                       `cpu` runs the same sections in small, to try this script
set -u -o pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
self=$root/benches/gpu.sh

: "${BACKEND:=cuda}" "${SECTIONS:=}" "${CPU_LOSSES:=}" "${NUM_GPUS:=}"
: "${LOCKSTEP:=$root/target/release/lockstep}" "${RESULTS:=gpu-results}"
mkdir -p "$RESULTS" && RESULTS=$(cd "$RESULTS" && pwd) || exit 2
export BACKEND CPU_LOSSES NUM_GPUS LOCKSTEP RESULTS

# Section, seconds that it may take, and what it answers, most wanted first. Together they take no more than LIMIT.
sections() {
    cat <<'END'
machine 20 which GPUs, drivers and plugin there are
digits 30 200 steps of an MLP, each proved, and the losses of the CPU
gpt_bytes 40 200 steps of a small GPT, each proved, and the losses of the CPU
resnet20 40 200 steps of ResNet-20, each proved, and the losses of the CPU
gpt2 80 the step of gpt2-124m beside the one that `plan` predicts
level_o1 60 the same step at the compiler's optimization level O1
replicas 90 the step of one GPU in a program for 8 and for 64 replicas, with loopback collectives
two_processes 40 two processes, each with its GPU
collectives 20 steps with and without collectives, on one GPU and on all
attention 60 a GPT in bf16 with cuDNN's attention and without
deterministic 90 whether two runs give the same bits, and what that costs
END
}

examples='digits gpt-bytes resnet20-synthetic'
# What the steps are, and what they are where only this script is tried.
if [ "$BACKEND" = cpu ]; then
    num_steps=4 bench_steps=2 cpu_steps=4 replicas='2 4' budget_factor=8
    small=(--set schedule.warmup=none)
    small_gpt=(--set model.num_layers=1 --set model.width=32 --set model.num_heads=2 --set model.vocabulary=64
        --set data.vocab_size=64 --set data.context=16 --set train.batch_per_replica=1)
    small_bytes=(--set model.num_layers=1 --set data.context=16)
    small_image=(--set 'data.image=[3,8,8]' --set data.num_examples=640)
else
    num_steps=200 bench_steps=30 cpu_steps=50 replicas='8 64' budget_factor=1
    small=() small_gpt=() small_bytes=() small_image=()
fi
: "${LIMIT:=$((570 * budget_factor))}"

# A figure: section, name, value. Into results.jsonl, and into the summary.
record() {
    local value=${3//\\/\\\\}
    value=${value//\"/\\\"}
    printf '{"section": "%s", "name": "%s", "value": "%s"}\n' "$1" "$2" "$value" >> "$RESULTS/results.jsonl"
    printf '    %-44s %s\n' "$2" "$3" >> "$RESULTS/summary.txt"
}

# The value of a key in the last line of JSON on stdin; a path of keys is separated by dots. Empty if there is none.
field() {
    python3 -c '
import json, sys
lines = [line for line in sys.stdin if line.startswith("{")]
value = json.loads(lines[-1]) if lines else {}
for key in sys.argv[1].split("."):
    value = value[int(key)] if isinstance(value, list) else (value or {}).get(key)
print("" if value is None else round(value, 4) if isinstance(value, float) else value)
' "$1"
}

num_devices() {
    case "$BACKEND,$NUM_GPUS" in
        cpu,) echo 2 ;;
        *,) nvidia-smi --list-gpus | wc -l ;;
        *) echo "$NUM_GPUS" ;;
    esac
}

# Whether a plugin is installed, or in the Python environment.
has_plugin() {
    "$LOCKSTEP" plugin list --json | python3 -c '
import json, sys
sys.exit(all(row["name"] != sys.argv[1] or not row["path"] for row in json.load(sys.stdin)))' "$1"
}

# `train` or `bench` of an example: the command, the example, and more arguments. Prints the line of JSON.
run_example() {
    local command=$1 example=$2 sets=()
    shift 2
    case $example in
        gpt-bytes) sets=(${small_bytes[@]+"${small_bytes[@]}"}) ;;
        resnet20-synthetic) sets=(${small_image[@]+"${small_image[@]}"}) ;;
    esac
    "$LOCKSTEP" "$command" "examples/$example.toml" ${small[@]+"${small[@]}"} ${sets[@]+"${sets[@]}"} "$@" --json
}

# The name of the file with the CPU's losses of an example. It has a checksum of the configuration and the data, which for
# gpt-bytes are the sources here: losses of other data are not compared.
losses_file() {
    local sum files=("examples/$1.toml")
    [ "$1" != gpt-bytes ] || mapfile -t -O 1 files < <(find src -name '*.rs' | LC_ALL=C sort)
    sum=$( (echo "$num_steps $BACKEND"; cat "${files[@]}") | cksum)
    echo "$1-${sum%% *}.jsonl"
}

# Losses of a run, as {"example", "on", "step", "loss"}: example, `here` or `cpu`, and the folder of the run.
losses_of() {
    python3 -c '
import json, sys
example, on, path = sys.argv[1:]
for line in open(path):
    line = json.loads(line)
    if "loss" in line:
        print(json.dumps({"example": example, "on": on, "step": line["step"], "loss": line["loss"]}))
' "$1" "$2" "$3/metrics.jsonl"
}

# Trains an example on the CPU for so many steps of the schedule of $num_steps, and keeps the losses in a file.
cpu_losses() {
    local example=$1 steps=$2 file=$3 out
    out=$(mktemp -d) || return 1
    # Stopped after these steps: the schedule must be that of the whole run.
    run_example train "$example" --backend cpu --set train.steps="$num_steps" --set train.eval_every=1000000 \
        --set train.check_lockstep_every=0 --out "$out/run" > "$out/stdout" &
    local pid=$! lines=0
    while kill -0 "$pid" 2> /dev/null; do
        [ -f "$out/run/metrics.jsonl" ] && lines=$(grep -c '"loss"' "$out/run/metrics.jsonl")
        if [ "$lines" -ge "$steps" ]; then kill -INT "$pid" 2> /dev/null; fi
        sleep 0.2
    done
    wait "$pid"
    losses_of "$example" cpu "$out/run" > "$file"
    rm -rf "$out"
    [ -s "$file" ]
}

# 200 steps with the proof at every step, and the losses beside those of the CPU.
prove() {
    local section=$1 example=$2 out line file
    out=$(mktemp -d) || return 1
    line=$(run_example train "$example" --backend "$BACKEND" --set mesh.data="$(num_devices)" \
        --set train.steps="$num_steps" --set train.check_lockstep_every=1 --out "$out/run") || { rm -rf "$out"; return 1; }
    echo "$line"
    record "$section" "steps, each proved on $(num_devices) devices" "$(field steps <<< "$line")"
    record "$section" "status" "$(field status <<< "$line")"
    losses_of "$example" here "$out/run" >> "$RESULTS/losses.jsonl"
    rm -rf "$out"
    file=$CPU_LOSSES/$(losses_file "$example")
    if [ -z "$CPU_LOSSES" ] || ! [ -f "$file" ]; then
        [ -z "$CPU_LOSSES" ] || record "$section" "losses in $CPU_LOSSES" "none of this example, configuration and data"
        if ! has_plugin cpu; then
            record "$section" "losses of the CPU" "none: set CPU_LOSSES, no CPU plugin is here"
            return 1
        fi
        file=$RESULTS/cpu-$example.tmp
        if ! cpu_losses "$example" "$cpu_steps" "$file"; then
            record "$section" "losses of the CPU" "none: see log.txt"
            return 1
        fi
    fi
    cat "$file" >> "$RESULTS/losses.jsonl"
    rm -f "$RESULTS/cpu-$example.tmp"
    compare_losses "$section" "$example"
}

# Relative differences of the losses, at some steps.
compare_losses() {
    local step difference
    while read -r step difference; do
        record "$1" "loss beside the CPU's, after $step steps" "$difference"
    done < <(python3 -c '
import json, sys
example, path = sys.argv[1:]
rows = [row for row in map(json.loads, open(path)) if row["example"] == example]
ours, cpu = ({row["step"]: row["loss"] for row in rows if row["on"] == name} for name in ("here", "cpu"))
common = sorted(set(ours) & set(cpu))
if not common:
    print("0 no common step")
for step in sorted({min(count, len(common)) - 1 for count in (1, 10, 50, 200) if common}):
    step = common[step]
    a, b = ours[step], cpu[step]
    print(step + 1, f"{a:.6g} {b:.6g}, differs by {abs(a - b) / abs(b):.1e}")
' "$2" "$RESULTS/losses.jsonl")
}

# The target of `plan` for the first GPU, by the name that the driver gives it.
target() {
    local name=''
    [ "$BACKEND" = cpu ] || name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
    case $name in
        *GB200*) echo gpu:gb200 ;;
        *B200*) echo gpu:b200 ;;
        *H200*) echo gpu:h200 ;;
        *H100*PCIe*) echo gpu:h100-pcie ;;
        *H100*) echo gpu:h100 ;;
        *A100*40GB*) echo gpu:a100-40gb ;;
        *A100*) echo gpu:a100 ;;
        *L40S*) echo gpu:l40s ;;
        *L4*) echo gpu:l4 ;;
        '') echo gpu:h100 ;;
        *) echo "no target is known for $name" >&2; return 1 ;;
    esac
}

gpt2() {
    "$LOCKSTEP" "$1" examples/gpt2-124m.toml ${small[@]+"${small[@]}"} ${small_gpt[@]+"${small_gpt[@]}"} "${@:2}"
}

# Times of a step: section, what it is called, and arguments of `bench`.
time_gpt2() {
    local section=$1 name=$2 line
    shift 2
    # Without collectives the program of one device is the same, and need not be compiled again.
    line=$(gpt2 bench --backend "$BACKEND" --steps "$bench_steps" --warm --json "$@") || return 1
    echo "$line"
    record "$section" "$name: step, ms" "$(field median_step_ms <<< "$line")"
    record "$section" "$name: step without collectives, ms" "$(field compute_only_ms <<< "$line")"
    record "$section" "$name: launch by the host, ms" "$(field host_ms_per_step <<< "$line")"
    record "$section" "$name: start to the first step, s" "$(field first_step_secs <<< "$line")"
}

section_machine() {
    "$LOCKSTEP" doctor --json | tee "$RESULTS/doctor.json"
    "$LOCKSTEP" doctor
    record machine "program" "$("$LOCKSTEP" --version)"
    record machine "processors" "$(nproc) $(lscpu 2> /dev/null | sed -n 's/^Model name: *//p' | head -1)"
    [ "$BACKEND" = cpu ] && return 0
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,clocks_throttle_reasons.active \
        --format=csv
    record machine "GPUs" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tr '\n' ';')"
    local version problem
    version=$(field plugins.1.version < "$RESULTS/doctor.json")
    problem=$(field plugins.1.problem < "$RESULTS/doctor.json")
    record machine "CUDA plugin" "$version $problem"
}

section_digits() { prove digits digits; }
section_gpt_bytes() { prove gpt_bytes gpt-bytes; }
section_resnet20() { prove resnet20 resnet20-synthetic; }

section_gpt2() {
    local name predicted failed=0
    if name=$(target) && predicted=$(gpt2 plan --target "$name" --set mesh.data=1 --json); then
        echo "$predicted"
        record gpt2 "\`plan\` for $name: step, ms" "$(field rows.0.step_ms <<< "$predicted")"
    else
        failed=1
    fi
    time_gpt2 gpt2 "measured on 1 device" --set mesh.data=1 || failed=1
    return $failed
}

section_level_o1() {
    time_gpt2 level_o1 "O1 on 1 device" --set mesh.data=1 --set compile.overrides.optimization_level=O1 || return 1
    # With communication, where the level changes more.
    [ "$(num_devices)" -eq 1 ] ||
        time_gpt2 level_o1 "O1 on all" --set mesh.data="$(num_devices)" --set compile.overrides.optimization_level=O1
}

# With loopback collectives every rank is taken to hold the same data, so that the values are wrong, but memory, kernels
# and the host's work are those of a real rank. The plugin invents the other hosts.
section_replicas() {
    local count failed=0 layers=(--set model.num_layers=4)
    [ "$BACKEND" = cuda ] || layers=()
    time_gpt2 replicas "4 layers, 1 of 1" --set mesh.data=1 ${layers[@]+"${layers[@]}"} || failed=1
    for count in $replicas; do
        local sets=(--set mesh.data="$count" ${layers[@]+"${layers[@]}"})
        if [ "$BACKEND" = cuda ]; then
            sets+=(--set device.options.enable_mock_nccl=true --set device.options.node_id=0
                --set device.options.num_nodes="$count" --set device.options.mock_gpu_topology="1x${count}x1"
                --set compile.overrides.xla_gpu_collectives_implementation=loopback)
        fi
        time_gpt2 replicas "4 layers, 1 of $count" "${sets[@]}" || failed=1
    done
    return $failed
}

# A GPU for each process: NCCL refuses two ranks on one ("Duplicate GPU detected").
section_two_processes() {
    local out ended=0
    if [ "$BACKEND" = cuda ] && [ "$(num_devices)" -lt 2 ]; then
        record two_processes "not run" "it needs 2 GPUs"
        return 0
    fi
    out=$(mktemp -d) || return 1
    # A rank that NCCL refuses may leave the other one waiting.
    timeout --foreground --kill-after=2 $((30 * budget_factor)) \
        "$LOCKSTEP" launch --num-processes 2 --max-restarts 0 -- train examples/digits.toml --backend "$BACKEND" \
        --set mesh.data=2 --set train.steps="$num_steps" --out "$out" ${small[@]+"${small[@]}"} || ended=1
    rm -rf "$out"
    [ $ended -ne 0 ] || record two_processes "$num_steps steps" "ended well"
    return $ended
}

# Whether a run can be repeated bit for bit, and what that costs.
section_deterministic() {
    local deterministic example time line outcome first second failed=0
    for deterministic in false true; do
        for example in gpt-bytes resnet20-synthetic; do
            first='' second=''
            for time in first second; do
                line=$(run_example train "$example" --backend "$BACKEND" --set mesh.data="$(num_devices)" \
                    --set compile.deterministic=$deterministic --set train.steps="$num_steps") || { failed=1; continue 2; }
                printf -v "$time" %s "$(field params_fingerprint <<< "$line")"
            done
            [ "$first" = "$second" ] && outcome=equal || outcome=different
            record deterministic "$deterministic: two runs of $example are" "$outcome"
            [ $deterministic,$outcome != true,different ] || failed=1
        done
    done
    time_gpt2 deterministic "compile.deterministic on 1 device" --set mesh.data=1 --set compile.deterministic=true || failed=1
    return $failed
}

section_collectives() {
    local example count line failed=0
    for example in $examples; do
        for count in 1 "$(num_devices)"; do
            # Start-up is not measured here: what has been compiled before need not be compiled again.
            if ! line=$(run_example bench "$example" --backend "$BACKEND" --set mesh.data="$count" --steps "$bench_steps" \
                --warm); then
                failed=1
                continue
            fi
            echo "$line"
            record collectives "$example on $count: step, ms" "$(field median_step_ms <<< "$line")"
            record collectives "$example on $count: without collectives, ms" "$(field compute_only_ms <<< "$line")"
            [ "$(num_devices)" -gt 1 ] || break
        done
    done
    return $failed
}

# The losses should agree to the roundings of bf16.
section_attention() {
    local kernels line failed=0
    for kernels in xla all; do
        line=$(run_example train gpt-bytes --backend "$BACKEND" --set mesh.data="$(num_devices)" --set train.precision=bf16 \
            --set compile.kernels=$kernels --set train.steps="$num_steps") || { failed=1; continue; }
        echo "$line"
        record attention "compile.kernels = $kernels: loss after $num_steps steps" "$(field final_loss <<< "$line")"
        line=$(run_example bench gpt-bytes --backend "$BACKEND" --set mesh.data=1 --set train.precision=bf16 \
            --set compile.kernels=$kernels --steps "$bench_steps") || { failed=1; continue; }
        echo "$line"
        record attention "compile.kernels = $kernels: step on 1 device, ms" "$(field median_step_ms <<< "$line")"
    done
    return $failed
}

# Nothing can be measured: says why.
give_up() {
    echo "$1" | tee -a "$RESULTS/summary.txt" >&2
    exit 2
}

if [ "${1:-}" = --section ]; then
    "section_$2"
    exit
fi

if [ "${1:-}" = losses ]; then
    folder=${2:?usage: benches/gpu.sh losses FOLDER}
    mkdir -p "$folder" || exit 2
    for example in $examples; do
        echo "$example on the CPU, $num_steps steps"
        cpu_losses "$example" "$num_steps" "$folder/$(losses_file "$example")" || exit 1
    done
    exit 0
fi

rm -f "$RESULTS"/{summary.txt,results.jsonl,losses.jsonl,doctor.json,log.txt}
command -v python3 > /dev/null || give_up "no python3 here, which reads the results"
if [ "$BACKEND" = cuda ]; then
    gpus=$(nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU')
    [ "${gpus:-0}" -gt 0 ] || give_up "no GPU here: nvidia-smi lists none (BACKEND=cpu tries this script without one)"
fi
if ! [ -x "$LOCKSTEP" ]; then
    command -v cargo > /dev/null || give_up "no program at $LOCKSTEP, and no cargo to build it: set LOCKSTEP"
    cargo build --release >&2 || give_up "the program could not be built"
fi
"$LOCKSTEP" --version > /dev/null || give_up "$LOCKSTEP does not run on this machine"
if ! has_plugin "$BACKEND"; then
    timeout 240 "$LOCKSTEP" plugin install "$BACKEND" >&2 ||
        give_up "no $BACKEND plugin here, and pip could not fetch it: see docs/gpu.md"
fi

began=$SECONDS failures=0
while read -r name budget what; do
    case " ${SECTIONS:-$name} " in *" $name "*) ;; *) continue ;; esac
    budget=$((budget * budget_factor)) left=$((LIMIT - (SECONDS - began)))
    [ "$budget" -le "$left" ] || budget=$left
    echo "== $name: $what" | tee -a "$RESULTS/summary.txt" "$RESULTS/log.txt"
    if [ "$budget" -lt 10 ]; then
        echo "    skipped: no time is left" | tee -a "$RESULTS/summary.txt"
        failures=$((failures + 1))
        continue
    fi
    before=$SECONDS
    # Workers and everything else that a section has started end with it.
    timeout --kill-after=3 "$((budget - 3))" bash "$self" --section "$name" < /dev/null >> "$RESULTS/log.txt" 2>&1
    code=$?
    case $code in
        0) how="done" ;;
        124 | 137) how="stopped after its limit of $budget s" ;;
        *) how="failed with exit code $code: $(grep -v '^{' "$RESULTS/log.txt" | grep . | tail -1 | cut -c1-300)" ;;
    esac
    [ $code -eq 0 ] || failures=$((failures + 1))
    echo "    $how, $((SECONDS - before)) s" | tee -a "$RESULTS/summary.txt"
done < <(sections)
echo "$failures sections failed or were skipped; $((SECONDS - began)) s in all; results are in $RESULTS" |
    tee -a "$RESULTS/summary.txt"
[ $failures -eq 0 ]
