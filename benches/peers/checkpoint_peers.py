"""Saves and restores the same bytes with cp, Orbax, PyTorch DCP and Lockstep, alternately in one run, and prints a table.

    python3 -m venv peers-env && peers-env/bin/pip install -r benches/peers/requirements.txt
    peers-env/bin/python benches/peers/checkpoint_peers.py --dir PATH_ON_A_DISK

The state is that of AdamW for a GPT in f32: parameters and two moments, 1.5 GB for gpt2-124m. Each program runs in its own process, one at
a time, and removes its files. A save counts when its bytes are on the disk: `sync` follows those of Orbax and DCP, which do not wait for
the disk, and is part of their time; cp is followed by fsync. `blocked` is how long a training loop waits for an asynchronous save;
Lockstep's is the copy of the state in host memory. Orbax and DCP save and restore once to warm up. A restore reads files that are in the page cache.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# The last one counts: the first ones also start threads and load code.
TURNS = 2
PRESETS = {"gpt-bytes": (4, 128, 256, 128), "gpt2-124m": (12, 768, 50257, 1024)}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", default=".", help="a directory on the disk to measure")
parser.add_argument("--preset", default="gpt2-124m", choices=PRESETS)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--program", choices=["cp", "orbax", "dcp"], help=argparse.SUPPRESS)
args = parser.parse_args()


def shapes(layers, width, vocabulary, context):
    """The dims of each parameter."""
    found = {"embed.weight": (vocabulary, width), "position.weight": (context, width)}
    for block in range(layers):
        sizes = {"attn.qkv": (3 * width, width), "attn.out": (width, width), "mlp.up": (4 * width, width), "mlp.down": (width, 4 * width)}
        for name, dims in sizes.items():
            found |= {f"blocks.{block}.{name}.weight": dims, f"blocks.{block}.{name}.bias": dims[:1]}
        for name in ("norm1", "norm2"):
            found |= {f"blocks.{block}.{name}.weight": (width,), f"blocks.{block}.{name}.bias": (width,)}
    return found | {"norm.weight": (width,), "norm.bias": (width,)}


def state():
    import numpy as np

    random = np.random.default_rng(0)
    params = shapes(*PRESETS[args.preset])
    kinds = ("params", "mean", "variance")
    return {f"{kind}.{path}": random.standard_normal(dims, np.float32) for kind in kinds for path, dims in params.items()}


def millis(run):
    started = time.perf_counter()
    result = run()
    return (time.perf_counter() - started) * 1e3, result


def synced(run):
    def both():
        run()
        os.sync()

    # Whatever else is not on the disk yet is not theirs.
    os.sync()
    return millis(both)[0]


def measure_cp(work):
    source, target = work / "source", work / "target"
    leaves = state()
    with open(source, "wb") as file:
        for value in leaves.values():
            file.write(value)
    num_bytes = source.stat().st_size
    os.sync()
    save = millis(lambda: subprocess.run(["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"], check=True))[0]
    target.unlink()

    def copy():
        shutil.copyfile(source, target)
        with open(target, "rb+") as file:
            os.fsync(file)

    cp = millis(copy)[0]
    restore = millis(target.read_bytes)[0]
    return {"num_bytes": num_bytes, "dd_ms": save, "save_ms": cp, "restore_ms": restore}


def measure_orbax(work):
    import jax
    import orbax.checkpoint as ocp

    jax.config.update("jax_platforms", "cpu")
    tree = {path: jax.device_put(value) for path, value in state().items()}
    jax.block_until_ready(tree)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for turn in range(TURNS):
            path = work / f"sync{turn}"
            save = synced(lambda: checkpointer.save(path, tree))
            restore, found = millis(lambda: jax.block_until_ready(checkpointer.restore(path)))
            check(tree, found)
            shutil.rmtree(path)
    with ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for turn in range(TURNS):
            path = work / f"async{turn}"
            blocked = millis(lambda: checkpointer.save(path, tree))[0]
            checkpointer.wait_until_finished()
            shutil.rmtree(path)
    return {"num_bytes": num_bytes(tree), "save_ms": save, "restore_ms": restore, "blocked_ms": blocked}


def measure_dcp(work):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + os.getpid() % 1000))
    # Asynchronous saves need a process group.
    dist.init_process_group("gloo", rank=0, world_size=1)
    tree = {path: torch.from_numpy(value) for path, value in state().items()}
    found = {path: torch.zeros_like(value) for path, value in tree.items()}
    for turn in range(TURNS):
        path = work / f"sync{turn}"
        save = synced(lambda: dcp.save(tree, checkpoint_id=path))
        restore = millis(lambda: dcp.load(found, checkpoint_id=path))[0]
        check(tree, found)
        shutil.rmtree(path)
    for turn in range(TURNS):
        path = work / f"async{turn}"
        blocked, future = millis(lambda: dcp.async_save(tree, checkpoint_id=path))
        future.result()
        shutil.rmtree(path)
    dist.destroy_process_group()
    return {"num_bytes": num_bytes(tree), "save_ms": save, "restore_ms": restore, "blocked_ms": blocked}


def num_bytes(tree):
    return sum(value.nbytes for value in tree.values())


def check(saved, restored):
    import numpy as np

    assert saved.keys() == restored.keys()
    assert all(np.array_equal(value, restored[path]) for path, value in saved.items())


if args.program:
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        measured = {"cp": measure_cp, "orbax": measure_orbax, "dcp": measure_dcp}[args.program](pathlib.Path(work).resolve())
    print(json.dumps(measured))
    sys.exit()

root = pathlib.Path(__file__).resolve().parent.parent.parent
place = ["--dir", str(pathlib.Path(args.dir).resolve()), "--preset", args.preset]
commands = {name: [sys.executable, __file__, "--program", name, *place] for name in ("cp", "orbax", "dcp")}
commands["lockstep"] = ["cargo", "bench", "--quiet", "--bench", "checkpoints", "--", *place]
results = {name: [] for name in commands}
for _ in range(args.rounds):
    for name, command in commands.items():
        output = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[name].append(json.loads(output.strip().splitlines()[-1]))


def median(name, key):
    return statistics.median(result[key] for result in results[name])


sizes = {result["num_bytes"] for rounds in results.values() for result in rounds}
assert len(sizes) == 1, f"the programs saved different states: {sizes}"
print(f"{sizes.pop() / 1e9:.3f} GB, medians of {args.rounds} rounds (and all rounds), ms")
print(f"| | save | restore | blocked |\n|---|---|---|---|\n| dd conv=fsync | {median('cp', 'dd_ms'):.0f} | | |")
blocked = {"orbax": "blocked_ms", "dcp": "blocked_ms", "lockstep": "copy_ms"}
for name, title in {"cp": "cp, fsync; read", "orbax": "Orbax", "dcp": "PyTorch DCP", "lockstep": "Lockstep"}.items():
    keys = ["save_ms", "restore_ms"] + ([blocked[name]] if name in blocked else [])
    cells = [f"{median(name, key):.0f} ({', '.join(f'{result[key]:.0f}' for result in results[name])})" for key in keys]
    print(f"| {title} | {' | '.join(cells + [''] * (3 - len(cells)))} |")
fastest = {key: min(median(name, key) for name in ("orbax", "dcp")) for key in ("save_ms", "restore_ms", "blocked_ms")}
print(f"Lockstep: memcpy {median('lockstep', 'memcpy_ms'):.0f}, verify {median('lockstep', 'verify_ms'):.0f}; save {median('lockstep', 'save_ms') / fastest['save_ms']:.2f}, "
      f"restore {median('lockstep', 'restore_ms') / fastest['restore_ms']:.2f} and blocked {median('lockstep', 'copy_ms') / fastest['blocked_ms']:.2f} of the faster of Orbax and DCP")
