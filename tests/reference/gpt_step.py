"""Reference values for a training step of a small GPT, from PyTorch's own layers, gradients and AdamW.

Writes gpt_step.json beside this file, which model_steps.rs reads:

    python gpt_step.py        # made with Python 3.11.7, torch 2.15.0, numpy 2.4.6 on x86-64

Everything is f64. The model is that of models/src/gpt.rs, made of torch.nn.functional. Parameters and tokens
come from drawn.py. Only parameters of rank 2 or more are decayed. Epsilon is larger than usual: keys'
biases have no gradient but rounding errors, which AdamW would otherwise make a full step of.
"""

import platform

import numpy as np
import torch
import torch.nn.functional as F

import drawn

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 2, 32, 4, 16, 64
BATCH, POSITIONS = 4, 12
ADAMW = dict(beta1=0.9, beta2=0.95, epsilon=2.0**-14, weight_decay=0.1)
LEARNING_RATE = 2.0**-6


def shapes():
    yield "embed.weight", VOCABULARY, WIDTH
    yield "position.weight", CONTEXT, WIDTH
    for index in range(LAYERS):
        attention = [(f"attn.{name}", WIDTH, WIDTH) for name in ["query", "key", "value", "out"]]
        for name, num_out, num_in in [*attention, ("mlp.up", 4 * WIDTH, WIDTH),
                                      ("mlp.down", WIDTH, 4 * WIDTH)]:
            yield f"blocks.{index}.{name}.weight", num_out, num_in
            yield f"blocks.{index}.{name}.bias", num_out
        for norm in ["norm1", "norm2"]:
            yield f"blocks.{index}.{norm}.weight", WIDTH
            yield f"blocks.{index}.{norm}.bias", WIDTH
    yield "norm.weight", WIDTH
    yield "norm.bias", WIDTH


def loss(p, x, y):
    def norm(path, h):
        return F.layer_norm(h, (WIDTH,), p[f"{path}.weight"], p[f"{path}.bias"], 1e-5)

    def linear(path, h):
        return F.linear(h, p[f"{path}.weight"], p[f"{path}.bias"])

    def heads(h):
        return h.view(BATCH, POSITIONS, HEADS, WIDTH // HEADS).transpose(1, 2)

    h = F.embedding(x, p["embed.weight"]) + p["position.weight"][:POSITIONS]
    for index in range(LAYERS):
        at = f"blocks.{index}"
        normal = norm(f"{at}.norm1", h)
        q, k, v = (heads(linear(f"{at}.attn.{name}", normal)) for name in ["query", "key", "value"])
        y_heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(f"{at}.attn.out", y_heads.transpose(1, 2).reshape(BATCH, POSITIONS, WIDTH))
        hidden = F.gelu(linear(f"{at}.mlp.up", norm(f"{at}.norm2", h)), approximate="tanh")
        h = h + linear(f"{at}.mlp.down", hidden)
    logits = F.linear(norm("norm", h), p["embed.weight"])
    return F.cross_entropy(logits.view(-1, VOCABULARY), y.reshape(-1))


def main():
    params = {path: torch.tensor(drawn.leaf(path, *dims), requires_grad=True)
              for path, *dims in shapes()}
    tokens = torch.tensor(drawn.integers("tokens", VOCABULARY, BATCH, POSITIONS + 1))
    groups = [{"params": [p for p in params.values() if p.ndim > 1]},
              {"params": [p for p in params.values() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(ADAMW["beta1"], ADAMW["beta2"]),
                                  eps=ADAMW["epsilon"], weight_decay=ADAMW["weight_decay"])
    value = loss(params, tokens[:, :-1], tokens[:, 1:])
    value.backward()
    gradients = {path: p.grad.numpy().copy() for path, p in params.items()}
    optimizer.step()
    drawn.write(__file__, {
        "made_with": {"python": platform.python_version(), "torch": torch.__version__,
                      "numpy": np.__version__},
        "model": {"num_layers": LAYERS, "width": WIDTH, "num_heads": HEADS, "context": CONTEXT,
                  "vocabulary": VOCABULARY},
        "batch": BATCH,
        "positions": POSITIONS,
        "optimizer": {"name": "adamw", **ADAMW},
        "learning_rate": LEARNING_RATE,
        "loss": drawn.short(value.item()),
        "grad_norm": drawn.short(np.sqrt(sum((g**2).sum() for g in gradients.values()))),
        "gradients": {path: drawn.digest(path, g) for path, g in gradients.items()},
        "params": {path: drawn.digest(path, p.detach()) for path, p in params.items()},
        "model_state": {},
    })


main()
