"""Times training steps of Lockstep, JAX and PyTorch in turns, on the same models, batches and optimizers, and prints tables.

    cargo build --release
    python3 -m venv peers-env && peers-env/bin/pip install -r benches/peers/requirements.txt
    python3 benches/beside_peers.py --python peers-env/bin/python

Each program runs in its own process, one at a time. A step is timed from the batch in host memory until the new state is complete. Start
to first step begins before the process is started, with an empty compile cache (cold) or that of an earlier run (warm; PyTorch compiles
nothing). Figures are medians over rounds, with the least and the greatest; ratios are those of programs of the same round. Memory is the
largest resident size of a process, with all that it compiles.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

MODELS = ["mlp", "gpt", "gpt1024", "gpt2", "resnet20"]
SMALLEST_BATCH = {"gpt1024": 2, "gpt2": 1}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--python", default="python3", help="a Python with benches/peers/requirements.txt installed")
parser.add_argument("--lockstep", default="target/release/lockstep", help="the binary")
parser.add_argument("--models", default="mlp,gpt,resnet20", help=f"some of {','.join(MODELS)}")
parser.add_argument("--replicas", default="1,2", help="numbers of replicas; PyTorch has as many processes")
parser.add_argument("--kernels", default="auto", help="compile.kernels of Lockstep")
parser.add_argument("--rounds", type=int, default=3, help="at least 3")
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
models, replicas = args.models.split(","), [int(count) for count in args.replicas.split(",")]
if unknown := set(models) - set(MODELS):
    parser.error(f"--models: there is no {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
if args.rounds < 3:
    parser.error("--rounds: fewer than 3 say nothing about how much figures vary")

root = pathlib.Path(__file__).resolve().parent.parent
cache = tempfile.TemporaryDirectory()


def output_of(command):
    return subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run(command):
    process = subprocess.Popen([str(part) for part in command], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, command))}: failed")
    result = json.loads(output.strip().splitlines()[-1])
    return result["median_step_ms"], result["first_step_secs"], usage.ru_maxrss / 1024


def lockstep(model, replicas, warm):
    command = [args.lockstep, "bench", f"benches/{model}.toml", "--steps", args.steps, "--json", "--set", f"mesh.data={replicas}"]
    command += ["--set", f'compile.kernels="{args.kernels}"']
    if model == "resnet20":
        # All examples of a replica, as in the peers.
        command += ["--set", f"model.batch_norm_group={128 // replicas}"]
    return run(command + ["--warm"] * warm)


def peer(script, *more):
    def timed(model, replicas, warm):
        command = [args.python, f"benches/peers/{script}", "--model", model, "--replicas", replicas, "--steps", args.steps]
        return run(command + (list(more) if warm else []) + ["--started", time.time()])

    return timed


def interval(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def processor():
    try:
        lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    name = fields.get("model name", platform.machine())
    return f"{name}, family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


programs = {
    "Lockstep": lockstep,
    "JAX": peer("jax_steps.py", "--cache", cache.name),
    "PyTorch": peer("torch_steps.py"),
}
versions = "import jax, torch; print('JAX', jax.__version__ + ', PyTorch', torch.__version__)"
print(f"{processor()}; {os.cpu_count()} processors, all used by each program; PyTorch has {os.cpu_count()} threads over all processes.")
print(f"{output_of([args.lockstep, '--version'])}, {output_of([args.python, '-c', versions])}; {args.rounds} rounds of {args.steps} steps.\n")
print("| model | replicas | Lockstep, ms | JAX, ms | PyTorch, ms | to JAX | to PyTorch | memory, MB: Lockstep, JAX, PyTorch | cold start, s: Lockstep, JAX | warm start |")
print("|---|---|---|---|---|---|---|---|---|---|")
for model in models:
    for count in replicas:
        if count > SMALLEST_BATCH.get(model, count):
            print(f"| {model} | {count} | more replicas than examples |")
            continue
        steps, cold, warm, memory = ({name: [] for name in programs} for _ in range(4))
        for turn in range(args.rounds):
            if not turn:
                # Fills the caches.
                for program in programs.values():
                    program(model, count, True)
            for is_warm in (False, True):
                for name, program in programs.items():
                    step, first, resident = program(model, count, is_warm)
                    steps[name].append(step)
                    (warm if is_warm else cold)[name].append(first)
                    memory[name].append(resident)
        ratios = {name: [ours / theirs for ours, theirs in zip(steps["Lockstep"], steps[name])] for name in programs}
        starts = (", ".join(f"{statistics.median(kind[name]):.2f}" for name in ("Lockstep", "JAX")) for kind in (cold, warm))
        largest = ", ".join(f"{max(values):.0f}" for values in memory.values())
        print(
            f"| {model} | {count} | {' | '.join(interval(values, 1) for values in steps.values())} "
            f"| {interval(ratios['JAX'], 2)} | {interval(ratios['PyTorch'], 2)} | {largest} | {' | '.join(starts)} |",
            flush=True,
        )
