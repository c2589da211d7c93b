"""Jobs whose model is a script in PyTorch: what holds for other jobs holds for them.

Needs PyTorch (Debian's python3-torch: `deploy/setup.sh --tests`); without it all is skipped.
"""

import importlib.util
import json
import os
import signal
import unittest

import harness
from harness import ProcessTest, children, wait_for

HAS_TORCH = importlib.util.find_spec('torch') is not None
if not HAS_TORCH:
    print('SKIPPED: no PyTorch; deploy/setup.sh --tests installs it', flush=True)

LIBRARY = os.path.join(harness._RUNFILES, 'worker/api/libthermocline.so')
PACKAGE = os.path.join(harness._RUNFILES, 'deploy/python')

JOB = """
name: "script"
seed: 7
data { format: DLRM_NPY path: "%(data)s" }
default_table { dim: 8 }
worker { command: ["/usr/bin/python3", "%(script)s"] threads: 1 }
train { batch_size: 256 learning_rate { base: 0.05 } metrics_every_steps: 1 }
cluster { worker_threads: 1 }
"""

SCRIPT = """
import os
import time
import torch
from torch.nn import functional as F
import thermocline

torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.embeddings = run.embeddings()
        width = len(run.job.numeric) + 8 * len(run.job.features)
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1),
                                          torch.nn.Linear(32, 1))

    def forward(self, batch):
        vectors = self.embeddings(batch).flatten(1)
        return self.layers(torch.cat([batch.numeric, vectors], dim=1)).squeeze(1)


with thermocline.worker() as run:
    net = Net(run)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    run.track(net=net, opt=opt)
    for batch in run.batches(evaluate=net):
        loss = F.binary_cross_entropy_with_logits(net(batch), batch.label)
        loss.backward()
        opt.step()
        opt.zero_grad()
        run.step(loss)
        %(extra)s
    run.evaluate(net)
"""


# Stops at some steps until the test lets it go on: what the test does in between happens at that step.
WAIT = """
        if batch.step in (%s):
            print('at step', batch.step)
            open('%s.at-%%d' %% batch.step, 'w').close()
            while not os.path.exists('%s.go-%%d' %% batch.step):
                time.sleep(0.01)"""


class ScriptJob(ProcessTest):
    """What tests of jobs with a script share."""

    def setUp(self):
        super().setUp()
        self.script = self.run_dir + '.py'
        self.write()

    def write(self, extra='', script=SCRIPT):
        with open(self.script, 'w') as file:
            file.write(script.replace('%(extra)s', extra))
        with open(self.job, 'w') as job:
            job.write(JOB % {'data': self.data, 'script': self.script})

    def write_waiting(self, *steps, then=''):
        """A script that waits at these steps; see `at` and `go_on`. then: what follows in each step."""
        wait = WAIT % (', '.join(map(str, steps)) + ',', self.run_dir, self.run_dir)
        self.write(extra='%s\n        %s' % (wait, then))

    def at(self, step):
        """Waits until the script waits at the step."""
        wait_for(lambda: os.path.exists('%s.at-%d' % (self.run_dir, step)), 'the script at step %d' % step)

    def go_on(self, step):
        """Lets the script go on at the step, now and whenever it comes there again."""
        open('%s.go-%d' % (self.run_dir, step), 'w').close()

    def log(self):
        with open(os.path.join(self.run_dir, 'worker-0.log')) as log:
            return log.read()

    def start(self, *flags, **options):
        environment = {**os.environ, 'PYTHONPATH': PACKAGE, 'THERMOCLINE_LIBRARY': LIBRARY,
                       'PYTHONDONTWRITEBYTECODE': '1'}
        return super().start(*flags, env=environment, **options)

    def script_pid(self, launcher):
        """The process of the script, which is the child of the worker's guard; None: it doesn't run yet."""
        for guard in children(self.pid_of(launcher, 'worker 0')):
            for pid, command in children(guard).items():
                if self.script in command:
                    return pid
        return None


@unittest.skipUnless(HAS_TORCH, 'no PyTorch')
class ScriptTest(ScriptJob):

    def test_learns_and_comes_out_the_same_twice(self):
        first = self.train()
        self.assertEqual((first['steps'], first['eval_samples']), (40, 2000))
        self.assertGreater(first['auc'], 0.6)
        progress = self.events('progress')
        self.assertLess(progress[-1]['loss'], progress[0]['loss'])
        self.assertIsNone(progress[-1]['auc'])
        for name, flags in {'again': ['--trace=20:22'], 'servers': ['--servers=3'], 'cache': ['--set=cache.budget=600KiB'],
                            'spill': ["--set=default_table.storage={rocksdb{memory:'64KiB'}}"]}.items():
            with self.subTest(name):
                other = self.train(*flags, run_dir=self.run_dir + '-' + name)
                self.assertEqual(other['model_digest'], first['model_digest'])
                self.assertEqual((other['auc'], other['logloss']), (first['auc'], first['logloss']))
        self.assert_has_trace_of_script(self.run_dir + '-again/trace.json')

    def assert_has_trace_of_script(self, path):
        """The script's spans lie within those of its worker that wait for it, step by step."""
        with open(path) as file:
            trace = json.load(file)
        processes = {event['args']['name']: event['pid'] for event in trace['traceEvents']
                     if event['name'] == 'process_name'}
        self.assertEqual(list(processes), ['worker 0', 'script 0', 'server 0'])
        self.assertEqual(trace['otherData']['missing'], [])

        def spans(process, name):
            found = {event['args'].get('step'): (event['ts'], event['ts'] + event['dur'])
                     for event in trace['traceEvents'] if event['ph'] == 'X' and event['name'] == name
                     and event['pid'] == processes[process]}
            self.assertEqual(set(found), {20, 21, 22}, name)
            return found
        for step, (begin, end) in spans('script 0', 'script step').items():
            sent, waited = (spans('worker 0', name)[step] for name in ('hand over batch', 'wait for script'))
            self.assertLessEqual(sent[0], begin)
            self.assertLessEqual(begin, waited[1])
            self.assertLessEqual(spans('script 0', 'make batch')[step][1], begin)
            self.assertLessEqual(begin, spans('script 0', 'write gradients')[step][0])
            self.assertLessEqual(spans('script 0', 'write gradients')[step][1], end)

    def test_bags_of_some_features_don_t_depend_on_the_servers(self):
        self.write(script=SCRIPT.replace('%(extra)s', '').replace('8 * len(run.job.features)', '16').replace(
            'self.embeddings = run.embeddings()',
            "self.few, self.embeddings = run.embeddings(['few']), run.embeddings(['many'])").replace(
                'vectors = self.embeddings(batch).flatten(1)',
                'vectors = torch.cat([self.few(batch), self.embeddings(batch)], dim=1).flatten(1)'))
        with open(self.job, 'a') as job:
            job.write('feature { name: "few" columns: 3 } feature { name: "many" columns: 23 pooling: MEAN }\n')
        one = self.train()
        several = self.train('--servers=3', run_dir=self.run_dir + '-servers')
        self.assertEqual(several['model_digest'], one['model_digest'])

    def test_tables_keep_their_rules(self):
        flags = ['--set=default_table.min_count=3', '--set=default_table.eviction={unused_steps:15}',
                 '--set=default_table.optimizer={adam{}}']
        plain = self.train()
        with_rules = self.train(*flags, run_dir=self.run_dir + '-rules')
        self.assertNotEqual(with_rules['model_digest'], plain['model_digest'])
        cached = self.train(*flags, '--set=cache.budget=800KiB', '--set=cluster.tls.automatic=true',
                            run_dir=self.run_dir + '-cached')
        self.assertEqual(cached['model_digest'], with_rules['model_digest'])

    def test_skipped_steps_and_unread_features_change_no_row(self):
        self.write(script=SCRIPT.replace('run.embeddings()', "run.embeddings(['C2', 'C5'])").replace(
            '8 * len(run.job.features)', '16').replace('%(extra)s', '').replace(
                'loss = F.', 'if batch.step % 3 == 1:\n            run.skip()\n            continue\n        loss = F.'))
        summary = self.train('--set=default_table.optimizer={adam{}}')
        cached = self.train('--set=default_table.optimizer={adam{}}', '--set=cache.budget=800KiB',
                            run_dir=self.run_dir + '-cached')
        self.assertEqual(cached['model_digest'], summary['model_digest'])
        progress = self.events('progress')
        self.assertEqual(progress[-1]['skipped_steps'], 13)
        self.assertEqual(sum(line['loss'] is None for line in progress), 13)
        self.assertEqual(summary['skipped_steps'], 13)

    def test_losses_of_any_process_change_no_bit(self):
        flags = ('--servers=2', '--set=train.passes=8', '--set=checkpoint.every_steps=40',
                 '--set=cluster.durability=LOG_ASYNC')
        undisturbed = self.train(*flags, run_dir=self.run_dir + '-undisturbed')
        self.write_waiting(50, 90, 150)
        launcher = self.start(*flags)
        self.at(50)
        self.assertIn('at step 50\n', self.log())  # What the script prints is there while it runs.
        os.kill(self.pid_of(launcher, 'server 1'), signal.SIGKILL)
        self.go_on(50)
        self.at(90)
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        wait_for(lambda: len(self.events('rollback')) == 1, 'a rollback')
        self.go_on(90)
        self.at(150)
        os.kill(self.script_pid(launcher), signal.SIGKILL)
        wait_for(lambda: len(self.events('rollback')) == 2, 'another rollback')
        self.go_on(150)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        summary = self.summary(launcher)
        for name in ('model_digest', 'auc', 'logloss', 'steps'):
            self.assertEqual(summary[name], undisturbed[name], name)
        self.assertIn('the script was killed by signal 9', out)

    def test_goes_on_after_its_end_with_other_servers(self):
        undisturbed = self.train('--set=train.passes=3', run_dir=self.run_dir + '-undisturbed')
        self.train('--set=train.passes=2')
        launcher = self.start('--servers=3', '--set=train.passes=3', '--resume')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(self.summary(launcher)['model_digest'], undisturbed['model_digest'])

    def test_a_failing_script_ends_the_job_with_its_traceback(self):
        self.write_waiting(12, then='assert batch.step < 25, "no more of this"')
        launcher = self.start('--set=checkpoint.every_steps=10', '--set=checkpoint.keep=2')
        self.at(12)
        wait_for(lambda: self.events('checkpoint'), 'the checkpoint of step 9')
        self.go_on(12)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out)
        self.assertIn('AssertionError: no more of this', err)
        self.assertIn('Traceback', err)
        # The checkpoint that was due before the failure counts.
        self.assertEqual([event['checkpoint'] for event in self.events('rollback')], ['step-000000019'])
        self.assertNotIn('--resume-from', err)
        code, out, err = self.finish(self.start('--resume', '--set=checkpoint.every_steps=10'))
        self.assertEqual(code, 1, out)
        self.assertIn('AssertionError: no more of this', err)
        self.assertIn('--resume-from step-000000009\n', err)

    def test_a_script_that_fails_once_does_not_end_the_job(self):
        undisturbed = self.train('--set=checkpoint.every_steps=10', run_dir=self.run_dir + '-undisturbed')
        marker = self.run_dir + '.failed'
        self.write(extra="""
        if batch.step == 25 and not os.path.exists(%r):
            open(%r, 'w').close()
            raise RuntimeError('out of luck')""" % (marker, marker))
        summary = self.train('--set=checkpoint.every_steps=10')
        self.assertEqual(summary['rollbacks'], 1)
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])

    def test_a_script_that_crashes_again_ends_the_job(self):
        self.write(extra='if batch.step == 5: os.kill(os.getpid(), 11)')
        code, out, err = self.finish(self.start('--set=checkpoint.every_steps=2'))
        self.assertEqual(code, 1, out)
        self.assertIn('the script was killed by signal 11', err)
        self.assertEqual(len(self.events('rollback')), 1)

    def test_a_killed_worker_leaves_nothing_of_its_script(self):
        left = self.run_dir + '.left'
        self.write(extra="""
        if batch.step == 5 and not os.path.exists(%r):
            import subprocess, time
            session = subprocess.Popen(['sleep', '600'], start_new_session=True)
            daemon = subprocess.check_output(['setsid', 'sh', '-c', '(sleep 600 >/dev/null & echo $!)'])
            with open(%r, 'w') as file:
                file.write('%%d %%d %%d' %% (os.getpid(), session.pid, int(daemon)))
            os.rename(file.name, %r)
            time.sleep(600)""" % (left, left + '.tmp', left))
        launcher = self.start('--set=checkpoint.every_steps=2')
        wait_for(lambda: os.path.exists(left), 'the processes of the script')
        with open(left) as file:
            pids = [int(pid) for pid in file.read().split()]
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        wait_for(lambda: not any(os.path.exists('/proc/%d' % pid) for pid in pids), 'their ends')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(self.summary(launcher)['rollbacks'], 1)

    def test_what_a_script_does_at_its_end_is_no_stall(self):
        self.write(script=SCRIPT.replace('%(extra)s', '') + '\ntime.sleep(7); print("ended"); os._exit(3)\n')
        summary = self.train('--set=cluster.stall_timeout_s=3', '--set=checkpoint.every_steps=30')
        self.assertEqual((summary['steps'], summary['rollbacks']), (40, 0))
        self.assertIn('ended\n', self.log())
        self.assertEqual([event['text'] for event in self.events('warning')],
                         ["the job is done, but the script exited with code 3; the worker's log has what it wrote"])

    def test_the_last_step_has_its_checkpoint_before_the_script_has_ended(self):
        marker = self.run_dir + '.may-end'
        self.write(script=SCRIPT.replace('%(extra)s', '') + """
import time
while not os.path.exists(%r): time.sleep(0.02)
raise ValueError('after the job')
""" % marker)
        launcher = self.start()
        wait_for(lambda: self.events('checkpoint'), 'the checkpoint')
        self.assertEqual(self.events('checkpoint')[0]['step'], 39)
        self.assertEqual(self.events('trained'), [{**self.events('trained')[0], 'step': 39}])
        launcher.send_signal(signal.SIGINT)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 1, out + err)
        self.assertIn('stopped by signal 2', err)
        open(marker, 'w').close()
        launcher = self.start('--resume')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertIn('the job is done, but the script exited with code 1', out + err)
        self.assertEqual([event['step'] for event in self.events('checkpoint')], [39])
        summary = self.summary(launcher)
        self.assertEqual((summary['steps'], summary['eval_samples']), (40, 2000))

    def test_the_policy_follows_the_figures_of_the_script(self):
        # From step 45 on the scores are turned around, so that the best evaluation is not the last.
        self.write(script=SCRIPT.replace('%(extra)s', '').replace(
            'evaluate=net', 'evaluate=lambda held_out: net(held_out) * (1 if batch.step < 45 else -1)'))
        summary = self.train('--set=evaluate.every_steps=10', '--set=train.passes=2')
        events = [event for event in self.events('eval') if event['scheduled']]
        self.assertEqual([event['step'] for event in events], list(range(9, 80, 10)))
        best = max(events, key=lambda event: event['auc'])
        self.assertLess(best['step'], 45)
        policy = summary['evaluations']
        self.assertEqual((policy['evaluations'], policy['best_step'], policy['best_auc'], policy['best_checkpoint']),
                         (8, best['step'], best['auc'], 'step-%09d' % best['step']))

    def test_the_policy_follows_a_metric_of_the_script(self):
        # Highest at step 19; training ends after two evaluations that are no better.
        self.write(script=SCRIPT.replace('%(extra)s', 'last = batch.step').replace(
            'run.batches(evaluate=net)',
            'run.batches(evaluate=net, metric=lambda logits, labels, weights: -abs(last - 19))'))
        summary = self.train("--set=evaluate={every_steps:10 patience:2 own_metric:'nearness'}",
                             '--set=train.passes=2')
        # run.evaluate() scores again.
        self.assertEqual([(event['step'], event['own_metric'], event['scheduled']) for event in self.events('eval')],
                         [(9, -10, True), (19, 0, True), (29, -10, True), (39, -20, True), (39, -20, False)])
        best = summary['evaluations']
        self.assertEqual((summary['steps'], best['evaluations'], best['stopped_early']), (40, 4, True))
        self.assertEqual((best['best_step'], best['best_own_metric'], best['best_checkpoint']),
                         (19, 0, 'step-000000019'))
        self.assertTrue(os.path.isdir(os.path.join(self.run_dir, 'checkpoints', 'step-000000019')))

    def test_eval_starts_the_script_of_a_checkpoint(self):
        metric = 'metric=lambda logits, labels, weights: (logits > 0).float().mean()'
        script = (SCRIPT.replace('%(extra)s', '').replace('evaluate=net', 'evaluate=net, ' + metric)
                  .replace('run.evaluate(net)', 'run.evaluate(net, %s)' % metric))
        self.write(script=script)
        trained = self.train('--set=evaluate.every_steps=20', '--set=evaluate.own_metric=positive_share')
        flags = ['--checkpoint', self.run_dir]
        eval_dir = self.run_dir + '-eval'
        code, out, err = self.finish(self.start(*flags, '--json', command='eval', run_dir=eval_dir))
        self.assertEqual(code, 0, out + err)
        scored = json.loads(out)
        for name in ('auc', 'logloss', 'own_metric', 'model_digest'):
            self.assertEqual(scored[name], trained[name], name)
        self.assertGreater(scored['own_metric']['positive_share'], 0)
        # One that does not evaluate has scored nothing.
        self.write(script=script[:script.index('    run.evaluate(')])
        code, out, err = self.finish(self.start(*flags, command='eval', run_dir=eval_dir + '-none'))
        self.assertEqual(code, 1, out)
        self.assertIn('no row was scored', err)
        # Where its program is missing nothing is begun.
        missing = "--set=worker.command=['/no/python3', 'train.py']"
        for command, more in ('train', []), ('eval', flags):
            with self.subTest(command):
                run_dir = '%s-no-%s' % (self.run_dir, command)
                code, out, err = self.finish(self.start(*more, missing, command=command, run_dir=run_dir))
                self.assertEqual(code, 2, out + err)
                self.assertIn("worker.command: there is no program '/no/python3'", err)
                self.assertFalse(os.path.exists(run_dir))
        bench = self.thermocline('bench', 'train', self.job, missing, '--run-dir', self.run_dir + '-no-bench')
        self.assertEqual(bench.returncode, 2, bench.stderr)
        self.assertIn("worker.command: there is no program '/no/python3'", bench.stderr)
        # What a script has not.
        for refused in (self.thermocline('calibrate', self.job),
                        self.thermocline('predict', '--checkpoint', self.run_dir, '--data', self.data, '--out',
                                         self.run_dir + '.csv')):
            self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
            self.assertIn('is a script (`worker`)', refused.stderr)

    def test_what_is_no_script_of_a_job_is_refused(self):
        no_number = SCRIPT.replace('%(extra)s', '').replace(
            'opt.step()', "batch.leaves[0].grad[3] = float('nan')\n        opt.step()")
        for number, (script, words) in enumerate({
                'import sys; sys.exit(3)': 'the script exited with code 3',
                'pass': 'the script exited with code 0',
                no_number: r"step 0: gradient of table 'C\d+', key \d+ holds nan"}.items()):
            self.write(script=script)
            code, out, err = self.finish(self.start(run_dir='%s-%d' % (self.run_dir, number)))
            self.assertEqual(code, 1, out)
            self.assertRegex(err, words)


if __name__ == '__main__':
    unittest.main()
