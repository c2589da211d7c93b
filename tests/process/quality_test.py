"""The shipped Criteo job on a real sample of the log, where this machine has it: as good as the reference.

The sample is criteo_kaggle_137k.tsv.gz in $THERMOCLINE_DATA, or in shared/data beside the source tree.
Plain PyTorch reaches AUC 0.7568 and logloss 0.4912 on its last tenth.
"""

import os
import unittest

from harness import ProcessTest

SAMPLE = 'criteo_kaggle_137k.tsv.gz'
# Bazel links the source file back to the source tree.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def find_sample(name=SAMPLE):
    for folder in (os.environ.get('THERMOCLINE_DATA', ''), os.path.join(ROOT, '../shared/data')):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return os.path.realpath(path)
    return None


class QualityTest(ProcessTest):

    def test_criteo_kaggle(self):
        sample = find_sample()
        if sample is None:
            self.skipTest('no %s; set THERMOCLINE_DATA to its folder' % SAMPLE)
        summary = self.train('--data', sample, '--servers=2',
                             job=os.path.join(ROOT, 'deploy/jobs/criteo_kaggle.textproto'))
        self.assertEqual(summary['steps'], 483)  # 123,425 rows in batches of 256
        self.assertEqual(summary['samples'], 123425)
        self.assertEqual(summary['eval_samples'], 13714)
        self.assertEqual(summary['bad_lines'], 0)
        self.assertGreaterEqual(summary['auc'], 0.755)
        self.assertLessEqual(summary['logloss'], 0.495)


if __name__ == '__main__':
    unittest.main(verbosity=2)
