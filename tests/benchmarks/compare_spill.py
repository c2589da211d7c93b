#!/usr/bin/env python3
"""Training with tables several times their memory budgets, beside the same training in memory.

    compare_spill.py DATA [--times 10] [--rounds 5] [-- FLAGS OF `thermocline train`]

A first run in memory, which isn't counted, tells what each table takes. Then runs take turns, so
that a machine that slows down slows both down: in each round once in memory, and once with a budget
of a TIMES-th of that for every large table (--large); every step uses a good part of a small one's
rows, and it is small. Printed: the setup, every run, then the median
samples/s with its spread, and their ratio, taken within each round. The trained model must have the
same bits in all of them. DATA is a folder as `thermocline generate` writes it.
"""
import argparse
import os
import platform
import statistics
import sys

import train_run

SMALLEST_BUDGET_BYTES = 64 << 10


def budgets(tables, times, large_bytes):
    """{name: bytes} that a large table may take of each server's memory."""
    most = {}
    for table in tables:
        most[table["name"]] = max(most.get(table["name"], 0), int(table["bytes"]))
    return {name: max(taken // times, SMALLEST_BUDGET_BYTES) for name, taken in most.items()
            if taken >= large_bytes}


def total(tables, field):
    return sum(int(table.get(field, 0)) for table in tables)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=5)
    parser.add_argument("--times", type=int, default=10, help="how often its budget a table takes")
    parser.add_argument("--large", type=float, default=4, metavar="MB",
                        help="what a table takes of a server's memory, at least, to get a budget")
    args = train_run.parse(parser)
    if args.times < 2:
        parser.error("--times must be at least 2")

    print(f"machine   {platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[0]:.1f} before the runs")
    print(f"command   thermocline train {args.job} --data {args.data} {' '.join(args.flags)}")
    first, _, tables = train_run.train(args, [])
    granted = budgets(tables, args.times, args.large * 1e6)
    if not granted:
        sys.exit(f"no table takes {args.large} MB: give --large, or more data")
    large = [table for table in tables if table["name"] in granted]
    spilling = []
    for index, (name, size) in enumerate(granted.items()):
        settings = f'settings {{storage {{rocksdb {{memory: "{size}B"}}}}}}'
        spilling += ["--set", f'table[{index}]={{name: "{name}" {settings}}}']
    print(f"tables    {total(tables, 'rows')} rows, {total(tables, 'bytes') / 1e6:.1f} MB in memory; "
          f"of these {len(granted)} tables with {total(large, 'rows')} rows, "
          f"{total(large, 'bytes') / 1e6:.1f} MB, get budgets of {sum(granted.values()) / 1e6:.1f} MB "
          f"a server")

    runs = {"in memory": [], "with budgets": []}
    for round_number in range(1, args.rounds + 1):
        for name, flags in (("in memory", []), ("with budgets", spilling)):
            summary, _, tables = train_run.train(args, flags)
            if summary["model_digest"] != first["model_digest"]:
                sys.exit(f"{name}: the model's digest is {summary['model_digest']}, not "
                         f"{first['model_digest']}")
            runs[name].append(summary["samples_per_s"])
            print(f"round {round_number}   {name:14} {summary['samples_per_s']:9.0f} samples/s   "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    tables = [table for table in tables if table["name"] in granted]
    print(f"rows      of the large tables: {total(tables, 'keys_pulled')} pulled, {total(tables, 'rows_read_back')} read "
          f"back, {total(tables, 'rows_spilled')} spilled; in memory at the end "
          f"{total(tables, 'bytes') / 1e6:.1f} MB")

    print(f"\n{'':14} {'samples/s':>10} {'lowest':>8} {'highest':>8}")
    for name, rates in runs.items():
        print(f"{name:14} {statistics.median(rates):10.0f} {min(rates):8.0f} {max(rates):8.0f}")
    ratios = [spilled / memory for memory, spilled in zip(runs["in memory"], runs["with budgets"])]
    print(f"ratio          {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}); "
          f"the same model bits in all runs")


if __name__ == "__main__":
    main()
