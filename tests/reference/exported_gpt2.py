"""A GPT that Lockstep has trained, exported for Hugging Face's transformers, and compared there.

    python exported_gpt2.py               # builds what it runs
    python exported_gpt2.py --built DIR   # or takes it from target/debug or target/release

1. trains examples/gpt-bytes.toml for 40 steps, sharded over two replicas, with scanned blocks and running means of the parameters
2. reads a shard of its checkpoint with the Python package safetensors, puts the pieces together by the manifest, and
   compares the means with params.safetensors, bit for bit
3. exports the checkpoint with `--format huggingface`, loads the folder with `AutoModelForCausalLM.from_pretrained`, and compares
   parameters bit for bit and logits within rounding (`--example logits`, f32 on the CPU plugin)
4. starts runs of one step from params.safetensors, from the folder, and from the folder as transformers saves it again (in
   several files): they end with the same bits

Last run with Python 3.11.7, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, numpy 2.4.6 on x86-64:
52 parameters of the shard are equal; 842,496 parameters, logits up to 5.24, largest difference 4.7e-6 (with another rate, 1.3e-5 of 4.95);
the folder, and the 4 files that transformers makes of it, are imported bit for bit.
"""

import json
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import drawn

ROOT = pathlib.Path(__file__).parent.parent.parent
if "--built" in sys.argv:
    BUILT = pathlib.Path(sys.argv[sys.argv.index("--built") + 1]).resolve()
else:
    BUILT = ROOT / "target/debug"
    subprocess.run(["cargo", "build", "--bin", "lockstep", "--example", "logits"], cwd=ROOT, check=True)
CONFIG = "examples/gpt-bytes.toml"
SETS = ["train.eval_every=0", "schedule.warmup_steps=1", "mesh.data=1", "mesh.fsdp=2", "model.scan_layers=true",
        "optimizer.ema_decay=0.9"]
SETS = [argument for key in SETS for argument in ("--set", key)]


def run_built(program, *arguments):
    subprocess.run([BUILT / program, *arguments], cwd=ROOT, check=True)


def train(steps, out, *more):
    run_built("lockstep", "train", CONFIG, *SETS, "--set", f"train.steps={steps}", "--out", out, *more)
    return load_file(out / "params.safetensors")


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def leaf(checkpoint, manifest, path):
    """A whole leaf of the state, from its pieces."""
    record = next(leaf for leaf in manifest["leaves"] if leaf["path"] == path)
    whole = np.full(record["dims"], np.nan, np.float32)
    for piece in record["pieces"]:
        with safe_open(checkpoint / manifest["files"][piece["file"]]["name"], "numpy") as shard:
            values = shard.get_tensor(piece["tensor"])
        whole[tuple(slice(start, start + dim) for start, dim in zip(piece["start"], piece["dims"]))] = values
    return whole


def compare_shard(checkpoint, params):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    paths = [leaf["path"] for leaf in manifest["leaves"]]
    prefix = next(path for path in paths if path.endswith("embed.weight") and "ema" in path)[:-len("embed.weight")]
    count = 0
    for path in (path for path in paths if path.startswith(prefix)):
        whole, name = leaf(checkpoint, manifest, path), path[len(prefix):]
        rows = {name.replace("*", str(index)): row for index, row in enumerate(whole)} if "*" in name else {name: whole}
        for name, row in rows.items():
            assert same(row, params[name]), name
            count += 1
    assert count == len(params), (count, len(params))
    return count


def compare_logits(work, run, folder, params):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert type(model) is transformers.GPT2LMHeadModel and model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert same(model.transformer.h[1].mlp.c_fc.weight.detach().numpy().T.copy(), params["blocks.1.mlp.up.weight"])
    tokens = drawn.integers("tokens", model.config.vocab_size, 4, model.config.n_positions)
    save_file({"x": tokens.astype(np.int32)}, work / "in.safetensors")
    run_built("examples/logits", run / "config.resolved.toml", run, work / "in.safetensors", work / "out.safetensors")
    got = load_file(work / "out.safetensors")["logits"]
    with torch.no_grad():
        expected = model.eval()(torch.tensor(tokens)).logits.numpy().reshape(got.shape)
    return model, np.abs(got - expected).max(), np.abs(expected).max()


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    run, folder, again = work / "run", work / "folder", work / "again"
    params = train(40, run)
    count = compare_shard(next((run / "checkpoints").iterdir()), params)
    print(f"{count} parameters of a shard are equal to params.safetensors")
    run_built("lockstep", "checkpoint", "export", run / "checkpoints", "--to", folder, "--format", "huggingface")
    model, difference, largest = compare_logits(work, run, folder, params)
    print(f"{sum(param.numel() for param in model.parameters())} parameters; logits to {largest:.3f}, largest difference {difference:.3g}")
    model.save_pretrained(again, max_shard_size="1MB")
    num_files = len(list(again.glob("model-*.safetensors")))
    assert num_files > 1
    ends = {path: train(1, work / f"from-{path.name}", "--init", path) for path in (run / "params.safetensors", folder, again)}
    first, *others = ends.values()
    for end in others:
        assert all(same(end[name], value) for name, value in first.items()) and len(end) == len(first)
    print(f"--init takes the folder, and the {num_files} files that transformers makes of it, bit for bit")
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps(versions))
    sys.exit(0 if difference <= 1e-5 * largest else 1)
