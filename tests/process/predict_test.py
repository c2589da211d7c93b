"""Predictions without servers: the scores of `eval`, for any batch size and memory, in one file or none."""

import csv
import json
import math
import os
import random
import signal
import struct
import subprocess
import unittest

from harness import DEADLINE_S, THERMOCLINE, ProcessTest, set_signals, wait_for
from quality_test import find_sample

CHECKPOINTS = '--set=checkpoint.every_steps=30'

SHOP = """
name: "shop" seed: 3
data {
  train { path: "%s" csv { header: true } }
  split { column: "day" test_from: "2026-11-20" }
  label { column: "event" positive: "buy" }
  group: "user"
  weight: "count"
}
feature { column: ["user", "item"] categorical {} }
feature { column: "price" numeric { missing: 0 transform { log1p {} } } }
checkpoint { every_steps: 20 }
dlrm { bottom: [32] top: [32] }
default_table { dim: 8 optimizer { adam {} } }
train { batch_size: 64 learning_rate { base: 0.01 } }
cluster { worker_threads: 1 }
"""

SECOND_DECIDES = """
name: "tasks" seed: 3
data { train { path: "%s" csv { header: true } } split { last_share: 0.25 } label { column: ["click", "buy"] } }
feature { column: "id" categorical {} }
layer { name: "deep" input: "id" mlp { units: 8 } }
task { label: "click" input: "deep" }
task { label: "buy" input: "deep" }
default_table { dim: 4 }
train { batch_size: 50 learning_rate { base: 0.1 } }
evaluate { every_passes: 1 task: "buy" }
checkpoint {}
"""

# The label "late" is missing in some rows.
TASKS = """
name: "tasks" seed: 3
data {
  train { path: "%s" csv { header: true } }
  split { column: "day" test_from: "2026-11-20" }
  label { column: ["event", "late"] positive: ["buy", "1"] may_be_missing: true }
}
feature { column: ["user", "item"] categorical {} }
feature { column: "price" numeric { missing: 0 } }
checkpoint {}
mmoe { experts: 2 expert: [8] tower: [4] }
default_table { dim: 8 }
train { batch_size: 64 learning_rate { base: 0.05 } }
cluster { worker_threads: 1 }
"""

CRITEO = """
name: "criteo" seed: 7
data { format: CRITEO_TSV path: "%s" test_share: 0.2 }
dlrm { bottom: [32] top: [32] }
default_table { dim: 8 }
train { batch_size: 256 learning_rate { base: 0.02 } }
checkpoint {}
cluster { worker_threads: 1 }
"""


def auc(labels, scores, weights=None):
    order = sorted(zip(scores, labels, weights or [1] * len(labels)))
    wins, negatives, positives, at = 0, 0, 0, 0
    while at < len(order):
        end = at
        while end < len(order) and order[end][0] == order[at][0]:
            end += 1
        tied = sum(weight for _, label, weight in order[at:end] if label == 1)
        others = sum(weight for _, label, weight in order[at:end] if label == 0)
        wins += tied * (2 * negatives + others)
        positives += tied
        negatives += others
        at = end
    return wins / 2 / (positives * negatives)


def logloss(labels, logits, weights=None):
    total = 0.0
    weights = weights or [1] * len(labels)
    for label, x, weight in zip(labels, logits, weights):
        total += weight * (max(x, 0.0) - x * label + math.log1p(math.exp(-abs(x))))
    return total / sum(weights)


def group_auc(labels, logits, weights, groups):
    total = total_weight = 0
    for group in set(groups):
        rows = [row for row, other in enumerate(groups) if other == group and weights[row] > 0]
        if len({labels[row] for row in rows}) == 2:
            weight = sum(weights[row] for row in rows)
            total_weight += weight
            total += weight * auc(*([values[row] for row in rows] for values in (labels, logits, weights)))
    return total / total_weight


def logits_of(rows, column='score'):
    """The logits of a csv with --logits: float32, in few digits."""
    return list(struct.unpack('<%df' % len(rows), struct.pack('<%df' % len(rows),
                                                              *(float(row[column]) for row in rows))))


def read_npy(path):
    with open(path, 'rb') as file:
        data = file.read()
    begin = 10 + struct.unpack('<H', data[8:10])[0]
    assert b"'<f4'" in data[:begin]
    return struct.unpack('<%df' % ((len(data) - begin) // 4), data[begin:])


class PredictTest(ProcessTest):

    def path_of(self, name):
        return '%s-%s' % (self.run_dir, name)

    def predict(self, out, *flags, checkpoint=None, code=0):
        """Runs predict; returns the file's rows, or what it says where it has to fail."""
        out = self.path_of(out)
        result = self.thermocline('predict', '--checkpoint', checkpoint or self.run_dir, '--out', out, *flags)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertFalse(os.path.exists(out + '.tmp'))
        if code != 0:
            return result.stderr
        self.assertIn('scores: ' + out, result.stdout)
        self.said = result.stdout
        if out.endswith('.npy'):
            return read_npy(out)
        with open(out, newline='') as file:
            return list(csv.DictReader(file))

    def read_text(self, name):
        with open(self.path_of(name), newline='') as file:
            return file.read()

    def eval(self, *flags):
        result = self.thermocline('eval', '--checkpoint', self.run_dir, '--json', '--run-dir',
                                  '%s-eval-%d' % (self.run_dir, len(os.listdir(self.folder))), *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def write_job(self, text):
        with open(self.job, 'w') as job:
            job.write(text)

    def test_scores_are_those_of_eval(self):
        self.train(CHECKPOINTS, '--servers=2')
        scored = self.eval('--data', self.data, '--servers=3')
        rows = self.predict('all.csv', '--data', self.data, '--logits')
        self.assertRegex(self.said, r'checkpoint step-\d+, the last\n')
        self.assertIn('\nAUC %.4f  logloss %.4f' % (scored['auc'], scored['logloss']), self.said)
        self.assertIn(' on 2,000 rows with labels\n', self.said)
        self.assertEqual([int(row['row']) for row in rows], list(range(2000)))
        labels = [int(row['label']) for row in rows]
        logits = logits_of(rows)
        self.assertEqual(auc(labels, logits), scored['auc'])
        self.assertEqual(logloss(labels, logits), scored['logloss'])
        # Whatever the batches, however often rows have to be read.
        self.predict('small.csv', '--data', self.data, '--logits', '--memory=32KiB',
                     '--set=train.eval_batch_size=7')
        self.assertEqual(self.read_text('small.csv'), self.read_text('all.csv'))
        self.assertNotIn('AUC', self.said)  # The labels have no room.
        probabilities = [1 / (1 + math.exp(-x)) for x in logits]
        self.assertEqual([float(row['score']) for row in self.predict('p.csv', '--data', self.data)],
                         probabilities)
        as_float32 = struct.unpack('<2000f', struct.pack('<2000f', *probabilities))
        self.assertEqual(self.predict('p.npy', '--data', self.data), as_float32)
        # Another checkpoint of the run, by its short name.
        older = self.predict('older.csv', '--data', self.data, checkpoint=self.run_dir + '/step-29')
        self.assertNotEqual([row['score'] for row in older], [row['score'] for row in rows])
        # A job file that is given has to have the same model.
        self.assertIn('dim', self.predict('no.csv', '--data', self.data, '--job', self.job,
                                          '--set=default_table.dim=16', code=2))
        self.assertIn('a batch reads take', self.predict('no.csv', '--data', self.data, '--memory=1KiB', code=1))
        self.assertIn('have no names', self.predict('no.npy', '--data', self.data, '--column=C1', code=1))
        self.assertFalse(os.path.exists(self.path_of('no.csv')))

    def write_shop(self, path, rows, header='day,user,item,price,event,count', seed=1):
        random.seed(seed)
        with open(path, 'w') as file:
            file.write(header + '\n')
            for i in range(rows):
                item = random.randint(0, 50)
                row = {'day': '2026-11-%02d' % random.randint(1, 24), 'user': 'u%d' % random.randint(0, 99),
                       'item': '"i,%d"' % item, 'price': random.choice(['', '3.5', '20']),
                       'event': 'buy' if random.randint(0, 50) > item else 'view',
                       'count': str(random.randint(0, 3)),
                       'late': '' if i % 3 == 0 else str(int(item * i % 7 < 3)), 'none': ''}
                file.write(','.join(row[name] for name in header.split(',')) + '\n')

    def test_columns_labels_and_malformed_rows(self):
        path = self.run_dir + '.csv'
        self.write_shop(path, 3000)
        self.write_job(SHOP % path)
        self.train()
        scored = self.eval('--data', path)
        rows = self.predict('labels.csv', '--data', path, '--logits', '--column=item,user')
        self.assertEqual(list(rows[0]), ['row', 'label', 'item', 'user', 'score'])
        with open(path, newline='') as file:
            given = list(csv.DictReader(file))
        self.assertEqual([(row['item'], row['user']) for row in rows],
                         [(row['item'], row['user']) for row in given])
        labels = [int(row['label']) for row in rows]
        self.assertEqual(labels, [int(row['event'] == 'buy') for row in given])
        logits = logits_of(rows)
        # The metrics of eval weight the samples; the scores don't depend on it.
        weights = [int(row['count']) for row in given]
        self.assertEqual((auc(labels, logits, weights), logloss(labels, logits, weights)),
                         (scored['auc'], scored['logloss']))
        self.assertAlmostEqual(group_auc(labels, logits, weights, [row['user'] for row in given]),
                               scored['gauc'], delta=1e-12)
        predicted = sum(w / (1 + math.exp(-x)) for x, w in zip(logits, weights))
        self.assertAlmostEqual(predicted / sum(w * label for w, label in zip(weights, labels)),
                               scored['calibration'], delta=1e-12)
        # Users who were never seen, and neither label nor what only the training needs.
        today = self.run_dir + '-today.csv'
        self.write_shop(today, 300, header='price,item,user', seed=2)
        with open(today) as file:
            lines = file.read().splitlines()
        lines[3] = '1,i,new'
        plain = self.predict_lines(today, lines)
        self.assertEqual(list(plain[0]), ['row', 'score'])
        self.assertEqual(len(plain), 300)
        # Malformed ones: an error that names the first; or left out, and the numbers say which.
        lines[8] = 'dear,i,u1'
        lines[200] = 'too,many,columns,here'
        with open(today, 'w') as file:
            file.write('\n'.join(lines) + '\n')
        said = self.predict('bad.csv', '--data', today, code=1)
        self.assertIn("%s:9: column 1 ('price'): 'dear' is not a number" % today, said)
        said = self.predict('bad.csv', '--data', today, '--max-bad-lines=1', code=1)
        self.assertIn(today + ':201: 4 columns', said)
        self.assertFalse(os.path.exists(self.path_of('bad.csv')))
        left = self.predict('bad.csv', '--data', today, '--max-bad-lines=2')
        self.assertEqual(left, [row for row in plain if row['row'] not in ('7', '199')])
        scores = self.predict('bad.npy', '--data', today, '--max-bad-lines=2')
        self.assertEqual(len(scores), 300)
        self.assertEqual([row for row, score in enumerate(scores) if math.isnan(score)], [7, 199])

    def test_several_tasks_with_missing_labels(self):
        path = self.run_dir + '.csv'
        self.write_shop(path, 1500, header='day,user,item,price,event,late,none')
        self.write_job(TASKS % path)
        self.train('--servers=0')
        scored = self.eval('--data', path, '--servers=0')
        rows = self.predict('tasks.csv', '--data', path, '--logits')
        self.assertEqual(list(rows[0]), ['row', 'label_event', 'label_late', 'score_event', 'score_late'])
        for of, samples in zip(scored['tasks'], (1500, 1000)):
            label = of['label']
            there = [row for row in rows if row['label_' + label] != '']
            labels, logits = [int(row['label_' + label]) for row in there], logits_of(there, 'score_' + label)
            self.assertEqual((len(there), of['samples']), (samples, samples))
            self.assertEqual((auc(labels, logits), logloss(labels, logits)), (of['auc'], of['logloss']))
            self.assertIn('%s: AUC %.4f ' % (label, of['auc']), self.said)
            self.assertIn(' on %s rows with labels\n' % format(samples, ','), self.said)
        # Rows without any label have the same scores.
        unlabelled = self.run_dir + '-unlabelled.csv'
        self.write_shop(unlabelled, 1500, header='user,item,price')
        without = self.predict('without.csv', '--data', unlabelled, '--logits')
        self.assertEqual(without, [{name: row[name] for name in ('row', 'score_event', 'score_late')} for row in rows])
        # Both towers leave with their tensors.
        export = self.path_of('model.safetensors')
        done = self.thermocline('checkpoint', 'export', self.run_dir, export)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(export, 'rb') as file:
            tensors = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
        self.assertEqual([tensors[label + '.weight']['shape'] for label in ('event', 'late')], [[4, 1]] * 2)
        model = json.loads(tensors['__metadata__']['model'])
        self.assertEqual([task['label'] for task in model['tasks']], ['event', 'late'])
        # A label that all rows lack: no checkpoint helps, where there is one.
        run_dir = self.run_dir + '-none'
        code, _, err = self.finish(self.start('--servers=0', '--set=data.label.column=["event", "none"]',
                                              '--set=checkpoint.every_steps=5', run_dir=run_dir))
        self.assertEqual(code, 1)
        self.assertIn("job tasks: no training row has the label 'none' ", err)
        self.assertIn('with another job file', err)
        self.assertNotIn('to go on from the last checkpoint', err)

    def predict_lines(self, path, lines):
        with open(path, 'w') as file:
            file.write('\n'.join(lines) + '\n')
        return self.predict('plain.csv', '--data', path)

    def test_an_existing_file_stays(self):
        self.train(CHECKPOINTS)
        out = self.path_of('kept.csv')
        with open(out, 'w') as file:
            file.write('mine')
        said = self.predict('kept.csv', '--data', self.data, code=2)
        self.assertIn('--out %s is there already; --force replaces it' % out, said)
        # A checkpoint with a damaged row.
        checkpoint = os.path.join(self.run_dir, 'checkpoints', max(name for name in os.listdir(self.run_dir + '/checkpoints')
                                             if name.startswith('step-')))
        rows = [name for name in os.listdir(checkpoint) if name.endswith('.rows')][0]
        with open(os.path.join(checkpoint, rows), 'r+b') as file:
            good = file.read()
            file.seek(1000)
            file.write(bytes([good[1000] ^ 1]))
        said = self.predict('kept.csv', '--data', self.data, '--force', code=1)
        self.assertIn(rows + "' is damaged", said)
        self.assertEqual(self.read_text('kept.csv'), 'mine')
        with open(os.path.join(checkpoint, rows), 'wb') as file:
            file.write(good)
        self.assertEqual(len(self.predict('kept.csv', '--data', self.data, '--force')), 2000)

    def test_criteo_text_without_labels(self):
        folder = self.run_dir + '-log'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=3000', '--test-rows=0',
                        '--shrink=1000', '--threads=1'], check=True, stdout=subprocess.DEVNULL,
                       timeout=DEADLINE_S)
        path = os.path.join(folder, 'train.tsv')
        # The schedule of `fae` needs held-out rows, which predict doesn't have.
        self.check_criteo(path, ['--set=fae={budget: "2MiB"}', '--set=calibration.sample_share=1'])

    def test_the_criteo_sample(self):
        sample = find_sample()
        if sample is None:
            self.skipTest('no sample; set THERMOCLINE_DATA to its folder')
        path = self.run_dir + '.tsv'
        with open(path, 'w') as file:
            text = subprocess.run(['zcat', sample], capture_output=True, text=True, check=True).stdout
            file.writelines(text.splitlines(keepends=True)[:20000])
        self.check_criteo(path, ['--set=train.max_steps=40'])

    def check_criteo(self, path, flags):
        self.write_job(CRITEO % path)
        self.train(*flags)
        scored = self.eval('--data', path)
        rows = self.predict('criteo.csv', '--data', path, '--logits', '--column=C1')
        labels = [int(row['label']) for row in rows]
        logits = logits_of(rows)
        self.assertEqual((auc(labels, logits), logloss(labels, logits)),
                         (scored['auc'], scored['logloss']))
        unlabelled = path + '-unlabelled'
        with open(path) as labelled, open(unlabelled, 'w') as file:
            for line in labelled:
                file.write(line.split('\t', 1)[1])
        without = self.predict('unlabelled.csv', '--data', unlabelled, '--logits', '--column=C1')
        for row in rows:
            del row['label']
        self.assertEqual(without, rows)

    def test_the_task_that_decides_stands_for_the_model(self):
        path = self.run_dir + '.csv'
        random.seed(3)
        with open(path, 'w') as file:
            file.write('id,click,buy\n')
            for row in range(400):
                file.write('%d,%d,%d\n' % (row % 20, random.random() < row % 20 / 20, random.random() < 0.3))
        self.write_job(SECOND_DECIDES % path)
        trained = self.train('--servers=0')
        self.assertEqual(trained['task'], 'buy')
        scored = self.eval('--servers=0')
        self.assertEqual((scored['task'], scored['auc'], scored['tasks']), ('buy', trained['auc'], trained['tasks']))
        click = self.eval('--servers=0', '--set=evaluate.task=click')
        self.assertEqual((click['task'], click['auc']), ('click', trained['tasks'][0]['auc']))
        self.assertEqual(self.eval('--servers=0', '--data', path)['task'], 'buy')
        unknown = self.thermocline('eval', '--checkpoint', self.run_dir, '--set=evaluate.task=clik')
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("which no task learns (did you mean 'click'?)", unknown.stderr)
        self.predict('tasks.csv', '--data', path)
        self.assertIn('buy: AUC ', self.said)

    def test_ctrl_c_leaves_nothing(self):
        folder = self.run_dir + '-log'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=10000', '--test-rows=0',
                        '--shrink=1000', '--threads=1'], check=True, stdout=subprocess.DEVNULL,
                       timeout=DEADLINE_S)
        path = os.path.join(folder, 'train.tsv')
        self.write_job(CRITEO % path)
        self.train()
        # Much more than is scored before it is stopped.
        for i in range(1000):
            os.link(path, os.path.join(folder, 'more-%d.tsv' % i))
        out = self.path_of('stopped.csv')
        launcher = subprocess.Popen(
            [THERMOCLINE, 'predict', '--checkpoint', self.run_dir, '--data', folder + '/*.tsv', '--out', out],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=set_signals)
        self.addCleanup(launcher.kill)
        wait_for(lambda: os.path.exists(out + '.tmp') or launcher.poll() is not None, 'the first scores')
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 2', err)
        self.assertFalse(os.path.exists(out) or os.path.exists(out + '.tmp'))


if __name__ == '__main__':
    unittest.main(verbosity=2)
