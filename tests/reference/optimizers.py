"""Ten updates of each optimizer on fixed gradients, by optax.

Writes optimizers.json beside this file, which tests/reference/optimizers.rs reads:

    python optimizers.py      # made with Python 3.11.7, jax 0.10.2, optax 0.2.8, numpy 2.4.6 on x86-64

Everything is f64. Rates are multiples of powers of two, since the step takes them in f32, and change from step
to step. Weight decay and trust ratios leave parameters of rank below 2 alone, but for lamb_all.

Each case is optax's own optimizer, or a chain of optax's own links, but for `lars_decay`: the paper (You,
Gitman and Ginsburg 2017, algorithm 1) divides by |g| + decay |w|, and optax.lars by |g + decay w|. There the
paper's formula is written out here. Without decay they are the same, and `lars` is optax.lars.
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

NUM_STEPS = 10
RATES = [2.0**-4, 2.0**-3, 2.0**-3, 2.0**-3, 3 * 2.0**-4, 2.0**-4, 2.0**-5, 2.0**-5, 2.0**-7, 2.0**-7]
DECAY, MOMENTUM = 0.05, 0.9
BETAS = dict(b1=0.9, b2=0.98)
EMA = 0.8


def rate(step):
    return jnp.asarray(RATES)[step]


def matrices(tree):
    return {path: getattr(leaf, "ndim", 0) >= 2 for path, leaf in tree.items()}


def numbers(seed):
    random = np.random.default_rng(seed)
    dims = {"linear.weight": (3, 4), "linear.bias": (3,), "head.weight": (2, 3), "still.weight": (2, 2)}
    tree = {path: np.round(random.normal(0.0, 0.7, shape), 3) for path, shape in dims.items()}
    return tree


def paper_lars(coefficient):
    """The link of algorithm 1, in front of the rate and the momentum."""

    def update(updates, state, params):
        def leaf(path):
            g, w = updates[path], params[path]
            if w.ndim < 2:
                return g
            norm_g, norm_w = jnp.linalg.norm(g), jnp.linalg.norm(w)
            trust = coefficient * norm_w / (norm_g + DECAY * norm_w)
            trust = jnp.where((norm_g > 0) & (norm_w > 0), trust, 1.0)
            return (g + DECAY * w) * trust

        return {path: leaf(path) for path in updates}, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def cases():
    decayed = lambda decay: optax.add_decayed_weights(decay, mask=matrices)
    return {
        "sgd": optax.chain(decayed(DECAY), optax.sgd(rate, momentum=MOMENTUM)),
        "sgd_nesterov": optax.chain(decayed(DECAY), optax.sgd(rate, momentum=MOMENTUM, nesterov=True)),
        "sgd_uncorrected": optax.chain(
            decayed(DECAY), optax.scale_by_learning_rate(rate), optax.trace(decay=MOMENTUM)),
        "sgd_clipped": optax.chain(optax.clip_by_global_norm(1.5), optax.sgd(rate, momentum=MOMENTUM)),
        "adam": optax.chain(decayed(DECAY), optax.adam(rate, eps=1e-8, **BETAS)),
        "adamw": optax.adamw(rate, eps=1e-8, weight_decay=DECAY, mask=matrices, **BETAS),
        "lars": optax.lars(rate, weight_decay=0.0, momentum=MOMENTUM, trust_coefficient=0.01,
                           trust_ratio_mask=matrices),
        "lars_decay": optax.chain(
            paper_lars(0.01), optax.scale_by_learning_rate(rate), optax.trace(decay=MOMENTUM)),
        "lamb": optax.chain(
            optax.scale_by_adam(eps=1e-6, **BETAS), decayed(DECAY),
            optax.masked(optax.scale_by_trust_ratio(), matrices), optax.scale_by_learning_rate(rate)),
        "lamb_all": optax.lamb(rate, eps=1e-6, weight_decay=DECAY, **BETAS),
        # Four times the rate and ten times the decay for the head, and a parameter that is not trained.
        "groups": optax.multi_transform({
            "linear": optax.adamw(rate, eps=1e-8, weight_decay=DECAY, mask=matrices, **BETAS),
            "head": optax.adamw(lambda step: 4 * rate(step), eps=1e-8, weight_decay=10 * DECAY, **BETAS),
            "still": optax.set_to_zero(),
        }, lambda tree: {path: path.split(".")[0] for path in tree}),
    }


def run(optimizer, params, gradients):
    params = {path: jnp.asarray(leaf) for path, leaf in params.items()}
    state, steps = optimizer.init(params), []
    average = optax.ema(EMA, debias=True)
    mean_state = average.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        mean, mean_state = average.update(params, mean_state)
        steps.append({"params": leaves(params), "ema": leaves(mean)})
    return steps


def leaves(tree):
    return {path: np.asarray(leaf).ravel().tolist() for path, leaf in tree.items()}


def main():
    params = numbers(1)
    # The norm of one parameter, and that of another's gradient, is 0 at first.
    params["still.weight"] = np.zeros_like(params["still.weight"])
    gradients = [numbers(2 + step) for step in range(NUM_STEPS)]
    gradients[0]["head.weight"] = np.zeros_like(gradients[0]["head.weight"])
    reference = {
        "made_with": {"python": platform.python_version(), "jax": jax.__version__,
                      "optax": optax.__version__, "numpy": np.__version__},
        "rates": RATES,
        "dims": {path: list(leaf.shape) for path, leaf in params.items()},
        "params": leaves(params),
        "gradients": [leaves(gradient) for gradient in gradients],
        "cases": {name: run(optimizer, params, gradients) for name, optimizer in cases().items()},
    }
    target = pathlib.Path(__file__).with_suffix(".json")
    text = json.dumps(reference, indent=1)
    # A list of numbers on one line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)
    target.write_text(text + "\n")


main()
