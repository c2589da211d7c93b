"""`thermocline report`: the page of a run with a rollback, a stop and a resume, alone and beside another run.

What the page shows is looked at in a headless Chromium (Debian's `chromium`, which `deploy/setup.sh --tests` installs);
without it these tests are skipped and say so.
"""

import json
import os
import re
import signal
import unittest

import browser
from harness import ProcessTest, THERMOCLINE, wait_for

REPORT = re.compile(r'<script id="report" type="application/json">(.*?)</script>', re.DOTALL)
# {name: text} of the figures at the top of the page.
FIGURES = """Object.fromEntries([...document.querySelectorAll('.figures > div')].map(
    figure => [figure.querySelector('dt').textContent, figure.querySelector('dd').title]))"""


def document_in(path):
    with open(path) as page:
        return json.loads(REPORT.search(page.read()).group(1))


class ReportTest(ProcessTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = browser.Browser() if browser.CHROMIUM else None

    @classmethod
    def tearDownClass(cls):
        if cls.browser:
            cls.browser.close()
        super().tearDownClass()

    def report(self, *arguments):
        """The path of the page that the command has written."""
        done = self.thermocline('report', *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def show(self, path, **how):
        """Opens a page; its console has to be empty, and it has to fit into the width."""
        self.browser.open('file://' + os.path.abspath(path), **how)
        self.assertEqual(self.browser.console, [])
        # A picture of an even surface has hardly more than one byte.
        self.assertGreater(browser.bytes_of(self.browser.screenshot()), 20)
        if how.get('script', True):
            self.assertTrue(self.browser.evaluate('document.documentElement.scrollWidth <= innerWidth'), how)

    def run_with_losses(self):
        """A run in which a worker was killed, which was stopped and resumed. Returns its summary."""
        launcher = self.start('--set=train.passes=6', '--set=checkpoint.every_steps=20',
                              '--set=evaluate.every_steps=40', '--set=checkpoint.max_rollbacks=3')
        wait_for(lambda: any(line['step'] > 50 for line in self.events('progress')), 'step 50')
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        wait_for(lambda: self.events('rollback') and self.events('progress')[-1]['step'] > 60, 'a step after it')
        launcher.send_signal(signal.SIGINT)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out + err)
        self.assertIn('\nreport: thermocline report %s\n' % self.run_dir, err)
        return self.resume()

    def check_figures(self, shown, summary):
        """The figures of a page are those of summary.json."""
        self.assertEqual(shown['AUC'], '%.4f' % summary['auc'])
        self.assertEqual(shown['Logloss'], '%.4f' % summary['logloss'])
        self.assertEqual(shown['Steps'], '{:,}'.format(summary['steps']))
        self.assertEqual(shown['Samples'], '{:,}'.format(summary['samples']))
        self.assertEqual(shown['Samples/s'], '{:,}'.format(int(summary['samples_per_s'] + .5)))
        self.assertEqual(shown['Model digest'], summary['model_digest'])
        self.assertEqual(shown['Rollbacks'], '1')

    def test_a_run_and_its_page(self):
        summary = self.run_with_losses()
        path = self.report(self.run_dir)
        self.assertEqual(path, os.path.join(self.run_dir, 'report.html'))
        document = document_in(path)
        self.assertFalse(document['live'])
        run = document['runs'][0]
        self.assertEqual((run['state']['kind'], run['notes']), ('done', []))
        self.assertEqual(run['job']['name'], 'small')
        self.check_figures({name: text for name, text, _ in run['figures']}, summary)
        # Every step once, in order, with the figures of the lines that count.
        self.assertEqual(run['progress']['step'], list(range(1, summary['steps'] + 1)))
        # The stop may have come when all was trained: then the last line has no loss.
        losses = [line['loss'] for line in self.events('progress') if 'loss' in line]
        self.assertEqual(run['progress']['mean']['loss'][-1], float('%.6g' % losses[-1]))
        self.assertIn('stage forward', run['progress']['mean'])
        self.assertEqual([launch['status'] for launch in run['launches']], ['CANCELLED', 'OK'])
        self.assertTrue(all(launch['began'] for launch in run['launches']))
        self.assertGreaterEqual(len(run['lost']), 1)
        lanes = {lane['name']: lane['marks'] for lane in run['lanes']}
        self.assertEqual(lanes['worker 0'][0][1], 'rollback')
        self.assertEqual(run['checkpoints']['name'][-1], summary['checkpoints']['last'])
        self.assertEqual(max(run['evals']['step']), summary['steps'])
        self.assertGreater(sum(rows or 0 for rows in run['tables']['rows']), 0)
        self.assertEqual(len(run['processes']['servers']['name']), summary['servers'])
        self.look_at(path, summary)

    def look_at(self, path, summary):
        if not self.browser:
            print('no Chromium: the page is not looked at; deploy/setup.sh --tests installs it')
            return
        for how in ({}, {'dark': True}, {'width': 375}, {'width': 375, 'dark': True}):
            self.show(path, **how)
            self.check_figures(self.browser.evaluate(FIGURES), summary)
        self.assertNotEqual(self.browser.evaluate('getComputedStyle(document.body).backgroundColor'),
                            'rgb(251, 251, 250)')
        # With the keyboard: a chart is reached, its cursor moves, and what it shows is said.
        self.show(path)
        self.browser.evaluate("document.querySelector('.plot').focus()")
        self.browser.press('Home')
        said = self.browser.evaluate("document.querySelector('.chart [aria-live]').textContent")
        self.assertTrue(said.startswith('step 1: training 0.'), said)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.plot:not([aria-labelledby])').length"), 0)
        self.browser.evaluate("document.querySelector('[data-axis=t]').click()")
        self.browser.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
        self.assertEqual(self.browser.console, [])
        # What a live page is sent replaces the points from an index on, and single fields.
        tail = {'from': 2, 'step': [30], 't': [3], 'samples': [9], 'mean': {'loss': [0.5], 'new': [7]}}
        answer = {'cursor': 'c', 'live': False, 'run': {'time_s': 3, 'progress_tail': tail}}
        self.assertEqual(self.browser.evaluate(
            '(() => { merge(%s); const p = report.runs[0].progress; for (const refresh of sections) refresh(); redraw();'
            ' return [p.step, p.mean.new, p.mean.loss.length, report.runs[0].time_s]; })()' % json.dumps(answer)),
            [[1, 2, 30], [None, None, 7], 3, 3])
        self.browser.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
        self.assertEqual(self.browser.console, [])
        # Without JavaScript the figures are there as tables.
        self.show(path, script=False)
        text = self.browser.visible_text()
        for words in ('%.4f' % summary['auc'], summary['model_digest'], 'Progress', 'Evaluations', 'rollback'):
            self.assertIn(words, text)

    def test_two_runs(self):
        summaries, folders = [], []
        for passes, rate in ((1, 0.02), (2, 0.05)):
            folders.append('%s-%d' % (self.run_dir, passes))
            summaries.append(self.train('--set=train.passes=%d' % passes, '--set=train.learning_rate.base=%g' % rate,
                                        run_dir=folders[-1]))
        path = self.report(*folders, '--out', self.run_dir + '.html')
        compare = document_in(path)['compare']
        self.assertIn(['Steps', *('{:,}'.format(summary['steps']) for summary in summaries)], compare['figures'])
        self.assertEqual(compare['fields'], [['train.passes', '1', '2'], ['train.learning_rate.base', '0.02', '0.05']])
        if self.browser:
            self.show(path)
            self.show(path, width=375, dark=True)

    def test_what_is_no_run(self):
        missing = self.thermocline('report', self.run_dir)
        self.assertEqual((missing.returncode, missing.stdout), (2, ''))
        self.assertIn('there is no run directory ' + self.run_dir, missing.stderr)
        os.mkdir(self.run_dir)
        path = self.report(self.run_dir)
        notes = document_in(path)['runs'][0]['notes']
        self.assertEqual(len(notes), 3, notes)
        if self.browser:
            self.show(path)
            self.assertIn('metrics.jsonl is missing', self.browser.visible_text())
        # Lines of a program that we do not know, or of none.
        with open(self.run_dir + '/metrics.jsonl', 'w') as lines:
            for step in (1, 2):
                loss = 1e17 + 16 * step
                lines.write(json.dumps({'event': 'progress', 'wall_s': step, 'step': step, 'loss': loss}) + '\n')
            lines.write(json.dumps({'event': 'eval', 'wall_s': 3, 'step': 1, 'auc': '0.5', 'logloss': .5}) + '\n')
            for kind in ('unknown', 'limit', 'pack', 'progress'):
                deep = 100_000 * '[' + 100_000 * ']'
                lines.write('{"event": "%s", "wall_s": 4, "step": 3, "value": %s}\n' % (kind, deep))
        self.assertEqual(self.report(self.run_dir), path)
        if self.browser:
            self.show(path)
            self.assertIn('held-out', self.browser.visible_text())
        # No other file of the user's is replaced.
        for other in ('metrics.jsonl', 'a_link'):
            if other == 'a_link':
                os.symlink('report.html', os.path.join(self.run_dir, other))
            refused = self.thermocline('report', self.run_dir, '--out', os.path.join(self.run_dir, other))
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn('is no page of a report', refused.stderr)
        nowhere = self.thermocline('report', self.run_dir, '--out', self.run_dir + '/no/such/page.html')
        self.assertEqual(nowhere.returncode, 2, nowhere.stderr)


if __name__ == '__main__':
    unittest.main()
