#!/usr/bin/env python3
"""The points of sweep.py, their jobs and data. The program `thermocline` says what is a job."""
import array
import os
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import bench_runs
import sweep
from run_figures import RunFigures

THERMOCLINE = os.path.abspath(sys.argv.pop(1))
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'sweep.py')


def values_of(knobs, points):
    return [point.value for point in sweep.plan_points(knobs, points)]


class SweepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_knobs_have_their_ends_and_as_many_points_as_are_wanted(self):
        self.assertEqual(values_of('batch', 1), ['base', '200'])
        self.assertEqual(values_of('batch', 2), ['base', '200', '12800'])
        self.assertEqual(values_of('batch', 4), ['base', '200', '800', '3200', '12800'])
        self.assertEqual(values_of('hash,device', 2), ['base', '1e5', '1e7', 'CPU', 'CUDA'])
        self.assertEqual({point.knob for point in sweep.plan_points('', 2)}, {'base', *sweep.KNOBS})
        with self.assertRaisesRegex(bench_runs.Usage, "'' is no knob"):
            sweep.plan_points('batch,', 2)

    def test_every_point_is_a_job(self):
        args = types.SimpleNamespace(thermocline=THERMOCLINE, set=[], steps=40, servers=1, workers=1, knobs='', points=4)
        bench = sweep.Bench(args)
        bench.out = self.folder
        for point in bench.points:
            shape, steps = point.shape, point.shape.steps(40)
            self.assertTrue(5 <= steps <= 40, point)
            # The data last for all steps, are whole batches, and are no more than they may be.
            rows = shape.rows(steps)
            self.assertEqual(rows % shape.batch, 0)
            self.assertLessEqual(rows * 4 * (shape.dense + shape.sparse * shape.lookups),
                                 max(64 << 20, 4 * shape.batch * (shape.dense + 4096)))
            small = shape.batch  # One batch is enough to ask whether it is a job.
            with unittest.mock.patch.object(sweep, 'write_data', lambda shape, _, folder: write(shape, small, folder)):
                bench._prepare(point)
            job = bench_runs.plan(args, bench._arguments(point))['job']
            self.assertEqual(len(job['feature']), shape.sparse)
            self.assertEqual(len(job['layer'][-1]['mlp']['units']), shape.layers + 1)  # The last one is the logit.
            self.assertEqual((job['train']['batch_size'], job['train']['max_steps']), (shape.batch, steps))
            self.assertGreaterEqual(rows * job['train']['passes'], steps * shape.batch)
            self.assertEqual('cache' in job, shape.placement not in ('', 'REMOTE'))

    def test_places_small_tables_and_large_ones(self):
        shape = sweep.Shape(sparse=4, placement='DEVICE, REMOTE')
        self.assertEqual([shape.placement_of(table) for table in range(4)], ['REMOTE', 'DEVICE'] * 2)
        self.assertEqual([shape.rows_of(table) for table in range(4)], [100_000, 1000] * 2)
        # Two tables of 200 rows that all fit, at most what the data have, with one row more for each.
        shape.hash = 20_000
        self.assertEqual(sweep.held_bytes(shape, 40), 2 * 201 * 2 * 4 * 16)

    def test_data_have_their_shape(self):
        # The second table is the small one: of 3 rows.
        shape = sweep.Shape(dense=3, sparse=2, lookups=4, hash=300, placement='DEVICE, REMOTE')
        write(shape, 500, self.folder)
        for name, header, size in (('dense', "'<f4', 'fortran_order': False, 'shape': (500, 3)", 500 * 3),
                                   ('sparse', "'<i4', 'fortran_order': False, 'shape': (500, 8)", 500 * 8),
                                   ('labels', "'<i4', 'fortran_order': False, 'shape': (500, 1)", 500)):
            with open(f'{self.folder}/train_{name}.npy', 'rb') as file:
                content = file.read()
            begin = content.index(b'\n') + 1
            self.assertIn(header, content[:begin].decode('latin1'))
            self.assertEqual((begin % 64, len(content) - begin), (0, 4 * size))
            if name == 'sparse':
                ids = array.array('i', content[begin:])
        large = [value for at, value in enumerate(ids) if at % 8 < 4]
        small = [value for at, value in enumerate(ids) if at % 8 >= 4]
        self.assertEqual((min(large), min(small), max(small)), (0, 0, 2))
        self.assertTrue(100 < max(large) < 300)
        self.assertGreater(large.count(0), large.count(1))  # skewed

    def test_table_compares_with_the_base_and_says_what_is_not_there(self):
        points = [sweep.Point('base', 'base', sweep.Shape()), sweep.Point('placement', 'DEVICE, REMOTE', sweep.Shape()),
                  sweep.Point('placement', 'CACHED', sweep.Shape(), 'no room, none')]
        for point, rate in zip(points, (100, 250)):
            point.figures = RunFigures(steps=7, samples_per_s=rate, wire_bytes_per_sample=64,
                                       stage_us={'forward': 1, 'backward dense': 2, 'wait for rows': 0.5})
        text = sweep.render(points)
        self.assertRegex(text, r'placement +DEVICE, REMOTE +250 +2.50 +64 +- +0.00 +0.50 +3.00 +0.00')
        self.assertIn('\nplacement CACHED: no room, none\n', text)
        lines = sweep.sweep_csv(points).split('\n')
        self.assertEqual(len(lines), 5)
        self.assertTrue(lines[0].endswith(',us forward,us backward dense,us wait for rows'))
        self.assertTrue(lines[2].startswith('placement,"DEVICE, REMOTE",64,16,1,100000,16,800,64,2,'))
        self.assertIn('"no room, none"', lines[3])

    def test_bad_usage_is_exit_code_two(self):
        for flags, what in ((['--knobs', 'batch,dims'], "'dims' is no knob; there are dense, "),
                            (['--points', '5'], "--points: '5'"), (['--steps', 'none'], "--steps: 'none'"),
                            (['--knobs', 'batch', '--steps', '1', '--set', 'train.batch_size=0'], 'train.batch_size')):
            flags = ['--thermocline', THERMOCLINE, '--out', self.folder + '/out', *flags]
            done = subprocess.run([sys.executable, SCRIPT, *flags], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(what, done.stderr)


write = sweep.write_data

if __name__ == '__main__':
    unittest.main()
