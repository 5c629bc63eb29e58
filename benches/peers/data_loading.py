"""Examples per second of making training batches: Lockstep beside PyTorch's DataLoader, on the same files, in turns.

    pip install torch==2.15.0 torchvision==0.29.2
    cargo build --release --bench loading        # prints the path of the program
    python benches/peers/data_loading.py PROGRAM [--rounds 3] [--seconds 5]

Images: 256 JPEGs of 500 x 375, cut at random to 224 x 224, flipped and normalized (f32); batches of 32. PyTorch reads them with
torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip and Normalize. Text: 2^24 tokens of u16, in windows of 256 and the
tokens after them; batches of 64. PyTorch reads them from a memory-mapped file. All processors: a DataLoader has as many worker
processes, which stay for all epochs; the windows are also read without workers, which may be faster. Prints medians over the rounds, with
the least and the greatest, and the ratio to the faster form of PyTorch in the same round.
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
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

NUM_IMAGES, IMAGE_BATCH = 256, 32
CONTEXT, NUM_TOKENS, TEXT_BATCH = 256, 2**24, 64
PROCESSORS = len(os.sched_getaffinity(0))

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


def torch_rate(dataset, batch, num_workers, seconds):
    loader = DataLoader(dataset, batch, shuffle=True, drop_last=True, num_workers=num_workers, persistent_workers=num_workers > 0)

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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    torch.set_num_threads(PROCESSORS)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
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
        print(f"{processor()}, {PROCESSORS} processors; torch {torch.__version__}, torchvision {torchvision.__version__}")
        for name in configs:
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
