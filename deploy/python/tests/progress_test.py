"""The line that shows how far a job is."""

import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))

from thermocline import _progress  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self):
        return True


def event(step, **values):
    return json.dumps({'event': 'progress', 'fraction': step / 40, 'step': step, 'samples': 256 * step,
                       'samples_per_s': 12345.6, 'loss': 0.5, **values}, separators=(',', ':')) + '\n'


class ProgressTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.metrics = os.path.join(folder.name, 'metrics.jsonl')

    def shown(self, stream, text, before=''):
        if before:
            self.write(before)
        progress = _progress.Progress(self.metrics, stream)
        self.write(text)
        progress.close()
        return stream.getvalue()

    def write(self, text):
        with open(self.metrics, 'a') as metrics:
            metrics.write(text)

    def test_describes_a_step(self):
        line = _progress.describe(json.loads(event(10)))
        self.assertEqual(line, '[======>                 ]  25%  10 steps  2,560 samples  12,345/s  loss 0.5000')
        self.assertNotIn('loss', _progress.describe(json.loads(event(10, loss=None))))
        self.assertTrue(_progress.describe(json.loads(event(41))).startswith('[%s] 100%%' % ('=' * 24)))

    def test_the_last_state_is_shown_at_the_end(self):
        text = event(1) + event(2) + '{"event":"end"}\n' + event(3)[:-9]
        self.assertEqual(self.shown(io.StringIO(), text), _progress.describe(json.loads(event(2))) + '\n')

    def test_a_terminal_has_one_line(self):
        shown = self.shown(Terminal(), event(40))
        self.assertEqual(shown, '\r' + _progress.describe(json.loads(event(40))) + '\n')

    def test_what_was_there_before_is_not_shown(self):
        self.assertEqual(self.shown(io.StringIO(), '{"event":"end"}\n', before=event(7)), '')

    def test_no_metrics_show_nothing(self):
        self.assertEqual(self.shown(Terminal(), ''), '')


if __name__ == '__main__':
    unittest.main()
