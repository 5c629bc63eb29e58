"""The step of ../dispatch.rs in JAX: adds 1 to 150 small donated arrays, waiting for each step."""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--wait", choices=["all", "one"], default="all", help="arrays waited for")
args = parser.parse_args()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", args.replicas)

NUM_ARRAYS, DIM, WARM_UP = 150, 32, 200


def body(state):
    return [array + 1 for array in state]


if args.replicas == 1:
    step = jax.jit(body, donate_argnums=0)
    state = [jnp.zeros(DIM, jnp.float32) for _ in range(NUM_ARRAYS)]
else:
    mesh = Mesh(jax.devices(), ("data",))
    spec = PartitionSpec("data")
    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)
    sharding = NamedSharding(mesh, spec)
    state = [
        jax.device_put(jnp.zeros(DIM * args.replicas, jnp.float32), sharding)
        for _ in range(NUM_ARRAYS)
    ]

micros = []
for index in range(WARM_UP + args.steps):
    started = time.perf_counter()
    state = step(state)
    jax.block_until_ready(state if args.wait == "all" else state[-1])
    if index >= WARM_UP:
        micros.append((time.perf_counter() - started) * 1e6)

print(json.dumps({"replicas": args.replicas, "median_us": round(statistics.median(micros), 1)}))
