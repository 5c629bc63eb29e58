"""Learning rates at every step from optax, Hugging Face, PyTorch and papers, in f64.

Writes schedules.json beside this file, which tests/reference/schedules.rs reads:

    python schedules.py       # made with Python 3.11.7, jax 0.10.2, optax 0.2.8, torch 2.15.0, transformers 5.23.0 on x86-64

A case is a list of keys of `[schedule]` and the rates of all steps from a source. Where a source counts its warm-up from
0, the case says so with `peak_at = "next_step"`. Papers' formulas are written out here.
"""

import json
import math
import pathlib
import platform
import re

import jax
import numpy as np
import optax
import torch
import transformers
from torch.optim import lr_scheduler
from transformers import optimization as hf

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

TOTAL, WARMUP, PEAK, FLOOR = 100, 10, 0.5, 0.1
AFTER = TOTAL - WARMUP
CASES = []


def case(source, name, rates, length=WARMUP, peak=True, **keys):
    """`rates` is a function of the step, or the rates of all steps; `length` that of the warm-up."""
    keys = {"name": name, **({"peak": PEAK} if peak else {}), **keys}
    if length:
        keys["warmup_steps"] = length
    rates = [float(rates(step)) for step in range(TOTAL)] if callable(rates) else rates
    assert len(rates) == TOTAL and all(math.isfinite(rate) for rate in rates), source
    CASES.append({"source": source, "keys": keys, "rates": rates})


def stepped(schedule):
    """The rates that a torch scheduler sets, given the function that makes it from an optimizer."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = schedule(optimizer)
    rates = []
    for _ in range(TOTAL):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def warmed_from_1(schedule):
    """An optax schedule of the steps after the warm-up, which itself counts from 1 and has the peak at its last step."""
    warmup = optax.linear_schedule(0.0, PEAK, WARMUP)
    return lambda step: warmup(step + 1) if step < WARMUP else schedule(step - WARMUP)


def from_optax():
    cosine = optax.cosine_decay_schedule(PEAK, AFTER, FLOOR)
    linear = optax.linear_schedule(PEAK, PEAK * FLOOR, AFTER)
    polynomial = optax.polynomial_schedule(PEAK, PEAK * FLOOR, 3.0, AFTER)
    case("optax.warmup_constant_schedule", "constant",
         optax.warmup_constant_schedule(0.0, PEAK, WARMUP), peak_at="next_step")
    case("optax.warmup_cosine_decay_schedule", "cosine",
         optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, TOTAL, PEAK * FLOOR), floor=FLOOR, peak_at="next_step")
    case("optax.warmup_cosine_decay_schedule, init_value", "cosine",
         optax.warmup_cosine_decay_schedule(PEAK / 4, PEAK, WARMUP, TOTAL, PEAK * FLOOR),
         floor=FLOOR, warmup_factor=0.25, peak_at="next_step")
    case("optax.warmup_cosine_decay_schedule, decay_steps before the end", "cosine",
         optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, 60, PEAK * FLOOR),
         floor=FLOOR, total_steps=60, peak_at="next_step")
    joined = lambda schedule: optax.join_schedules([optax.linear_schedule(0.0, PEAK, WARMUP), schedule], [WARMUP])
    case("optax.linear_schedule", "linear", joined(linear), floor=FLOOR, peak_at="next_step")
    case("optax.polynomial_schedule", "polynomial", joined(polynomial), floor=FLOOR, power=3.0, peak_at="next_step")
    for name, schedule, keys in [("constant", optax.constant_schedule(PEAK), {}), ("cosine", cosine, {"floor": FLOOR}),
                                 ("linear", linear, {"floor": FLOOR}),
                                 ("polynomial", polynomial, {"floor": FLOOR, "power": 3.0})]:
        case(f"optax, {name}, warm-up counted from 1", name, warmed_from_1(schedule), **keys)
        case(f"optax, {name}, warm-up counted from 1, by name", name, warmed_from_1(schedule), peak_at="last_step", **keys)
    for name, schedule, keys in [
        ("cosine", optax.cosine_decay_schedule(PEAK, AFTER - 1, FLOOR), {}),
        ("linear", optax.linear_schedule(PEAK, PEAK * FLOOR, AFTER - 1), {}),
        ("polynomial", optax.polynomial_schedule(PEAK, PEAK * FLOOR, 3.0, AFTER - 1), {"power": 3.0}),
    ]:
        case(f"optax, {name}, one step fewer", name, warmed_from_1(schedule), floor=FLOOR, floor_at="last_step", **keys)
    drops = {20: 0.1, 60: 0.1}
    factors = {20: 0.5, 60: 0.2}
    from_start = lambda schedule: lambda step: (
        optax.linear_schedule(0.0, PEAK, WARMUP)(step) if step < WARMUP else schedule(step))
    for source, around, keys in [("of the whole run", from_start, {}),
                                 ("optax.join_schedules", joined, {"boundaries_from": "warmup"})]:
        case(f"{source}, piecewise_constant_schedule", "step", around(optax.piecewise_constant_schedule(PEAK, drops)),
             boundaries=[20, 60], factor=0.1, peak_at="next_step", **keys)
        case(f"{source}, piecewise_constant_schedule, several factors", "piecewise",
             around(optax.piecewise_constant_schedule(PEAK, factors)),
             boundaries=[0, 20, 60], factors=[1.0, 0.5, 0.1], interpolation="constant", peak_at="next_step", **keys)
        case(f"{source}, piecewise_interpolate_schedule", "piecewise",
             around(optax.piecewise_interpolate_schedule("linear", PEAK, factors)),
             boundaries=[0, 20, 60], factors=[1.0, 0.5, 0.1], peak_at="next_step", **keys)


def from_hugging_face():
    named = lambda make, **kwargs: stepped(lambda optimizer: make(optimizer, **kwargs))
    case("transformers.get_constant_schedule_with_warmup", "constant",
         named(hf.get_constant_schedule_with_warmup, num_warmup_steps=WARMUP), peak_at="next_step")
    both = dict(num_warmup_steps=WARMUP, num_training_steps=TOTAL)
    case("transformers.get_linear_schedule_with_warmup", "linear",
         named(hf.get_linear_schedule_with_warmup, **both), peak_at="next_step")
    case("transformers.get_cosine_schedule_with_warmup", "cosine",
         named(hf.get_cosine_schedule_with_warmup, **both), peak_at="next_step")
    case("transformers.get_cosine_with_min_lr_schedule_with_warmup", "cosine",
         named(hf.get_cosine_with_min_lr_schedule_with_warmup, min_lr_rate=FLOOR, **both), floor=FLOOR, peak_at="next_step")
    case("transformers.get_polynomial_decay_schedule_with_warmup", "polynomial",
         named(hf.get_polynomial_decay_schedule_with_warmup, lr_end=PEAK * FLOOR, power=2.0, **both),
         floor=FLOOR, power=2.0, peak_at="next_step")
    case("transformers.get_inverse_sqrt_schedule", "inverse_sqrt",
         named(hf.get_inverse_sqrt_schedule, num_warmup_steps=WARMUP), peak_at="next_step")
    for theirs, ours in [("linear", "linear"), ("cosine", "cosine"), ("1-sqrt", "sqrt")]:
        # Its warm-up starts at the floor.
        case(f"transformers.get_wsd_schedule, {theirs}", "wsd",
             named(hf.get_wsd_schedule, num_decay_steps=40, decay_type=theirs, min_lr_ratio=FLOOR, **both),
             floor=FLOOR, warmup_factor=FLOOR, decay_steps=40, decay_shape=ours, peak_at="next_step")


def from_pytorch():
    def warmed(after):
        return lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer, 0.25, total_iters=WARMUP), after(optimizer)], [WARMUP])

    multi_step = lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [20, 60])
    warm = dict(warmup_factor=0.25, peak_at="next_step")
    case("torch SequentialLR of LinearLR and MultiStepLR", "step", stepped(warmed(multi_step)),
         boundaries=[20, 60], boundaries_from="warmup", **warm)
    case("torch ChainedScheduler of LinearLR and MultiStepLR", "step",
         stepped(lambda optimizer: lr_scheduler.ChainedScheduler(
             [lr_scheduler.LinearLR(optimizer, 0.25, total_iters=WARMUP), multi_step(optimizer)])),
         boundaries=[20, 60], **warm)
    case("torch SequentialLR of LinearLR and CosineAnnealingLR", "cosine",
         stepped(warmed(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, AFTER, PEAK * FLOOR))),
         floor=FLOOR, **warm)
    case("torch CosineAnnealingLR to its last step", "cosine",
         stepped(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, TOTAL - 1, PEAK * FLOOR)),
         length=0, floor=FLOOR, floor_at="last_step")
    case("torch ConstantLR", "constant",
         stepped(lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.25, total_iters=WARMUP)),
         warmup="constant", warmup_factor=0.25)
    for theirs, ours in [("cos", "cosine"), ("linear", "linear")]:
        case(f"torch OneCycleLR, {theirs}", ours, one_cycle(theirs), length=0, floor=FLOOR, floor_at="last_step")


def one_cycle(strategy):
    """The second phase of OneCycleLR, as long as the run: its first phase is the first step alone."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=TOTAL + 1, pct_start=2 / (TOTAL + 1),
                                        anneal_strategy=strategy, cycle_momentum=False, div_factor=4.0,
                                        final_div_factor=1 / (4.0 * FLOOR))
    rates = []
    for _ in range(TOTAL):
        optimizer.step()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


def from_papers():
    # Vaswani et al. 2017, equation 3, times a constant that makes the peak PEAK; steps are counted from 1.
    scale = PEAK * WARMUP**0.5
    case("Vaswani et al. 2017", "inverse_sqrt",
         lambda step: scale * min((step + 1) ** -0.5, (step + 1) * WARMUP**-1.5))
    # Goyal et al. 2017, section 2.2: from the base rate by a constant amount at each iteration.
    base = PEAK / 8
    goyal = lambda step: base + (PEAK - base) * step / WARMUP if step < WARMUP else PEAK * 0.1 ** ((step >= 30) + (step >= 60))
    scaled = dict(base_lr=base, base_batch=8, warmup_from="base", peak=False)
    case("Goyal et al. 2017, gradual", "step", goyal, boundaries=[30, 60], **scaled)
    case("Goyal et al. 2017, constant", "step", lambda step: base if step < WARMUP else goyal(step),
         warmup="constant", boundaries=[30, 60], **scaled)
    # google-research/bert, optimization.py: polynomial decay of the global step, overridden in the warm-up.
    bert = lambda power: lambda step: PEAK * (step / WARMUP if step < WARMUP else (1 - step / TOTAL) ** power)
    case("BERT's optimization.py", "linear", bert(1.0), decay_from="start")
    case("BERT's optimization.py, power 0.5", "polynomial", bert(0.5), power=0.5, decay_from="start")
    case("BERT's optimization.py, warm-up counted from 1", "linear",
         lambda step: PEAK * ((step + 1) / WARMUP if step < WARMUP else 1 - step / TOTAL),
         decay_from="start", peak_at="last_step")
    # Loshchilov and Hutter 2017, equation 5, without restarts.
    case("SGDR", "cosine", lambda step: PEAK * 0.5 * (1 + math.cos(math.pi * step / TOTAL)), length=0)
    # You, Gitman and Ginsburg 2017: polynomial of power 2.
    case("LARS", "polynomial", lambda step: PEAK * (1 - step / TOTAL) ** 2, length=0)
    # Hägele et al. 2024, section 3: 1 - sqrt over the last steps.
    cooled = lambda step: PEAK * (1 - math.sqrt(max(0, step - 80) / 20))
    case("Hägele et al. 2024", "wsd", cooled, length=0, decay_steps=20, decay_shape="sqrt")
    case("Hägele et al. 2024, to the last step", "wsd", lambda step: PEAK * (1 - math.sqrt(max(0, step - 80) / 19)),
         length=0, decay_steps=20, decay_shape="sqrt", floor_at="last_step")


def main():
    from_optax(), from_hugging_face(), from_pytorch(), from_papers()
    made_with = {"python": platform.python_version(), "jax": jax.__version__, "optax": optax.__version__,
                 "torch": torch.__version__, "transformers": transformers.__version__}
    text = json.dumps({"made_with": made_with, "cases": CASES}, indent=1, ensure_ascii=False)
    # A list in a line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
    pathlib.Path(__file__).with_suffix(".json").write_text(text + "\n")
    print(len(CASES), "cases")


main()
