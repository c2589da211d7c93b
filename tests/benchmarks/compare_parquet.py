"""Parquet files to training batches, beside pyarrow's reader of the same columns, each on one thread, in turn.

  python3 tests/benchmarks/compare_parquet.py JOB DATA [--rounds 5]

pyarrow (read_table with use_threads=False) only decodes; parquet_benchmark also makes keys and numbers of the values.
Prints the median rows a second of each, with the spread, and their ratio.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

ARROW = os.environ.get('THERMOCLINE_ARROW_HOME') or os.path.expanduser('~/.local/share/thermocline/arrow')
sys.modules.setdefault('numpy', None)  # Debian's is too old for pyarrow, which then does without.
sys.path.insert(0, ARROW)
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402


def columns_of(job):
    """The names that `column` fields of a job list; ranges are spelled out."""
    names = []
    for stanza in re.findall(r'column:\s*(\[[^]]*\]|"[^"]*"|\'[^\']*\')', job):
        for name in re.findall(r'["\']([^"\']*)["\']', stanza):
            span = re.fullmatch(r'(.*?)(\d+)\.\.\1(\d+)', name)
            names += ['%s%d' % (span.group(1), i) for i in range(int(span.group(2)), int(span.group(3)) + 1)] \
                if span else [name]
    return sorted(set(names))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('job')
    parser.add_argument('data')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--benchmark', default='bazel-bin/worker/data/parquet_benchmark')
    flags = parser.parse_args()
    with open(flags.job) as file:
        columns = columns_of(file.read())
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    rates = {'pyarrow': [], 'BM_Read': [], 'BM_ReadAndParse': []}
    for _ in range(flags.rounds):
        begin = time.process_time()
        table = pyarrow.parquet.read_table(flags.data, columns=columns, use_threads=False)
        rates['pyarrow'].append(table.num_rows / (time.process_time() - begin))
        del table
        done = subprocess.run([flags.benchmark, '--job=' + flags.job, '--data=' + flags.data,
                               '--benchmark_format=json'], check=True, stdout=subprocess.PIPE)
        for run in json.loads(done.stdout)['benchmarks']:
            rates[run['name']].append(run['items_per_second'])
    for name, rate in rates.items():
        print('%-16s %12.0f rows/s  (%.0f to %.0f)' % (name, statistics.median(rate), min(rate), max(rate)))
    print('ratio of BM_ReadAndParse to pyarrow: %.2f' % (
        statistics.median(rates['BM_ReadAndParse']) / statistics.median(rates['pyarrow'])))


if __name__ == '__main__':
    main()
