"""A randomly initialised Hugging Face GPT-2 as a checkpoint, and its logits.

    python gpt2_hf.py          # a tiny one: writes the folder gpt2_hf and gpt2_hf.json, which checkpoints.rs reads
    python gpt2_hf.py --full   # GPT-2 124M, beside `cargo run --example logits`; prints the largest difference

Made with Python 3.11.7, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0 on x86-64. Biases
and scales, which start as zeros and ones, are made random too.
"""

import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

import drawn

HERE = pathlib.Path(__file__).parent


def make(config):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.02 * torch.randn_like(param))
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def tiny():
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=24, vocab_size=96)
    model = make(config)
    tokens = drawn.integers("tokens", config.vocab_size, 2, 10)
    model.save_pretrained(HERE / "gpt2_hf")
    (HERE / "gpt2_hf/generation_config.json").unlink()
    drawn.write(__file__, {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "transformers": transformers.__version__},
        "model": {"num_layers": config.n_layer, "width": config.n_embd, "num_heads": config.n_head,
                  "context": config.n_positions, "vocabulary": config.vocab_size},
        "dims": list(tokens.shape),
        "logits": drawn.digest("logits", logits(model, tokens).reshape(-1, config.vocab_size)),
    })


def full():
    config = transformers.GPT2Config()
    model = make(config)
    tokens = drawn.integers("tokens", config.vocab_size, 2, 64)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model.save_pretrained(folder)
        save_file({"x": tokens.astype(np.int32)}, folder / "in.safetensors")
        subprocess.run(["cargo", "run", "--example", "logits", "--", "examples/gpt2-124m.toml",
                        folder / "model.safetensors", folder / "in.safetensors", folder / "out.safetensors"],
                       cwd=HERE.parent.parent, check=True)
        got = load_file(folder / "out.safetensors")["logits"]
    expected = logits(model, tokens).reshape(got.shape)
    difference = np.abs(got - expected).max()
    count = sum(param.numel() for param in model.parameters())
    print(f"{count} parameters; logits to {np.abs(expected).max():.3f}, largest difference {difference:.3g}")
    return difference < 1e-3


if "--full" in sys.argv:
    sys.exit(0 if full() else 1)
tiny()
