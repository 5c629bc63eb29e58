"""Examples per second of making training batches: Lockstep beside PyTorch's DataLoader, on the same files, in turns.

    pip install torch==2.15.0 torchvision==0.29.2 pyarrow==26.0.1
    cargo build --release --bench loading        # prints the path of the program
    python benches/peers/data_loading.py PROGRAM [images] [text] [tables] [--rounds 3] [--seconds 5]

Images: 256 JPEGs of 500 x 375, cut at random to 224 x 224, flipped and normalized (f32); batches of 32. PyTorch reads them with
torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip and Normalize. Text: 2^24 tokens of u16, in windows of 256 and the
tokens after them; batches of 64. PyTorch reads them from a memory-mapped file. All processors: a DataLoader has as many worker
processes, which stay for all epochs; the windows are also read without workers, which may be faster. Prints medians over the rounds, with
the least and the greatest, and the ratio to the faster form of PyTorch in the same round.

Tables, once: the same 32 numbers, a word and a class in each row of a CSV of 1 GB and of a Parquet file; batches of 1024 in random order,
numbers standardized and words one-hot. PyTorch has tensors in memory, read with pyarrow on all processors, and a DataLoader that either
collects rows or indexes a batch at once. Prints seconds until the data is open, rows per second after that, and rows per second of both
together over one epoch.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

import numpy as np
import pyarrow
import torch
import torchvision
from PIL import Image
from pyarrow import csv, parquet
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision import transforms

NUM_IMAGES, IMAGE_BATCH = 256, 32
CONTEXT, NUM_TOKENS, TEXT_BATCH = 256, 2**24, 64
PROCESSORS = len(os.sched_getaffinity(0))

NUM_ROWS, NUM_COLUMNS, ROW_BATCH = 3_400_000, 32, 1024
WORDS = ["red", "green", "blue", "yellow"]

CONFIG = """
[model]
{model}
[data]
{data}
[train]
global_batch = {batch}
steps = 100
[optimizer]
name = "sgd"
[schedule]
name = "constant"
peak = 0.1
[mesh]
data = 1
"""


def write_images(folder):
    """Smooth colours with a little noise: the files are as large as those of photographs."""
    draw = np.random.default_rng(0)
    row, column = np.mgrid[:375, :500]
    for number in range(NUM_IMAGES):
        smooth = np.stack([row, column, row + column + 16 * number], -1) // 4 % 200
        pixels = smooth + draw.integers(0, 24, smooth.shape)
        place = folder / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.jpg", quality=90)


class Windows(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        window = torch.from_numpy(self.tokens[index * CONTEXT :][: CONTEXT + 1].astype(np.int64))
        return window[:-1], window[1:]


def write_tables(folder):
    draw = np.random.default_rng(0)
    columns = {f"x{i}": np.round(draw.normal(i, 1 + i, NUM_ROWS), 5) for i in range(NUM_COLUMNS)}
    columns["word"] = np.array(WORDS)[draw.integers(0, len(WORDS), NUM_ROWS)]
    columns["class"] = np.array(["no", "yes"])[(columns["x0"] > 0).astype(int)]
    table = pyarrow.table(columns)
    csv.write_csv(table, folder / "table.csv")
    parquet.write_table(table, folder / "table.parquet")


class Rows(Dataset):
    """Rows by index, or by a list of indices at once."""

    def __init__(self, path):
        read = csv.read_csv if path.suffix == ".csv" else parquet.read_table
        table = read(path)
        numbers = np.stack([table[f"x{i}"].to_numpy() for i in range(NUM_COLUMNS)], 1)
        numbers = ((numbers - numbers.mean(0)) / numbers.std(0)).astype(np.float32)
        code = lambda name: table[name].combine_chunks().dictionary_encode().indices.to_numpy()
        words = np.eye(len(WORDS), dtype=np.float32)[code("word")]
        self.x = torch.from_numpy(np.concatenate([numbers, words], 1))
        self.y = torch.from_numpy(code("class").astype(np.int64))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def compare_tables(program, work, seconds):
    write_tables(work)
    for path in [work / "table.csv", work / "table.parquet"]:
        data = f'source = "table"\npath = "{path}"\ntarget = "class"\neval_fraction = 0.001'
        config = work / f"{path.suffix[1:]}.toml"
        config.write_text(CONFIG.format(model='name = "mlp"', data=data, batch=ROW_BATCH))
        output = subprocess.run([program, config, "--seconds", str(seconds)], check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(output)
        results = {"Lockstep": (found["open_secs"], found["examples_per_sec"])}
        started = time.perf_counter()
        rows = Rows(path)
        open_secs = time.perf_counter() - started
        by_batch = BatchSampler(RandomSampler(rows), ROW_BATCH, drop_last=True)
        results["DataLoader, row by row"] = open_secs, torch_rate(rows, ROW_BATCH, 0, seconds)
        results["DataLoader, batch at once"] = open_secs, torch_rate(rows, ROW_BATCH, 0, seconds, sampler=by_batch, batch_size=None)
        for case, (open_secs, rate) in results.items():
            whole = NUM_ROWS / (open_secs + NUM_ROWS / rate)
            print(f"{path.suffix[1:]:8} {path.stat().st_size / 1e9:.2f} GB: {case:26} open {open_secs:6.2f} s, then {rate:9.0f} rows/s; together {whole:9.0f} rows/s")
        del rows


def torch_rate(dataset, batch, num_workers, seconds, **how):
    how = how or dict(batch_size=batch, shuffle=True, drop_last=True)
    loader = DataLoader(dataset, num_workers=num_workers, persistent_workers=num_workers > 0, **how)

    def batches():
        while True:
            yield from loader

    source = batches()
    # Starts the workers, and uses what they have made ahead of time.
    for _ in range(2 * num_workers + 1):
        next(source)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        next(source)
        count += batch
    return count / (time.perf_counter() - started)


def lockstep_rate(program, config, seconds):
    output = subprocess.run([program, config, "--seconds", str(seconds)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)["examples_per_sec"]


def interval(values, digits=0):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def processor():
    try:
        lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    return f"{fields.get('model name', platform.machine())}, family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="what cargo build --release --bench loading has built")
    parser.add_argument("parts", nargs="*", default=["images", "text", "tables"], help="images, text, tables: what is read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    if unknown := set(args.parts) - {"images", "text", "tables"}:
        parser.error(f"not images, text or tables: {', '.join(sorted(unknown))}")
    torch.set_num_threads(PROCESSORS)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        print(f"{processor()}, {PROCESSORS} processors; torch {torch.__version__}, torchvision {torchvision.__version__}")
        if "tables" in args.parts:
            compare_tables(args.program, work, args.seconds)
        if args.parts == ["tables"]:
            return
        write_images(work / "images")
        tokens = np.random.default_rng(0).integers(0, 50257, NUM_TOKENS, dtype=np.uint16)
        tokens.tofile(work / "tokens.bin")
        configs = {
            "images": (f'name = "resnet"\npreset = "resnet50"', f'source = "image_folder"\npath = "{work}/images"\nimage_size = 224', IMAGE_BATCH),
            "text": (
                f'name = "gpt"\npreset = "gpt2-124m"\ncontext = {CONTEXT}',
                f'source = "tokens"\npath = "{work}/tokens.bin"\nvocab_size = 50257\ncontext = {CONTEXT}',
                TEXT_BATCH,
            ),
        }
        for name, (model, data, batch) in configs.items():
            (work / f"{name}.toml").write_text(CONFIG.format(model=model, data=data, batch=batch))
        augment = transforms.Compose([
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])
        folder, windows = torchvision.datasets.ImageFolder(work / "images", augment), Windows(work / "tokens.bin")
        peers = {
            "images": {f"DataLoader, {PROCESSORS} workers": lambda: torch_rate(folder, IMAGE_BATCH, PROCESSORS, args.seconds)},
            "text": {
                f"DataLoader, {PROCESSORS} workers": lambda: torch_rate(windows, TEXT_BATCH, PROCESSORS, args.seconds),
                "DataLoader, no workers": lambda: torch_rate(windows, TEXT_BATCH, 0, args.seconds),
            },
        }
        for name in configs.keys() & args.parts:
            cases = {"Lockstep": lambda: lockstep_rate(args.program, work / f"{name}.toml", args.seconds), **peers[name]}
            rates = {case: [] for case in cases}
            for _ in range(args.rounds):
                for case, rate in cases.items():
                    rates[case].append(rate())
            for case, found in rates.items():
                print(f"{name}: {case:24} {interval(found)} examples/s")
            fastest = [max(found) for found in zip(*(rates[case] for case in peers[name]))]
            print(f"{name}: Lockstep / PyTorch {interval([ours / theirs for ours, theirs in zip(rates['Lockstep'], fastest)], 2)}")


if __name__ == "__main__":
    main()
