"""Checkpoints of jobs with a script, read by thermocline.load().

Needs PyTorch (Debian's python3-torch: `deploy/setup.sh --tests`); without it all is skipped.
"""

import importlib.util
import os
import sys
import unittest
from unittest import mock

import script_test
from harness import THERMOCLINE, ProcessTest
from script_test import HAS_TORCH, PACKAGE

sys.path.insert(0, PACKAGE)

# It writes at its end what it tracks.
SCRIPT = script_test.SCRIPT.replace('%(extra)s', '') + """
    torch.save({'net': net.state_dict(), 'opt': opt.state_dict()}, %r)
"""


@unittest.skipUnless(HAS_TORCH, 'no PyTorch')
class LoadTest(ProcessTest):

    trained = None  # The run directory of a job with a script that all tests read, and its summary.

    def setUp(self):
        super().setUp()
        variables = mock.patch.dict(os.environ, {'THERMOCLINE_PROGRAMS': os.path.dirname(THERMOCLINE)})
        variables.start()
        self.addCleanup(variables.stop)
        script = self.run_dir + '.py'
        self.state = os.path.join(self.folder, 'state.pt')
        with open(script, 'w') as file:
            file.write(SCRIPT.replace('%r', repr(self.state)))
        with open(self.job, 'w') as job:
            job.write(script_test.JOB % {'data': self.data, 'script': script})
        if self.trained is None:
            run_dir = os.path.join(self.folder, 'run')
            summary = self.train('--servers=2', '--set=checkpoint.every_steps=10', '--set=checkpoint.keep=9',
                                 run_dir=run_dir,
                                 env={**os.environ, 'PYTHONPATH': PACKAGE, 'PYTHONDONTWRITEBYTECODE': '1',
                                      'THERMOCLINE_LIBRARY': script_test.LIBRARY})
            type(self).trained = run_dir, summary

    def test_has_the_rows_and_the_state(self):
        import numpy as np
        import thermocline
        import torch
        run_dir, summary = self.trained
        model = thermocline.load(run_dir)
        self.assertEqual((model.step, model.digest), (39, summary['model_digest']))
        self.assertEqual(model.tables, {'C%d' % i: 8 for i in range(1, 27)})
        sparse = np.load(os.path.join(self.data, 'train_sparse.npy'))
        for i, table in enumerate(model.tables):
            keys, vectors = model.rows(table)
            self.assertEqual((keys.dtype, vectors.dtype, vectors.shape), (np.uint64, np.float32, (len(keys), 8)))
            self.assertEqual(set(keys.tolist()), set(sparse[:, i].tolist()), table)
            self.assertTrue(np.isfinite(vectors).all() and vectors.any(axis=1).all())
        saved = torch.load(self.state)
        self.assertEqual(list(model.state), ['net', 'opt'])
        self.assertEqual(list(model.state['net']), list(saved['net']))
        for name, value in saved['net'].items():
            self.assertTrue(torch.equal(model.state['net'][name], value), name)
        for number, of_parameter in saved['opt']['state'].items():
            self.assertTrue(torch.equal(model.state['opt']['state'][number]['exp_avg'], of_parameter['exp_avg']))

    def test_takes_one_checkpoint_of_several(self):
        import numpy as np
        import thermocline
        run_dir, _ = self.trained
        # The first is always taken; one that is due while the one before is being written may be left out.
        early = thermocline.load(os.path.join(run_dir, 'checkpoints', 'step-000000009'))
        self.assertEqual(early.step, 9)
        late = thermocline.load(run_dir, folder=self.folder)
        self.assertEqual(late.step, 39)
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith('thermocline-')], [])
        self.assertGreater(len(late.rows('C1')[0]), len(early.rows('C1')[0]))
        self.assertFalse(np.array_equal(early.state['net']['layers.0.weight'], late.state['net']['layers.0.weight']))

    def test_a_job_without_a_script_has_rows_alone(self):
        import thermocline
        self.train('--clear=worker', '--set=dlrm={bottom:[8] top:[8]}')
        model = thermocline.load(self.run_dir)
        self.assertGreater(len(model.rows('C1')[0]), 0)
        self.assertEqual(model.state, {})

    def test_parquet(self):
        import numpy as np
        import thermocline
        from thermocline import _load
        model = thermocline.load(self.trained[0])
        if importlib.util.find_spec('pyarrow') is None:
            print('SKIPPED: no pyarrow, which writes Parquet', flush=True)
            with self.assertRaisesRegex(thermocline.Error, r'to_parquet\(\) needs pyarrow.*pip install pyarrow'):
                model.to_parquet(self.run_dir + '-parquet')
            return
        from pyarrow import parquet
        with mock.patch.object(_load, '_ROWS_AT_ONCE', 1000):
            paths = model.to_parquet(self.run_dir + '-parquet')
        self.assertEqual(len(paths), 26)
        table = parquet.read_table(paths[0])
        keys, vectors = model.rows('C1')
        self.assertTrue(np.array_equal(table['key'].to_numpy(), keys))
        self.assertTrue(np.array_equal(np.array(table['vector'].to_pylist(), 'f4'), vectors))

    def test_says_what_is_not_there(self):
        import thermocline
        with self.assertRaisesRegex(thermocline.Error, "no table 'C27'. It has C1, C2"):
            thermocline.load(self.trained[0]).rows('C27')
        with self.assertRaisesRegex(thermocline.Error, "no folder '/no/such'"):
            thermocline.load('/no/such')


if __name__ == '__main__':
    unittest.main()
