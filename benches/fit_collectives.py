"""The cost of a collective on this machine, from step times: alpha (ms for each) and beta (ms for each MB that a replica sends).

    cargo build --release
    python benches/fit_collectives.py examples/distilbert-sst2.toml [--replicas 2] [--rounds 3] [--steps 30] [--set key=value]...

Runs `lockstep bench` with gradients reduced in buckets of several sizes, replicated and in stage 3 of ZeRO, in turns. Of each
run it takes the difference between the step and the same step without collectives; from `lockstep hlo` it takes the number
of collectives and the bytes that a replica sends. Then it fits `difference = alpha * number + beta * bytes` by least squares
over all of them and prints what the fit leaves unexplained. Needs nothing but Python.
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
from pathlib import Path

LOCKSTEP = Path(__file__).parents[1] / "target/release/lockstep"
BUCKETS = [0, 1 << 14, 1 << 17, 1 << 20, 1 << 30]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter"]


def run(command, config, sets, *more):
    sets = [word for one in sets for word in ("--set", one)]
    done = subprocess.run([LOCKSTEP, command, config, *more, *sets], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def collectives(config, sets):
    """How many there are in a step, and the MB that a replica sends: listed for sharded state, counted for replicated."""
    text = run("hlo", config, sets, "--stage", "step")
    listed = re.findall(r"^// .*: (\d+) per step, \d+ bytes, (\d+) sent by each replica$", text, re.M)
    if listed:
        return sum(int(count) for count, _ in listed), sum(int(sent) for _, sent in listed) / 1e6
    replicas = int(re.search(r"num_replicas = (\d+)", text).group(1))
    sizes = {"f32": 4, "bf16": 2, "f64": 8}
    number, sent = 0, 0
    for types in re.findall(r'"stablehlo\.all_reduce".*? : \(([^)]*)\) -> ', text):
        number += 1
        for dims, dtype in re.findall(r"tensor<((?:\d+x)*)(\w+)>", types):
            sent += 2 * (replicas - 1) / replicas * sizes.get(dtype, 4) * math.prod(int(dim) for dim in dims.split("x")[:-1])
    return number, sent / 1e6


def fit(points):
    """alpha and beta of `y = alpha * n + beta * b`."""
    nn = sum(n * n for n, _, _ in points)
    nb = sum(n * b for n, b, _ in points)
    bb = sum(b * b for _, b, _ in points)
    ny = sum(n * y for n, _, y in points)
    by = sum(b * y for _, b, y in points)
    determinant = nn * bb - nb * nb
    return (ny * bb - by * nb) / determinant, (by * nn - ny * nb) / determinant


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    modes = {"replicated": [f"mesh.data={args.replicas}", "mesh.fsdp=1"],
             "zero 3": ["mesh.data=1", f"mesh.fsdp={args.replicas}", "parallel.zero=3"]}
    cases = [(mode, bucket, [*args.set, *sets, f"parallel.bucket_bytes={bucket}"])
             for mode, sets in modes.items() for bucket in BUCKETS]
    known = {(mode, bucket): collectives(args.config, sets) for mode, bucket, sets in cases}
    times = {}
    for _ in range(args.rounds):
        for mode, bucket, sets in cases:
            result = json.loads(run("bench", args.config, sets, "--json", "--steps", str(args.steps)))
            times.setdefault((mode, bucket), []).append((result["median_step_ms"], result["compute_only_ms"]))
    points = []
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.processor())
    print(f"{processor}, {os.cpu_count()} processors, {args.replicas} replicas, {args.rounds} rounds of {args.steps} steps")
    print(f"{'mode':12} {'bucket':>10} {'number':>7} {'MB sent':>8} {'step ms':>8} {'compute':>8} {'difference':>10} {'fit':>7}")
    for case, pairs in times.items():
        number, sent = known[case]
        points.append((number, sent, statistics.median(step - compute for step, compute in pairs)))
    alpha, beta = fit(points)
    for (case, pairs), (number, sent, difference) in zip(times.items(), points):
        step, compute = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        print(f"{case[0]:12} {case[1]:10} {number:7} {sent:8.2f} {step:8.2f} {compute:8.2f} {difference:10.2f} "
              f"{alpha * number + beta * sent:7.2f}")
    left = statistics.median(abs(y - alpha * n - beta * b) for n, b, y in points)
    print(f"alpha {alpha:.4f} ms for each collective, beta {beta:.4f} ms for each MB; "
          f"half of the differences are within {left:.2f} ms of the fit")


main()
