#!/usr/bin/env python3
"""Training with a cache of a share of the rows that the data touches, beside training without.

    compare_cache.py DATA [--shares 0.01,0.1,1] [--dims 16,128] [--windows 8] [--batches 2048]
                     [--rounds 5] [--peer tests/benchmarks/peers/torch_dlrm.py] [-- FLAGS OF `train`]

For each dim and batch, a first run without a cache, which isn't counted, tells how many rows the data
touches. Then runs take turns, so that a machine that slows down slows all down: in each round one
without a cache, and one for each share and window. Printed: the setup, every run, then for each kind
the median samples/s with its spread, the bytes on the wire a step, the share of keys that the cache
had, and the ratios to the run without a cache, taken within each round. All runs of a dim and batch
must end with the same model, bit for bit.

With --peer also a DLRM in plain PyTorch on the same files, in each of --peer-modes: a script that takes
`DATA --mode M --batch N --dim D --no-eval` and prints samples_per_s=.

DATA is a folder as `thermocline generate` writes it. A cache's budget is what its share of the rows
takes and the room for the rows of one batch. The workers compute on what the job's `device` says:
--set device=CPU or CUDA after `--` decides.
"""
import argparse
import os
import platform
import re
import statistics
import sys

import train_run

# Least budget that a job file may give.
SMALLEST_BUDGET_BYTES = 64 << 10


class Kind:
    """One way to run, and what came of its runs."""

    def __init__(self, name, flags):
        self.name, self.flags = name, flags
        self.rates, self.bytes_a_step, self.hit_rate = [], 0, None

    def run(self, args, digest):
        summary, worker, _ = train_run.train(args, self.flags)
        if summary["model_digest"] != digest:
            sys.exit(f"{self.name}: the model's digest is {summary['model_digest']}, not {digest}")
        self.rates.append(summary["samples_per_s"])
        self.bytes_a_step = (worker["bytes_pulled"] + worker["bytes_pushed"]) / worker["steps"]
        cache = worker.get("cache")
        if cache:
            keys = cache["hits"] + cache["loaded"] + cache["bypassed"]
            self.hit_rate = cache["hits"] / max(keys, 1)


class Peer:
    """A DLRM in plain PyTorch."""

    def __init__(self, mode, dim, batch):
        self.name = f"PyTorch, {mode}"
        self.options = ["--mode", mode, "--dim", str(dim), "--batch", str(batch), "--no-eval"]
        self.rates, self.bytes_a_step, self.hit_rate = [], None, None

    def run(self, args, digest):
        command = [args.python, args.peer, args.data] + self.options
        output = train_run.run(command)
        found = re.search(r"samples_per_s=([0-9.]+)", output)
        if not found:
            sys.exit(f"{' '.join(command)}\ndid not print samples_per_s=:\n{output}")
        self.rates.append(float(found[1]))


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def compare(args, dim, batch):
    shape = ["--set", f"default_table.dim={dim}", "--set", f"train.batch_size={batch}"]
    first, worker, tables = train_run.train(args, shape)
    rows = sum(int(table["rows"]) for table in tables)
    # Weights and Adagrad's sums of squares.
    row_bytes = 2 * 4 * dim
    staging_rows = batch * len({table["name"] for table in tables})
    print(f"\ndim {dim}, batch {batch}: {rows} rows touched, on {worker['device']}")
    kinds = [Kind("no cache", shape)]
    for share in args.shares:
        for window in args.windows:
            budget = max(int((share * rows + staging_rows) * row_bytes), SMALLEST_BUDGET_BYTES)
            flags = ["--set", f"cache.budget={budget}B", "--set", f"cache.window_steps={window}"]
            kinds.append(Kind(f"{share:.0%} of the rows, window {window}", shape + flags))
    if args.peer:
        kinds += [Peer(mode, dim, batch) for mode in args.peer_modes]
    for number in range(1, args.rounds + 1):
        for kind in kinds:
            kind.run(args, first["model_digest"])
            print(f"round {number}   {kind.name:28} {kind.rates[-1]:9.0f} samples/s   "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{'':28} {'samples/s':>10} {'lowest':>8} {'highest':>8} {'KB a step':>10} {'hits':>6}  "
          f"{'bytes':>6}  speed / no cache")
    for kind in kinds:
        hits = "" if kind.hit_rate is None else f"{kind.hit_rate:.0%}"
        size, part = "", ""
        if kind.bytes_a_step is not None:
            size = f"{kind.bytes_a_step / 1000:.0f}"
            part = f"{kind.bytes_a_step / kinds[0].bytes_a_step:.0%}"
        ratios = [rate / base for rate, base in zip(kind.rates, kinds[0].rates)]
        print(f"{kind.name:28} {statistics.median(kind.rates):10.0f} {min(kind.rates):8.0f} "
              f"{max(kind.rates):8.0f} {size:>10} {hits:>6}  {part:>6}  {spread(ratios)}", flush=True)


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=5)
    parser.add_argument("--shares", type=numbers(float), default=[0.1])
    parser.add_argument("--dims", type=numbers(int), default=[16, 128])
    parser.add_argument("--windows", type=numbers(int), default=[8])
    parser.add_argument("--batches", type=numbers(int), default=[2048])
    parser.add_argument("--peer", help="a DLRM in PyTorch, to compare with")
    parser.add_argument("--peer-modes", type=numbers(str), default=["hybrid", "gpu"])
    parser.add_argument("--python", default=sys.executable, help="that has PyTorch")
    args = train_run.parse(parser)
    print(f"machine   {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[0]:.1f} before the runs")
    print(f"command   thermocline train {args.job} --data {args.data} {' '.join(args.flags)}")
    for dim in args.dims:
        for batch in args.batches:
            compare(args, dim, batch)


if __name__ == "__main__":
    main()
