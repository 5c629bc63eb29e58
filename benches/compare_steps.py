"""Times training steps of Lockstep, JAX and PyTorch alternately, on the same models, batches and optimizers, and prints a table.

    cargo build --release
    python3 -m venv peers-env && peers-env/bin/pip install -r benches/peers/requirements.txt
    python3 benches/compare_steps.py --python peers-env/bin/python

Each program runs in its own process, one at a time. A step is timed from the batch in host memory until the new state is complete. Start
to first step begins before the process is started, with an empty compile cache (cold) or that of an earlier run (warm; PyTorch compiles
nothing).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--python", default="python3", help="a Python with benches/peers/requirements.txt installed")
parser.add_argument("--lockstep", default="target/release/lockstep", help="the binary")
parser.add_argument("--models", default="mlp,gpt,resnet20")
parser.add_argument("--replicas", default="1,2")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()

root = pathlib.Path(__file__).resolve().parent.parent
cache = tempfile.TemporaryDirectory()


def run(command):
    command = [str(part) for part in command]
    output = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    result = json.loads(output.strip().splitlines()[-1])
    return result["median_step_ms"], result["first_step_secs"]


def lockstep(model, replicas, warm):
    command = [args.lockstep, "bench", f"benches/{model}.toml", "--steps", args.steps, "--json", "--set", f"mesh.data={replicas}"]
    if model == "resnet20":
        # All examples of a replica, as in the peers.
        command += ["--set", f"model.batch_norm_group={128 // replicas}"]
    return run(command + ["--warm"] * warm)


def peer(script, *more):
    def timed(model, replicas, warm):
        command = [args.python, f"benches/peers/{script}", "--model", model, "--replicas", replicas, "--steps", args.steps]
        return run(command + (list(more) if warm else []) + ["--started", time.time()])

    return timed


programs = {
    "lockstep": lockstep,
    "jax": peer("jax_steps.py", "--cache", cache.name),
    "torch": peer("torch_steps.py"),
}
print("| model | replicas | Lockstep | JAX | PyTorch | ratio to JAX | ratio to PyTorch | first step, cold | JAX | first step, warm | JAX |")
print("|---|---|---|---|---|---|---|---|---|---|---|")
for model in args.models.split(","):
    for replicas in map(int, args.replicas.split(",")):
        steps, cold, warm = ({name: [] for name in programs} for _ in range(3))
        for turn in range(args.rounds):
            for name, program in programs.items():
                # The first warm run fills the cache.
                for is_warm in (False, True) if turn else (False, True, True):
                    step, first = program(model, replicas, is_warm)
                    steps[name].append(step)
                    (warm if is_warm else cold)[name].append(first)
        step, cold = ({name: statistics.median(values) for name, values in kind.items()} for kind in (steps, cold))
        warm = {name: statistics.median(values[1:]) for name, values in warm.items()}
        print(
            f"| {model} | {replicas} | {step['lockstep']:.1f} ms | {step['jax']:.1f} ms | {step['torch']:.1f} ms "
            f"| {step['lockstep'] / step['jax']:.2f} | {step['lockstep'] / step['torch']:.2f} "
            f"| {cold['lockstep']:.2f} s | {cold['jax']:.2f} s | {warm['lockstep']:.2f} s | {warm['jax']:.2f} s |",
            flush=True,
        )
