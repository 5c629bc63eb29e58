"""Reference values for two training steps of an MLP, from JAX's own gradients and optax's own updates.

Writes mlp_step.json beside this file, which mlp_step.rs reads:

    python mlp_step.py        # made with Python 3.11.7, jax 0.10.2, optax 0.2.8, numpy 2.4.6 on x86-64

Everything is f64. The model is that of models/src/mlp.rs in plain formulas: per hidden layer
x W^T + b, layer norm (biased variance, eps 1e-5), ReLU; then a linear head and the mean cross-entropy.
Learning rates are powers of two, since the step takes them in f32. Both optimizers decay only parameters
of rank 2 or more.
"""

import json
import pathlib
import platform
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

BATCH, FEATURES, HIDDEN, CLASSES = 8, 5, [6, 4], 3
NUM_STEPS = 2
SGD = dict(learning_rate=2.0**-3, momentum=0.9, nesterov=True, weight_decay=0.01)
ADAMW = dict(learning_rate=2.0**-6, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)


def initial():
    random = np.random.default_rng(20240607)
    params, width = {}, FEATURES

    def put(path, *dims, around=0.0):
        params[path] = np.round(around + random.normal(0.0, 0.5, dims), 3)

    for index, out in enumerate(HIDDEN):
        put(f"blocks.{index}.linear.weight", out, width)
        put(f"blocks.{index}.linear.bias", out)
        put(f"blocks.{index}.norm.weight", out, around=1.0)
        put(f"blocks.{index}.norm.bias", out)
        width = out
    put("head.weight", CLASSES, width)
    put("head.bias", CLASSES)
    x = np.round(random.normal(0.0, 1.0, (BATCH, FEATURES)), 3)
    y = random.integers(0, CLASSES, BATCH)
    return params, x, y


def loss(params, x, y):
    for index in range(len(HIDDEN)):
        p = lambda name: params[f"blocks.{index}.{name}"]
        x = x @ p("linear.weight").T + p("linear.bias")
        mean = jnp.mean(x, axis=1, keepdims=True)
        variance = jnp.mean((x - mean) ** 2, axis=1, keepdims=True)
        x = (x - mean) / jnp.sqrt(variance + 1e-5) * p("norm.weight") + p("norm.bias")
        x = jnp.where(x > 0, x, 0.0)
    logits = x @ params["head.weight"].T + params["head.bias"]
    log_probabilities = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=1, keepdims=True))
    return -jnp.mean(log_probabilities[jnp.arange(BATCH), y])


def run(optimizer, params, x, y, state_of):
    state, steps = optimizer.init(params), []
    for _ in range(NUM_STEPS):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        steps.append({
            "loss": float(value),
            "grad_norm": float(optax.global_norm(gradients)),
            "params": leaves(params),
            "opt_state": {f"{name}.{path}": leaf for name, tree in state_of(state).items()
                          for path, leaf in leaves(tree).items()},
        })
    return steps


def leaves(tree):
    return {path: {"dims": list(leaf.shape), "values": np.asarray(leaf).ravel().tolist()}
            for path, leaf in tree.items()}


def only(tree, kind):
    """The one part of an optimizer's nested state that is of this kind."""
    found = [part for part in jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, kind))
             if isinstance(part, kind)]
    (part,) = found
    return part


def main():
    params, x, y = initial()
    params = {path: jnp.asarray(leaf) for path, leaf in params.items()}
    matrices = {path: leaf.ndim >= 2 for path, leaf in params.items()}
    sgd = optax.chain(
        optax.add_decayed_weights(SGD["weight_decay"], mask=matrices),
        optax.sgd(SGD["learning_rate"], momentum=SGD["momentum"], nesterov=SGD["nesterov"]),
    )
    adamw = optax.adamw(ADAMW["learning_rate"], b1=ADAMW["beta1"], b2=ADAMW["beta2"],
                        eps=ADAMW["epsilon"], weight_decay=ADAMW["weight_decay"], mask=matrices)

    def moments(state):
        adam = only(state, optax.ScaleByAdamState)
        return {"first_moment": adam.mu, "second_moment": adam.nu}

    reference = {
        "made_with": {"python": platform.python_version(), "jax": jax.__version__,
                      "optax": optax.__version__, "numpy": np.__version__},
        "hidden": HIDDEN,
        "num_classes": CLASSES,
        "x": {"dims": list(x.shape), "values": x.ravel().tolist()},
        "y": y.tolist(),
        "params": leaves(params),
        "gradients": leaves(jax.grad(loss)(params, x, y)),
        "sgd": {**SGD, "steps": run(sgd, params, x, y, lambda state: {
            "momentum": only(state, optax.TraceState).trace})},
        "adamw": {**ADAMW, "steps": run(adamw, params, x, y, moments)},
    }
    target = pathlib.Path(__file__).with_suffix(".json")
    text = json.dumps(reference, indent=1)
    # A list of numbers on one line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)
    target.write_text(text + "\n")


main()
