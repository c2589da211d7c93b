"""The examples of the Python package, as whole jobs on real samples: each learns what it did when it was written.

The notebook's cells run in a kernel where nbclient and ipykernel are installed, else by themselves. The samples lie in
$THERMOCLINE_DATA, or in shared/data beside the source tree. Needs PyTorch (Debian's python3-torch:
`deploy/setup.sh --tests`). What is missing is said, and its tests are skipped.
"""

import gzip
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import unittest

import harness
from harness import DEADLINE_S, THERMOCLINE, ProcessTest
from quality_test import find_sample

HAS_TORCH = importlib.util.find_spec('torch') is not None
if not HAS_TORCH:
    print('SKIPPED: no PyTorch; deploy/setup.sh --tests installs it', flush=True)

LIBRARY = os.path.join(harness._RUNFILES, 'worker/api/libthermocline.so')
PACKAGE = os.path.join(harness._RUNFILES, 'deploy/python')
EXAMPLES = os.path.join(PACKAGE, 'examples')
COMPARISON = os.path.join(harness._RUNFILES, 'tests/benchmarks/compare_script.py')
CRITEO = 'criteo_kaggle_137k.tsv.gz'

HAS_KERNEL = importlib.util.find_spec('nbclient') is not None and importlib.util.find_spec('ipykernel') is not None
WITH_KERNEL = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, kernel_name='python3').execute()
print(''.join(output.get('text', '') for cell in notebook.cells for output in cell.get('outputs', [])))
"""
WITHOUT_KERNEL = """
import json, sys
names = {}
for cell in json.load(open(sys.argv[1]))['cells']:
    if cell['cell_type'] == 'code':
        exec(compile(''.join(cell['source']), 'cell', 'exec'), names)
"""


@unittest.skipUnless(HAS_TORCH, 'no PyTorch')
class ScriptExamplesTest(ProcessTest):

    def find(self, sample):
        data = find_sample(sample)
        if data is None:
            self.skipTest('no %s; set THERMOCLINE_DATA to its folder' % sample)
        return data

    def environment(self, **variables):
        return {**os.environ, 'PYTHONPATH': PACKAGE, 'THERMOCLINE_LIBRARY': LIBRARY, 'PYTHONDONTWRITEBYTECODE': '1',
                'OMP_NUM_THREADS': '1', **variables}

    def run_example(self, name, sample, *flags, **environment):
        """Trains an example for some steps, from its job file; returns its summary."""
        data = self.find(sample)
        command = json.dumps(['/usr/bin/python3', name + '.py'])
        return self.train('--data', data, '--servers=2', '--set=worker.command=' + command,
                          '--set=worker.directory=' + EXAMPLES, '--set=worker.threads=1',
                          '--set=cluster.worker_threads=1', *flags, env=self.environment(**environment),
                          job=os.path.join(EXAMPLES, name + '.textproto'))

    def test_dlrm(self):
        summary = self.run_example('dlrm', CRITEO, '--set=train.max_steps=150',
                                   '--set=data.test_share=0.03', DLRM_LAYERS='small')
        self.assertEqual((summary['steps'], summary['eval_samples']), (150, 4115))
        self.assertGreater(summary['auc'], 0.72)
        self.assertLess(summary['logloss'], 0.53)

    def test_dcnv2(self):
        summary = self.run_example('dcnv2', CRITEO, '--set=train.max_steps=40',
                                   '--set=data.test_share=0.03', DCN_LAYERS='small')
        self.assertEqual((summary['steps'], summary['eval_samples']), (40, 4115))
        self.assertGreater(summary['auc'], 0.70)
        self.assertLess(summary['logloss'], 0.55)

    def test_transformer(self):
        summary = self.run_example('transformer', 'movielens_100k_history.csv.gz', '--set=train.max_steps=40',
                                   '--set=data.split.last_share=0.03')
        self.assertEqual((summary['steps'], summary['eval_samples']), (40, 3000))
        self.assertGreater(summary['auc'], 0.65)
        self.assertLess(summary['logloss'], 0.67)

    def test_notebook(self):
        data = self.find(CRITEO)
        if not HAS_KERNEL:
            print('no nbclient and ipykernel: the code of the cells runs without a kernel', flush=True)
        ended = subprocess.run(
            ['/usr/bin/python3', '-c', WITH_KERNEL if HAS_KERNEL else WITHOUT_KERNEL, 'notebook.ipynb'], cwd=EXAMPLES,
            capture_output=True, text=True, timeout=DEADLINE_S,
            env=self.environment(THERMOCLINE_PROGRAMS=os.path.dirname(THERMOCLINE), DATA=data, RUN_DIR=self.run_dir))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn('200 steps  loss 0.', ended.stdout)
        self.assertIn("rows of C1; ['net', 'opt']", ended.stdout)
        with open(os.path.join(self.run_dir, 'summary.json')) as file:
            summary = json.load(file)
        self.assertEqual((summary['steps'], summary['resumed_from_step'], summary['eval_samples']), (200, 100, 4115))
        self.assertGreater(summary['auc'], 0.73)

    def test_the_same_model_natively_and_as_a_script(self):
        log = self.run_dir + '.tsv'
        with gzip.open(self.find(CRITEO), 'rb') as source, open(log, 'wb') as file:
            file.writelines(itertools.islice(source, 2000))
        ended = subprocess.run(
            [sys.executable, COMPARISON, log, '--thermocline', THERMOCLINE, '--json', '--optimizer', 'sgd=0.1', '--',
             '--set=train.max_steps=5'], capture_output=True, text=True, timeout=DEADLINE_S, env=self.environment())
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        result = json.loads(ended.stdout)
        self.assertEqual(result['steps'], [5, 5])
        for name in 'loss', 'logloss':
            self.assertAlmostEqual(result[name][0], result[name][1], delta=1e-6)
        for name in 'rows', 'dense':
            most, _, root_mean_square = result['native and script'][name]
            self.assertLess(most, 1e-6)
            self.assertGreater(root_mean_square, 0.01)


if __name__ == '__main__':
    unittest.main(verbosity=2)
