#!/usr/bin/env python3
"""Training speed and quality beside a DLRM in plain PyTorch, on the same npy files.

    compare_torch.py DATA --peer torch_dlrm.py [--rounds 3] [-- FLAGS OF `thermocline train`]

Runs take turns, so that a machine that slows down slows all of them down: in each round Thermocline
once and the peer once with 1 and once with 2 threads. Printed: the setup, every run, then the median
samples/s with its spread, the ratio to the peer's better thread count, and the AUCs. DATA is a folder
as `thermocline generate` writes it. The peer is a script that takes `DATA --batch N --threads T` and
prints one line with samples_per_s=, auc= and logloss=.
"""
import argparse
import os
import platform
import re
import statistics
import subprocess
import sys

import train_run


def train(args):
    """One Thermocline run, as a dict with samples_per_s, auc and logloss."""
    return train_run.train(args, ["--set", f"train.batch_size={args.batch}"])[0]


def run_peer(args, threads):
    output = train_run.run([args.python, args.peer, args.data, "--batch", str(args.batch),
                            "--threads", str(threads)])
    found = dict(re.findall(r"(samples_per_s|auc|logloss)=([0-9.]+)", output))
    if len(found) != 3:
        sys.exit(f"{args.peer} did not print samples_per_s=, auc= and logloss=:\n{output}")
    return {key: float(value) for key, value in found.items()}


def python_with_torch():
    """This interpreter, or the system's where only that has PyTorch."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run(
                [python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    sys.exit("no Python with PyTorch found: install python3-torch, or give --python")


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            info = f.read()
    except OSError:
        return platform.processor()
    model = re.search(r"model name\s*: (.*)", info)
    isa = "AVX-512" if " avx512f " in info else "AVX2" if " avx2 " in info else "no AVX2"
    return f"{model.group(1) if model else platform.processor()}, {os.cpu_count()} CPUs, {isa}"


def commit():
    done = subprocess.run(["git", "-C", train_run.ROOT, "describe", "--always", "--dirty"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=3)
    parser.add_argument("--peer", default=os.environ.get("THERMOCLINE_PEER"),
                        help="the PyTorch script (default: $THERMOCLINE_PEER)")
    parser.add_argument("--python", help="the interpreter that has PyTorch")
    parser.add_argument("--batch", type=int, default=2048)
    args = train_run.parse(parser)
    if not args.peer:
        parser.error("say where the PyTorch script is: --peer or THERMOCLINE_PEER")
    if not os.path.exists(args.peer):
        parser.error(f"{args.peer}: no such file")

    args.python = args.python or python_with_torch()
    print(f"machine   {processor()}, load {os.getloadavg()[0]:.1f} before the runs")
    print(f"commit    {commit()}")
    print(f"data      {args.data}, batch {args.batch}")
    print(f"command   thermocline train {args.job} {' '.join(args.flags)}")
    contestants = [("thermocline", lambda: train(args)),
                   ("pytorch, 1 thread", lambda: run_peer(args, 1)),
                   ("pytorch, 2 threads", lambda: run_peer(args, 2))]
    runs = {name: [] for name, _ in contestants}
    for round_number in range(1, args.rounds + 1):
        for name, run in contestants:
            result = run()
            runs[name].append(result)
            print(f"round {round_number}   {name:20} {result['samples_per_s']:9.0f} samples/s   "
                  f"AUC {result['auc']:.4f}   logloss {result['logloss']:.4f}", flush=True)

    print(f"\n{'':20} {'samples/s':>10} {'lowest':>8} {'highest':>8} {'AUC':>7} {'logloss':>8}")
    medians = {}
    for name, results in runs.items():
        rates = [result["samples_per_s"] for result in results]
        medians[name] = statistics.median(rates)
        print(f"{name:20} {medians[name]:10.0f} {min(rates):8.0f} {max(rates):8.0f} "
              f"{statistics.median(r['auc'] for r in results):7.4f} "
              f"{statistics.median(r['logloss'] for r in results):8.4f}")
    best = max(list(medians)[1:], key=medians.get)
    difference = (statistics.median(r["auc"] for r in runs["thermocline"]) -
                  statistics.median(r["auc"] for r in runs[best]))
    print(f"ratio to {best}: {medians['thermocline'] / medians[best]:.2f}; "
          f"AUC {difference:+.4f}")


if __name__ == "__main__":
    main()
