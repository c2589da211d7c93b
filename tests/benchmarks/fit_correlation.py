#!/usr/bin/env python3
"""Finds the correlation with which a synthetic log has as large a share of hot samples as a real one.

    fit_correlation.py REAL.tsv[.gz] [--budgets 1,2,4,8] [--at 2] [--row-bytes 128] [--train-share 0.9]
                       [-- FLAGS OF `generate`]

REAL is a log in Criteo's text form. A sample is hot if every one of its lookups reads a hot row. Hot
rows are those that FAE takes (worker/fae): whole tables below a sixteenth of the budget, and of the
others all rows that are looked up at least so often that they fit what is left of it; here counted in
all training rows. --at names the budget, in MiB, at which both shares are made equal; those at all
--budgets are printed. A row takes --row-bytes with its optimizer state (dim 16 and Adagrad: 128).

The synthetic log has as many rows; flags behind `--` go to `thermocline generate` (--skew, --shrink).
"""
import argparse
import collections
import gzip
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
LABEL_AND_INTEGERS = 14


def read_samples(path, share=1.0):
    """The categories of each training row: a list of columns."""
    with open(path, 'rb') as file:
        is_gzip = file.read(2) == b'\x1f\x8b'
    with (gzip.open if is_gzip else open)(path, 'rt') as file:
        samples = [line.rstrip('\n').split('\t')[LABEL_AND_INTEGERS:] for line in file]
    return samples[:round(share * len(samples))]


class Log:
    """How often each row of each table is looked up, and the rarest row of each sample."""

    def __init__(self, samples):
        self.rows = len(samples)
        self.tables = [collections.Counter(column) for column in zip(*samples)]
        self.samples = [[table[key] for table, key in zip(self.tables, sample)] for sample in samples]

    def distinct(self):
        return sum(len(table) for table in self.tables)

    def hot(self, budget, row_bytes):
        """(hot rows, share of lookups, share of samples) of a budget in bytes."""
        whole = [len(table) * row_bytes < min(MIB, budget // 16) for table in self.tables]
        left = budget // row_bytes - sum(len(table) for table, is_whole in zip(self.tables, whole) if is_whole)
        rows_with = collections.Counter()
        for table, is_whole in zip(self.tables, whole):
            if not is_whole:
                rows_with.update(table.values())
        threshold = max(rows_with, default=0) + 1
        for count in sorted(rows_with, reverse=True):
            left -= rows_with[count]
            if left < 0:
                break
            threshold = count
        hot_rows = sum(len(table) if is_whole else sum(count >= threshold for count in table.values())
                       for table, is_whole in zip(self.tables, whole))
        lookups = samples = 0
        for counts in self.samples:
            hot = sum(is_whole or count >= threshold for count, is_whole in zip(counts, whole))
            lookups += hot
            samples += hot == len(counts)
        return hot_rows, lookups / (self.rows * len(self.tables)), samples / self.rows


def generate(args, rows, correlation):
    with tempfile.TemporaryDirectory(prefix='fit_correlation_') as folder:
        subprocess.run([args.thermocline, 'generate', folder, '--format', 'tsv', '--rows', str(rows),
                        '--test-rows', '0', '--correlation', '%.4f' % correlation, *args.flags],
                       check=True, stdout=subprocess.DEVNULL)
        return Log(read_samples(os.path.join(folder, 'train.tsv')))


def fit(args, rows, wanted):
    """The correlation, and its log. The share of hot samples grows with the correlation."""
    low, high = 0.0, 1.0
    for _ in range(args.rounds):
        middle = (low + high) / 2
        log = generate(args, rows, middle)
        share = log.hot(int(args.at * MIB), args.row_bytes)[2]
        print('correlation %.4f: %.2f%% of the samples hot' % (middle, 100 * share), flush=True)
        if share < wanted:
            low = middle
        else:
            high = middle
    return middle, log


def describe(name, log, budgets, row_bytes):
    print('%s: %d rows, %d distinct ids' % (name, log.rows, log.distinct()))
    for budget in budgets:
        hot_rows, lookups, samples = log.hot(int(budget * MIB), row_bytes)
        print('  %5g MiB: %7d hot rows, %5.1f%% of the lookups, %6.2f%% of the samples' %
              (budget, hot_rows, 100 * lookups, 100 * samples), flush=True)


def main():
    ours, flags = sys.argv[1:], []
    if '--' in ours:
        at = ours.index('--')
        ours, flags = ours[:at], ours[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('real', metavar='REAL')
    parser.add_argument('--budgets', type=lambda text: [float(part) for part in text.split(',')],
                        default=[1, 2, 4, 8])
    parser.add_argument('--at', type=float, default=2)
    parser.add_argument('--row-bytes', type=int, default=128)
    parser.add_argument('--train-share', type=float, default=0.9)
    parser.add_argument('--rounds', type=int, default=8, help='halvings of the interval')
    parser.add_argument('--thermocline', default=f'{ROOT}/build/bin/thermocline')
    args = parser.parse_args(ours)
    args.flags = flags
    for path in (args.real, args.thermocline):
        if not os.path.exists(path):
            parser.error(f'{path}: no such file')
    if args.rounds < 1:
        parser.error('--rounds must be at least 1')
    real = Log(read_samples(args.real, args.train_share))
    describe(args.real, real, args.budgets, args.row_bytes)
    wanted = real.hot(int(args.at * MIB), args.row_bytes)[2]
    correlation, log = fit(args, real.rows, wanted)
    describe('synthetic, --correlation %.4f %s' % (correlation, ' '.join(flags)), log, args.budgets,
             args.row_bytes)


if __name__ == '__main__':
    main()
