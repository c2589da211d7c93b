#!/usr/bin/env python3
"""What a sample costs as a job grows: rows, tables, features, servers, workers, batch and dim; and what a row takes in
memory with each optimizer. It fills docs/growth.md.

    growth.py [--knobs rows,batch] [--rounds 3] [--into docs/growth.md] [-- --set FIELD=VALUE ...]

From one base (13 numbers, 26 features with a table each, 1,000,000 rows in all, dim 16, MLPs 64-64, batches of 2,048,
one server, one worker) one knob is turned at a time. The model is small, so that what grows is seen; products of a
larger one come on top. All processes share this machine's cores.

The data of a run begin with samples that look every row up, in order, so that it exists. What is measured comes then:
the microseconds of a sample and of each stage of worker 0, medians over about eight windows of steps, then over the
rounds (all points in turn, then all again). Ids are drawn skewed (the logarithm of an id is uniform), and for the knob
`rows` also uniformly, where hardly a key comes twice.

OUT gets the jobs, the run directories and growth.svg. --into replaces the tables between the marks of a page, and puts
growth.svg beside it. 12 minutes on two cores.
"""
import argparse
import array
import contextlib
import dataclasses
import functools
import json
import os
import random
import shutil
import statistics
import sys

import bar_picture
import bench_runs
import compare_peers
import sweep

NUMBERS = 13
WINDOWS = 8
FILL_ALIGNMENT = 1 << 15  # Filling ends with a step, whatever the batch is.
OTHER = 'rest'
STAGES = [*sweep.STAGE_GROUPS, OTHER]

# How a job names each optimizer, and the floats of state that a row of n weights has.
OPTIMIZERS = {'sgd': lambda n: 0, 'row_wise_adagrad': lambda n: 1, 'momentum': lambda n: n, 'adagrad': lambda n: n,
              'rms_prop': lambda n: n, 'adam': lambda n: 2 * n, 'ftrl': lambda n: 2 * n}
MEMORY_DIMS = (16, 64)
MEMORY_ROWS = 400_000
MEMORY_COLUMNS = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    """The defaults are the base."""
    rows: int = 1_000_000  # of all tables
    features: int = 26
    tables: int = 26  # that the features share
    servers: int = 1
    workers: int = 1
    batch: int = 2048
    dim: int = 16

    def rows_of_feature(self, scale):
        return max(int(self.rows * scale) // self.features, 2)

    def fill(self, scale):
        """The samples that look up all rows."""
        return -(-self.rows_of_feature(scale) // FILL_ALIGNMENT) * FILL_ALIGNMENT

    def measured(self, scale):
        """The samples of each kind of draws: fewer where a sample costs more, so that a run takes seconds."""
        weight = max(self.features / 26, self.dim / 32, self.servers / 2, 1)
        steps = max(int(200_000 * scale / weight) // self.batch, WINDOWS)
        return steps // WINDOWS * WINDOWS * self.batch


def values_of(name, *values):
    return [(f'{value:,}', dataclasses.replace(Shape(), **{name: value})) for value in values]


def features(count):
    """Each with a table of its own, as large as the base's."""
    base = Shape()
    return dataclasses.replace(base, features=count, tables=count, rows=base.rows // base.features * count)


KNOBS = {
    'rows': [(f'{millions:g}M', Shape(rows=int(millions * 1e6))) for millions in (0.1, 1, 10, 30)],
    'tables': values_of('tables', 1, 2, 13, 26),
    'features': [(str(count), features(count)) for count in (4, 13, 26, 52, 104)],
    'servers': values_of('servers', 0, 1, 2, 4, 8),
    'workers': values_of('workers', 1, 2, 4),
    'batch': values_of('batch', 128, 512, 2048, 8192, 32768),
    'dim': values_of('dim', 4, 16, 32, 64, 128, 256),
}
DRAWS = {'skewed': lambda rows, uniform: int(rows ** uniform()) - 1,
         'uniform': lambda rows, uniform: int(rows * uniform())}


def draws_of(knob):
    return list(DRAWS) if knob == 'rows' else ['skewed']


@dataclasses.dataclass
class Cost:
    """What a sample costs in the windows of one kind of draws."""
    us: float
    stage_us: dict
    wire_bytes: float  # from and to servers


@contextlib.contextmanager
def log_files(folder, samples, columns):
    """The numbers, ids and labels of a log that is written."""
    os.makedirs(folder)
    files = [sweep.Npy(f'{folder}/train_{kind}.npy', dtype, (samples, width)) for kind, dtype, width in
             (('dense', '<f4', NUMBERS), ('sparse', '<i4', columns), ('labels', '<i4', 1))]
    yield files
    for file in files:
        file.close()


def write_data(shape, draws, scale, folder):
    """Samples that fill the tables, then measured ones of each of `draws`."""
    rows, per_table = shape.rows_of_feature(scale), shape.features // shape.tables
    fill, measured = shape.fill(scale), shape.measured(scale)
    total = fill + len(draws) * measured
    firsts = [feature % per_table * rows for feature in range(shape.features)]
    uniform = random.Random(1).random
    numbers = array.array('f', (uniform() for _ in range(997 * NUMBERS)))
    with log_files(folder, total, shape.features) as (dense, sparse, labels):
        for sample in range(fill):
            row = sample % rows
            sparse.append([first + row for first in firsts])
        for draw in (DRAWS[name] for name in draws):
            for _ in range(measured):
                sparse.append([first + draw(rows, uniform) for first in firsts])
        for sample in range(total):
            at = sample % 997 * NUMBERS
            dense.append(numbers[at:at + NUMBERS])
        labels.append(int(uniform() < 0.25) for _ in range(total))


def job_head(name, folder, batch, window):
    return (f'name: "{name}"\nseed: 1\ndata {{ format: DLRM_NPY path: "{folder}" num_dense: {NUMBERS} }}\n'
            f'train {{ batch_size: {batch} metrics_every_steps: {window} learning_rate {{ base: 0.01 }} }}\n'
            'dlrm { bottom: [64, 64] top: [64, 64] }\ncheckpoint { none: true }\n')


def job_text(shape, scale, folder):
    per_table = shape.features // shape.tables
    window = shape.measured(scale) // shape.batch // WINDOWS
    return job_head('growth', folder, shape.batch, window) + (
        f'default_table {{ dim: {shape.dim} optimizer {{ adagrad {{}} }} }}\n'
        + ''.join(f'table {{ name: "t{table}" }}\n' for table in range(shape.tables))
        + ''.join(f'feature {{ name: "f{feature}" table: "t{feature // per_table}" columns: 1 }}\n'
                  for feature in range(shape.features)))


def read_costs(run_dir, shape, draws, scale):
    """{draws: Cost} of the windows that lie in the steps of each, without the first."""
    fill, measured = shape.fill(scale) // shape.batch, shape.measured(scale) // shape.batch
    window = measured // WINDOWS
    with open(os.path.join(run_dir, 'metrics.jsonl')) as file:
        events = [event for event in map(json.loads, file) if event['event'] == 'progress']
    costs = {}
    for at, draw in enumerate(draws):
        begin = fill + at * measured
        chosen = [event for event in events if begin < event['step'] - window and event['step'] <= begin + measured]
        median = functools.partial(_median_of, chosen)
        stages = {group: median(lambda event, names=names: sum(event['stages_us_per_step'].get(name, 0) for name in names)
                                / shape.batch) for group, names in sweep.STAGE_GROUPS.items()}
        us = median(lambda event: 1e6 / event['samples_per_s'])
        stages[OTHER] = max(us - sum(stages.values()), 0)
        wire = median(lambda event: event['bytes_pulled_per_step'] + event['bytes_pushed_per_step'])
        costs[draw] = Cost(us, stages, wire * shape.workers / shape.batch)
    return costs


def _median_of(events, value):
    return statistics.median(value(event) for event in events)


class Bench:
    def __init__(self, args, out):
        self.args, self.out = args, out
        self.knobs = bench_runs.names_in(args.knobs, KNOBS, 'knob')
        self.costs = {}  # {(shape, draws): [Cost of each round]}

    def run(self):
        # A shape that two knobs have is run once a round, with all draws that one of them wants.
        shapes = {}
        for knob in self.knobs:
            for _, shape in KNOBS[knob]:
                shapes[shape] = max(shapes.get(shape, []), draws_of(knob), key=len)
        for number in range(self.args.rounds):
            for shape, draws in shapes.items():
                for name, cost in self._train(shape, draws, number).items():
                    self.costs.setdefault((shape, name), []).append(cost)
                    print(f'round {number + 1}  {shape}  {name}: {cost.us:.2f} us a sample', flush=True)

    def _train(self, shape, draws, number):
        """Data are made once for all batches, dims, servers and workers that need the same."""
        scale = self.args.scale
        data = os.path.join(self.out, f'data-{shape.rows}-{shape.features}-{shape.tables}-{shape.measured(scale)}-'
                            f'{len(draws)}')
        if not os.path.isdir(data):
            write_data(shape, draws, scale, data)
        name = '-'.join(str(value) for value in dataclasses.astuple(shape)) + f'-round-{number}'
        job = os.path.join(self.out, name + '.textproto')
        bench_runs.write(self.out, os.path.basename(job), job_text(shape, scale, data))
        arguments = [job, '--servers', str(shape.servers), '--workers', str(shape.workers), *self.args.flags]
        run = bench_runs.Run(self.args, arguments, job[:-len('.textproto')], shape.servers, shape.workers)
        run.train(None)
        return read_costs(run.run_dir, shape, draws, scale)

    def rows(self):
        """(knob with its draws, value, cost) of each point: medians of the rounds, and their spread."""
        for knob in self.knobs:
            for draws in draws_of(knob):
                for value, shape in KNOBS[knob]:
                    rounds = self.costs[shape, draws]
                    stages = {stage: statistics.median(cost.stage_us[stage] for cost in rounds) for stage in STAGES}
                    us = [cost.us for cost in rounds]
                    yield (f'{knob}, {draws}' if knob == 'rows' else knob, value,
                           Cost(statistics.median(us), stages, statistics.median(cost.wire_bytes for cost in rounds)),
                           (min(us), max(us)))


def costs_text(rows):
    lines = [f"| | us a sample | {' | '.join(STAGES)} | bytes on the wire |", '|---' * (len(STAGES) + 3) + '|']
    for knob, value, cost, (low, high) in rows:
        stages = ' | '.join(f'{cost.stage_us[stage]:.2f}' for stage in STAGES)
        spread = f' [{low:.2f} {high:.2f}]' if low < high else ''
        lines.append(f'| {knob}: {value} | {cost.us:.2f}{spread} | {stages} | {cost.wire_bytes:,.0f} |')
    return '\n'.join(lines) + '\n'


def picture(rows):
    panels = {}
    for knob, value, cost, _ in rows:
        panels.setdefault(knob, []).append((value, [cost.stage_us[stage] for stage in STAGES]))
    return bar_picture.draw('Microseconds of a sample, by what they go to', STAGES, panels)


def measure_memory(args, out):
    """{(optimizer, dim): bytes of memory a row}, of tables that were filled with rows one after the other."""
    samples = max(int(MEMORY_ROWS * args.scale) // MEMORY_COLUMNS, 512)
    folder = os.path.join(out, 'data-memory')
    with log_files(folder, samples, MEMORY_COLUMNS * len(OPTIMIZERS)) as (dense, sparse, labels):
        for sample in range(samples):
            sparse.append(list(range(sample * MEMORY_COLUMNS, (sample + 1) * MEMORY_COLUMNS)) * len(OPTIMIZERS))
            dense.append([0] * NUMBERS)
            labels.append([sample % 2])
    costs = {}
    for dim in MEMORY_DIMS:
        text = job_head('memory', folder, 256, 1000)
        for name in OPTIMIZERS:
            text += (f'feature {{ name: "{name}" columns: {MEMORY_COLUMNS} }}\n'
                     f'table {{ name: "{name}" settings {{ dim: {dim} optimizer {{ {name} {{}} }} }} }}\n')
        bench_runs.write(out, f'memory-{dim}.textproto', text)
        run_dir = os.path.join(out, f'memory-{dim}')
        bench_runs.Run(args, [run_dir + '.textproto', *args.flags], run_dir, 1, 1).train(None)
        with open(os.path.join(run_dir, 'server_stats.json')) as file:
            (server,) = json.load(file)['servers']
        costs.update({(table['name'], dim): table['bytes'] / table['rows'] for table in server['stats']['tables']
                      if table['role'] == 'SPARSE'})
    return costs


def memory_text(costs):
    titles = ' | '.join(f'numbers of a row, dim {dim} | bytes | / its numbers' for dim in MEMORY_DIMS)
    lines = [f'| optimizer | {titles} |', '|---' * (1 + 3 * len(MEMORY_DIMS)) + '|']
    for name, state_floats in OPTIMIZERS.items():
        line = f'| `{name}` |'
        for dim in MEMORY_DIMS:
            numbers = dim + state_floats(dim)
            line += f' {numbers} | {costs[name, dim]:.0f} | {costs[name, dim] / (4 * numbers):.2f} |'
        lines.append(line)
    return '\n'.join(lines) + '\n'


def fill_in(page, name, text):
    """Puts `text` between the marks of `name` in a page."""
    begin, end = f'<!-- {name} of growth.py -->\n', f'<!-- end of {name} -->\n'
    with open(page) as file:
        before, rest = file.read().split(begin)
    with open(page, 'w') as file:
        file.write(before + begin + '\n' + text + '\n' + end + rest.split(end)[1])


def report(args, out, setup, bench, memory):
    rows = list(bench.rows())
    texts = {'costs': f'{setup}\n\n{costs_text(rows)}', 'memory': memory_text(memory)}
    print('\n' + '\n'.join(texts.values()))
    bench_runs.write(out, 'growth.svg', picture(rows))
    if args.into:
        for name, text in texts.items():
            fill_in(args.into, name, text)
        shutil.copy(os.path.join(out, 'growth.svg'), os.path.dirname(os.path.abspath(args.into)))
    print(f'results: {out}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--knobs', metavar='NAMES', default='', help='default: all')
    parser.add_argument('--rounds', metavar='N', type=bench_runs.whole_number(1, 100), default=3)
    parser.add_argument('--scale', metavar='X', type=float, default=1, help='rows and samples times X, to try it out')
    parser.add_argument('--into', metavar='PAGE', default='')
    parser.add_argument('--out', metavar='DIR', help='default: runs/growth-TIME')
    bench_runs.add_program_arguments(parser)
    at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:at])
    args.flags = sys.argv[at + 1:]
    bench_runs.check_program(args)
    out = bench_runs.make_out(args.out, 'growth')
    bench = Bench(args, out)
    setup = (f'{compare_peers.processor()}, {os.cpu_count()} hardware threads, load {os.getloadavg()[0]:.1f} before.\n'
             f'Medians of {args.rounds} rounds in turn [lowest highest]:' if args.rounds > 1 else 'One round:')
    print(setup, flush=True)
    try:
        memory = measure_memory(args, out)
        bench.run()
    finally:
        for name in os.listdir(out):
            if name.startswith('data-'):
                shutil.rmtree(os.path.join(out, name))
    report(args, out, setup, bench, memory)


if __name__ == '__main__':
    bench_runs.main_of(main)
