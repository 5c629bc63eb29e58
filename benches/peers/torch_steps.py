"""Training steps of the configurations in .. (mlp.toml, gpt.toml, ..) in PyTorch, each including a copy of its batch; several replicas are
DistributedDataParallel processes over gloo, which share the processors.

Versions: see requirements.txt. Run by ../beside_peers.py; by hand: python torch_steps.py --model gpt --replicas 2
"""

import argparse
import json
import os
import resource
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["mlp", "gpt", "gpt1024", "gpt2", "encoder", "resnet20", "resnet50"], required=True)
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
    "encoder": (16, 4, 256, 4, 128, 30522),
    # Only the batch counts.
    "mlp": (1024, *[None] * 5),
    "resnet20": (128, *[None] * 5),
    "resnet50": (8, *[None] * 5),
}.get(args.model, (8, 4, 256, 4, 256, 256))
# Of the encoder: everywhere, as in BERT.
DROPOUT = 0.1
IS_IMAGES = args.model.startswith("resnet")


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


class EncoderBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, 1e-12), nn.LayerNorm(WIDTH, 1e-12)

    def forward(self, x, mask):
        batch, tokens, width = x.shape
        q, k, v = (f(x).view(batch, tokens, HEADS, width // HEADS).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=DROPOUT)
        x = self.norm1(x + F.dropout(self.out(y.transpose(1, 2).reshape(batch, tokens, width)), DROPOUT))
        return self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), DROPOUT))


class Encoder(nn.Module):
    """BERT with its pooler and a classifier of two classes."""

    def __init__(self):
        super().__init__()
        self.embed, self.position, self.segment = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH), nn.Embedding(2, WIDTH)
        self.norm, self.blocks = nn.LayerNorm(WIDTH, 1e-12), nn.ModuleList([EncoderBlock() for _ in range(LAYERS)])
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, segments, mask):
        x = self.norm(self.embed(tokens) + self.position.weight + self.segment(segments))
        x = F.dropout(x, DROPOUT)
        # True where a key is a token.
        allowed = mask.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, allowed)
        return self.classifier(F.dropout(torch.tanh(self.pooler(x[:, 0])), DROPOUT))


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


def conv_norm(num_in, num_out, size, stride=1):
    return nn.Sequential(nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False), nn.BatchNorm2d(num_out))


class Bottleneck(nn.Module):
    def __init__(self, num_in, width, stride):
        super().__init__()
        self.conv1, self.conv2 = conv_norm(num_in, width, 1), conv_norm(width, width, 3, stride)
        self.conv3 = conv_norm(width, 4 * width, 1)
        same = num_in == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(num_in, 4 * width, 1, stride)

    def forward(self, x):
        y = F.relu(self.conv2(F.relu(self.conv1(x))))
        return F.relu(self.conv3(y) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, blocks, num_in = conv_norm(3, 64, 7, 2), [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for block in range(count):
                blocks.append(Bottleneck(num_in, width, 2 if stage and not block else 1))
                num_in = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(num_in, 1000)

    def forward(self, x):
        x = self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
        return self.head(x.mean((2, 3)))


def draw_batch(size):
    """Inputs of the model, and the targets of its rows."""
    if args.model == "mlp":
        return [torch.randn(size, 784)], torch.randint(0, 10, (size,))
    if IS_IMAGES:
        pixels, classes = (32, 10) if args.model == "resnet20" else (224, 1000)
        x = torch.randn(size, 3, pixels, pixels).to(memory_format=torch.channels_last)
        return [x], torch.randint(0, classes, (size,))
    if args.model == "encoder":
        lengths = torch.randint(TOKENS // 2, TOKENS + 1, (size, 1))
        mask = (torch.arange(TOKENS) < lengths).int()
        tokens = torch.randint(0, VOCABULARY, (size, TOKENS)) * mask
        return [tokens, torch.zeros_like(tokens), mask], torch.randint(0, 2, (size,))
    tokens = torch.randint(0, VOCABULARY, (size, TOKENS + 1))
    return [tokens[:, :-1].contiguous()], tokens[:, 1:].reshape(-1)


def run(rank, port):
    torch.manual_seed(0)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.replicas))
    model = {"mlp": mlp, "encoder": Encoder, "resnet20": ResNet20, "resnet50": ResNet50}.get(args.model, Gpt)()
    if IS_IMAGES:
        # Faster than the default layout.
        model = model.to(memory_format=torch.channels_last)
    if args.replicas > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=args.replicas)
        model = nn.parallel.DistributedDataParallel(model)
    if args.model == "mlp" or IS_IMAGES:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    else:
        rate = 1e-4 if args.model == "encoder" else 3e-4
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    inputs, targets = draw_batch(BATCH // args.replicas)
    millis, first_step_secs = [], None
    for index in range(WARM_UP + args.steps):
        start = time.perf_counter()
        loss = F.cross_entropy(model(*(field.clone() for field in inputs)), targets.clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        first_step_secs = first_step_secs or time.time() - args.started
        if index >= WARM_UP:
            millis.append((time.perf_counter() - start) * 1e3)
    # KiB; the processes of several replicas share the pages of libraries, which are counted in each.
    resident = torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    if args.replicas > 1:
        dist.reduce(resident, 0)
    if rank == 0:
        result = {"median_step_ms": statistics.median(millis), "first_step_secs": first_step_secs, "loss": value}
        print(json.dumps(result | {"peak_rss_mb": resident.item() / 1024}))
    if args.replicas > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    if args.replicas == 1:
        run(0, 0)
    else:
        mp.start_processes(run, (29500 + os.getpid() % 1000,), nprocs=args.replicas, start_method="fork")
