"""Steps of PyTorch's DistributedDataParallel between processes, with its communication hooks.

    python ddp.py RANK NUM_PROCESSES BATCH STEPS

The model is that of examples/gpt-bytes.toml: as many parameters, the same batch of each process, AdamW,
gloo, and one thread. MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME say where. Prints a list of
[name, median milliseconds of a step, the same without communication] as JSON.
"""

import json
import sys
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, HEADS, CONTEXT, VOCABULARY = 128, 4, 4, 128, 256


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)

    def forward(self, x):
        x = self.tokens(x) + self.positions
        return self.blocks(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T


def power_sgd(model):
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


# With several buckets callbacks of the PowerSGD hook run in another order on each process, and gloo fails:
# "Received data size doesn't match expected size". The others have the default buckets.
HOOKS = {
    "f32": (lambda model: None, None),
    "bf16 hook": (lambda model: model.register_comm_hook(None, default_hooks.bf16_compress_hook), None),
    "PowerSGD hook, rank 2": (power_sgd, 64),
}


def milliseconds(model, optimizer, batch, steps, warm=4):
    found = []
    for _ in range(warm + steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        x, y = torch.randint(VOCABULARY, (2, batch, CONTEXT))
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        found.append(1e3 * (time.perf_counter() - began))
    return median(found[warm:])


def main():
    rank, num_processes, batch, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=num_processes)
    table = []
    for name, (hook, bucket_mb) in HOOKS.items():
        torch.manual_seed(0)
        model = DistributedDataParallel(Gpt(), bucket_cap_mb=bucket_mb)
        hook(model)
        optimizer = torch.optim.AdamW(model.parameters())
        step = milliseconds(model, optimizer, batch, steps)
        with model.no_sync():
            alone = milliseconds(model, optimizer, batch, steps)
        table.append([name, step, alone])
        dist.barrier()
    if rank == 0:
        print(json.dumps(table))
    dist.destroy_process_group()


main()
