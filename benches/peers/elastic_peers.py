"""Kills hosts of Lockstep and of TorchElastic and lets them come back, in turns, and prints how long training stood still.

    cargo build --release
    python3 -m venv peers-env && peers-env/bin/pip install -r benches/peers/requirements.txt
    peers-env/bin/python benches/peers/elastic_peers.py --turns 5

Three hosts are three supervisors of this machine with a process each, of `lockstep launch` or of `torchrun` (DDP on gloo, c10d). All train
the MLP of examples/digits.toml, AdamW, 16 examples a process, with a checkpoint every 100 steps on the same disk. In each round SIGKILL ends a
supervisor and its process, never those with the coordinator or the store; the time runs to the next step that the others have finished.
Then the host comes back: from its start to the first step with its process, and how long the others took no step. A recovery that takes
longer than --limit seconds is given up, and a new job begins.

TorchElastic runs with its own waits (`torch`) and with short ones (`torch-tuned`), both with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Without that,
as `torch-shared`, agents of torch 2.15 keep the address of the workers' store from their first rendezvous and do not publish it again. An agent
that comes later waits for it until its store gives up after 60 s, which ends all agents; and workers find keys of the generation before.
"""

import argparse
import gzip
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lockstep", default="target/release/lockstep", help="the binary")
parser.add_argument("--turns", type=int, default=5, help="each runs all programs, one after the other")
parser.add_argument("--rounds", type=int, default=2, help="kills in a turn of a program")
parser.add_argument("--limit", type=float, default=120, help="seconds for a recovery")
parser.add_argument("--programs", default="lockstep,torch,torch-tuned")
parser.add_argument("--worker", help=argparse.SUPPRESS)
args = parser.parse_args()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HOSTS, EACH, SAVE_EVERY = 3, 16, 100
# A host is dead after 3 s, and a rendezvous waits 2 s for more hosts, as Lockstep does.
TUNED = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"


def train(directory):
    """A worker under torchrun: the newest checkpoint, then steps without end. The first rank writes a line for each."""
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    with gzip.open(ROOT / "examples/data/digits.csv.gz", "rt") as file:
        rows = [[float(cell) for cell in line.split(",")] for line in file if line[0].isdigit()]
    data = torch.tensor(rows)
    examples, labels = data[:, :-1] / 16, data[:, -1].long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    saved = pathlib.Path(directory, "saved.pt")
    step = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(model)
    with open(os.path.join(directory, "steps"), "a") as steps:
        while True:
            generator = torch.Generator().manual_seed(step)
            chosen = torch.randint(len(examples), (EACH * world,), generator=generator)[rank::world]
            loss = nn.functional.cross_entropy(model(examples[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                loss.item()
                steps.write(f"{step} {world}\n")
                steps.flush()
                if step % SAVE_EVERY == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, saved.with_suffix(".new"))
                    saved.with_suffix(".new").rename(saved)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def below(pid):
    """A process and all that it has started."""
    children = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(status.parent.name))
        except OSError:
            pass
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


class Job:
    """Three hosts that train."""

    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.address = f"127.0.0.1:{free_port()}"
        self.hosts = []
        for _ in range(HOSTS):
            self.come()
            # The first one listens.
            time.sleep(1)
        self.until(HOSTS, 20)

    def command(self):
        if self.program == "lockstep":
            size = ["--hosts", f"{HOSTS - 1}:{HOSTS}", "--processes-per-host", "1", "--coordinator", self.address]
            keys = [f"mesh.data={HOSTS}", f"train.global_batch={EACH * HOSTS}", f"train.microbatch={EACH}", "train.epochs=1000000"]
            keys += [f"checkpoint.every_steps={SAVE_EVERY}", "schedule.name=\"constant\"", "train.eval_every=1000000"]
            sets = [word for key in keys for word in ("--set", key)]
            run = ["--resume", "--out", os.path.join(self.directory, "out")]
            return [args.lockstep, "launch", *size, "--", "train", "examples/digits.toml", *sets, *run]
        conf = ["--rdzv-conf", TUNED] if self.program == "torch-tuned" else []
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self.address, "--rdzv-id", "job", *conf]
        size = ["--nnodes", f"{HOSTS - 1}:{HOSTS}", "--nproc-per-node", "1", "--max-restarts", "1000"]
        return [sys.executable, "-m", "torch.distributed.run", *size, *rendezvous, __file__, "--worker", self.directory]

    def come(self):
        log = open(os.path.join(self.directory, f"log.{len(self.hosts)}"), "a")
        environment = {**os.environ, "LOCKSTEP_TOKEN": "0123456789abcdef" * 2, "OMP_NUM_THREADS": "1"}
        if self.program != "torch-shared":
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.hosts.append(subprocess.Popen(self.command(), cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True))

    def kill(self, index):
        host = self.hosts.pop(index)
        for pid in below(host.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        host.wait()

    def last(self):
        """When the newest step was written, its number, and the processes of its generation; None before the first."""
        path = pathlib.Path(self.directory, "out/metrics.jsonl" if self.program == "lockstep" else "steps")
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return None
        if self.program == "lockstep":
            for line in reversed(lines):
                row = json.loads(line) if line.startswith(b"{") else {}
                if "step" in row:
                    return row["step"], self.processes()
            return None
        step, world = lines[-1].split() if lines else (0, 0)
        return int(step), int(world)

    def processes(self):
        try:
            summary = json.loads(pathlib.Path(self.directory, "out/summary.json").read_text())
            return summary["generation_starts"][-1]["num_processes"]
        except (OSError, ValueError, LookupError):
            return 0

    def until(self, processes, steps=1):
        """Seconds until so many processes have finished a step, and the longest time without one until then."""
        start = time.monotonic()
        before, seen, changed, longest, new = self.last(), 0, start, 0, 0
        while time.monotonic() < start + args.limit:
            if any(host.poll() is not None for host in self.hosts):
                return None
            now = self.last()
            if now != before:
                longest = max(longest, time.monotonic() - changed)
                changed = time.monotonic()
                new = new + 1 if now and now[1] == processes else 0
                if new >= steps:
                    return changed - start, longest
                before = now
            time.sleep(0.002)
        return None

    def end(self):
        while self.hosts:
            self.kill(0)


def measure(program, directory):
    """For each round: seconds from the kill to a step, from the return to a step, and without a step; None for what did not end."""
    job = Job(program, directory)
    rows = []
    for round in range(args.rounds):
        # In one round the last host, in the next the one before.
        job.kill(1 + round % (HOSTS - 1))
        lost = job.until(HOSTS - 1)
        if lost is None:
            rows.append((None, None, None))
            job.end()
            job = Job(program, tempfile.mkdtemp(dir=directory))
            continue
        time.sleep(2)
        job.come()
        back = job.until(HOSTS)
        rows.append((lost[0], *(back or (None, None))))
        print(program, round, rows[-1], file=sys.stderr, flush=True)
        if back is None:
            job.end()
            job = Job(program, tempfile.mkdtemp(dir=directory))
            continue
        time.sleep(2)
    job.end()
    return rows


def shown(values):
    ended = sorted(value for value in values if value is not None)
    if not ended:
        return f"none of {len(values)} within {args.limit:g} s"
    lost = f", {len(values) - len(ended)} not within {args.limit:g} s" if len(ended) < len(values) else ""
    return f"{statistics.median(ended):.2f} s ({ended[0]:.2f} to {ended[-1]:.2f}{lost})"


def main():
    rows = {program: [] for program in args.programs.split(",")}
    for _ in range(args.turns):
        for program in rows:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                rows[program] += measure(program, directory)
    print(f"{platform.machine()}, {os.cpu_count()} processors, {args.turns} turns of {args.rounds} rounds")
    print("| | kill to the next step | start of a host to its first step | without a step meanwhile |\n|---|---|---|---|")
    for program, measured in rows.items():
        print(f"| {program} | " + " | ".join(shown(column) for column in zip(*measured)) + " |")


if __name__ == "__main__":
    train(args.worker) if args.worker else main()
