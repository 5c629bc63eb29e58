"""Reference values for a training step of ResNet-20, from PyTorch's own layers, gradients and SGD.

Writes resnet20_step.json beside this file, which model_steps.rs reads:

    python resnet20_step.py        # made with Python 3.11.7, torch 2.15.0, numpy 2.4.6 on x86-64

Everything is f64. The model is that of models/src/resnet.rs, made of torch.nn.functional; batch norm is over
the whole batch. Parameters, running means and images come from drawn.py. Only parameters of rank 2 or more
are decayed.
"""

import platform

import numpy as np
import torch
import torch.nn.functional as F

import drawn

WIDTHS, BLOCKS, CLASSES = [16, 32, 64], 3, 10
BATCH, SIDE = 8, 16
SGD = dict(momentum=0.9, nesterov=True, weight_decay=2.0**-7)
LEARNING_RATE = 2.0**-4


class Net:
    """Makes each parameter where it is first used."""

    def __init__(self):
        self.params, self.running = {}, {}

    def param(self, path, *dims):
        value = torch.tensor(drawn.leaf(path, *dims), requires_grad=True)
        return self.params.setdefault(path, value)

    def conv(self, path, x, num_out, stride):
        return F.conv2d(x, self.param(f"{path}.weight", num_out, x.shape[1], 3, 3), stride=stride, padding=1)

    def norm(self, path, x):
        channels = x.shape[1]
        weight, bias = [self.param(f"{path}.{name}", channels) for name in ["weight", "bias"]]
        mean, variance = [self.running.setdefault(f"{path}.{name}", torch.tensor(
            drawn.leaf(f"{path}.{name}", channels))) for name in ["mean", "variance"]]
        return F.batch_norm(x, mean, variance, weight, bias, training=True, momentum=0.1, eps=1e-5)

    def logits(self, x):
        x = F.relu(self.norm("stem.norm", self.conv("stem.conv", x, WIDTHS[0], 1)))
        for stage, width in enumerate(WIDTHS):
            for block in range(BLOCKS):
                at = f"stages.{stage}.blocks.{block}"
                stride = 2 if stage > 0 and block == 0 else 1
                y = F.relu(self.norm(f"{at}.norm1", self.conv(f"{at}.conv1", x, width, stride)))
                y = self.norm(f"{at}.norm2", self.conv(f"{at}.conv2", y, width, 1))
                new = width - x.shape[1]
                shortcut = F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, new // 2, new - new // 2))
                x = F.relu(y + shortcut)
        features = x.mean(dim=(2, 3))
        weight = self.param("head.weight", CLASSES, features.shape[1])
        return F.linear(features, weight, self.param("head.bias", CLASSES))


def main():
    net = Net()
    x = torch.tensor(drawn.uniform("images", BATCH, 3, SIDE, SIDE))
    y = torch.tensor(drawn.integers("labels", CLASSES, BATCH))
    value = F.cross_entropy(net.logits(x), y)
    params = net.params
    groups = [{"params": [p for p in params.values() if p.ndim > 1]},
              {"params": [p for p in params.values() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=LEARNING_RATE, **SGD)
    value.backward()
    gradients = {path: p.grad.numpy().copy() for path, p in params.items()}
    optimizer.step()
    drawn.write(__file__, {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "numpy": np.__version__},
        "batch": BATCH,
        "image": [3, SIDE, SIDE],
        "classes": CLASSES,
        "optimizer": {"name": "sgd", **SGD},
        "learning_rate": LEARNING_RATE,
        "loss": drawn.short(value.item()),
        "grad_norm": drawn.short(np.sqrt(sum((g**2).sum() for g in gradients.values()))),
        "gradients": {path: drawn.digest(path, g) for path, g in gradients.items()},
        "params": {path: drawn.digest(path, p.detach()) for path, p in params.items()},
        "model_state": {path: drawn.digest(path, value) for path, value in net.running.items()},
    })


main()
