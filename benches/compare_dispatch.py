"""Runs the dispatch benchmark and its JAX peer alternately and prints the ratio of their medians."""

import argparse
import json
import pathlib
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--jax-python", default="python3", help="a Python with jax installed")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=2000)
args = parser.parse_args()

root = pathlib.Path(__file__).resolve().parent.parent
cargo = ["cargo", "bench", "--quiet", "--bench", "dispatch", "--"]
peer = [args.jax_python, str(root / "benches/peers/dispatch_jax.py")]


def median_us(command, replicas):
    command = command + ["--replicas", str(replicas), "--steps", str(args.steps)]
    output = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.strip().splitlines()[-1])["median_us"]


for replicas in (1, 2):
    times = {"lockstep": [], "jax, all": [], "jax, one": []}
    for _ in range(args.rounds):
        times["lockstep"].append(median_us(cargo, replicas))
        times["jax, all"].append(median_us(peer + ["--wait", "all"], replicas))
        times["jax, one"].append(median_us(peer + ["--wait", "one"], replicas))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["lockstep"] / min(medians["jax, all"], medians["jax, one"])
    print(
        f"{replicas} replicas: lockstep {medians['lockstep']:.0f} us, jax {medians['jax, all']:.0f} us waiting for all, "
        f"{medians['jax, one']:.0f} us for one; ratio to the faster {ratio:.2f}"
    )
