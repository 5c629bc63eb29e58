"""Training steps of ../mlp.toml, ../gpt.toml, ../gpt1024.toml, ../gpt2.toml and ../resnet20.toml in PyTorch, each including a copy of its batch; several replicas are
DistributedDataParallel processes over gloo, which share the cores.

Versions: see requirements.txt. Run by ../beside_peers.py; by hand: python torch_steps.py --model gpt --replicas 2
"""

import argparse
import json
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["mlp", "gpt", "gpt1024", "gpt2", "resnet20"], required=True)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--started", type=float, default=time.time(), help="when the process was started, seconds since the epoch")
args = parser.parse_args()

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

WARM_UP = 3
BATCH, LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = {
    "gpt1024": (2, 4, 256, 4, 1024, 256),
    "gpt2": (1, 12, 768, 12, 256, 50257),
}.get(args.model, (8, 4, 256, 4, 256, 256))


def mlp():
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, width // HEADS)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.empty(TOKENS, WIDTH))
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                to_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * LAYERS) ** 0.5 if to_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens):
        x = self.norm(self.blocks(self.embed(tokens) + self.position))
        return (x @ self.embed.weight.T).view(-1, VOCABULARY)


class BasicBlock(nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.stride, self.new = (1 if num_in == num_out else 2), num_out - num_in
        self.conv1 = nn.Conv2d(num_in, num_out, 3, self.stride, 1, bias=False)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(num_out), nn.BatchNorm2d(num_out)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2)))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*[BasicBlock(*pair) for pair in zip(widths, widths[1:])])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


def run(rank, port):
    torch.manual_seed(0)
    torch.set_num_threads(max(1, os.cpu_count() // args.replicas))
    model = {"mlp": mlp, "resnet20": ResNet20}.get(args.model, Gpt)()
    if args.model == "resnet20":
        # Faster than the default layout.
        model = model.to(memory_format=torch.channels_last)
    if args.replicas > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=args.replicas)
        model = nn.parallel.DistributedDataParallel(model)
    if args.model.startswith("gpt"):
        optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.01)
        tokens = torch.randint(0, VOCABULARY, (BATCH // args.replicas, TOKENS + 1))
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        dims = (1024, 784) if args.model == "mlp" else (128, 3, 32, 32)
        x = torch.randn(dims[0] // args.replicas, *dims[1:])
        y = torch.randint(0, 10, (len(x),))
        if args.model == "resnet20":
            x = x.to(memory_format=torch.channels_last)
    millis, first_step_secs = [], None
    for index in range(WARM_UP + args.steps):
        start = time.perf_counter()
        loss = F.cross_entropy(model(x.clone()), y.clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        first_step_secs = first_step_secs or time.time() - args.started
        if index >= WARM_UP:
            millis.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        print(json.dumps({"median_step_ms": statistics.median(millis), "first_step_secs": first_step_secs, "loss": value}))


if __name__ == "__main__":
    if args.replicas == 1:
        run(0, 0)
    else:
        mp.start_processes(run, (29500 + os.getpid() % 1000,), nprocs=args.replicas, start_method="fork")
