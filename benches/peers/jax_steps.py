"""Training steps of the configurations in .. (mlp.toml, gpt.toml, ..) in JAX, waiting for each, batch transfer included.

Versions: see requirements.txt. Run by ../beside_peers.py; by hand: python jax_steps.py --model gpt --replicas 2
"""

import argparse
import json
import statistics
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["mlp", "gpt", "gpt1024", "gpt2", "encoder", "resnet20", "resnet50"], required=True)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--layout", choices=["NCHW", "NHWC"], default="NCHW", help="of images")
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
    "encoder": (16, 4, 256, 4, 128, 30522),
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


def layer_norm(p, x, epsilon=1e-5):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    return centered * lax.rsqrt(variance + epsilon) * p["w"] + p["b"]


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


# encoder: BERT with 4 layers of width 256, 4 heads, its pooler and a classifier of two classes; 16 texts of 128 tokens, dropout 0.1

DROPOUT, EPSILON = 0.1, 1e-12


def encoder_params():
    block = lambda: {
        **{name: linear(WIDTH, WIDTH, 0.02) for name in ("query", "key", "value", "out")},
        "norm1": norm_params(WIDTH),
        "up": linear(WIDTH, 4 * WIDTH, 0.02),
        "down": linear(4 * WIDTH, WIDTH, 0.02),
        "norm2": norm_params(WIDTH),
    }
    return {
        "embed": normal(0.02, VOCABULARY, WIDTH),
        "position": normal(0.02, TOKENS, WIDTH),
        "segment": normal(0.02, 2, WIDTH),
        "norm": norm_params(WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "pooler": linear(WIDTH, WIDTH, 0.02),
        "classifier": linear(WIDTH, 2, 0.02),
    }


def encoder_loss(params, batch, key):
    (tokens, segments, mask), labels = batch
    keys = iter(jax.random.split(key, 2 + 3 * LAYERS))
    size, num_positions = tokens.shape

    def dropout(x):
        return jnp.where(jax.random.bernoulli(next(keys), 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0)

    def heads(p, x):
        return apply_linear(p, x).reshape(size, num_positions, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    x = params["embed"][tokens] + params["position"] + params["segment"][segments]
    x = dropout(layer_norm(params["norm"], x, EPSILON))
    for p in params["blocks"]:
        q, k, v = (heads(p[name], x) for name in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / (WIDTH // HEADS) ** 0.5
        weights = dropout(jax.nn.softmax(jnp.where(mask[:, None, None, :] > 0, scores, -1e30)))
        y = (weights @ v).transpose(0, 2, 1, 3).reshape(size, num_positions, WIDTH)
        x = layer_norm(p["norm1"], x + dropout(apply_linear(p["out"], y)), EPSILON)
        hidden = jax.nn.gelu(apply_linear(p["up"], x), approximate=False)
        x = layer_norm(p["norm2"], x + dropout(apply_linear(p["down"], hidden)), EPSILON)
    pooled = jnp.tanh(apply_linear(params["pooler"], x[:, 0]))
    return cross_entropy(apply_linear(params["classifier"], dropout(pooled)), labels)


# resnet20: 3x32x32, batch 128, zero-padded shortcuts; resnet50: 3x224x224, batch 8, stride in the 3x3 convolutions, 1000 classes.
# Batch norm over each replica's examples.

CHANNELS = args.layout.index("C")
PIXELS = args.layout.index("H"), args.layout.index("W")


def conv_params(num_in, num_out, size=3):
    return {"w": normal((2 / (size**2 * num_out)) ** 0.5, num_out, num_in, size, size), "norm": norm_params(num_out)}


def resnet20_params():
    params = {"stem": conv_params(3, 16), "blocks": [], "head": linear(64, 10)}
    num_in = 16
    for width in (16, 32, 64):
        for _ in range(3):
            params["blocks"].append([conv_params(num_in, width), conv_params(width, width)])
            num_in = width
    return params


def resnet50_params():
    params = {"stem": conv_params(3, 64, 7), "blocks": [], "head": linear(2048, 1000)}
    num_in = 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            convs = [conv_params(num_in, width, 1), conv_params(width, width, 3), conv_params(width, 4 * width, 1)]
            params["blocks"].append(convs if block else [*convs, conv_params(num_in, 4 * width, 1)])
            num_in = 4 * width
    return params


def conv_norm(p, x, stride=1):
    """The normalized result, and the means and variances of its features."""
    pad = p["w"].shape[-1] // 2
    x = lax.conv_general_dilated(x, p["w"], (stride, stride), [(pad, pad)] * 2, dimension_numbers=(args.layout, "OIHW", args.layout))
    groups = x.reshape(args.replicas, -1, *x.shape[1:])
    others = tuple(axis for axis in range(1, 5) if axis != CHANNELS + 1)
    mean = groups.mean(others, keepdims=True)
    variance = ((groups - mean) ** 2).mean(others, keepdims=True)
    groups = (groups - mean) * lax.rsqrt(variance + 1e-5)
    w, b = (p["norm"][name].reshape([-1 if axis == CHANNELS else 1 for axis in range(4)]) for name in "wb")
    return groups.reshape(x.shape) * w + b, (mean.mean(0).ravel(), variance.mean(0).ravel())


def padded_shortcut(x, num_out, stride):
    num_in = x.shape[CHANNELS]
    if num_in == num_out:
        return x
    cut = tuple(slice(None, None, stride if axis in PIXELS else 1) for axis in range(4))
    new = num_out - num_in
    return jnp.pad(x[cut], [(new // 2, new - new // 2) if axis == CHANNELS else (0, 0) for axis in range(4)])


def resnet_loss(params, batch):
    x, y = batch
    observed = {}

    def norm(place, p, x, stride=1):
        x, observed[place] = conv_norm(p, x, stride)
        return x

    is_deep = args.model == "resnet50"
    x = jax.nn.relu(norm("stem", params["stem"], x, 2 if is_deep else 1))
    if is_deep:
        # As many pixels of 3x3 windows as PyTorch's max_pool2d(3, 2, 1) has.
        window, strides, padding = ([value if axis in PIXELS else other for axis in range(4)] for value, other in ((3, 1), (2, 1), ((1, 1), (0, 0))))
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
    for index, convs in enumerate(params["blocks"]):
        num_in, num_out = x.shape[CHANNELS], convs[-1]["w"].shape[0]
        if is_deep:
            stride = 2 if len(convs) == 4 and index else 1
            shortcut = norm((index, 3), convs[3], x, stride) if len(convs) == 4 else x
            x = jax.nn.relu(norm((index, 0), convs[0], x))
            x = jax.nn.relu(norm((index, 1), convs[1], x, stride))
            x = norm((index, 2), convs[2], x)
        else:
            stride = 1 if num_in == num_out else 2
            shortcut = padded_shortcut(x, num_out, stride)
            x = jax.nn.relu(norm((index, 0), convs[0], x, stride))
            x = norm((index, 1), convs[1], x)
        x = jax.nn.relu(x + shortcut)
    # In the order of the running statistics.
    places = ["stem", *((index, conv) for index, convs in enumerate(params["blocks"]) for conv in range(len(convs)))]
    return cross_entropy(apply_linear(params["head"], x.mean(PIXELS)), y), [observed[place] for place in places]


def images(size, pixels, classes):
    dims = {"N": size, "C": 3, "H": pixels, "W": pixels}
    return normal(1, *(dims[axis] for axis in args.layout)), random.integers(0, classes, size, dtype=np.int32)


has_aux, running = args.model.startswith("resnet"), []
if args.model == "mlp":
    params, loss, optimizer = mlp_params(), mlp_loss, optax.sgd(0.1, momentum=0.9)
    batch = (normal(1, 1024, 784), random.integers(0, 10, 1024, dtype=np.int32))
elif args.model.startswith("gpt"):
    params, loss, optimizer = gpt_params(), gpt_loss, optax.adamw(3e-4, weight_decay=0.01)
    tokens = random.integers(0, VOCABULARY, (BATCH, TOKENS + 1), dtype=np.int32)
    batch = (tokens[:, :-1].copy(), tokens[:, 1:].copy())
elif args.model == "encoder":
    params, loss, optimizer = encoder_params(), encoder_loss, optax.adamw(1e-4, weight_decay=0.01)
    lengths = random.integers(TOKENS // 2, TOKENS + 1, (BATCH, 1))
    mask = (np.arange(TOKENS) < lengths).astype(np.int32)
    tokens = random.integers(0, VOCABULARY, (BATCH, TOKENS), dtype=np.int32) * mask
    batch = ((tokens, np.zeros_like(tokens), mask), random.integers(0, 2, BATCH, dtype=np.int32))
else:
    params = resnet20_params() if args.model == "resnet20" else resnet50_params()
    loss, optimizer = resnet_loss, optax.sgd(0.1, momentum=0.9)
    batch = images(128, 32, 10) if args.model == "resnet20" else images(8, 224, 1000)
    convs = [params["stem"], *sum(params["blocks"], [])]
    running = [(np.zeros(p["norm"]["w"].shape, np.float32),) * 2 for p in convs]


def step(state, batch):
    params, optimizer_state, running, count = state
    # Random numbers are drawn by the encoder only.
    given = [jax.random.fold_in(jax.random.key(0), count)] if args.model == "encoder" else []
    value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, batch, *given)
    if has_aux:
        value, observed = value
        running = jax.tree.map(lambda old, new: old + 0.1 * (new - old), running, observed)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state, running, count + 1), value


mesh = Mesh(jax.devices(), ("data",))
everywhere, cut = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
state = jax.device_put((params, optimizer.init(params), running, np.int32(0)), everywhere)
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
