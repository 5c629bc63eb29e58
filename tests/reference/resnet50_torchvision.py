"""torchvision's ResNet-50 with random weights and running statistics, and what it makes of two images.

    python resnet50_torchvision.py          # writes resnet50_torchvision.json, which checkpoints.rs reads
    python resnet50_torchvision.py --full   # 224x224, beside `cargo run --example logits`; prints the difference

Made with Python 3.11.7, torch 2.15.0, torchvision 0.29.2, safetensors 0.8.0 on x86-64. The
fixture's weights and images (64x64) come from drawn.py, under torchvision's own names; the full comparison
starts from torchvision's own initialisation, with scales and running statistics made random.
"""

import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torchvision
from safetensors.numpy import load_file, save_file

import drawn

HERE = pathlib.Path(__file__).parent


def run(model, images):
    with torch.no_grad():
        return model.eval()(torch.tensor(images, dtype=torch.float32)).numpy()


def fixture():
    model = torchvision.models.resnet50()
    state = model.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            value.copy_(torch.tensor(drawn.leaf(name, *value.shape)))
    images = drawn.uniform("images", 2, 3, 64, 64)
    drawn.write(__file__, {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "torchvision": torchvision.__version__},
        "tensors": {name: list(value.shape) for name, value in state.items()},
        "image": [3, 64, 64],
        "logits": drawn.digest("logits", run(model, images)),
    })


def full():
    torch.manual_seed(0)
    model = torchvision.models.resnet50()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith("running_var") or value.ndim == 1 and name.endswith("weight"):
                value.uniform_(0.5, 1.5)
            elif name.endswith("running_mean") or value.ndim == 1 and name.endswith("bias"):
                value.normal_(0.0, 0.1)
    images = torch.randn(2, 3, 224, 224).numpy()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        save_file({"x": images}, folder / "in.safetensors")
        subprocess.run(["cargo", "run", "--example", "logits", "--", "examples/resnet50-imagenet.toml",
                        folder / "model.safetensors", folder / "in.safetensors", folder / "out.safetensors"],
                       cwd=HERE.parent.parent, check=True)
        got = load_file(folder / "out.safetensors")["logits"]
    expected = run(model, images)
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    print(f"logits to {np.abs(expected).max():.3f}, largest difference {difference:.3g} of that")
    return difference < 1e-3


if "--full" in sys.argv:
    sys.exit(0 if full() else 1)
fixture()
