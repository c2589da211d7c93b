#!/usr/bin/env python3
"""How speed and traffic follow the shape of a model, one knob at a time.

For each value of each knob: a job of that shape, data with random values, a short run. The knobs are those of Acun et
al. ("Understanding Training Efficiency of Deep Learning Recommendation Models at Scale", HPCA 2021), from a base of 64
numbers, 16 tables of 100,000 rows, one lookup, dim 16, MLPs 64^2, batch 800:
  dense      64 to 4,096 numbers a sample        lookups    1 to 32 a table
  sparse     4 to 128 tables                     dim        16 to 128
  mlp        64^2 to 2048^4 (width^layers)       batch      200 to 12,800
  hash       1e5 to 1e7 rows that a table may have
  device     CPU, CUDA
  placement  of the tables' rows: REMOTE, CACHED, DEVICE; and of small and large tables apart

OUT gets sweep.txt (the table as it is printed), sweep.csv, sweep.png (where python3 has matplotlib), the jobs and the
run directories. --link as of arms.py.

examples:
  tests/benchmarks/sweep.py --knobs batch,dim
  tests/benchmarks/sweep.py --points 4 --steps 200 --set device=CPU
"""
import argparse
import array
import dataclasses
import os
import random
import shutil
import struct
import sys

import arms
import bench_runs
import run_figures

SKEW = 1.05
MAX_FLOPS = 4e11  # multiplications and additions of a run
MAX_DATA_BYTES = 64 << 20
MIN_STEPS = 5
SMALL_TABLES = 100  # every second table has so many times fewer rows, where tables are placed by their sizes
CACHED_SHARE = 0.1  # what a cache holds of the tables that are cached

REDUCTIONS = """samples/s, bytes and times are of whole short runs, one for each point
data: drawn for each point; ids are skewed (Zipf, 1.05) and independent; a run whose data would take
  more than 64 MiB reads fewer samples, several times; steps beyond 4e11 multiplications and additions
  are left out, down to 5
placement: half of the tables have a hundredth of the rows; the first word of two is theirs; CACHED
  tables have room for a tenth of the rows that the data touch
"""


@dataclasses.dataclass
class Shape:
    """A model and its data. The defaults are the base."""
    dense: int = 64  # numbers a sample
    sparse: int = 16  # tables
    lookups: int = 1  # a sample, of each table
    hash: int = 100_000  # rows that a table may have
    dim: int = 16
    batch: int = 800
    width: int = 64  # of both MLPs
    layers: int = 2
    device: str = ''  # "CPU", "CUDA"; '': the job's default
    # The tables' placement: "REMOTE", "CACHED", "DEVICE"; or two of them, such as "DEVICE, REMOTE", the first of which
    # is that of small tables (every second table). '': there is no cache, and all tables have one size.
    placement: str = ''

    def is_small(self, table):
        return bool(self.placement) and table % 2 == 1

    def rows_of(self, table):
        return max(self.hash // SMALL_TABLES, 1) if self.is_small(table) else self.hash

    def placement_of(self, table):
        parts = self.placement.split(', ')
        return parts[0] if len(parts) == 1 or self.is_small(table) else parts[1]

    def steps(self, most):
        """The steps of a run: `most`, or fewer where a step is long, so that a run takes seconds."""
        vectors = self.sparse + 1
        hidden = (self.layers - 1) * self.width * self.width
        bottom = self.dense * self.width + hidden + self.width * self.dim
        top = (self.dim + vectors * (vectors - 1) / 2) * self.width + hidden + self.width
        flops = 6 * (bottom + top + vectors * vectors * self.dim / 2) * self.batch
        return min(max(int(MAX_FLOPS / flops), min(MIN_STEPS, most)), most)

    def rows(self, steps):
        """Samples in the data, which a run reads again where they are fewer than it trains."""
        sample_bytes = 4 * (self.dense + self.sparse * self.lookups)
        return self.batch * min(max(MAX_DATA_BYTES // (sample_bytes * self.batch), 1), steps)


def set_mlps(shape, value):
    shape.width, shape.layers = (int(part) for part in value.split('^'))


def _whole(name):
    return lambda shape, value: setattr(shape, name, int(float(value)))


def _text(name):
    return lambda shape, value: setattr(shape, name, value)


KNOBS = {
    'dense': (('64', '256', '1024', '4096'), _whole('dense')),
    'sparse': (('4', '16', '64', '128'), _whole('sparse')),
    'mlp': (('64^2', '256^3', '1024^3', '2048^4'), set_mlps),
    'hash': (('1e5', '1e6', '1e7'), _whole('hash')),
    'lookups': (('1', '4', '16', '32'), _whole('lookups')),
    'dim': (('16', '32', '64', '128'), _whole('dim')),
    'batch': (('200', '800', '3200', '12800'), _whole('batch')),
    'device': (('CPU', 'CUDA'), _text('device')),
    'placement': (('REMOTE', 'CACHED', 'DEVICE', 'DEVICE, REMOTE', 'DEVICE, CACHED'), _text('placement')),
}


@dataclasses.dataclass
class Point:
    knob: str
    value: str
    shape: Shape
    absence: str = ''  # why there are no figures; '': there are, or the run is to come
    figures: run_figures.RunFigures = None


def chosen(values, points):
    """`points` of `values`, as evenly as they come, first and last included."""
    count = min(max(points, 1), len(values))
    return [values[0 if count == 1 else i * (len(values) - 1) // (count - 1)] for i in range(count)]


def plan_points(knobs, points):
    """The base comes first, as knob "base". Raises Usage."""
    plan = [Point('base', 'base', Shape())]
    for name in bench_runs.names_in(knobs, KNOBS, 'knob'):
        values, set_value = KNOBS[name]
        # Devices and placements are kinds, of which none may be left out.
        for value in values if name in ('device', 'placement') else chosen(values, points):
            point = Point(name, value, Shape())
            set_value(point.shape, value)
            plan.append(point)
    return plan


def job_text(shape, steps, folder):
    mlp = ', '.join([str(shape.width)] * shape.layers)
    passes = 1 + steps * shape.batch // shape.rows(steps)
    text = (f'name: "sweep"\nseed: 1\ndata {{ format: DLRM_NPY path: "{folder}" num_dense: {shape.dense} }}\n'
            f'default_table {{ dim: {shape.dim} optimizer {{ adagrad {{}} }} }}\n'
            f'dlrm {{ bottom: [{mlp}] top: [{mlp}] }}\n'
            f'train {{ batch_size: {shape.batch} passes: {passes} max_steps: {steps} '
            'learning_rate { base: 0.01 } }\ncheckpoint { none: true }\n')
    if shape.device:
        text += f'device: {shape.device}\n'
    for table in range(shape.sparse):
        text += f'feature {{ name: "t{table}" columns: {shape.lookups} }}\n'
    return text


def placement_text(shape, budget):
    text = f'cache {{ budget: "{budget}B" }}\n'
    for table in range(shape.sparse):
        text += f'table {{ name: "t{table}" settings {{ placement: {shape.placement_of(table)} }} }}\n'
    return text


def held_bytes(shape, steps):
    """What a cache has to hold for the tables that are placed in it. Those of one placement share a part of it, and the
    parts are as the lookups: equal here."""
    device_rows, cached_rows = 0, 0
    for table in range(shape.sparse):
        most = min(shape.rows_of(table), shape.rows(steps) * shape.lookups)
        placement = shape.placement_of(table)
        if placement == 'DEVICE':
            device_rows += most + 1
        if placement == 'CACHED':
            cached_rows += CACHED_SHARE * most + 1
    parts = 2 if device_rows and cached_rows else 1
    return int(parts * max(device_rows, cached_rows)) * 2 * 4 * shape.dim  # weights and Adagrad's sums


class Npy:
    """Writes a file of one array, row by row."""

    def __init__(self, path, dtype, shape):
        header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
        header += ' ' * (-(len(header) + 11) % 64) + '\n'
        self.file = open(path, 'wb')
        self.file.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode())
        self.kind = {'<f4': 'f', '<i4': 'i'}[dtype]

    def append(self, values):
        array.array(self.kind, values).tofile(self.file)

    def close(self):
        self.file.close()


def write_data(shape, rows, folder):
    """Ids are skewed (Zipf), all else is uniform."""
    os.makedirs(folder, exist_ok=True)
    columns = shape.sparse * shape.lookups
    dense = Npy(f'{folder}/train_dense.npy', '<f4', (rows, shape.dense))
    sparse = Npy(f'{folder}/train_sparse.npy', '<i4', (rows, columns))
    labels = Npy(f'{folder}/train_labels.npy', '<i4', (rows, 1))
    uniform = random.Random(0).random
    # A rank is the inverse of its continuous distribution, for each column.
    power = 1 - SKEW
    draws = [(rows_of, (rows_of + 1) ** power - 1) for rows_of in
             (shape.rows_of(column // shape.lookups) for column in range(columns))]
    inverse = 1 / power
    for _ in range(rows):
        dense.append(uniform() for _ in range(shape.dense))
        sparse.append(min(int((1 + uniform() * span) ** inverse), rows_of) - 1 for rows_of, span in draws)
        labels.append([uniform() < 0.25])
    for file in (dense, sparse, labels):
        file.close()


# What a step's time goes to.
STAGE_GROUPS = {'data': ('wait for data',), 'rows in': ('wait for rows',),
                'model': ('forward', 'backward to embeddings', 'backward dense', 'wait for device'),
                'rows out': ('push embeddings', 'update rows'), 'dense': ('dense update', 'push dense')}


def render(points):
    rows = [['knob', 'value', 'samples/s', '/ base', 'wire B', 'device B', 'us a sample:', *STAGE_GROUPS]]
    base, last = 0, ''
    for point in points:
        if point.knob != last:
            rows.append([])
        last, run = point.knob, point.figures
        if run is None:
            rows.append([point.knob, point.value, '-'])
            continue
        if point.knob == 'base':
            base = run.samples_per_s
        rows.append([point.knob, point.value, f'{run.samples_per_s:.0f}',
                     f'{run.samples_per_s / base:.2f}' if base else '-', f'{run.wire_bytes_per_sample:.0f}',
                     '-' if run.device_bytes_per_sample is None else f'{run.device_bytes_per_sample:.0f}', '']
                    + [f'{sum(run.stage_us.get(stage, 0) for stage in stages):.2f}' for stages in STAGE_GROUPS.values()])
    absences = [f'{point.knob} {point.value}: {point.absence}\n' for point in points if point.absence]
    return run_figures.table_text(rows) + ''.join(absences)


def sweep_csv(points):
    stages = run_figures.stage_names(point.figures for point in points if point.figures)
    rows = [('knob,value,dense,sparse,lookups,hash,dim,batch,width,layers,placement,device,steps,samples_per_s,'
             'wire_bytes_per_sample,device_bytes_per_sample,hit_rate,absence').split(',')
            + [f'us {stage}' for stage in stages]]
    for point in points:
        shape, run = point.shape, point.figures
        figures = [None] * 6 if run is None else [run.device, run.steps, run.samples_per_s, run.wire_bytes_per_sample,
                                                  run.device_bytes_per_sample, run.hit_rate]
        rows.append([point.knob, point.value, shape.dense, shape.sparse, shape.lookups, shape.hash, shape.dim, shape.batch,
                     shape.width, shape.layers, shape.placement, *figures, point.absence]
                    + [run.stage_us.get(stage) if run else None for stage in stages])
    return run_figures.csv_text(rows)


class Bench:
    def __init__(self, args):
        """Raises Usage."""
        self.args, self.has_failed = args, False
        self.points = plan_points(args.knobs, args.points)

    def run(self, out, hosts):
        self.out = out
        self._prepare(self.points[0])
        # What --set of the user makes of a job is known before a run.
        has_gpu = bool(bench_runs.plan(self.args, self._arguments(self.points[0]))['machine']['gpus'])
        print(self.setup(), end='', flush=True)
        for point in self.points:
            if point.shape.device == 'CUDA' and not has_gpu:
                point.absence = 'this machine has no GPU'
                continue
            try:
                point.figures = self._train(point, hosts)
                print(f'{point.knob:10} {point.value:16} {point.figures.samples_per_s:9.0f} samples/s  '
                      f'{point.figures.steps} steps', flush=True)
            except (bench_runs.RunFailed, bench_runs.Usage) as error:
                point.absence, self.has_failed = str(error), True
                print(f'{point.knob} {point.value}: {error}', flush=True)

    def report(self):
        """Prints and writes what there is."""
        text = f'\n{render(self.points)}\n{REDUCTIONS}'
        print(text, end='')
        bench_runs.write(self.out, 'sweep.txt', self.setup() + text)
        bench_runs.write(self.out, 'sweep.csv', sweep_csv(self.points))
        print(f"{bench_runs.draw('sweep', self.out)}\nresults: {self.out}", flush=True)

    def setup(self):
        base = Shape()
        return (f'base: {base.dense} numbers, {base.sparse} tables of {base.hash} rows, {base.lookups} lookup, dim '
                f'{base.dim}, MLPs {base.width}^{base.layers}, batch {base.batch}; {self.args.servers} servers and '
                f'{self.args.workers} workers {bench_runs.where(self.args)}; at most {self.args.steps} steps, '
                f'{os.cpu_count()} hardware threads\n')

    def _job_file(self, point):
        name = f"{point.knob}-{point.value.replace(', ', '-').replace('^', 'x')}"
        return os.path.join(self.out, name + '.textproto')

    def _data(self):
        return os.path.join(self.out, 'data')

    def _arguments(self, point):
        words = [self._job_file(point), '--servers', str(self.args.servers), '--workers', str(self.args.workers)]
        for assignment in self.args.set:
            words += ['--set', assignment]
        return words

    def _prepare(self, point):
        """Writes the data and the job of a point."""
        steps = point.shape.steps(self.args.steps)
        write_data(point.shape, point.shape.rows(steps), self._data())
        file, text = self._job_file(point), job_text(point.shape, steps, self._data())
        bench_runs.write(self.out, os.path.basename(file), text)
        if point.shape.placement not in ('', 'REMOTE'):
            job = bench_runs.plan(self.args, [file])['job']
            budget = arms.cache_budget(job, held_bytes(point.shape, steps))
            bench_runs.write(self.out, os.path.basename(file), text + placement_text(point.shape, budget))

    def _train(self, point, hosts):
        try:
            self._prepare(point)
            run_dir = self._job_file(point)[:-len('.textproto')]
            return bench_runs.Run(self.args, self._arguments(point), run_dir, self.args.servers,
                                  self.args.workers).train(hosts)
        finally:
            shutil.rmtree(self._data(), ignore_errors=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--knobs', metavar='NAMES', default='', help='which: batch,dim; default: all')
    parser.add_argument('--points', metavar='N', type=bench_runs.whole_number(1, 4), default=3,
                        help='values of each knob, its ends included; default 3; 4: all')
    parser.add_argument('--steps', metavar='N', type=bench_runs.whole_number(1, 1_000_000), default=40,
                        help='of a run, at most; default 40')
    for flag in ('--servers', '--workers'):
        parser.add_argument(flag, metavar='N', type=bench_runs.whole_number(1, 1000), default=1, help='default 1')
    parser.add_argument('--set', metavar='FIELD=VALUE', action='append', default=[], help='changes a field of all jobs')
    parser.add_argument('--out', metavar='DIR', help='default: runs/sweep-TIME')
    bench_runs.add_program_arguments(parser)
    return parser.parse_args()


def main():
    args = arguments()
    bench_runs.check_program(args)
    bench = Bench(args)
    bench_runs.enter_hosts(args)
    with bench_runs.hosts_for(args, args.servers + args.workers) as hosts:
        out = bench_runs.make_out(args.out, 'sweep')
        try:
            bench.run(out, hosts)
        finally:
            bench.report()
    return 1 if bench.has_failed else 0


if __name__ == '__main__':
    bench_runs.main_of(main)
