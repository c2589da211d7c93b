#!/usr/bin/env python3
"""What arms.py changes, and its tables. The program `thermocline` says what is a job."""
import argparse
import os
import subprocess
import sys
import tempfile
import types
import unittest

import arms
import bench_runs
from run_figures import RunFigures, ScoredPoint

THERMOCLINE = os.path.abspath(sys.argv.pop(1))
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'arms.py')


class JobTest(unittest.TestCase):
    """With a job file for logs that have one row."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, 'job.textproto')
        self.log = os.path.join(folder.name, 'log.tsv')
        with open(self.log, 'w') as file:
            file.write('1\n')

    def flags(self, more='', **values):
        with open(self.file, 'w') as file:
            file.write('''name: "j"
data { format: CRITEO_TSV test_share: 0.1 num_categorical: 2 }
default_table { dim: 6 optimizer { adagrad {} } }
dlrm { bottom: [8] top: [8] }
train { batch_size: 100 learning_rate { base: 0.1 } }
''' + more)
        defaults = dict(job=self.file, data=self.log, servers=None, workers=None, insecure=False, set=[], clear=[],
                        arms='', budgets='', auc=None, thermocline=THERMOCLINE)
        return argparse.Namespace(**{**defaults, **values})

    def plan(self, flags):
        return bench_runs.plan(types.SimpleNamespace(thermocline=THERMOCLINE), flags.arguments())['job']

    def job(self, more=''):
        return self.plan(arms.JobFlags(self.flags(more)))

    def changed(self, more, change):
        return self.plan(arms.JobFlags(self.flags(more)).changed(*change))

    def test_every_arm_is_a_job(self):
        for more in ('', 'cache { budget: "9MiB" }', 'fae { budget: "9MiB" } calibration { sample_share: 0.5 }'):
            job = self.job(more)
            for arm in arms.ARMS:
                changed = self.changed(more, arms.change_of(arm, job, 1 << 20, '/packs'))
                self.assertEqual('fae' in changed, arm.startswith('fae'), arm + more)
                self.assertEqual('cache' in changed, arm.startswith('cache'), arm + more)
                if 'fae' in changed:
                    self.assertEqual(changed['fae']['budget'], '1048576B')
                    self.assertEqual(changed['fae']['schedule']['fixed'], arm == 'fae-static')
                    self.assertEqual(changed['calibration']['directory'], '/packs')
                if 'cache' in changed:
                    self.assertEqual(changed['cache']['policy'], 'LOOKAHEAD' if arm == 'cache' else 'STATIC')
            self.assertIn('device=CUDA', arms.change_of('remote-gpu', job, 0, '')[0])
            self.assertIn('device=CPU', arms.change_of('remote-cpu', job, 0, '')[0])

    def test_a_cache_gets_room_for_a_batch_beside_the_rows_that_it_holds(self):
        # Weights and Adagrad's state of dim 6 are 12 floats; two tables have a row for each sample.
        self.assertEqual(arms.cache_budget(self.job(), 1000), 1000 + 2 * 100 * 12 * 4)
        # Several workers: a third of it for each of the rows, of those that it sends, and of gradients.
        self.assertEqual(arms.cache_budget(self.job('cluster { workers: 2 }'), 1000), 1000 + 2 * 50 * 3 * 6 * 4)
        # Rows begin at multiples of 16 bytes.
        by_row = 'feature { name: "C1" } feature { name: "C2" table: "C1" } table { name: "C1" settings { optimizer { %s } } }'
        for optimizer, floats in (('sgd {}', 8), ('row_wise_adagrad {}', 8), ('adam {}', 20)):
            self.assertEqual(arms.cache_budget(self.job(by_row % optimizer), 0), 2 * 100 * floats * 4, optimizer)

    def test_that_is_what_a_cache_itself_needs(self):
        # A plan lays the cache out where rows of a table stay.
        more = 'table { name: "C1" settings { placement: DEVICE } }'
        job = self.changed(more, (['train.batch_size=2000', 'cache.budget=1GiB'], []))
        needed = arms.cache_budget(job, 2 * 12 * 4)  # a row of each table
        self.changed(more, (['train.batch_size=2000', f'cache.budget={needed}B'], []))
        with self.assertRaisesRegex(bench_runs.Usage, f'at least {needed} '):
            self.changed(more, (['train.batch_size=2000', f'cache.budget={needed - 1}B'], []))

    def test_runs_are_evaluated_equally_often_and_end_together(self):
        job = self.job()
        self.assertIn('evaluate.every_steps=50', arms.common_change(job, 1000, 20)[0])
        self.assertIn('evaluate.every_steps=1', arms.common_change(job, 3, 20)[0])
        self.assertEqual(arms.common_change(job, 1000, 0), (['checkpoint.none=true'], []))
        more = 'evaluate { every_steps: 7 patience: 2 } checkpoint { every_steps: 5 directory: "/c" }'
        own = self.job(more)
        evaluated = arms.common_change(own, 1000, 20)
        self.assertEqual(evaluated, (['checkpoint.none=true', 'evaluate.patience=0', 'evaluate.keep_best=false'], []))
        changed = self.changed(more, evaluated)
        self.assertTrue(changed['checkpoint']['none'])
        self.assertEqual((changed['evaluate']['every_steps'], changed['evaluate']['patience']), (7, 0))
        # A run that is timed has no evaluations.
        timed = arms.common_change(own, 1000, 0)
        self.assertEqual(timed, (['checkpoint.none=true'], ['evaluate']))
        self.assertNotIn('evaluate', self.changed(more, timed))

    def test_no_set_of_the_user_puts_back_what_an_arm_takes_out(self):
        flags = arms.JobFlags(self.flags(set=['cache.budget=1MiB', 'seed=3'])).changed(['seed=4'], ['cache'])
        self.assertEqual((flags.set, flags.clear), (['seed=3', 'seed=4'], ['cache']))
        self.assertNotIn('cache', self.plan(flags))

    def test_a_calibration_needs_no_budget_beside_those_of_the_arms(self):
        for more, set_ in (('calibration { sample_share: 1 }', []), ('', ['calibration.sample_share=1'])):
            with self.assertRaises(bench_runs.Usage):
                arms.Bench(self.flags(more, set=set_))
            bench = arms.Bench(self.flags(more, set=set_, budgets='2MiB,4MiB'))
            self.assertEqual(bench.job['calibration']['sample_share'], 1)
            self.assertEqual(bench.job['fae']['budget'], '2MiB')
            self.assertEqual(bench.flags.set[-1], 'fae.budget=2MiB')
        # Other jobs stay as they are.
        bench = arms.Bench(self.flags(budgets='2MiB'))
        self.assertNotIn('fae', bench.job)
        self.assertEqual(bench.flags.set, [])
        with self.assertRaisesRegex(bench_runs.Usage, 'train.batch_size'):
            arms.Bench(self.flags(budgets='2MiB', set=['train.batch_size=0']))

    def test_bad_usage_is_exit_code_two(self):
        self.flags()
        for flags, what in ((['/no/such/job.textproto'], '/no/such/job.textproto'),
                            ([self.file, '--arms', 'fea'], "'fea' is no arm; there are remote-cpu, "),
                            ([self.file, '--arms', 'fae,fae'], 'fae is named twice'),
                            ([self.file, '--seeds', '0'], "--seeds: '0' is not a whole number"),
                            ([self.file, '--auc', '0.4'], '--auc is 0.4; it must be in'),
                            ([self.file], '--budgets says what the arms may hold'),
                            ([self.file, '--budgets', '1MB'], "--budgets: '1MB': a size is"),
                            ([self.file, '--budgets', '0B'], 'holds no row'),
                            ([self.file, '--arms', 'cache', '--budgets', '1B'], 'arm cache 1 B: '),
                            ([self.file, '--thermocline', '/none'], 'there is no program /none')):
            flags = ['--thermocline', THERMOCLINE, '--data', self.log, '--out', self.file + '.out', *flags]
            done = subprocess.run([sys.executable, SCRIPT, *flags], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(what, done.stderr)


def run_at(samples_per_s, auc):
    seconds = 1000 / samples_per_s
    return RunFigures(steps=10, samples=1000, samples_per_s=samples_per_s, train_s=seconds, auc=auc,
                      wire_bytes_per_sample=64, stage_us={'forward': 1.5},
                      points=[ScoredPoint(5, seconds / 2, auc - 0.1, 0.6), ScoredPoint(10, seconds, auc, 0.5)])


def arm_runs(name, budget=0, absence='', runs=()):
    arm = arms.ArmRuns(name, budget)
    arm.absence, arm.runs, arm.seeds = absence, list(runs), list(range(1, len(runs) + 1))
    return arm


def some_arms():
    found = [arm_runs('remote-cpu', runs=[run_at(100, 0.75), run_at(300, 0.76), run_at(200, 0.77)]),
             arm_runs('remote-gpu', absence='this machine has no GPU, none'),
             arm_runs('fae', 1 << 20, runs=[run_at(500, 0.76), run_at(400, 0.6)])]
    for run in found[2].runs:
        run.hot_share, run.pack = 0.125, '/packs/ab.pack'
    found[2].runs[0].calibrate_s, found[2].runs[0].pack_s = 10, 20
    found[2].runs[1].reuses_pack = True
    return found


class ReportTest(unittest.TestCase):
    def test_budgets_ascend(self):
        self.assertEqual(arms.parse_budgets('2MiB,64KiB,2MiB'), [64 << 10, 2 << 20])

    def test_the_target_is_below_every_run_of_remote_cpu(self):
        self.assertIsNone(arms.target_auc([]))
        fae = arm_runs('fae', runs=[run_at(100, 0.5)])
        self.assertIsNone(arms.target_auc([fae]))
        remote = arm_runs('remote-cpu', runs=[run_at(100, 0.76), run_at(100, 0.75)])
        self.assertAlmostEqual(arms.target_auc([fae, remote]), 0.74)

    def test_table_has_medians_and_says_what_is_not_there(self):
        text = arms.render(some_arms(), 0.75)
        lines = text.split('\n')
        self.assertIn('s to 0.7500', lines[0])
        self.assertRegex(lines[2], r'remote-cpu +- +200 +100 .. 300 +5.0 +5.0 +0.7600 +0.7500 .. 0.7700 +64 +- +- +- +- +-$')
        self.assertRegex(lines[3], 'remote-gpu +- +- +- +- ')
        # One of two runs comes to the AUC, after 2 s; 30 s before that count beside it.
        self.assertRegex(lines[4], r'fae +1.0 MiB +450 +400 .. 500 +2.0 \(1 of 2\) +32.0 .*12.5% +10.0 +20.0$')
        self.assertIn('\nremote-gpu: this machine has no GPU, none\n', text)
        self.assertRegex(text, 'forward +1.50 +1.50')
        self.assertIn('never', arms.render(some_arms(), 0.9))
        self.assertNotIn('never', arms.render(some_arms(), None))

    def test_csv_has_a_line_for_each_run(self):
        lines = arms.arms_csv(some_arms(), 0.75).split('\n')
        self.assertEqual(len(lines), 1 + 3 + 1 + 2 + 1)
        self.assertTrue(lines[0].startswith('arm,budget_bytes,seed,'))
        self.assertTrue(lines[0].endswith(',us forward'))
        self.assertTrue(lines[1].startswith('remote-cpu,0,1,,10,1000,10,100,0.75,,0.75,10,64,'))
        self.assertIn(',"this machine has no GPU, none",', lines[4])
        self.assertIn(',10,20,0,', lines[5])  # It made the pack.
        self.assertIn(',,,1,', lines[6])  # It found it.
        self.assertEqual({line.count(',') for line in lines[1:4] + lines[5:7]}, {lines[0].count(',')})
        curves = arms.curves_csv(some_arms()).split('\n')
        self.assertEqual(len(curves), 1 + 5 * 2 + 1)
        self.assertEqual(curves[1], 'remote-cpu,0,1,5,5,0.65,0.6,1,')


if __name__ == '__main__':
    unittest.main()
