#!/usr/bin/env python3
"""Training with a cache of a share of the rows that the data touches, beside training without.

    compare_cache.py DATA [--shares 0.01,0.1,1] [--dims 16,128] [--windows 8] [--batches 2048]
                     [--rounds 5] [-- FLAGS OF `thermocline train`]

For each dim and batch, a first run without a cache, which isn't counted, tells how many rows the data
touches. Then runs take turns, so that a machine that slows down slows all down: in each round one
without a cache, and one for each share and window. Printed: the setup, every run, then for each kind
the median samples/s with its spread, the bytes on the wire a step, the share of keys that the cache
had, and the ratios to the run without a cache, taken within each round. All runs of a dim and batch
must end with the same model, bit for bit.

DATA is a folder as `thermocline generate` writes it. A cache's budget is what its share of the rows
takes and the room for the rows of one batch. The workers compute on what the job's `device` says:
--set device=CPU or CUDA after `--` decides.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Least budget that a job file may give.
SMALLEST_BUDGET_BYTES = 64 << 10


def train(args, flags):
    """One run: its summary.json, the worker's result, and the sparse tables of the servers."""
    with tempfile.TemporaryDirectory(prefix="compare_cache_") as folder:
        run_dir = os.path.join(folder, "run")
        command = [args.thermocline, "train", args.job, "--data", args.data, "--run-dir", run_dir]
        done = subprocess.run(command + flags + args.flags, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command + flags)}\nended with {done.returncode}:\n{done.stdout}")
        with open(os.path.join(run_dir, "summary.json")) as f:
            summary = json.load(f)
        with open(os.path.join(run_dir, "worker-0.json")) as f:
            worker = json.load(f)
        with open(os.path.join(run_dir, "server_stats.json")) as f:
            servers = json.load(f)["servers"]
    tables = [table for server in servers for table in server["stats"]["tables"]
              if table["role"] == "SPARSE"]
    return summary, worker, tables


class Kind:
    """One way to run, and what came of its runs."""

    def __init__(self, name, flags):
        self.name, self.flags = name, flags
        self.rates, self.bytes_a_step, self.hit_rate = [], 0, None

    def add(self, summary, worker):
        self.rates.append(summary["samples_per_s"])
        self.bytes_a_step = (worker["bytes_pulled"] + worker["bytes_pushed"]) / worker["steps"]
        cache = worker.get("cache")
        if cache:
            keys = cache["hits"] + cache["loaded"] + cache["bypassed"]
            self.hit_rate = cache["hits"] / max(keys, 1)


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def compare(args, dim, batch):
    shape = ["--set", f"default_table.dim={dim}", "--set", f"train.batch_size={batch}"]
    first, worker, tables = train(args, shape)
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
    for number in range(1, args.rounds + 1):
        for kind in kinds:
            summary, worker, _ = train(args, kind.flags)
            if summary["model_digest"] != first["model_digest"]:
                sys.exit(f"{kind.name}: the model's digest is {summary['model_digest']}, not "
                         f"{first['model_digest']}")
            kind.add(summary, worker)
            print(f"round {number}   {kind.name:28} {summary['samples_per_s']:9.0f} samples/s   "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{'':28} {'samples/s':>10} {'lowest':>8} {'highest':>8} {'KB a step':>10} {'hits':>6}  "
          f"{'bytes':>6}  speed / no cache")
    for kind in kinds:
        hits = "" if kind.hit_rate is None else f"{kind.hit_rate:.0%}"
        ratios = [rate / base for rate, base in zip(kind.rates, kinds[0].rates)]
        print(f"{kind.name:28} {statistics.median(kind.rates):10.0f} {min(kind.rates):8.0f} "
              f"{max(kind.rates):8.0f} {kind.bytes_a_step / 1000:10.0f} {hits:>6}  "
              f"{kind.bytes_a_step / kinds[0].bytes_a_step:6.0%}  {spread(ratios)}", flush=True)


def numbers(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder with {train,test}_{dense,sparse,labels}.npy")
    parser.add_argument("flags", nargs="*", help="further flags of `thermocline train`, after --")
    parser.add_argument("--thermocline", default=f"{ROOT}/bazel-bin/deploy/thermocline")
    parser.add_argument("--job", default=f"{ROOT}/deploy/jobs/kaggle_npy.textproto")
    parser.add_argument("--shares", type=numbers(float), default=[0.1])
    parser.add_argument("--dims", type=numbers(int), default=[16, 128])
    parser.add_argument("--windows", type=numbers(int), default=[8])
    parser.add_argument("--batches", type=numbers(int), default=[2048])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    for path in (args.thermocline, args.job, f"{args.data}/train_labels.npy"):
        if not os.path.exists(path):
            parser.error(f"{path}: no such file")
    print(f"machine   {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[0]:.1f} before the runs")
    print(f"command   thermocline train {args.job} --data {args.data} {' '.join(args.flags)}")
    for dim in args.dims:
        for batch in args.batches:
            compare(args, dim, batch)


if __name__ == "__main__":
    main()
