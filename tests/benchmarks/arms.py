#!/usr/bin/env python3
"""Runs a job in several ways of feeding the compute (arms), side by side.

Each arm is the job with a few fields changed, and holds rows of the same bytes:
  remote-cpu    every step pulls its rows and pushes gradients; the model is computed on the CPU
  remote-gpu    the same, with the model on a CUDA device
  fae           hot and cold batches, with an adaptive rate (`fae`; Adnan et al., VLDB 2022)
  fae-static    the same with one change a pass (fae.schedule.fixed, rate 100)
  cache-static  the rows used most are held from the first step to the last (cache.policy STATIC)
  cache         the rows that the next batches need are brought ahead (`cache`)
The other arms compute on the job's `device`. An arm that this machine or job can't have is a line that says why. In
each round, one for each seed, every arm runs once, without evaluations on its way, for its speed and bytes; and once
more with them for the AUC after so many steps, unless another arm has trained the same model (as a cache does). The
seeds begin with the job's. With --budgets the job's `calibration` needs no `fae` beside it. Arms and seeds with the
same pack make it once.

OUT gets arms.txt (the table as it is printed), arms.csv (a line for each run), curves.csv (one for each evaluation and
each change of fae), arms.png (where python3 has matplotlib), commands.txt (each run's `thermocline train`) and the run
directories.

--link needs root, ip and tc, and local data: every server and worker runs on a host of its own (tests/cluster/hosts.py),
behind a link of that rate.

examples:
  tests/benchmarks/arms.py deploy/jobs/criteo_kaggle.textproto --data train.txt --budgets 1MiB,4MiB
  tests/benchmarks/arms.py job.textproto --arms remote-cpu,cache --budgets 64MiB --link 1gbit
"""
import argparse
import os
import sys

import bench_runs
import run_figures
from run_figures import median_of, spread_of

REMOTE = ('remote-cpu', 'remote-gpu')  # hold no rows
ARMS = REMOTE + ('fae', 'fae-static', 'cache-static', 'cache')
UNITS = {'B': 0, 'KiB': 10, 'MiB': 20, 'GiB': 30, 'TiB': 40}

COLUMNS = """medians over the seeds, beside them lowest .. highest
calibrate s, pack s: of the run that made the pack, which others with its budget and data reuse
budget: bytes of the rows that each worker holds, with optimizer state (a cache gets room for the rows
  of a batch beside them)
times and bytes: of training without evaluations, with the scoring that fae's schedule asks for
wire: between workers and servers, and among workers; hits: of the distinct keys of each batch; hot: of
  the samples
"""


def parse_budgets(text):
    """Ascending, each once."""
    budgets = set()
    for part in text.split(','):
        unit = next((unit for unit in sorted(UNITS, key=len, reverse=True) if part.endswith(unit)), None)
        number = part[:len(part) - len(unit)] if unit else ''
        if not number.isdigit():
            raise bench_runs.Usage(f"--budgets: '{part}': a size is a whole number and its unit, B, KiB, MiB, GiB or "
                                   'TiB, such as "512MiB"')
        if int(number) == 0:
            raise bench_runs.Usage('--budgets: a budget of 0 holds no row')
        budgets.add(int(number) << UNITS[unit])
    return sorted(budgets)


def format_bytes(size):
    units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
    unit = 0
    while size >= 1024 and unit < 5:
        size, unit = size / 1024, unit + 1
    return f'{size} B' if unit == 0 else f'{size:.1f} {units[unit]}'


class JobFlags:
    """The job file, and what changes it."""

    def __init__(self, args):
        self.job, self.insecure = args.job, args.insecure
        self.set, self.clear = list(args.set), list(args.clear)
        self.values = {'--data': args.data, '--servers': args.servers, '--workers': args.workers}

    def changed(self, set_=(), clear=()):
        """With fields taken out, and then others set. No --set of the user puts back a part of what is taken out."""
        flags = JobFlags.__new__(JobFlags)
        flags.job, flags.insecure, flags.values = self.job, self.insecure, self.values
        flags.set = [assignment for assignment in self.set
                     if not any(assignment.startswith((field + '.', field + '=')) for field in clear)] + list(set_)
        flags.clear = self.clear + list(clear)
        return flags

    def arguments(self):
        words = [self.job]
        for flag, value in self.values.items():
            words += [flag, value] if value is not None else []
        for field in self.clear:
            words += ['--clear', field]
        for assignment in self.set:
            words += ['--set', assignment]
        return words + (['--insecure'] if self.insecure else [])


def batch_bytes(job, table):
    """What a worker's cache needs for the rows of one batch of a table. `job`: as `plan --json` has it."""
    workers = job['cluster']['workers']
    columns = sum(feature.get('columns', 1) for feature in job['feature']
                  if 'numeric' not in feature and feature.get('table', feature['name']) == table['name'])
    rows = -(-job['train']['batch_size'] // workers) * columns
    dim = table['settings']['dim']
    if workers > 1:  # for each of the rows, of those that it sends, and of gradients
        return 3 * 4 * rows * dim
    optimizer = table['settings']['optimizer']
    state = (0 if 'sgd' in optimizer else 1 if 'row_wise_adagrad' in optimizer
             else 2 * dim if 'adam' in optimizer else dim)
    return rows * 4 * (-(-(dim + state) // 4) * 4)


def cache_budget(job, held_bytes):
    """cache.budget such that a worker holds rows of `held_bytes`: a cache's budget has room for the rows of a batch,
    too, which the other arms have beside theirs."""
    return held_bytes + sum(batch_bytes(job, table) for table in job['table'])


def change_of(arm, job, budget, packs):
    """What an arm sets and takes out. packs: where hot and cold batches are kept for other runs."""
    is_fae, is_cache = arm.startswith('fae'), arm.startswith('cache')
    calibrates = is_fae or arm == 'cache-static'
    clear = [field for field, wanted in (('cache', is_cache), ('fae', is_fae), ('calibration', calibrates))
             if field in job and not wanted]
    set_ = {'remote-cpu': ['device=CPU'], 'remote-gpu': ['device=CUDA']}.get(arm, [])
    if is_fae:
        set_.append(f'fae.budget={budget}B')
    if arm == 'fae-static':
        set_ += ['fae.schedule.fixed=true', 'fae.schedule.rate=100', 'fae.schedule.max_rate=100']
    if is_cache:
        set_ += [f'cache.budget={cache_budget(job, budget)}B',
                 f"cache.policy={'LOOKAHEAD' if arm == 'cache' else 'STATIC'}"]
    if calibrates:
        set_.append(f'calibration.directory={packs}')
    return set_, clear


def common_change(job, steps, evaluations):
    """What all runs have in common: no checkpoints; without evaluations while they train, or with them as the job says,
    or else with so many, equally far apart in `steps` steps. Patience ends no run early."""
    set_ = ['checkpoint.none=true']
    if evaluations == 0:
        return set_, ['evaluate'] if 'evaluate' in job else []
    if 'evaluate' not in job:
        set_.append(f'evaluate.every_steps={max(1, steps // evaluations)}')
    return set_ + ['evaluate.patience=0', 'evaluate.keep_best=false'], []


class ArmRuns:
    """Runs of one arm with one budget."""

    def __init__(self, arm, budget=0):
        self.arm, self.budget = arm, budget  # 0: it holds no rows
        self.absence = ''  # why there are no runs, or not all; '': there are
        self.seeds, self.runs = [], []

    def name(self):
        return f'{self.arm} {format_bytes(self.budget)}' if self.budget else self.arm

    def median(self, figure):
        return median_of(figure(run) for run in self.runs)


def target_auc(arms):
    """The AUC that runs are timed to where the user names none: the lowest final AUC of remote-cpu, less the distance
    of its lowest and highest. None: it has no runs with an AUC."""
    spread = spread_of(run.auc for arm in arms if arm.arm == 'remote-cpu' for run in arm.runs)
    return spread.low - (spread.high - spread.low) if spread else None


def _text(value, digits):
    return '-' if value is None else f'{value:.{digits}f}'


def _percent(share):
    return '-' if share is None else f'{100 * share:.1f}%'


def _range(values, digits):
    spread = spread_of(values)
    return f'{spread.low:.{digits}f} .. {spread.high:.{digits}f}' if spread else ''


def _times_to_auc(arm, target):
    """Seconds to the AUC, and with what was prepared before. Where some runs did not come to it, of how many."""
    times = [] if target is None else [run.seconds_to_auc(target) for run in arm.runs]
    times = [time for time in times if time is not None]
    if not times:
        return ['never' if target is not None and arm.runs else '-', '-']
    time = median_of(times)
    before = (arm.median(lambda run: run.calibrate_s) or 0) + (arm.median(lambda run: run.pack_s) or 0)
    some = f' ({len(times)} of {len(arm.runs)})' if len(times) < len(arm.runs) else ''
    return [_text(time, 1) + some, _text(time + before, 1)]


def _arm_row(arm, target):
    rates, aucs = [run.samples_per_s for run in arm.runs], [run.auc for run in arm.runs]
    return [arm.arm, format_bytes(arm.budget) if arm.budget else '-', _text(median_of(rates), 0), _range(rates, 0),
            *_times_to_auc(arm, target), _text(median_of(aucs), 4), _range(aucs, 4),
            _text(arm.median(lambda run: run.wire_bytes_per_sample), 0),
            _text(arm.median(lambda run: run.device_bytes_per_sample), 0),
            _percent(arm.median(lambda run: run.hit_rate)), _percent(arm.median(lambda run: run.hot_share)),
            _text(arm.median(lambda run: run.calibrate_s), 1), _text(arm.median(lambda run: run.pack_s), 1)]


def render(arms, target):
    """A line for each arm and budget, with medians over the seeds, then the training thread's time by stage."""
    to_auc = 's to AUC' if target is None else f's to {target:.4f}'
    rows = [['arm', 'budget', 'samples/s', '', to_auc, '+ packing', 'AUC', '', 'wire B', 'device B', 'hits', 'hot',
             'calibrate s', 'pack s'], []] + [_arm_row(arm, target) for arm in arms]
    text = run_figures.table_text(rows)
    for arm in arms:
        if arm.absence:
            text += f"{arm.name().replace(' ', ' with ', 1)}: {arm.absence}\n"
    ran = [arm for arm in arms if arm.runs]
    names = run_figures.stage_names(run for arm in ran for run in arm.runs)
    if not names:
        return text
    stages = [['us a sample, by stage'] + [f'{arm.arm} {arm.budget >> 10}K' if arm.budget else arm.arm for arm in ran], []]
    stages += [[name] + [_text(arm.median(lambda run: run.stage_us.get(name)), 2) for arm in ran] for name in names]
    return f'{text}\n{run_figures.table_text(stages)}'


def arms_csv(arms, target):
    """A line for each run."""
    stages = run_figures.stage_names(run for arm in arms for run in arm.runs)
    header = ('arm,budget_bytes,seed,device,steps,samples,train_s,samples_per_s,auc,logloss,target_auc,to_auc_s,'
              'wire_bytes_per_sample,device_bytes_per_sample,hit_rate,hot_share,hot_rows,calibrate_s,pack_s,'
              'pack_reused,model_digest,absence').split(',')
    rows = [header + [f'us {stage}' for stage in stages]]
    for arm in arms:
        for seed, run in zip(arm.seeds, arm.runs):
            rows.append([arm.arm, arm.budget, seed, run.device, run.steps, run.samples, run.train_s, run.samples_per_s,
                         run.auc, run.logloss, target, None if target is None else run.seconds_to_auc(target),
                         run.wire_bytes_per_sample, run.device_bytes_per_sample, run.hit_rate, run.hot_share,
                         run.hot_rows, run.calibrate_s, run.pack_s, int(run.reuses_pack) if run.pack else None,
                         run.digest, None] + [run.stage_us.get(stage) for stage in stages])
        if arm.absence:
            rows.append([arm.arm, arm.budget] + [None] * 19 + [arm.absence] + [None] * len(stages))
    return run_figures.csv_text(rows)


def curves_csv(arms):
    """A line for each evaluation of each run."""
    rows = ['arm,budget_bytes,seed,steps,train_s,auc,logloss,is_evaluation,rate'.split(',')]
    for arm in arms:
        for seed, run in zip(arm.seeds, arm.runs):
            rows += [[arm.arm, arm.budget, seed, point.steps, point.train_s, point.auc, point.logloss,
                      int(point.is_evaluation), point.rate] for point in run.points]
    return run_figures.csv_text(rows)


class Bench:
    """Runs the arms, and keeps what came of them."""

    def __init__(self, args):
        """Raises Usage."""
        self.args = args
        names = bench_runs.names_in(args.arms, ARMS, 'arm')
        if args.auc is not None and not 0.5 < args.auc < 1:
            raise bench_runs.Usage(f'--auc is {args.auc:g}; it must be in (0.5, 1)')
        self.flags = JobFlags(args)
        plan = self._plan_job()
        self.job, self.has_gpu = plan['job'], bool(plan['machine']['gpus'])
        budgets = args.budgets or self.job.get('fae', {}).get('budget') or self.job.get('cache', {}).get('budget')
        if not budgets and any(name not in REMOTE for name in names):
            raise bench_runs.Usage('--budgets says what the arms may hold: --budgets 1MiB,2MiB (the job has neither '
                                   'fae.budget nor cache.budget)')
        budgets = parse_budgets(budgets) if budgets else []
        self.arms = [ArmRuns(name, budget) for name in names for budget in ([0] if name in REMOTE else budgets)]
        self.servers, self.workers = (self.job['cluster'][name] for name in ('servers', 'workers'))
        self.has_failed = False
        self.curves = {}  # evaluated runs, by seed and the digest of the model at the end
        self.packs = {}  # seconds of calibrating and packing, by the pack's file

    def _plan_job(self):
        """The job's calibration needs no `fae` beside it: then the first of the budgets is fae.budget."""
        try:
            return bench_runs.plan(self.args, self.flags.arguments())
        except bench_runs.Usage:
            if not self.args.budgets:
                raise
            with_fae = self.flags.changed([f"fae.budget={self.args.budgets.split(',')[0]}"])
            try:
                plan = bench_runs.plan(self.args, with_fae.arguments())
            except bench_runs.Usage:
                plan = None
            if plan is None:
                raise
            self.flags = with_fae
            return plan

    def prepare(self, out):
        """Raises Usage for an arm that the user named and that this job can't have."""
        self.out = out
        for arm in self.arms:
            if arm.arm == 'remote-gpu' and not self.has_gpu:
                arm.absence = 'this machine has no GPU'
                continue
            try:
                bench_runs.plan(self.args, self._flags_of(arm, self.job['seed'], 0).arguments())
            except bench_runs.Usage as error:
                if self.args.arms:
                    raise bench_runs.Usage(f'arm {arm.name()}: {error}') from error
                arm.absence = str(error)
        bench_runs.write(out, 'setup.txt', self.setup())

    def run(self, hosts):
        print(self.setup(), end='', flush=True)
        first = self._run_of(self._flags_of(ArmRuns('remote-cpu'), self.job['seed'], 0), 'first')
        figures = first.train(hosts)  # It also brings the data into the machine's memory.
        print(f'first run, not counted: {figures.steps} steps, {figures.samples_per_s:.0f} samples/s', flush=True)
        for seed in range(self.job['seed'], self.job['seed'] + self.args.seeds):
            for arm in self.arms:
                if not arm.absence:
                    self._run_one(arm, seed, figures.steps, hosts)

    def report(self):
        """Prints and writes what there is."""
        target = self.args.auc if self.args.auc is not None else target_auc(self.arms)
        legend = COLUMNS
        if target is None:
            legend = 'no time to an AUC: remote-cpu is not among the arms, or has none, and --auc is not given\n' + legend
        elif self.args.auc is None:
            legend = (f'AUC {target:.4f}: the lowest at the end of remote-cpu, less the distance of its lowest and '
                      f'highest\n{legend}')
        text = f'\n{render(self.arms, target)}\n{legend}'
        print(text, end='')
        bench_runs.write(self.out, 'arms.txt', self.setup() + text)
        bench_runs.write(self.out, 'arms.csv', arms_csv(self.arms, target))
        bench_runs.write(self.out, 'curves.csv', curves_csv(self.arms))
        print(f"{bench_runs.draw('arms', self.out)}\nresults: {self.out}", flush=True)

    def setup(self):
        return (f"job {self.job['name']}, data {self.data()}, batch {self.job['train']['batch_size']}, "
                f'{self.servers} servers and {self.workers} workers {bench_runs.where(self.args)}, '
                f'{self.args.seeds} seeds, {os.cpu_count()} hardware threads\n')

    def data(self):
        data = self.job['data']
        return data.get('path') or data['train']['path'][0]

    def _flags_of(self, arm, seed, steps):
        """The user's flags, changed as the arm wants it. steps 0: without evaluations."""
        # One folder for all: a pack is made once, whatever the seed, and kept under its digest.
        own = change_of(arm.arm, self.job, arm.budget, os.path.join(self.out, 'packs'))
        common = common_change(self.job, steps, self.args.evaluations if steps else 0)
        return self.flags.changed(*own).changed(*common).changed([f'seed={seed}'])

    def _run_of(self, flags, name):
        return bench_runs.Run(self.args, flags.arguments(), os.path.join(self.out, name), self.servers, self.workers)

    def _train(self, arm, seed, steps, hosts):
        budget = f'-{arm.budget}' if arm.budget else ''
        run = self._run_of(self._flags_of(arm, seed, steps),
                           f"{arm.arm}{budget}-seed-{seed}{'-evaluated' if steps else ''}")
        with open(os.path.join(self.out, 'commands.txt'), 'a') as file:
            file.write(run.command_line() + '\n')
        return run.train(hosts)

    def _train_and_evaluate(self, arm, seed, steps, hosts):
        """A run that is timed, and, unless one of the same model was made, one that is evaluated on its way: an arm
        that holds rows writes them back for every evaluation."""
        figures = self._train(arm, seed, 0, hosts)
        if self.args.evaluations:
            key = (seed, figures.digest)
            if key not in self.curves:
                self.curves[key] = self._train(arm, seed, steps, hosts)
            figures.take_evaluations(self.curves[key])
        return figures

    def _run_one(self, arm, seed, steps, hosts):
        try:
            figures = self._train_and_evaluate(arm, seed, steps, hosts)
        except bench_runs.RunFailed as error:
            arm.absence = f'seed {seed}: {error}'
            self.has_failed = True
            print(f'{arm.name()}, {arm.absence}', flush=True)
            return
        print(f'{arm.name():24} seed {seed}  {figures.samples_per_s:9.0f} samples/s  AUC {_text(figures.auc, 4)}  '
              f'{figures.wire_bytes_per_sample:7.0f} wire bytes a sample  load {os.getloadavg()[0]:.1f}', flush=True)
        self._remember_pack(figures)
        arm.seeds.append(seed)
        arm.runs.append(figures)

    def _remember_pack(self, figures):
        """fae and fae-static have one pack for each budget, also for several seeds where all rows are counted: what it
        took to make counts for each of them."""
        if not figures.reuses_pack:
            self.packs[figures.pack] = (figures.calibrate_s, figures.pack_s)
        elif figures.pack in self.packs:
            figures.calibrate_s, figures.pack_s = self.packs[figures.pack]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('job', metavar='JOB', help='the job file')
    for flag, name, what in (('--data', 'PATH', 'the data'), ('--servers', 'N', 'parameter servers'),
                             ('--workers', 'N', 'workers')):
        parser.add_argument(flag, metavar=name, help=f'{what}, instead of what the job says')
    parser.add_argument('--set', metavar='FIELD=VALUE', action='append', default=[], help='changes a field of the job')
    parser.add_argument('--clear', metavar='FIELD', action='append', default=[], help='takes a field out of the job')
    parser.add_argument('--insecure', action='store_true', help='allows plain text beyond loopback')
    parser.add_argument('--arms', metavar='NAMES', default='', help='which: remote-cpu,fae; default: all')
    parser.add_argument('--budgets', metavar='SIZES', default='',
                        help='bytes of rows that each worker holds: 1MiB,4MiB; default: fae.budget or cache.budget')
    parser.add_argument('--seeds', metavar='N', type=bench_runs.whole_number(1, 1000), default=5,
                        help='runs of each arm and budget; default 5')
    parser.add_argument('--evaluations', metavar='N', type=bench_runs.whole_number(0, 1000), default=20,
                        help='in a run, where the job has no `evaluate`; default 20')
    parser.add_argument('--auc', metavar='X', type=float,
                        help='what runs are timed to; default: the lowest of remote-cpu, less its spread')
    parser.add_argument('--out', metavar='DIR', help='default: runs/NAME-arms-TIME')
    bench_runs.add_program_arguments(parser)
    return parser.parse_args()


def main():
    args = arguments()
    bench_runs.check_program(args)
    bench = Bench(args)
    bench_runs.enter_hosts(args)
    with bench_runs.hosts_for(args, bench.servers + bench.workers) as hosts:
        bench.prepare(bench_runs.make_out(args.out, f"{bench.job['name']}-arms"))
        try:
            bench.run(hosts)
        finally:
            bench.report()
    return 1 if bench.has_failed else 0


if __name__ == '__main__':
    bench_runs.main_of(main)
