"""Times training steps of Lockstep, JAX and PyTorch in turns, on the same models, batches and optimizers, and prints tables.

    cargo build --release
    python3 -m venv peers-env && peers-env/bin/pip install -r benches/peers/requirements.txt
    python3 benches/beside_peers.py --python peers-env/bin/python

Each program runs in its own process, one at a time. A step is timed from the batch in host memory until the new state is complete. Start
to first step begins before the process is started (of Lockstep in its `main`, about 10 ms later), with an empty compile cache (cold) or that of
an earlier run (warm; PyTorch compiles nothing). A round runs each program once cold and once warm. Figures are medians over these runs, with
the least and the greatest; ratios are those of programs of the same round and cache. Memory is the largest resident size of a process, with
all that it compiles; of PyTorch's processes it is the sum, in which the pages of libraries that they share are counted in each.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time

# Examples of a step.
BATCH = {"mlp": 1024, "gpt": 8, "gpt1024": 2, "gpt2": 1, "encoder": 16, "resnet20": 128, "resnet50": 8}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--python", default="python3", help="a Python with benches/peers/requirements.txt installed")
parser.add_argument("--lockstep", default="target/release/lockstep", help="the binary")
parser.add_argument("--models", default="mlp,gpt,encoder,resnet20", help=f"some of {','.join(BATCH)}")
parser.add_argument("--replicas", default="1,2,4", help="numbers of replicas; PyTorch has as many processes")
parser.add_argument("--kernels", default="auto", help="compile.kernels of Lockstep")
parser.add_argument("--rounds", type=int, default=3, help="at least 3")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--quick", action="store_true", help="allow fewer rounds, to see that everything runs")
parser.add_argument("--memory-gib", type=float, default=20, help="a program that needs more is ended, and its row left out")
args = parser.parse_args()
models, replicas = args.models.split(","), [int(count) for count in args.replicas.split(",")]
if unknown := set(models) - set(BATCH):
    parser.error(f"--models: there is no {', '.join(sorted(unknown))}; there are {', '.join(BATCH)}")
if any(count < 1 for count in replicas):
    parser.error("--replicas: numbers from 1")
if args.rounds < (1 if args.quick else 3) or args.steps < 1:
    parser.error("--rounds: fewer than 3 say nothing about how much figures vary; --quick allows 1. --steps: at least 1")

root = pathlib.Path(__file__).resolve().parent.parent
cache = tempfile.TemporaryDirectory()
texts = pathlib.Path(cache.name) / "texts.tsv"


def output_of(command):
    return subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class NeedsMemory(Exception):
    """A program needs more than --memory-gib."""


def resident_bytes(group):
    """Of all processes of the group; where there is no /proc, 0."""
    pages = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which may have spaces: state, parent, group.
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int((status.parent / "statm").read_text().split()[1])
        except OSError:
            # It ended.
            pass
    return pages * os.sysconf("SC_PAGE_SIZE")


def run(command):
    """Median step in ms, seconds to the first step, and memory in MB."""
    command = [str(part) for part in command]
    process = subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    ended, too_large = threading.Event(), threading.Event()

    def watch():
        while not ended.wait(1):
            if resident_bytes(process.pid) > args.memory_gib * 2**30:
                too_large.set()
                os.killpg(process.pid, signal.SIGKILL)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output = process.stdout.read()
    except KeyboardInterrupt:
        # It has a session of its own, and would go on.
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        ended.set()
        watcher.join()
    _, status, usage = os.wait4(process.pid, 0)
    if too_large.is_set():
        raise NeedsMemory(pathlib.Path(command[0]).name)
    if status:
        raise SystemExit(f"{' '.join(command)}: failed")
    result = json.loads(output.strip().splitlines()[-1])
    return result["median_step_ms"], result["first_step_secs"], result.get("peak_rss_mb", usage.ru_maxrss / 1024)


def write_texts(path):
    """As many texts as a few epochs of steps need, of 64 to 128 tokens with [CLS] and [SEP], which are words of the vocabulary."""
    draw = random.Random(0)
    words = (root / "examples/sentiment/model/vocab.txt").read_text().split()
    words = [word for word in words if word.isalpha()]
    rows = ("{}\t{}".format(" ".join(draw.choices(words, k=draw.randint(62, 126))), draw.randint(0, 1)) for _ in range(1024))
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")


def lockstep(model, replicas, warm):
    command = [args.lockstep, "bench", f"benches/{model}.toml", "--steps", args.steps, "--json", "--set", f"mesh.data={replicas}"]
    command += ["--set", f'compile.kernels="{args.kernels}"']
    if model.startswith("resnet"):
        # All examples of a replica, as in the peers.
        command += ["--set", f"model.batch_norm_group={BATCH[model] // replicas}"]
    if model == "encoder":
        command += ["--set", f'data.path="{texts}"']
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


def compare(model, count):
    """A row of the table."""
    if BATCH[model] % count:
        return f"| {model} | {count} | skipped: {count} replicas do not divide a batch of {BATCH[model]} |"
    steps, cold, warm, memory = ({name: [] for name in programs} for _ in range(4))
    try:
        for program in programs.values():
            # Fills the caches.
            program(model, count, True)
        for _ in range(args.rounds):
            for is_warm in (False, True):
                for name, program in programs.items():
                    step, first, resident = program(model, count, is_warm)
                    steps[name].append(step)
                    (warm if is_warm else cold)[name].append(first)
                    memory[name].append(resident)
    except NeedsMemory as program:
        return f"| {model} | {count} | skipped: {program} needs more than {args.memory_gib:g} GiB |"
    ratios = {name: [ours / theirs for ours, theirs in zip(steps["Lockstep"], steps[name])] for name in programs}
    starts = (", ".join(f"{statistics.median(kind[name]):.2f}" for name in ("Lockstep", "JAX")) for kind in (cold, warm))
    largest = ", ".join(f"{max(values):.0f}" for values in memory.values())
    return (
        f"| {model} | {count} | {' | '.join(interval(values, 1) for values in steps.values())} "
        f"| {interval(ratios['JAX'], 2)} | {interval(ratios['PyTorch'], 2)} | {largest} | {' | '.join(starts)} |"
    )


programs = {
    "Lockstep": lockstep,
    "JAX": peer("jax_steps.py", "--cache", cache.name),
    "PyTorch": peer("torch_steps.py"),
}
versions = "import jax, torch; print('JAX', jax.__version__ + ', PyTorch', torch.__version__)"
processors = len(os.sched_getaffinity(0))
threads = ", ".join(f"{max(1, processors // count)} each with {count}" for count in replicas)
print(f"{processor()}; {processors} processors. Lockstep and JAX use all of them; threads of PyTorch's processes: {threads}.")
print(f"{output_of([args.lockstep, '--version'])}, {output_of([args.python, '-c', versions])}; {args.rounds} rounds of 2 runs of {args.steps} steps.\n")
print("| model | replicas | Lockstep, ms | JAX, ms | PyTorch, ms | to JAX | to PyTorch | memory, MB: Lockstep, JAX, PyTorch | cold start, s: Lockstep, JAX | warm start |")
print("|---|---|---|---|---|---|---|---|---|---|")
write_texts(texts)
for model in models:
    for count in replicas:
        print(compare(model, count), flush=True)
