"""Steps of fine-tuning DistilBERT: Lockstep beside PyTorch and transformers, on the same folder, in turns.

    pip install torch==2.15.0 transformers==5.23.0
    cargo build --release
    python benches/peers/finetune.py FOLDER [--batch 8] [--length 32] [--rounds 3] [--steps 10]

FOLDER has a Hugging Face DistilBERT and its tokenizer, such as `lockstep checkpoint export --format huggingface` writes.
f32, AdamW, gradients clipped to norm 1, dropout as in the folder; Lockstep with 1 and 2 replicas, PyTorch in one process with
all processors and with DistributedDataParallel (gloo) in two. Prints the median step of each round.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def torch_worker(folder, batch, length, steps, rank, world):
    import torch
    import transformers
    torch.set_num_threads(max(1, os.cpu_count() // world))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).train()
    clipped = list(model.parameters())
    if world > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    generator = torch.Generator().manual_seed(rank)
    times = []
    for _ in range(steps + 3):
        ids = torch.randint(5, 1000, (batch // world, length), generator=generator)
        labels = torch.randint(0, 2, (batch // world,), generator=generator)
        start = time.perf_counter()
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(1e3 * statistics.median(times[3:]))
    if world > 1:
        torch.distributed.destroy_process_group()


def torch_step(args, world):
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    command = [sys.executable, __file__, args.folder, "--batch", str(args.batch), "--length", str(args.length),
               "--steps", str(args.steps), "--world", str(world), "--rank"]
    workers = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                env=environment) for rank in range(world)]
    outputs = [worker.communicate()[0] for worker in workers]
    return float(outputs[0].split()[-1])


def lockstep_step(args, replicas):
    config = (
        f'model = {{ from = "{Path(args.folder).absolute()}" }}\n'
        f'data = {{ source = "classification", path = "{EXAMPLES}/sentiment/train.tsv", max_length = {args.length},'
        f' tokenizer = "{Path(args.folder).absolute()}", truncate = true }}\n'
        f'train = {{ global_batch = {args.batch}, steps = 100 }}\n'
        'optimizer = { name = "adamw", weight_decay = 0.01, clip_grad_norm = 1.0 }\n'
        'schedule = { name = "constant", peak = 1e-5 }\n'
        f'mesh = {{ data = {replicas} }}\n')
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        command = [ROOT / "target/release/lockstep", "bench", file.name, "--json", "--steps", str(args.steps)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["median_step_ms"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int, default=1)
    args = parser.parse_args()
    if args.rank is not None:
        return torch_worker(args.folder, args.batch, args.length, args.steps, args.rank, args.world)
    cases = {"lockstep, 1 replica": lambda: lockstep_step(args, 1), "torch, 1 process": lambda: torch_step(args, 1),
             "lockstep, 2 replicas": lambda: lockstep_step(args, 2), "torch, 2 processes": lambda: torch_step(args, 2)}
    times = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, step in cases.items():
            times[name].append(step())
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.processor())
    print(f"{processor}, {os.cpu_count()} processors; batch {args.batch} x {args.length} tokens")
    for name, rounds in times.items():
        print(f"{name:22} {statistics.median(rounds):9.1f} ms  ({', '.join(f'{ms:.1f}' for ms in rounds)})")
    for count, peer in [("1 replica", "1 process"), ("2 replicas", "2 processes")]:
        ratios = [ours / theirs for ours, theirs in zip(times[f"lockstep, {count}"], times[f"torch, {peer}"])]
        print(f"lockstep / torch, {count}: {statistics.median(ratios):.2f}")


main()
