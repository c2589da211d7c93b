#!/usr/bin/env python3
"""Training without servers (`--servers 0`: the worker holds the rows) beside training with one server process.

    compare_embedded.py DATA [--rounds 5] [-- FLAGS OF `thermocline train`]

Both take turns in each round, so that a machine that slows down slows both. Printed: the setup, every run, the median
samples/s with its spread, the processor time that all processes of a job together take for a sample, and the ratios of
both, taken within each round. The processor time is that of a whole run less that of one of 20 steps, so what is done
once (the start, the evaluation, the digest) does not count. The trained model must have the same bits in all runs.
"""
import argparse
import os
import platform
import resource
import statistics
import sys

import train_run

SHORT = ["--set", "train.max_steps=20"]
KINDS = {"1 server": ["--servers", "1"], "embedded": ["--servers", "0"]}


def processor_s():
    """The processor time of all children so far, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(args, flags):
    """The summary of a run, and its processor time."""
    before = processor_s()
    summary, _, _ = train_run.train(args, flags)
    return summary, processor_s() - before


def line(name, values, unit):
    return f"{name:22} {statistics.median(values):10.4g} {unit:12} [{min(values):.4g}, {max(values):.4g}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=5)
    args = train_run.parse(parser)
    print(f"machine   {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[0]:.1f} before the runs")
    print(f"command   thermocline train {args.job} --data {args.data} {' '.join(args.flags)}")
    rates = {name: [] for name in KINDS}
    costs = {name: [] for name in KINDS}
    digests = set()
    for number in range(1, args.rounds + 1):
        for name, flags in KINDS.items():
            short, short_s = timed(args, flags + SHORT)
            summary, seconds = timed(args, flags)
            digests.add(summary["model_digest"])
            if len(digests) > 1:
                sys.exit(f"the models differ: {digests}")
            rates[name].append(summary["samples_per_s"])
            costs[name].append((seconds - short_s) / (summary["samples"] - short["samples"]) * 1e6)
            print(f"round {number}   {name:10} {rates[name][-1]:9.0f} samples/s   {costs[name][-1]:6.2f} core-us a "
                  f"sample   load {os.getloadavg()[0]:.1f}", flush=True)
    print()
    for name in KINDS:
        print(line(name, rates[name], "samples/s"))
        print(line("", costs[name], "core-us"))
    for what, values in (("samples/s", rates), ("core-us", costs)):
        ratios = [own / other for own, other in zip(values["embedded"], values["1 server"])]
        print(line("embedded / 1 server", ratios, what))


if __name__ == "__main__":
    main()
