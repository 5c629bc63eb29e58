"""Numbers that the reference scripts and the Rust tests both compute, so that fixtures need not hold them.

drawn.rs beside this file has the same formulas. A number is a multiple of 2^-15 in [-1, 1) and follows from
a name and an index; all sizes are powers of two, so that f32 holds every value exactly.
"""

import json
import math
import pathlib
import re

import numpy as np


def words(name, count):
    """`count` well-mixed 32-bit words: FNV-1a of the name, a Weyl sequence, MurmurHash3's last step."""
    stream = 0x811C9DC5
    for byte in name.encode():
        stream = (stream ^ byte) * 0x01000193 % 2**32
    h = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(stream)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def uniform(name, *dims):
    """In [-1, 1)."""
    numbers = (words(name, math.prod(dims)) >> np.uint32(16)).astype(np.float64) / 2**15 - 1
    return numbers.reshape(dims)


def integers(name, below, *dims):
    return (words(name, math.prod(dims)) % np.uint32(below)).astype(np.int64).reshape(dims)


def leaf(path, *dims):
    """A parameter or running mean: matrices and kernels so large that they keep the variance, scales and
    variances around 1, the rest around 0."""
    if len(dims) > 1:
        return uniform(path, *dims) * 2.0 ** -(int(math.log2(math.prod(dims[1:]))) // 2)
    around = 1.0 if path.endswith((".weight", ".variance", ".running_var")) else 0.0
    return around + uniform(path, *dims) / 4


def digest(path, values):
    """What a fixture keeps of a leaf: its norm, its product with a fixed direction, some of its elements."""
    values = np.asarray(values, dtype=np.float64)
    flat = values.ravel()
    stride = (flat.size // 64) | 1
    return {"dims": list(values.shape), "norm": short(np.linalg.norm(flat)),
            "product": short(flat @ uniform(f"direction of {path}", flat.size)),
            "stride": stride, "values": [short(value) for value in flat[::stride]]}


def short(value):
    return float(f"{float(value):.10g}")


def write(script, reference):
    """As JSON beside the script, a list of numbers on one line."""
    text = json.dumps(reference, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match[0].split()), text)
    pathlib.Path(script).with_suffix(".json").write_text(text + "\n")
