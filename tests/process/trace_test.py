"""`train --trace FIRST:LAST`: trace.json of real jobs, its spans and its clock."""

import collections
import json
import os
import signal
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from harness import ProcessTest, program, wait_for

CACHED = ['--set=cache.budget=600KiB', '--set=cache.window_steps=6']
PICTURE = program('tests/benchmarks/trace_picture.py')
FIRST, LAST = 10, 13
STEPS = set(range(FIRST, LAST + 1))
# What the training thread of a worker does in each step.
STAGES = {'wait for data', 'fetch', 'wait for rows', 'forward', 'backward to embeddings', 'update rows',
          'push embeddings', 'backward dense', 'push dense'}
PLANNING = {'read', 'plan', 'plan cache', 'read rows', 'parse rows'}


class Spans:
    """The events of a trace by process; times in microseconds."""

    def __init__(self, path):
        with open(path) as file:
            self.trace = json.load(file)
        self.about = self.trace['otherData']
        self.events = self.trace['traceEvents']
        self.processes = {event['pid']: event['args']['name'] for event in self.events
                          if event['ph'] == 'M' and event['name'] == 'process_name'}
        self.of = collections.defaultdict(list)  # By process.
        for event in self.events:
            if event['ph'] == 'X':
                self.of[self.processes[event['pid']]].append(event)
        self.calls = collections.defaultdict(dict)  # By process and id: {'b': event, 'e': event}
        for event in self.events:
            if event['ph'] in 'be':
                self.calls[self.processes[event['pid']], event['id2']['local']][event['ph']] = event

    def steps(self, process, name):
        return {event['args'].get('step') for event in self.of[process] if event['name'] == name}


class TraceTest(ProcessTest):

    def trace(self, run_dir=None):
        return Spans(os.path.join(run_dir or self.run_dir, 'trace.json'))

    def assert_well_formed(self, spans):
        """What Perfetto wants of the format: known kinds, names, times, and spans of a thread that nest."""
        open_until = {}  # By process and thread: the ends of the spans that are open.
        complete = [event for event in spans.events if event['ph'] == 'X']
        for event in sorted(complete, key=lambda each: (each['ts'], -each['dur'])):
            self.assertGreaterEqual(event['ts'], 0, event)
            self.assertGreaterEqual(event['dur'], 0, event)
            ends = open_until.setdefault((event['pid'], event['tid']), [])
            while ends and ends[-1] <= event['ts'] + 1e-6:
                ends.pop()
            end = event['ts'] + event['dur']
            if ends:
                self.assertLessEqual(end, ends[-1] + 1e-6, event)
            ends.append(end)
        for (process, _), call in spans.calls.items():
            self.assertEqual(set(call), {'b', 'e'}, process)
            self.assertLessEqual(call['b']['ts'], call['e']['ts'], call)
        for event in spans.events:
            self.assertIn(event['ph'], 'XbeM', event)
            self.assertIn(event['pid'], spans.processes, event)
            self.assertTrue(event['name'], event)
            self.assertIn(event.get('args', {}).get('step', FIRST), STEPS, event)

    def assert_has_all_stages(self, spans):
        for rank in range(2):
            worker = 'worker %d' % rank
            for name in STAGES | PLANNING:
                self.assertEqual(spans.steps(worker, name) - {None}, STEPS, (worker, name))
            names = {event['name'] for event in spans.of[worker]}
            self.assertTrue(names & {'send gradients', 'receive gradients', 'send rows'}, names)
            calls = {call['b']['name'] for (process, _), call in spans.calls.items() if process == worker}
            self.assertLessEqual({'pull from server %d' % index for index in range(2)}
                                 | {'push to server %d' % index for index in range(2)}, calls)
        for index in range(2):
            server = 'server %d' % index
            for name in ('apply', 'accept push', 'append to log', 'update table'):
                self.assertEqual(spans.steps(server, name), STEPS, (server, name))
            names = {event['name'] for event in spans.of[server]}
            self.assertLessEqual({'sync log', 'answer pull', 'cut checkpoint', 'write checkpoint'}, names)

    def assert_one_clock(self, spans):
        """No server takes a step's push before a worker has sent it, nor applies it before it took it."""
        for index in range(2):
            for step in STEPS:
                sent = min(call['b']['ts'] for (process, _), call in spans.calls.items()
                           if call['b']['name'] == 'push to server %d' % index
                           and call['b']['args']['step'] == step)
                accepted, applied = (min(event['ts'] for event in spans.of['server %d' % index]
                                         if event['name'] == name and event['args'].get('step') == step)
                                     for name in ('accept push', 'apply'))
                self.assertLessEqual(sent, accepted, step)
                self.assertLessEqual(accepted, applied, step)

    def test_all_processes_on_one_clock(self):
        flags = ['--servers=2', '--workers=2', *CACHED, '--set=cluster.durability=LOG_SYNC',
                 '--set=checkpoint.every_steps=12']
        untraced = self.train(*flags, run_dir=self.run_dir + '-untraced')
        self.assertFalse(os.path.exists(self.run_dir + '-untraced/trace'))
        launcher = self.start(*flags, '--trace=%d:%d' % (FIRST, LAST))
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(self.summary(launcher)['model_digest'], untraced['model_digest'])
        self.assertIn('trace: %s/trace.json (open it in https://ui.perfetto.dev)\n' % self.run_dir, out + err)
        self.assertEqual(sorted(os.listdir(self.run_dir + '/trace')),
                         ['server-0.json', 'server-1.json', 'worker-0.json', 'worker-1.json'])
        spans = self.trace()
        self.assertEqual(list(spans.processes.values()), ['worker 0', 'worker 1', 'server 0', 'server 1'])
        self.assertEqual((spans.about['first_step'], spans.about['last_step']), (FIRST, LAST))
        self.assertEqual([process['clock_error_us'] for process in spans.about['processes']], 4 * [0])
        self.assert_well_formed(spans)
        self.assert_has_all_stages(spans)
        self.assert_one_clock(spans)
        self.assert_can_be_drawn()

        # Steps beyond the end; the trace that is there stays.
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir, '--set=train.passes=2',
                                   '--trace=5000:5001')
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertIn('trace: nothing was recorded of the steps 5000 to 5001', resumed.stdout + resumed.stderr)
        self.assertEqual(self.trace().about['first_step'], FIRST)
        self.assertIn('first_step: 5000', self.job_file())
        # A launch without --trace doesn't trace again.
        self.resume('--set=train.passes=3')
        self.assertNotIn('trace', self.job_file())

    def assert_can_be_drawn(self):
        """The picture of a step has the bands of all processes and the stages of its training threads."""
        picture = self.run_dir + '.svg'
        subprocess.run([sys.executable, PICTURE, self.run_dir + '/trace.json', str(LAST), picture], check=True)
        root = xml.etree.ElementTree.parse(picture).getroot()
        texts = [element.text for element in root.iter() if element.tag.endswith('text')]
        self.assertLessEqual({'worker 0', 'worker 1', 'server 0', 'server 1', 'train', 'calls'}, set(texts))
        titles = [element.text.split(':')[0] for element in root.iter() if element.tag.endswith('title')]
        self.assertGreaterEqual(titles.count('forward'), 2)

    def job_file(self):
        with open(os.path.join(self.run_dir, 'job.textproto')) as file:
            return file.read()

    def test_a_server_that_is_killed_is_missing(self):
        launcher = self.start_long('--servers=2', '--trace=5:1004', '--set=checkpoint.none=true',
                                   '--set=train.batch_size=1024')
        wait_for(lambda: any(line['step'] > 6 for line in self.events('progress')), 'step 7')
        os.kill(self.pid_of(launcher, 'server 1'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertRegex(out + err, r'trace: \S+/trace.json \(open it in https://ui.perfetto.dev\); it lacks .*server 1')
        spans = self.trace()
        self.assertNotIn('server 1', spans.processes.values())
        # The job's end may take the worker's file, too.
        self.assertIn('server 1', spans.about['missing'])
        self.assertIn(6, spans.steps('server 0', 'apply'))

    def test_bad_steps_are_refused(self):
        for steps, why in (('5', 'it takes two steps, FIRST:LAST'), ('7:6', 'ends before it begins'),
                           ('0:1000', 'has 1001 steps; at most 1000 are traced')):
            code, _, err = self.finish(self.start('--trace=' + steps))
            self.assertEqual(code, 2, err)
            self.assertIn(why, err)
            self.assertFalse(os.path.exists(self.run_dir))


if __name__ == '__main__':
    unittest.main()
