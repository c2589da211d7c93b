"""Scans of a text file that take longer than a stall may: they are progress while they go on.

A pipe stands for the file. Every time that it is opened another pipe takes its place, so that each
reading of the file has one of its own, fed as the test wants.
"""

import os
import threading
import time
import unittest

from harness import ProcessTest, wait_for

STALL_S = 2
SCAN_S = 2 * STALL_S
ROWS = 2000
BATCH = 100
STEPS = 5  # before the checkpoint
JOB = """
name: "scan"
seed: 7
data { format: CRITEO_TSV path: "%s" test_share: 0.5 num_dense: 2 num_categorical: 2 }
default_table { dim: 8 }
dlrm { bottom: [16] top: [16] }
train { batch_size: %d learning_rate { base: 0.02 } metrics_every_steps: 1 eval_batch_size: 100 }
cluster { worker_threads: 1 stall_timeout_s: %d }
checkpoint { max_rollbacks: 0 }
"""


def rows():
    return [b'%d\t%d\t%d\t%x\t%x\n' % (i % 3 == 0, i % 5, i % 7, i % 11, i % 13)
            for i in range(ROWS)]


def at_once(pipe, lines):
    pipe.write(b''.join(lines))


def slowly(pipe, lines):
    """Writes the lines of the first STEPS steps over SCAN_S seconds, the others at once."""
    begin = time.monotonic()
    first = STEPS * BATCH
    for i, line in enumerate(lines[:first]):
        wait_for(lambda: time.monotonic() - begin >= SCAN_S * i / first, 'the next line')
        pipe.write(line)
    pipe.write(b''.join(lines[first:]))


def halfway(pipe, lines):
    """And no further: the end of the test closes it."""
    pipe.write(b''.join(lines[:len(lines) // 2]))
    threading.Event().wait()


class PipedFile:
    """A path whose n-th reading is fed by feeders[n], the last one again and again."""

    def __init__(self, path, feeders):
        self._path = path
        self._feeders = feeders
        os.mkfifo(path)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        for reading in range(1000):
            pipe = open(self._path, 'wb', buffering=0)  # waits for a reader
            next_path = self._path + '.next'
            os.mkfifo(next_path)
            os.rename(next_path, self._path)
            feeder = self._feeders[min(reading, len(self._feeders) - 1)]
            threading.Thread(target=self._feed, args=(pipe, feeder), daemon=True).start()

    @staticmethod
    def _feed(pipe, feeder):
        try:
            feeder(pipe, rows())
            pipe.close()
        except BrokenPipeError:
            pass  # it was read no further


class ScanTest(ProcessTest):

    def setUp(self):
        super().setUp()
        self.write_job(self.run_dir + '.tsv')

    def write_job(self, path):
        with open(self.job, 'w') as job:
            job.write(JOB % (path, BATCH, STALL_S))

    def lines_of_phase(self, name):
        """For each line of the phase in metrics.jsonl, whether it says that the phase has ended."""
        return [event.get('ended', False) for event in self.events('phase')
                if event['phase'] == name]

    def test_scans_that_take_longer_than_a_stall(self):
        path = self.run_dir + '.tsv'
        with open(path, 'wb') as file:
            file.write(b''.join(rows()))
        undisturbed = self.train(run_dir=self.run_dir + '-plain')
        os.remove(path)

        # Counting, training, evaluation.
        PipedFile(path, [slowly, at_once])
        launcher = self.start('--set=train.max_steps=%d' % STEPS)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertIn('counting lines  ', out)
        self.assertEqual(self.lines_of_phase('counting lines'), [False, True])

        # Counting, skipping to the checkpoint's step, evaluation.
        path = self.run_dir + '.again.tsv'
        PipedFile(path, [at_once, slowly, at_once])
        summary = self.resume('--clear=train.max_steps', '--data', path)
        self.assertEqual(self.lines_of_phase('skipping to step 5'), [False, True])
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        self.assertEqual(summary['auc'], undisturbed['auc'])

    def test_a_scan_that_stops(self):
        PipedFile(self.run_dir + '.tsv', [halfway])
        code, out, err = self.finish(self.start())
        self.assertEqual(code, 1, out + err)
        self.assertRegex(err, r'nothing has advanced for 2s \(cluster.stall_timeout_s\): worker 0 is '
                              r'waited for: it has pushed nothing; it is counting lines; logs:')


if __name__ == '__main__':
    unittest.main(verbosity=2)
