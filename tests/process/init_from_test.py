"""A run that begins with another run's checkpoint: the model is that of one run over all the data, whatever dies."""

import json
import os
import shutil
import subprocess
import unittest

from harness import DEADLINE_S, THERMOCLINE, ProcessTest, wait_for

BATCH = 64
STEPS_OF_A_DAY = 30

# Adam's bias correction counts steps; each row and each MLP's weight has two floats of state.
JOB = """
name: "%(name)s" seed: 7
data { format: CRITEO_TSV path: "%(data)s" test_share: 0 }
dlrm { bottom: [32] top: [32] }
default_table { dim: 8 optimizer { adam {} } }
train { batch_size: 64 learning_rate { base: 0.003 } metrics_every_steps: 1 }
checkpoint { every_steps: 1000000 }
cluster { worker_threads: 1 durability: LOG_ASYNC }
"""


class InitFromTest(ProcessTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = os.path.join(cls.folder, 'days')
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv',
                        '--rows=%d' % (2 * BATCH * STEPS_OF_A_DAY), '--test-rows=0', '--shrink=1000',
                        '--threads=1'], check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        cls.both = os.path.join(folder, 'train.tsv')
        with open(cls.both) as file:
            lines = file.readlines()
        cls.days = []
        for day in range(2):
            cls.days.append(os.path.join(folder, 'day-%d.tsv' % day))
            with open(cls.days[-1], 'w') as file:
                file.writelines(lines[day * len(lines) // 2:(day + 1) * len(lines) // 2])

    def write_job(self, name, data, more=''):
        path = os.path.join(self.folder, '%s-%s.textproto' % (os.path.basename(self.run_dir), name))
        with open(path, 'w') as job:
            job.write(JOB % {'name': name, 'data': data} + more)
        return path

    def train_day(self, day, name, *flags, **options):
        return self.train(*flags, job=self.write_job(name, self.days[day]),
                          run_dir='%s-%s' % (self.run_dir, name), **options)

    def fails(self, *arguments, code=2):
        result = self.thermocline('train', *arguments)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stderr

    def test_day_after_day_is_both_days_at_once(self):
        whole = self.train(job=self.write_job('both', self.both), run_dir=self.run_dir + '-both')
        first = self.train_day(0, 'first', '--servers=2')
        self.assertEqual((whole['steps'], first['steps']), (2 * STEPS_OF_A_DAY, STEPS_OF_A_DAY))
        from_first = '--init-from=%s-first' % self.run_dir
        for name, flags in (('plain', ['--servers=3']), ('workers', ['--workers=2', '--servers=2']),
                            ('cache', ['--set=cache.budget=2MiB'])):
            second = self.train_day(1, name, from_first, *flags)
            self.assertEqual(second['steps'], STEPS_OF_A_DAY)
            if name != 'workers':  # Sums over workers have another order.
                self.assertEqual(second['model_digest'], whole['model_digest'], name)
        # A third run, out of a second: the steps of both count.
        half = self.days[1] + '-half'
        with open(self.days[1]) as file:
            lines = file.readlines()
        for part, begin in ((1, 0), (2, len(lines) // 2)):
            with open('%s-%d' % (half, part), 'w') as file:
                file.writelines(lines[begin:begin + len(lines) // 2])
        self.train(from_first, job=self.write_job('second', half + '-1'), run_dir=self.run_dir + '-second')
        third = self.train('--init-from', self.run_dir + '-second/step-14',
                           job=self.write_job('third', half + '-2'), run_dir=self.run_dir + '-third')
        self.assertEqual(third['model_digest'], whole['model_digest'])

    def test_whatever_dies(self):
        self.train_day(0, 'first')
        from_first = '--init-from=%s-first' % self.run_dir
        undisturbed = self.train_day(1, 'undisturbed', from_first, '--servers=2')
        job = self.write_job('killed', self.days[1])

        def goes_on(run_dir, *flags):
            resumed = self.thermocline('train', *flags, '--run-dir', run_dir, '--servers=1',
                                       '--set=train.passes=1')
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertIn(undisturbed['model_digest'], resumed.stdout)

        # The launcher, without a checkpoint: the run begins again with the other's.
        run_dir = self.run_dir + '-early'
        launcher = self.start_long(from_first, '--servers=2', job=job, run_dir=run_dir)
        launcher.kill()
        self.finish(launcher)
        refused = self.fails('--resume', '--run-dir', run_dir, '--set=init_from=' + self.folder)
        self.assertIn('a run begins once', refused)
        goes_on(run_dir, '--resume')
        # With one of its own, the other's may be gone.
        run_dir = self.run_dir + '-late'
        launcher = self.start_long(from_first, '--servers=2', '--set=checkpoint.every_steps=10',
                                   '--set=checkpoint.keep=1000000', job=job, run_dir=run_dir)
        commit = os.path.join(run_dir, 'checkpoints/HISTORY/000000002')
        wait_for(lambda: os.path.exists(commit), 'the first checkpoint')
        launcher.kill()
        self.finish(launcher)
        os.rename(self.run_dir + '-first', self.run_dir + '-gone')
        goes_on(run_dir, '--resume-from', 'step-9')
        os.rename(self.run_dir + '-gone', self.run_dir + '-first')

        # A worker: the job goes back to what it began with.
        run_dir = self.run_dir + '-worker'
        launcher = self.start_long(from_first, '--servers=2', job=job, run_dir=run_dir)
        os.kill(self.pid_of(launcher, 'worker 0'), 9)
        wait_for(lambda: self.events('rollback', run_dir), 'the rollback')
        launcher.kill()
        _, out, _ = self.finish(launcher)
        self.assertIn('going back to the beginning (generation 2)', out)
        # And where that is gone, says so.
        os.rename(self.run_dir + '-first', self.run_dir + '-gone')
        said = self.fails('--resume', '--run-dir', run_dir, code=1)
        self.assertIn('which this job begins with (init_from), is gone', said)

    def test_what_does_not_fit_is_named(self):
        self.train_day(0, 'first', '--set=train.max_steps=3')
        first = self.run_dir + '-first'
        job = self.write_job('next', self.days[1])
        for flag, said in (('default_table.dim=16', "dim is 16 here, 8 there"),
                           ('default_table.optimizer.sgd={}', "optimizer"),
                           ('dlrm.top=[64]', "'top.0.weight' of 359 x 64 here, and was of 359 x 32")):
            refused = self.fails(job, '--init-from', first, '--set', flag, '--run-dir', self.run_dir)
            self.assertIn('init_from %s does not fit: ' % first, refused)
            self.assertIn(said, refused)
            shutil.rmtree(self.run_dir, ignore_errors=True)
        self.assertIn("there is no folder '%s-none'" % first,
                      self.fails(job, '--init-from', first + '-none', '--run-dir', self.run_dir))
        self.assertIn('begins a new run', self.fails('--resume', '--run-dir', first, '--init-from', first))
        # Two features that shared a table have tables of their own: one begins anew, with a notice.
        shared = self.write_job('shared', self.days[0],
                                '\n'.join('feature { name: "C%d" %s }' % (i, 'table: "C1"' if i == 2 else '')
                                          for i in range(1, 27)))
        self.train('--set=train.max_steps=3', job=shared, run_dir=self.run_dir + '-shared')
        launcher = self.start('--init-from', self.run_dir + '-shared', job=job, run_dir=self.run_dir + '-own')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertIn("table 'C2' is not in the checkpoint: its rows begin anew", out)
        self.assertIn('beginning with the rows of checkpoint step-000000002 of job', out)
        # Features come and go: the others' rows stay, and the layer that reads them begins anew.
        changed = self.write_job('changed', self.days[0], '\n'.join(
            ['feature { column: "I2..I13" numeric { missing: 0 transform { log1p {} } } }',
             'feature { column: "C1..C25" categorical { id: HEX } }',
             'feature { name: "C1xC2" cross { of: ["C1b", "C2b"] buckets: 1000 } }',
             'feature { name: "C1b" column: "C1" table: "C1" categorical { id: HEX separator: "" } }',
             'feature { name: "C2b" column: "C2" table: "C2" categorical { id: HEX separator: "" } }']))
        with open(changed) as file:
            text = file.read().replace('format: CRITEO_TSV path: "%s" test_share: 0' % self.days[0],
                                       'train { path: "%s" criteo_tsv {} } split { last_share: 0 } '
                                       'label { column: "label" }' % self.days[0])
        with open(changed, 'w') as file:
            file.write(text)
        launcher = self.start('--init-from', self.run_dir + '-own', '--set=train.max_steps=1', job=changed,
                              run_dir=self.run_dir + '-changed')
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, err)
        for said in ("the feature 'C1xC2' is new", "table 'C1xC2' is not in the checkpoint: its rows begin anew",
                     "the feature 'C26' of the checkpoint is left out", "the numeric feature 'I1' of the checkpoint",
                     "kept of the checkpoint: tables C1, C2, C3, ",
                     "These begin anew, since their inputs are other features: bottom.0.weight, bottom.0.bias, top.0.weight, top.0.bias"):
            self.assertIn(said, out)

        def rows(name, table):
            with open('%s-%s/server_stats.json' % (self.run_dir, name)) as file:
                return sum(int(of['rows']) for server in json.load(file)['servers']
                           for of in server['stats']['tables'] if of['name'] == table)
        self.assertGreaterEqual(rows('changed', 'C3'), rows('own', 'C3'))
        self.assertGreater(rows('changed', 'C3'), BATCH)


if __name__ == '__main__':
    unittest.main(verbosity=2)
