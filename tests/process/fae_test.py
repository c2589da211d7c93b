"""Jobs with hot and cold batches that take turns, as real processes.

Whatever dies on the way, the same batches are trained at the same rates, and the model has the same
bits. THERMOCLINE_TEST_SEED repeats a run.
"""

import json
import os
import random
import shutil
import signal
import stat
import unittest

from harness import WORKER, ProcessTest, program, wait_for

PACK = program('worker/thermocline-pack')

# A pass has 8 hot batches and 32 cold ones.
FLAGS = ['--set=fae.budget=1MiB', '--set=calibration.whole_table=0B',
         '--set=calibration.sample_share=0.5', '--set=fae.schedule.scored_rows=500',
         '--set=fae.schedule.rate=30', '--set=train.passes=4', '--set=checkpoint.every_steps=7',
         '--set=cluster.durability=LOG_ASYNC']


class FaeTest(ProcessTest):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get('THERMOCLINE_TEST_SEED') or random.SystemRandom().getrandbits(32))
        print('seed', seed, flush=True)
        self.random = random.Random(seed)

    def changes(self, run_dir=None):
        """{step: schedule that followed}; a step that is trained again changes to the same."""
        changes = {}
        for event in self.events('change', run_dir):
            schedule = changes.setdefault(event['step'], event['schedule'])
            self.assertEqual(event['schedule'], schedule, 'step %d' % event['step'])
        return changes

    def train_undisturbed(self, *flags):
        undisturbed = self.run_dir + '-undisturbed'
        return self.train(*FLAGS, *flags, run_dir=undisturbed), self.changes(undisturbed)

    def assert_same(self, summary, undisturbed):
        expected, changes = undisturbed
        for name in ('model_digest', 'steps', 'auc', 'logloss', 'eval_samples'):
            self.assertEqual(summary[name], expected[name], name)
        self.assertEqual(self.changes(), changes)

    def wait_for_changes(self, launcher, count):
        def came():
            self.assertIsNone(launcher.poll(), 'the job ended')
            return len(self.events('change')) >= count
        wait_for(came, '%d changes' % count)

    def assert_no_server_was_started(self):
        self.assertFalse([name for name in os.listdir(self.run_dir) if name.startswith('server-')])

    def test_servers_make_no_difference_and_the_pack_is_made_once(self):
        undisturbed = self.train_undisturbed()
        expected, changes = undisturbed
        self.assertGreater(len(changes), 5)
        pack = expected['pack']
        self.assertFalse(pack.get('reused'))
        self.assertGreater(pack['batches']['hot'], 2)
        self.assertGreater(pack['batches']['cold'], 2)
        self.assertGreater(expected['hot']['rows'], 0)
        self.assertLess(expected['hot']['sample_share'], 1)
        self.assertEqual(expected['hot']['changes'], len(changes))
        rates = [event['rate'] for event in self.events('change', self.run_dir + '-undisturbed')]
        self.assertEqual(expected['hot']['rate'], rates[-1])

        launcher = self.start('--servers=2', *FLAGS,
                              '--set=calibration.directory=' + self.run_dir + '-undisturbed/hot')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        summary = self.summary(launcher)
        self.assert_same(summary, undisturbed)
        self.assertTrue(summary['pack']['reused'])
        self.assertIn('hot rows: ', out)
        self.assertIn('found as they were left before', out)
        self.assertIn('batches from step', out)
        self.assertNotIn('best AUC', out)
        self.assertNotIn('evaluations', summary)

    def test_a_server_that_dies_comes_back(self):
        undisturbed = self.train_undisturbed('--servers=2')
        launcher = self.start('--servers=2', *FLAGS)
        for count in (2, 4):
            self.wait_for_changes(launcher, count)
            os.kill(self.pid_of(launcher, 'server %d' % self.random.randrange(2)), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assert_same(self.summary(launcher), undisturbed)

    def test_a_worker_that_dies_takes_the_job_back_amid_the_changes(self):
        flags = ['--servers=2', '--workers=2']
        undisturbed = self.train_undisturbed(*flags)
        launcher = self.start(*FLAGS, *flags)
        for rollbacks in (1, 2):
            self.wait_for_changes(launcher, 1 + 3 * rollbacks)
            os.kill(self.pid_of(launcher, 'worker %d' % self.random.randrange(2)), signal.SIGKILL)
            wait_for(lambda: len(self.events('rollback')) >= rollbacks, 'a rollback')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        summary = self.summary(launcher)
        self.assert_same(summary, undisturbed)
        self.assertEqual(summary['rollbacks'], 2)

    def test_a_run_goes_on_where_its_launcher_died(self):
        undisturbed = self.train_undisturbed()
        launcher = self.start(*FLAGS)
        self.wait_for_changes(launcher, 3)
        now = self.thermocline('checkpoint', 'now', '--run-dir', self.run_dir)
        self.assertEqual(now.returncode, 0, now.stderr)
        launcher.kill()
        launcher.wait()
        other = self.thermocline('train', '--resume', '--run-dir', self.run_dir,
                                 '--set=fae.budget=2MiB')
        self.assertEqual(other.returncode, 2, other.stderr)
        self.assertIn('fae.budget', other.stderr)
        summary = self.resume()
        self.assertTrue(summary['pack']['reused'])
        self.assert_same(summary, undisturbed)

    def test_a_job_without_a_budget_is_told_what_sizes_are_worth(self):
        refused = self.thermocline('train', self.job, '--set=fae={}')
        self.assertEqual(refused.returncode, 2)
        self.assertIn('fae.budget is missing', refused.stderr)
        found = self.thermocline('calibrate', self.job, '--set=fae={}', '--json')
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(len(json.loads(found.stdout)), 3)  # 64MiB, 256MiB, 1GiB

    def test_with_a_fixed_rate_nothing_is_scored(self):
        flags = ['--set=fae.schedule.fixed=true', '--set=fae.schedule.rate=20']
        undisturbed = self.train_undisturbed(*flags)
        self.assertEqual(undisturbed[1], {})
        self.assertGreater(undisturbed[0]['hot']['changes'], 10)
        launcher = self.start(*FLAGS, *flags)
        wait_for(lambda: len(self.events('progress')) > 60, 'steps')
        os.kill(self.pid_of(launcher, 'worker 0'), signal.SIGKILL)
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assert_same(self.summary(launcher), undisturbed)
        self.assertEqual(len(self.events('rollback')), 1)

    def test_evaluations_are_counted_and_changes_are_not(self):
        summary = self.train(*FLAGS, '--set=evaluate.every_passes=1', '--set=evaluate.patience=3')
        evaluations = self.events('eval')
        self.assertEqual(summary['evaluations']['evaluations'], len(evaluations))
        self.assertEqual(len(evaluations), len(self.events('decision')))
        self.assertTrue(all(event['samples'] == 2000 for event in evaluations))
        self.assertEqual(summary['evaluations']['best_auc'],
                         max(event['auc'] for event in evaluations))
        self.assertGreater(len(self.changes()), len(evaluations))
        scored = self.thermocline('eval', '--checkpoint', self.run_dir, '--json', '--run-dir',
                                  self.run_dir + '-eval')
        self.assertEqual(scored.returncode, 0, scored.stderr)
        self.assertEqual(json.loads(scored.stdout)['auc'], evaluations[-1]['auc'])

    def test_a_change_at_an_evaluation_is_reported_once_with_its_seconds(self):
        self.train(*FLAGS, '--set=evaluate.every_passes=1', '--set=train.passes=2',
                   '--set=checkpoint.every_steps=40', '--set=checkpoint.keep=10')

        def of_step(kind):
            return [event for event in self.events(kind) if event['step'] == 39]
        change, evaluation = of_step('change')[0], of_step('eval')[0]
        self.assertGreater(change['seconds'], 0)
        self.assertGreater(evaluation['seconds'], 0)
        self.assertNotEqual(change['logloss'], evaluation['logloss'])  # A change scores fewer rows.
        # A run that goes on there evaluates again, but does not change again.
        summary = self.resume('--resume-from', 'step-000000039')
        self.assertEqual(summary['resumed_from_step'], 40)
        self.assertEqual(len(of_step('eval')), 2)
        self.assertEqual(len(of_step('change')), 1)
        self.changes()

    def test_a_copied_run_directory_has_its_own_pack(self):
        undisturbed = self.train_undisturbed()
        launcher = self.start(*FLAGS)
        self.wait_for_changes(launcher, 3)
        now = self.thermocline('checkpoint', 'now', '--run-dir', self.run_dir)
        self.assertEqual(now.returncode, 0, now.stderr)
        launcher.kill()
        launcher.wait()
        original, self.run_dir = self.run_dir, self.run_dir + '-copy'
        shutil.copytree(original, self.run_dir)
        for folder in (original, self.run_dir):
            shutil.rmtree(os.path.join(folder, 'hot'))
        summary = self.resume()
        self.assert_same(summary, undisturbed)
        self.assertEqual(os.path.dirname(summary['pack']['file']),
                         os.path.join(os.path.realpath(self.run_dir), 'hot'))
        self.assertFalse(os.path.exists(os.path.join(original, 'hot')))

    def write_csv_job(self, log, lines):
        """A job over a file with these lines."""
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, 'w') as file:
            file.writelines(line + '\n' for line in ['label,id', *lines])
        with open(self.job, 'w') as job:
            job.write('''name: "of_csv"
                data { train { path: "%s" csv { header: true } } label { column: "label" }
                       max_bad_lines: 5 }
                default_table { dim: 4 }
                feature { name: "id" categorical { id: INTEGER } }
                dlrm { top: [8] }
                train { batch_size: 64 learning_rate { base: 0.01 } }
                fae { budget: "64KiB" schedule { scored_rows: 100 } }
                calibration { sample_share: 1 whole_table: "0" }''' % log)

    def skewed_lines(self):
        """Every fourth row has an id of its own, the others share ten."""
        return ['%d,%d' % (i % 2, 1000 + i if i % 4 == 3 else i % 10) for i in range(4000)]

    # Made of a file that was there before, under the name of rank 0's.
    def test_a_rank_with_another_pack_is_named_in_the_first_step(self):
        lines = self.skewed_lines()
        log = self.run_dir + '-data/log.csv'
        folders = [self.run_dir + '-hot-' + name for name in 'ab']
        # Files of the same size, beginning and end differ only in the packs that are made of them.
        end = len(lines) // 3
        self.write_csv_job(log, lines[:end] + lines[end:-end][::-1] + lines[-end:])
        self.train('--set=calibration.directory=' + folders[1],
                   '--set=train.max_steps=1', run_dir=self.run_dir + '-first')
        self.write_csv_job(log, lines)
        job = self.run_dir + '-rank-1.textproto'
        programs = self.fake_programs(worker="""
            for flag; do case "$flag" in --job=*) all="${flag#--job=}";; esac; done
            case " $* " in *" --rank=1 "*)
                sed 's|%s|%s|' "$all" > '%s'; set -- "$@" '--job=%s';;
            esac
            exec '%s' "$@" """ % (*folders, job, job, WORKER))
        os.symlink(PACK, os.path.join(programs, 'thermocline-pack'))
        launcher = self.start('--workers=2', '--bin-dir', programs,
                              '--set=calibration.directory=' + folders[0])
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1, err)
        self.assertIn('the workers see different data: those of rank 1 are not those of rank 0', err)
        self.assertRegex(err, 'rank [01] has pack [0-9a-f]{32}')  # Either may be the first to see it.
        self.assertEqual(self.events('progress'), [])

    def test_what_packing_left_out_is_in_the_result(self):
        lines = self.skewed_lines()
        for row in (200, 100):
            lines.insert(row + 1, 'no label,%d' % row)
        log = self.run_dir + '-data/with-bad-lines.csv'
        self.write_csv_job(log, lines)
        launcher = self.start()
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(out.count('2 rows are malformed and left out'), 1, out)
        self.assertIn('2 malformed lines were skipped', out)
        again = self.start('--set=calibration.directory=' + os.path.join(self.run_dir, 'hot'),
                           run_dir=self.run_dir + '-again')
        self.assertEqual(self.finish(again)[0], 0)
        for summary in (self.summary(launcher), self.summary(again)):
            self.assertEqual(summary['bad_lines'], 2)
            self.assertIn('with-bad-lines.csv:103', summary['first_bad_line'])
            self.assertNotIn('cache', summary)
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertIn('hot rows of worker', stats.stdout)
        self.assertNotIn('cache of worker', stats.stdout)

    def test_a_budget_without_a_hot_batch_is_refused(self):
        launcher = self.start(*FLAGS, '--set=fae.budget=64KiB', '--set=train.batch_size=512')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 2, out + err)
        self.assertIn('hot', err)
        self.assert_no_server_was_started()
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertEqual(stats.returncode, 1, stats.stdout + stats.stderr)
        self.assertIn('without a result: packing failed: no hot batch', stats.stdout)
        # The folder can be used again.
        self.assertGreater(self.train(*FLAGS)['hot']['rows'], 0)

    def test_jobs_that_share_a_folder_have_packs_of_their_own(self):
        first = self.train(*FLAGS)
        flags = [*FLAGS, '--set=calibration.directory=' + os.path.join(self.run_dir, 'hot')]
        other = self.train(*flags, '--set=train.batch_size=128', run_dir=self.run_dir + '-other')
        self.assertFalse(other['pack']['reused'])
        self.assertGreater(other['pack']['batches']['hot'], first['pack']['batches']['hot'])
        again = self.train(*flags, run_dir=self.run_dir + '-again')
        self.assertTrue(again['pack']['reused'])
        self.assertEqual(again['model_digest'], first['model_digest'])

    def test_a_pack_that_is_damaged_is_made_anew(self):
        first = self.train(*FLAGS)
        pack = first['pack']['file']
        with open(pack, 'r+b') as file:
            file.seek(-20, os.SEEK_END)
            file.write(b'damaged')
        launcher = self.start(*FLAGS, '--set=calibration.directory=' + os.path.dirname(pack),
                              run_dir=self.run_dir + '-again')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        self.assertIn('it is made anew', out)
        self.assertEqual(self.summary(launcher)['model_digest'], first['model_digest'])

    def test_a_signal_ends_the_packing(self):
        programs = self.fake_programs()
        pack = os.path.join(programs, 'thermocline-pack')
        with open(pack, 'w') as file:
            file.write('#!/bin/sh\ntouch "%s-packs"\nexec sleep 1000\n' % self.run_dir)
        os.chmod(pack, os.stat(pack).st_mode | stat.S_IXUSR)
        launcher = self.start('--bin-dir', programs, *FLAGS)
        wait_for(lambda: os.path.exists(self.run_dir + '-packs'), 'the packing')
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1, err)
        self.assertIn('signal 2', err)
        self.assert_no_server_was_started()
        stats = self.thermocline('stats', '--run-dir', self.run_dir)
        self.assertIn('without a result: packing was stopped: ', stats.stdout)


if __name__ == '__main__':
    unittest.main(verbosity=2)
