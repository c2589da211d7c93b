#!/usr/bin/env python3
import json
import os
import tempfile
import unittest

import run_figures
from run_figures import RunFigures, ScoredPoint

SUMMARY = {'steps': 100, 'samples': 1000, 'samples_per_s': 200, 'auc': 0.75, 'logloss': 0.5, 'bytes_pulled': 50000,
           'bytes_pushed': 30000, 'model_digest': 'ab'}  # 100 steps of 10 samples in 5 s


class RunFiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        with open(os.path.join(self.folder, name), 'w') as file:
            file.write(content if isinstance(content, str) else json.dumps(content))

    def read(self):
        return run_figures.read_run(self.folder)

    def test_counts_training_without_evaluations(self):
        self.write('summary.json', dict(SUMMARY, exchange={'bytes_sent': 4000}))
        self.write('worker-0.json', {'device': 'cpu', 'samples': 1000, 'bytes_to_device': 7000,
                                     'bytes_from_device': 3000, 'stages': STAGES})
        # The second window is slower. The evaluations pull rows that training does not.
        self.write('metrics.jsonl', '''{"event":"progress","step":50,"samples":500,"samples_per_s":250}
{"event":"eval","step":74,"scheduled":true,"auc":0.7,"logloss":0.6,"seconds":9,"bytes_pulled":10000}
{"event":"progress","step":100,"samples":1000,"samples_per_s":166.66666666666666}
not a line of ours
{"event":"eval","step":99,"scheduled":true,"auc":0.75,"logloss":0.5,"seconds":9,"bytes_pulled":10000}
''')
        run = self.read()
        self.assertEqual((run.steps, run.samples_per_s, run.train_s), (100, 200, 5))
        self.assertEqual((run.device, run.digest), ('cpu', 'ab'))
        self.assertEqual(run.wire_bytes_per_sample, (50000 + 30000 + 4000 - 20000) / 1000)
        self.assertEqual(run.device_bytes_per_sample, 10)
        self.assertIsNone(run.hit_rate)
        self.assertIsNone(run.hot_share)
        self.assertEqual(run.stage_us, {'forward': 2000, 'push': 500})
        # Half of the second window of 3 s after the first of 2 s.
        self.assertEqual([point.steps for point in run.points], [75, 100])
        self.assertAlmostEqual(run.points[0].train_s, 3.5)
        self.assertAlmostEqual(run.points[1].train_s, 5)

    def test_the_schedule_of_hot_and_cold_batches_costs_time_and_bytes(self):
        self.write('summary.json', dict(SUMMARY, pack={'calibrate_s': 1.5, 'pack_s': 2.5, 'hot_rows': 40,
                                                       'samples': {'hot': 250, 'cold': 750}}))
        self.write('worker-0.json', {})
        self.write('metrics.jsonl', '''{"event":"progress","step":50,"samples":500,"samples_per_s":200}
{"event":"change","step":49,"hot":true,"rate":25,"logloss":0.6,"seconds":2}
{"event":"progress","step":100,"samples":1000,"samples_per_s":200}
{"event":"eval","step":99,"scheduled":true,"auc":0.8,"logloss":0.5,"seconds":2,"bytes_pulled":8000}
{"event":"change","step":99,"hot":false,"rate":12.5,"logloss":0.5,"seconds":0.5}
''')
        run = self.read()
        self.assertEqual(run.train_s, 7.5)  # 5 s of steps, 2.5 s of scoring for changes
        self.assertEqual(run.wire_bytes_per_sample, 72)
        self.assertEqual((run.hot_share, run.hot_rows, run.calibrate_s, run.pack_s), (0.25, 40, 1.5, 2.5))
        self.assertEqual([(point.is_evaluation, point.rate) for point in run.points], [(False, 25), (True, 12.5)])
        self.assertAlmostEqual(run.points[1].train_s, 7.5)
        # The scoring of the schedule is of fewer rows: it is no AUC that a run is timed to.
        self.assertAlmostEqual(run.seconds_to_auc(0.7), 7.5)
        self.assertIsNone(run.seconds_to_auc(0.85))

    def test_evaluations_of_another_run_are_timed_by_this_one(self):
        run = RunFigures(progress=[(50, 2), (100, 6)],
                         points=[ScoredPoint(40, 1.6, 0.5, 0.6, False, 25, 3), ScoredPoint(100, 9, 0.8, 0.5)])
        evaluated = RunFigures(points=[ScoredPoint(25, 77, 0.7, 0.6), ScoredPoint(40, 78, 0.6, 0.6, False, 12.5),
                                       ScoredPoint(75, 79, 0.8, 0.5, True, 12.5, 2)])
        run.take_evaluations(evaluated)
        self.assertEqual([(point.steps, point.is_evaluation, point.rate) for point in run.points],
                         [(25, True, None), (40, False, 25), (75, True, None)])
        self.assertAlmostEqual(run.points[0].train_s, 1)
        self.assertAlmostEqual(run.points[2].train_s, 4 + 3)
        self.assertAlmostEqual(run.seconds_to_auc(0.75), 7)

    def test_a_pack_that_was_there_took_no_time(self):
        self.write('summary.json', dict(SUMMARY, cache={'hit_rate': 0.4},
                                        pack={'reused': True, 'calibrate_s': 1.5, 'pack_s': 2.5,
                                              'file': '/packs/ab.pack'}))
        self.write('worker-0.json', {})
        run = self.read()
        self.assertEqual((run.calibrate_s, run.pack_s, run.reuses_pack), (None, None, True))
        self.assertEqual((run.pack, run.hit_rate, run.points), ('/packs/ab.pack', 0.4, []))

    def test_what_is_missing_is_named(self):
        for content, what in ((None, 'summary.json'),
                              ({'steps': 0, 'samples': 0, 'samples_per_s': None}, 'worker-0.json')):
            if content is not None:
                self.write('summary.json', content)
            with self.assertRaisesRegex(run_figures.NoResult, what):
                self.read()
        self.write('worker-0.json', {})
        with self.assertRaisesRegex(run_figures.NoResult, 'no training'):
            self.read()

    def test_median_and_ends(self):
        self.assertIsNone(run_figures.spread_of([]))
        self.assertEqual(run_figures.median_of([4, None, 1, 2, 3]), 2.5)
        spread = run_figures.spread_of([5, 1, 9])
        self.assertEqual((spread.median, spread.low, spread.high), (5, 1, 9))


STAGES = [{'stage': 'forward', 'count': 100, 'total_s': 2.0, 'mean_us': 20000},
          {'stage': 'push', 'count': 100, 'total_s': 0.5, 'mean_us': 5000}]

if __name__ == '__main__':
    unittest.main()
