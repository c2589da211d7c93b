"""TensorBoard's own reader finds in a run directory what metrics.jsonl says, after a rollback and a resume.

Needs TensorBoard, which `deploy/setup.sh --tests` fetches; without it the test is skipped and says so.
"""

import json
import os
import signal
import struct
import subprocess
import unittest

from harness import ProcessTest, wait_for

PYTHON = os.path.expanduser('~/.local/share/thermocline/tests/bin/python')

# Prints {tag: [[step, value], ...]} of the scalars of a folder, and the text of the job.
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'tensors': 0})
events.Reload()
tags = events.Tags()
scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags['scalars']}
job = [event.tensor_proto.string_val[0].decode() for event in events.Tensors('job')]
json.dump({'scalars': scalars, 'job': job}, sys.stdout)
"""


def has_tensorboard():
    return os.access(PYTHON, os.X_OK) and subprocess.run(
        [PYTHON, '-c', 'import tensorboard'], stderr=subprocess.DEVNULL, check=False).returncode == 0


def as_float32(value):
    return struct.unpack('f', struct.pack('f', value))[0]


@unittest.skipUnless(has_tensorboard(), 'no TensorBoard: deploy/setup.sh --tests fetches it')
class TensorBoardTest(ProcessTest):

    def expected(self, event, field, behind=0):
        """[[steps trained, value]] of the lines that no later rollback or resume made void."""
        kept = {}
        for line in self.events():
            if line['event'] in ('rollback', 'resume'):
                kept = {step: value for step, value in kept.items() if step <= line['step']}
            elif line['event'] == event:
                kept[line['step'] + behind] = as_float32(line[field])
        return [[step, value] for step, value in sorted(kept.items())]

    def test_scalars_are_those_of_the_steps_that_count(self):
        launcher = self.start('--set=train.passes=8', '--set=checkpoint.every_steps=20',
                              '--set=evaluate.every_steps=40')
        wait_for(lambda: any(line['step'] > 50 for line in self.events('progress')), 'step 50')
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(len(self.events('rollback')), 1)
        self.resume('--set=train.passes=10')
        files = [name for name in os.listdir(self.run_dir) if name.startswith('events.out.tfevents.')]
        self.assertEqual(len(files), 2, files)

        read = subprocess.run([PYTHON, '-c', READER, self.run_dir], capture_output=True, text=True, check=False)
        self.assertEqual(read.returncode, 0, read.stderr)
        found = json.loads(read.stdout)
        scalars = found['scalars']
        self.assertGreater(len(scalars['train/loss']), 300)
        self.assertEqual(scalars['train/loss'], self.expected('progress', 'loss'))
        self.assertEqual(scalars['train/learning_rate'], self.expected('progress', 'learning_rate'))
        # An evaluation behind the checkpoint that the job goes back to is made again, and comes out the same.
        evaluations = [point for i, point in enumerate(scalars['eval/auc']) if point not in scalars['eval/auc'][:i]]
        self.assertEqual(evaluations, self.expected('eval', 'auc', behind=1))
        self.assertEqual(scalars['checkpoint/bytes'], self.expected('checkpoint', 'bytes', behind=1))
        for tag in ('perf/samples_per_second', 'bytes/pulled_per_step', 'stage_us/wait for rows', 'eval/logloss'):
            self.assertIn(tag, scalars)
        self.assertIn('    name: "small"\n', found['job'][-1])


if __name__ == '__main__':
    unittest.main()
