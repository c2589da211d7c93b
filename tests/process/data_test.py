"""Described data: the same model as by the short form, and a CSV from its files to a score."""

import gzip
import json
import os
import random
import subprocess
import unittest

from harness import DEADLINE_S, THERMOCLINE, WORKER, ProcessTest

MODEL = """
dlrm { bottom: [32] top: [32] }
default_table { dim: 8 }
train { batch_size: 256 learning_rate { base: 0.02 } }
cluster { worker_threads: 1 }
"""

SHORT = """
name: "short" seed: 7
data { format: CRITEO_TSV path: "%s" test_share: 0.2 }
""" + MODEL

DESCRIBED = """
name: "described" seed: 7
data {
  train { path: "%s" criteo_tsv {} }
  split { last_share: 0.2 }
  label { column: "label" }
}
feature { column: "I1..I13" numeric { missing: 0 transform { log1p {} } } }
feature { column: "C1..C26" categorical { id: HEX } }
""" + MODEL

# Every column of the log by a name of this job's own.
AS_CSV = """
name: "csv" seed: 7
data {
  train {
    path: "%s/day-*"
    csv { separator: "\\t" column: ["label", "I1..I13", "C1..C26"] }
  }
  split { last_share: 0.2 }
  label { column: "label" }
}
feature { column: "C1..C26" categorical { id: HEX separator: "," } }
feature { column: "I1..I13" numeric { missing: 0 transform { log1p {} } } }
""" + MODEL

SHOP = """
name: "shop" seed: 3
data {
  train { path: "%s" csv { header: true } }
  split { column: "day" test_from: "2026-11-20" }
  label { column: "event" positive: ["buy", "cart"] }
  shuffle { block_rows: 500 }
  group: "user"
}
feature { column: ["user", "item"] categorical {} }
feature { column: "history" table: "item" pooling: MEAN sequence { max_length: 3 } }
feature { column: "price" numeric { missing: 0 transform { log1p {} } } }
feature { name: "user_x_item" cross { of: ["user", "item"] buckets: 1000 } }
checkpoint { every_steps: 7 }
""" + MODEL


# Preloaded into a worker: its first $FAILING_READS reads of .gz files fail.
FAILING_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
  static int left = -1;
  if (left < 0) left = atoi(getenv("FAILING_READS"));
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path));
  if (size < 3 || memcmp(path + size - 3, ".gz", 3) != 0 || left == 0) return 0;
  --left;
  errno = EIO;
  return 1;
}

ssize_t read(int fd, void* to, size_t size) {
  if (fails(fd)) return -1;
  return ((ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read"))(fd, to, size);
}
ssize_t pread(int fd, void* to, size_t size, off_t at) {
  if (fails(fd)) return -1;
  return ((ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, size, at);
}
ssize_t pread64(int fd, void* to, size_t size, off64_t at) { return pread(fd, to, size, at); }
"""


class DataTest(ProcessTest):
    def write_job(self, text, name):
        path = '%s-%s.textproto' % (self.run_dir, name)
        with open(path, 'w') as job:
            job.write(text)
        return path

    def digest(self, text, name, *flags):
        summary = self.train(*flags, job=self.write_job(text, name),
                             run_dir='%s-%s' % (self.run_dir, name))
        return summary['model_digest'], summary['eval_samples']

    def trouble_with_gz(self):
        """Flags with which a job's first worker can't read .gz files, and later ones can soon."""
        shim, began = self.run_dir + '.so', self.run_dir + '-began'
        subprocess.run(['cc', '-shared', '-fPIC', '-o', shim, '-x', 'c', '-', '-ldl'],
                       input=FAILING_READS, text=True, check=True)
        programs = self.fake_programs(worker="""
            mkdir '%s' 2>/dev/null && FAILING_READS=1000000 || FAILING_READS=5
            export FAILING_READS
            LD_PRELOAD='%s' exec '%s' "$@" """ % (began, shim, WORKER))
        return ['--bin-dir', programs, '--set=checkpoint.at_end=true']

    def test_described_criteo_is_the_short_form(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=3000',
                        '--test-rows=0', '--shrink=1000', '--threads=1'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        path = os.path.join(folder, 'train.tsv')
        with open(path) as file:
            lines = file.readlines()
        days = self.run_dir + '-days'
        os.mkdir(days)
        for day, (begin, end) in enumerate([(0, 1), (1, 1700), (1700, len(lines))]):
            with gzip.open('%s/day-%d.gz' % (days, day), 'wt') as file:
                file.writelines(lines[begin:end])
        short = self.digest(SHORT % path, 'short')
        self.assertEqual(self.digest(DESCRIBED % path, 'described'), short)
        self.assertEqual(self.digest(AS_CSV % days, 'csv', *self.trouble_with_gz()), short)
        # The first worker could not read at all, which is a loss; the second only for a moment.
        rollbacks = self.events('rollback', self.run_dir + '-csv')
        self.assertEqual(len(rollbacks), 1, rollbacks)
        self.assertIn('worker 0 exited with code 4', rollbacks[0]['reason'])
        self.assertIn('day-0.gz: Input/output error', rollbacks[0]['reason'])
        # The run directory has the resolved form of both, which train the same model.
        with open(self.run_dir + '-short/job.textproto') as job:
            resolved = job.read()
        self.assertIn('log1p', resolved)
        self.assertEqual(self.digest(resolved, 'resolved'), short)

    def test_a_csv_is_trained_resumed_and_scored(self):
        random.seed(1)
        path = self.run_dir + '.csv'
        rows = 0
        with open(path, 'w') as file:
            file.write('day,user,item,"the, price",price,history,event\n')
            for i in range(4000):
                day = '2026-11-%02d' % random.randint(1, 24)
                rows += day >= '2026-11-20'
                item = random.randint(0, 50)
                event = random.choice(['buy', 'cart'] if item % 3 == 0 else ['view', 'buy'])
                history = '|'.join(str(random.randint(0, 50)) for _ in range(random.randint(0, 6)))
                file.write('%s,u%d,i%d,"a ""b""\n,c",%s,%s,%s\n' % (
                    day, random.randint(0, 99), item, random.choice(['', '3.5', '20']), history,
                    event))
        job = self.write_job(SHOP % path, 'job')
        summary = self.train(job=job, run_dir=self.run_dir)
        self.assertEqual(summary['eval_samples'], rows)
        self.assertEqual(summary['samples'], 4000 - rows)
        self.assertGreater(summary['auc'], 0.6)
        self.assertNotEqual(summary['gauc'], summary['auc'])
        self.assertLess(summary['normalized_entropy'], 1)
        self.assertAlmostEqual(summary['calibration'], 1, delta=0.2)
        scored = self.thermocline('eval', '--checkpoint', self.run_dir, '--json',
                                  '--run-dir', self.run_dir + '-eval')
        self.assertEqual(scored.returncode, 0, scored.stderr)
        metrics = ('auc', 'gauc', 'logloss', 'normalized_entropy', 'calibration')
        result = json.loads(scored.stdout)
        self.assertEqual([result[name] for name in metrics], [summary[name] for name in metrics])
        result = self.events('eval')[-1]
        self.assertEqual([result[name] for name in metrics], [summary[name] for name in metrics])
        # All rows of other data, whichever of them would be held out.
        scored = self.thermocline('eval', '--checkpoint', self.run_dir, '--json', '--data', path,
                                  '--run-dir', self.run_dir + '-all')
        self.assertEqual(scored.returncode, 0, scored.stderr)
        self.assertEqual(json.loads(scored.stdout)['eval_samples'], 4000)

        # Ended in the middle of a block, and resumed: the same model. Of other rows a step may not be.
        whole, self.run_dir = self.run_dir, self.run_dir + '-half'
        self.train('--set=train.max_steps=5', job=job, run_dir=self.run_dir)
        for flag, said in (('--set=data.shuffle.block_rows=400',
                            'data.shuffle is {block_rows: 400}, and the checkpoint was made with '
                            '{block_rows: 500}'),
                           ('--set=data.split.test_from=2026-11-21', 'data.split is {'),
                           ('--set=feature[3].numeric.missing=1', 'feature[3].numeric is {')):
            refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir, flag,
                                       '--clear=train.max_steps')
            self.assertEqual(refused.returncode, 2)
            self.assertIn(said, refused.stderr)
        resumed = self.resume('--clear=train.max_steps')
        self.assertEqual(resumed['resumed_from_step'], 5)
        self.assertEqual(resumed['model_digest'], summary['model_digest'], whole)

    # The first line that a user reads is a worker's own message, once for all workers.
    def assert_told(self, message, *flags, job, name):
        code, _, err = self.finish(self.start('--workers=2', *flags, job=job,
                                              run_dir='%s-%s' % (self.run_dir, name)))
        self.assertEqual(code, 1)
        lines = err.splitlines()
        self.assertEqual(lines[0], 'thermocline: job shop: ' + message)
        self.assertRegex(lines[1], r'^  \| worker [01] exited with code 1; its log: \S+/worker-[01].log$')
        self.assertNotIn(message, lines[1:])
        run_dir = '%s-%s' % (self.run_dir, name)
        self.assertEqual(lines[-1], 'there is no checkpoint yet; to begin anew in this run directory with another '
                         'job file, or other flags: thermocline train %s --resume --run-dir %s' % (job, run_dir))

    def test_what_is_wrong_is_named(self):
        path = self.run_dir + '.csv'
        with open(path, 'w') as file:
            file.write('day,user,item,price,history,event\n2026-11-01,u,i,x,,buy\n')
        self.assert_told("%s:2: column 4 ('price'): 'x' is not a number" % path,
                         job=self.write_job(SHOP % path, 'a'), name='a')
        code, _, err = self.finish(self.start(
            '--set=feature[0].column=["user", "itm"]', job=self.write_job(SHOP % path, 'b'),
            run_dir=self.run_dir + '-b'))
        self.assertEqual(code, 2)
        self.assertIn("names 'item', but there is no such feature", err)
        self.assert_told("feature 'usr' names the column 'usr', but the header of %s has no such column "
                         "(did you mean 'user'?)" % path, '--set=feature[0].column=["usr", "item"]',
                         '--set=feature[3].cross.of=["usr", "item"]',
                         job=self.write_job(SHOP % path, 'c'), name='c')
        code, _, err = self.finish(self.start('--data', self.run_dir + '-none-*',
                                              job=self.write_job(SHOP % path, 'd'),
                                              run_dir=self.run_dir + '-d'))
        self.assertEqual(code, 2)
        self.assertIn('no file matches the pattern', err)
        with open(path, 'w') as file:
            file.write('day,user,item,price,history,event\n2026-11-21,u,i,1,,buy\n')
        self.assert_told("'%s' has not a single row to train on; those whose day is 2026-11-20 or more are "
                         'held out' % path, job=self.write_job(SHOP % path, 'e'), name='e')
        with gzip.open(path + '.gz', 'wt') as file:
            file.write('day,user,item,price,history,event\n' + '2026-11-01,u,i,1,,buy\n' * 1000)
        size = os.path.getsize(path + '.gz') // 2
        os.truncate(path + '.gz', size)
        self.assert_told('%s.gz: gzip data is cut off at byte %d, the end of the file' % (path, size),
                         job=self.write_job(SHOP % (path + '.gz'), 'f'), name='f')
        # The user does what the message says.
        with open(path, 'w') as file:
            file.write('day,user,item,price,history,event\n' + '2026-11-01,u,i,1,,buy\n2026-11-21,u,i,1,,\n' * 500)
        begun = self.thermocline('train', self.run_dir + '-c.textproto', '--resume', '--run-dir', self.run_dir + '-c')
        self.assertEqual(begun.returncode, 0, begun.stdout + begun.stderr)


if __name__ == '__main__':
    unittest.main(verbosity=2)
