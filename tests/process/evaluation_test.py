"""Evaluations of real jobs while they train: the best model is kept, and training ends by patience.

Whatever dies on the way, the same is decided and the model has the same bits.
"""

import json
import os
import re
import signal
import subprocess
import unittest

from harness import (DEADLINE_S, THERMOCLINE, ProcessTest, manifest_of, process_state, stop,
                     wait_for)

# The model overfits the small log within a few passes: from then on every evaluation is worse.
MOST_PASSES = 40
FLAGS = ['--set=train.passes=%d' % MOST_PASSES, '--set=train.learning_rate.base=0.05',
         '--set=evaluate.every_passes=1', '--set=evaluate.patience=3',
         '--set=checkpoint.keep=1']
STEPS_OF_A_PASS = 40

# The model gets better from one evaluation to the next, so that many a checkpoint is waited for.
WAITING_FLAGS = ['--servers=2', '--workers=2', '--set=train.passes=1',
                 '--set=evaluate.every_steps=5', '--set=checkpoint.keep=1',
                 '--set=cluster.durability=LOG_ASYNC']


class EvaluationTest(ProcessTest):

    def wait_for_evaluations(self, launcher, count):
        def evaluated():
            ended = launcher.poll() is not None
            if len(self.events('decision')) >= count:
                return True
            self.assertFalse(ended, 'the job ended')
            return False
        wait_for(evaluated, 'evaluations')

    def assert_same(self, summary, undisturbed):
        for name in ('model_digest', 'steps', 'auc', 'logloss', 'eval_samples'):
            self.assertEqual(summary[name], undisturbed[name], name)
        for name in ('metric', 'evaluations', 'best_step', 'best_auc', 'best_logloss',
                     'without_improvement', 'stopped_early'):
            self.assertEqual(summary['evaluations'][name], undisturbed['evaluations'][name], name)

    def test_the_best_is_kept_and_training_ends(self):
        launcher = self.start('--servers=2', *FLAGS)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        summary = self.summary(launcher)
        best = summary['evaluations']
        self.assertTrue(best['stopped_early'])
        self.assertEqual(best['without_improvement'], 3)
        passes = best['evaluations']
        self.assertLess(passes, MOST_PASSES)
        self.assertEqual(summary['steps'], passes * STEPS_OF_A_PASS)
        self.assertEqual(best['best_step'], (passes - 3) * STEPS_OF_A_PASS - 1)
        self.assertGreater(best['best_auc'], summary['auc'])

        evaluations = self.events('eval')
        self.assertEqual([event['step'] for event in evaluations],
                         [n * STEPS_OF_A_PASS - 1 for n in range(1, passes + 1)])
        self.assertEqual([event['pass'] for event in evaluations], list(range(1, passes + 1)))
        self.assertEqual(best['best_auc'], max(event['auc'] for event in evaluations))
        self.assertEqual({event['samples'] for event in evaluations}, {2000})
        for event in evaluations:
            self.assertGreater(event['seconds'], 0)
            self.assertGreater(event['bytes_pulled'], 2000)
        self.assertAlmostEqual(evaluations[0]['learning_rate'], 0.05, places=6)
        self.assertAlmostEqual(self.events('progress')[0]['learning_rate'], 0.05, places=6)
        self.assertIn('evaluation after step %d (pass 1): AUC %.4f' %
                      (STEPS_OF_A_PASS - 1, evaluations[0]['auc']), out)
        self.assertIn('(3 of 3 without improvement); training ends', out)
        name = 'step-%09d' % best['best_step']
        self.assertEqual(best['best_checkpoint'], name)
        self.assertIn('best AUC %.4f' % best['best_auc'], out)
        self.assertIn('after step %d, checkpoint %s' % (best['best_step'], name), out)

        # One newest is kept, and the best beside it.
        listed = json.loads(self.thermocline('checkpoint', 'list', self.run_dir, '--json').stdout)
        self.assertEqual([(entry['name'], entry['best']) for entry in listed['checkpoints']],
                         [(name, True), (summary['checkpoints']['last'], False)])
        self.assertIn(', the best', self.thermocline('checkpoint', 'list', self.run_dir).stdout)
        scored = subprocess.run([THERMOCLINE, 'eval', '--checkpoint', os.path.join(self.run_dir, 'best'), '--json'],
                                capture_output=True, text=True, timeout=DEADLINE_S, cwd=self.folder)
        self.assertEqual(scored.returncode, 0, scored.stderr)
        # Nothing is left of it.
        folder, = re.findall(r'run directory (runs/\S+)', scored.stderr)
        self.assertEqual(os.listdir(os.path.join(self.folder, os.path.dirname(folder))), [])
        scored = json.loads(scored.stdout)
        self.assertIsNone(scored['run_directory'])
        self.assertEqual((scored['checkpoint'], scored['auc'], scored['logloss']),
                         (name, best['best_auc'], best['best_logloss']))

        # The other commands know it by that name, too.
        only = json.loads(self.thermocline('checkpoint', 'list', '--json',
                                           os.path.join(self.run_dir, 'best')).stdout)
        self.assertEqual([entry['name'] for entry in only['checkpoints']], [name])

        # A job that evaluates can also score other data: all of it.
        subprocess.run([THERMOCLINE, 'generate', self.run_dir + '.data', '--format=tsv',
                        '--rows=500', '--test-rows=0', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL)
        other = self.thermocline('eval', '--checkpoint', self.run_dir, '--data',
                                 os.path.join(self.run_dir + '.data', 'train.tsv'),
                                 '--set=data.format=CRITEO_TSV', '--json',
                                 '--run-dir', self.run_dir + '-other')
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertEqual(json.loads(other.stdout)['eval_samples'], 500)
        self.assertIn('checkpoint %s, the last; the best is %s (RUN_DIR/best)\n'
                      % (summary['checkpoints']['last'], name), other.stderr)
        self.assertTrue(os.path.exists(self.run_dir + '-other'))

        # A job that only trains has the same bits up to there.
        plain = self.train('--set=train.passes=%d' % MOST_PASSES,
                           '--set=train.learning_rate.base=0.05',
                           '--set=train.max_steps=%d' % summary['steps'], '--set=checkpoint.none=true',
                           run_dir=self.run_dir + '-plain')
        self.assertEqual(plain['model_digest'], summary['model_digest'])
        self.assertEqual(plain['auc'], summary['auc'])
        none = self.thermocline('eval', '--checkpoint', self.run_dir + '-plain')
        self.assertEqual(none.returncode, 2)
        self.assertIn("the job in '%s-plain' writes no checkpoints" % self.run_dir, none.stderr)

        # Training goes on from the best by that name, too, and comes to the same.
        for name in (os.path.join(self.run_dir, 'best'), 'best'):
            same = self.resume('--resume-from', name)
            self.assertEqual(same['resumed_from_step'], best['best_step'] + 1)
            self.assert_same(same, summary)
        elsewhere = self.thermocline('train', '--run-dir', self.run_dir, '--resume-from',
                                     os.path.join(self.run_dir + '-plain', 'best'))
        self.assertEqual(elsewhere.returncode, 2)

        # A job that was stopped early stays so until its patience grows.
        again = self.resume()
        self.assert_same(again, summary)
        more = self.resume('--set=evaluate.patience=4')
        self.assertEqual(more['steps'], summary['steps'] + STEPS_OF_A_PASS)

    def test_the_same_is_decided_whatever_dies(self):
        flags = ['--workers=2', *FLAGS, '--set=checkpoint.every_steps=25']
        undisturbed = self.train(*flags, run_dir=self.run_dir + '-undisturbed')
        launcher = self.start('--servers=2', *flags)
        self.wait_for_evaluations(launcher, 1)
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGKILL)
        self.wait_for_evaluations(launcher, 3)
        launcher.kill()
        self.finish(launcher)
        self.assertEqual(len(self.events('rollback')), 1)
        summary = self.resume('--servers=3')
        self.assert_same(summary, undisturbed)
        kept = os.listdir(os.path.join(self.run_dir, 'checkpoints'))
        self.assertIn(summary['evaluations']['best_checkpoint'], kept)

    def test_held_out_rows_of_one_class_have_no_auc(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=1000',
                        '--test-rows=200', '--shrink=1000'],
                       check=True, stdout=subprocess.DEVNULL)
        path = os.path.join(folder, 'test.tsv')
        with open(path) as file:
            lines = [line for line in file if line.startswith('0')]
        with open(path, 'w') as file:
            file.writelines(lines)
        flags = ['--data', os.path.join(folder, 'train.tsv'), '--set=data.format=CRITEO_TSV',
                 '--set=data.test_path=' + path, '--set=train.max_steps=3']
        scored = 'AUC n/a (only one class)  logloss '
        launcher = self.start(*flags, '--set=checkpoint.at_end=true')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertIn('\n' + scored, out)
        summary = self.summary(launcher)
        self.assertIsNone(summary['auc'])
        self.assertEqual(summary['eval_samples'], len(lines))
        self.assertEqual([event['auc'] for event in self.events('eval')], [None])
        for more in ([], ['--json']):
            result = self.thermocline('eval', '--checkpoint', self.run_dir, *more, '--run-dir',
                                      self.run_dir + '-eval' + ''.join(more))
            self.assertEqual(result.returncode, 0, result.stderr)
            if more:
                self.assertIsNone(json.loads(result.stdout)['auc'])
            else:
                self.assertIn('\n' + scored, result.stdout)

        # An AUC of one class decides nothing, so it is refused.
        flags.append('--set=evaluate.every_steps=2')
        code, _, err = self.finish(self.start(*flags, run_dir=self.run_dir + '-auc'))
        self.assertEqual(code, 1)
        self.assertIn(': evaluate.metric is AUC, which is undefined here', err)
        by_loss = self.train(*flags, '--set=evaluate.metric=LOGLOSS',
                             run_dir=self.run_dir + '-loss')
        self.assertIsNone(by_loss['evaluations']['best_auc'])
        self.assertIsNotNone(by_loss['evaluations']['best_logloss'])
        # It is allowed where it is only of the last step, and decides nothing.
        flags[-1] = '--set=evaluate.every_steps=100'
        at_end = self.train(*flags, run_dir=self.run_dir + '-end')
        self.assertIsNone(at_end['evaluations']['best_step'])

    def phases(self):
        """What the workers do, by rank."""
        stats = self.thermocline('stats', '--run-dir', self.run_dir, '--json')
        if stats.returncode != 0:
            return []
        return [worker.get('stats', {}).get('phase', {}).get('name')
                for worker in json.loads(stats.stdout)['workers']]

    def stop_where_workers_wait(self, launcher):
        """Stops the launcher before it makes the checkpoint of a new best; returns its step."""
        def is_undecided():
            self.assertIsNone(launcher.poll(), 'the job ended')
            kinds = [event['event'] for event in self.events()]
            return kinds.count('eval') > kinds.count('decision')

        def waits():
            wait_for(is_undecided, 'an evaluation')
            stop(launcher, signal.SIGSTOP)
            wait_for(lambda: process_state(launcher.pid) == 'T', 'the launcher to stop')
            evaluations = self.events('eval')
            step = evaluations[-1]['step']
            folder = 'checkpoints/step-%09d' % step
            if (evaluations[-1]['auc'] == max(event['auc'] for event in evaluations)
                    and manifest_of(os.path.join(self.run_dir, folder)) is None
                    and self.phases() == ['waiting for the decision', 'waiting for the evaluation']):
                return [step]
            stop(launcher, signal.SIGCONT)
            return None
        return wait_for(waits, 'workers that wait for a checkpoint')[0]

    def undisturbed(self, *flags):
        return self.train(*flags, run_dir=self.run_dir + '-undisturbed')

    def end_as(self, undisturbed, launcher):
        """The job ends as the undisturbed one did; its summary."""
        stop(launcher, signal.SIGCONT)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, 'out: %s\nerr: %s' % (out, err))
        summary = self.summary(launcher)
        self.assert_same(summary, undisturbed)
        best = os.path.join(self.run_dir, 'checkpoints', summary['evaluations']['best_checkpoint'])
        self.assertIsNotNone(manifest_of(best), best)
        return summary

    def test_a_server_dies_while_workers_wait_for_the_best_checkpoint(self):
        undisturbed = self.undisturbed(*WAITING_FLAGS)
        launcher = self.start(*WAITING_FLAGS)
        step = self.stop_where_workers_wait(launcher)
        # The user asks for a checkpoint as well.
        now = subprocess.Popen([THERMOCLINE, 'checkpoint', 'now', '--run-dir', self.run_dir],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(now.kill)
        wait_for(lambda: any(name.endswith('.request') for name in os.listdir(self.run_dir)),
                 'the request')
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        summary = self.end_as(undisturbed, launcher)
        self.assertEqual((summary['server_restarts'], summary['rollbacks']), (1, 0))
        out, err = now.communicate(timeout=DEADLINE_S)
        self.assertEqual(now.returncode, 0, err)
        self.assertGreaterEqual(int(out.strip().rsplit('-', 1)[1]), step)

    def test_a_server_loses_its_log_while_workers_wait_for_the_best_checkpoint(self):
        undisturbed = self.undisturbed(*WAITING_FLAGS)
        # Nothing else notices it.
        launcher = self.start(*WAITING_FLAGS, '--set=cluster.stall_timeout_s=0')
        step = self.stop_where_workers_wait(launcher)
        os.kill(self.pid_of(launcher, 'server 0'), signal.SIGKILL)
        folder = os.path.join(self.run_dir, 'server-0.data')
        last = os.path.join(folder, max(name for name in os.listdir(folder)
                                        if name.startswith('push-')))
        os.truncate(last, os.path.getsize(last) - 1)
        summary = self.end_as(undisturbed, launcher)
        self.assertEqual((summary['server_restarts'], summary['rollbacks']), (1, 1))
        self.assertIn('server 0 has lost pushes that it had acknowledged: it knows of none beyond '
                      'step %d, and all workers have step %d acknowledged' % (step - 1, step),
                      self.events('rollback')[0]['reason'])

    def test_rank_0_dies_while_it_scores(self):
        flags = ['--servers=2', '--workers=2', '--set=train.passes=1', '--set=evaluate.every_steps=10',
                 '--set=checkpoint.keep=1', '--set=train.eval_batch_size=1']
        undisturbed = self.undisturbed(*flags)
        launcher = self.start(*flags)

        def scores():
            self.assertIsNone(launcher.poll(), 'the job ended')
            return self.phases()[:1] == ['evaluating']
        wait_for(scores, 'an evaluation')
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        summary = self.end_as(undisturbed, launcher)
        self.assertEqual(summary['rollbacks'], 1)

    def test_steps_with_a_cache_and_without_checkpoints(self):
        flags = ['--set=train.passes=4', '--set=evaluate.every_steps=30',
                 '--set=evaluate.metric=LOGLOSS', '--set=checkpoint.none=true']
        summary = self.train('--set=cache.budget=16MiB', *flags)
        self.assertEqual([event['step'] for event in self.events('eval')],
                         [29, 59, 89, 119, 149, 159])
        self.assertEqual([event['scheduled'] for event in self.events('eval')],
                         [True, True, True, True, True, False])
        best = min(self.events('eval'), key=lambda event: event['logloss'])
        self.assertEqual(summary['evaluations']['best_step'], best['step'])
        self.assertIsNone(summary['evaluations']['best_checkpoint'])
        self.assertFalse(summary['evaluations']['stopped_early'])
        plain = self.train('--set=train.passes=4', run_dir=self.run_dir + '-plain')
        self.assertEqual(summary['model_digest'], plain['model_digest'])


if __name__ == '__main__':
    unittest.main(verbosity=2)
