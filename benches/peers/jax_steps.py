"""Training steps of ../mlp.toml, ../gpt.toml, ../gpt1024.toml, ../gpt2.toml and ../resnet20.toml in JAX, waiting for each, batch transfer included.

Versions: see requirements.txt. Run by ../beside_peers.py; by hand: python jax_steps.py --model gpt --replicas 2
"""

import argparse
import json
import statistics
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["mlp", "gpt", "gpt1024", "gpt2", "resnet20"], required=True)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--cache", help="directory of the compile cache")
parser.add_argument("--started", type=float, default=time.time(), help="when the process was started, seconds since the epoch")
args = parser.parse_args()

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", args.replicas)
if args.cache:
    jax.config.update("jax_compilation_cache_dir", args.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

WARM_UP = 3
random = np.random.default_rng(0)


def normal(std, *shape):
    return (std * random.standard_normal(shape)).astype(np.float32)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def linear(num_in, num_out, std=None):
    std = num_in**-0.5 if std is None else std
    return {"w": normal(std, num_in, num_out), "b": np.zeros(num_out, np.float32)}


def apply_linear(p, x):
    return x @ p["w"] + p["b"]


# mlp: 784-1024-1024-10, batch 1024


def mlp_params():
    return [linear(784, 1024), linear(1024, 1024), linear(1024, 10)]


def mlp_loss(params, batch):
    x, y = batch
    for p in params[:-1]:
        x = jax.nn.relu(apply_linear(p, x))
    return cross_entropy(apply_linear(params[-1], x), y)


# gpt: 4 layers, width 256, 4 heads, 256 tokens, vocabulary 256, batch 8; gpt1024: 1024 tokens, batch 2; gpt2: GPT-2 124M, batch 1

BATCH, LAYERS, WIDTH, HEADS, TOKENS, VOCABULARY = {
    "gpt1024": (2, 4, 256, 4, 1024, 256),
    "gpt2": (1, 12, 768, 12, 256, 50257),
}.get(args.model, (8, 4, 256, 4, 256, 256))


def norm_params(width):
    return {"w": np.ones(width, np.float32), "b": np.zeros(width, np.float32)}


def gpt_params():
    to_residual = 0.02 / (2 * LAYERS) ** 0.5
    block = lambda: {
        "norm1": norm_params(WIDTH),
        "qkv": linear(WIDTH, 3 * WIDTH, 0.02),
        "out": linear(WIDTH, WIDTH, to_residual),
        "norm2": norm_params(WIDTH),
        "up": linear(WIDTH, 4 * WIDTH, 0.02),
        "down": linear(4 * WIDTH, WIDTH, to_residual),
    }
    return {
        "embed": normal(0.02, VOCABULARY, WIDTH),
        "position": normal(0.02, TOKENS, WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": norm_params(WIDTH),
    }


def layer_norm(p, x):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered * lax.rsqrt(variance + 1e-5) * p["w"] + p["b"]


def attention(p, x):
    batch, tokens, width = x.shape
    qkv = apply_linear(p["qkv"], x).reshape(batch, tokens, 3, HEADS, width // HEADS)
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / (width // HEADS) ** 0.5
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    return apply_linear(p["out"], y)


def gpt_loss(params, batch):
    tokens, targets = batch
    x = params["embed"][tokens] + params["position"]
    for p in params["blocks"]:
        x = x + attention(p, layer_norm(p["norm1"], x))
        hidden = jax.nn.gelu(apply_linear(p["up"], layer_norm(p["norm2"], x)))
        x = x + apply_linear(p["down"], hidden)
    logits = layer_norm(params["norm"], x) @ params["embed"].T
    return cross_entropy(logits, targets)


# resnet20: 3x32x32, batch 128, zero-padded shortcuts, batch norm over each replica's examples


def conv_params(num_in, num_out):
    return {"w": normal((2 / (9 * num_out)) ** 0.5, num_out, num_in, 3, 3), "norm": norm_params(num_out)}


def resnet20_params():
    params = {"stem": conv_params(3, 16), "blocks": [], "head": linear(64, 10)}
    num_in = 16
    for width in (16, 32, 64):
        for _ in range(3):
            params["blocks"].append([conv_params(num_in, width), conv_params(width, width)])
            num_in = width
    return params


def conv_norm(p, x, stride=1):
    x = lax.conv_general_dilated(x, p["w"], (stride, stride), [(1, 1), (1, 1)])
    groups = x.reshape(args.replicas, -1, *x.shape[1:])
    mean = groups.mean((1, 3, 4), keepdims=True)
    variance = ((groups - mean) ** 2).mean((1, 3, 4), keepdims=True)
    groups = (groups - mean) * lax.rsqrt(variance + 1e-5)
    x = groups.reshape(x.shape) * p["norm"]["w"][:, None, None] + p["norm"]["b"][:, None, None]
    return x, (mean.mean(0).ravel(), variance.mean(0).ravel())


def resnet20_loss(params, batch):
    x, y = batch
    observed = []

    def norm(p, x, stride=1):
        x, statistics = conv_norm(p, x, stride)
        observed.append(statistics)
        return x

    x = jax.nn.relu(norm(params["stem"], x))
    for first, second in params["blocks"]:
        num_out, num_in = first["w"].shape[:2]
        stride = 1 if num_in == num_out else 2
        shortcut = x[:, :, ::stride, ::stride]
        new = num_out - num_in
        shortcut = jnp.pad(shortcut, ((0, 0), (new // 2, new - new // 2), (0, 0), (0, 0)))
        x = norm(second, jax.nn.relu(norm(first, x, stride)))
        x = jax.nn.relu(x + shortcut)
    return cross_entropy(apply_linear(params["head"], x.mean((2, 3))), y), observed


if args.model == "mlp":
    params, loss, optimizer = mlp_params(), mlp_loss, optax.sgd(0.1, momentum=0.9)
    batch = (normal(1, 1024, 784), random.integers(0, 10, 1024, dtype=np.int32))
elif args.model.startswith("gpt"):
    params, loss, optimizer = gpt_params(), gpt_loss, optax.adamw(3e-4, weight_decay=0.01)
    tokens = random.integers(0, VOCABULARY, (BATCH, TOKENS + 1), dtype=np.int32)
    batch = (tokens[:, :-1].copy(), tokens[:, 1:].copy())
else:
    params, loss, optimizer = resnet20_params(), resnet20_loss, optax.sgd(0.1, momentum=0.9)
    batch = (normal(1, 128, 3, 32, 32), random.integers(0, 10, 128, dtype=np.int32))

has_aux = args.model == "resnet20"
running = [(np.zeros(p["norm"]["w"].shape, np.float32),) * 2 for p in [params["stem"], *sum(params["blocks"], [])]] if has_aux else []


def step(state, batch):
    params, optimizer_state, running = state
    value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, batch)
    if has_aux:
        value, observed = value
        running = jax.tree.map(lambda old, new: old + 0.1 * (new - old), running, observed)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state, running), value


mesh = Mesh(jax.devices(), ("data",))
everywhere, cut = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
state = jax.device_put((params, optimizer.init(params), running), everywhere)
step = jax.jit(step, donate_argnums=0, out_shardings=(everywhere, everywhere))

millis, first_step_secs = [], None
for index in range(WARM_UP + args.steps):
    start = time.perf_counter()
    state, value = step(state, jax.device_put(batch, cut))
    jax.block_until_ready((state, value))
    first_step_secs = first_step_secs or time.time() - args.started
    if index >= WARM_UP:
        millis.append((time.perf_counter() - start) * 1e3)
print(json.dumps({"median_step_ms": statistics.median(millis), "first_step_secs": first_step_secs, "loss": float(value)}))
