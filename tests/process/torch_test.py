"""An exported model, read with PyTorch by deploy/python, scores as `thermocline eval` does.

Needs PyTorch (Debian's python3-torch: `deploy/setup.sh --tests`); without it all is skipped. The whole files' AUC and
logloss are compared, and the logits of single samples: `eval` of one sample gives its logloss, and so its logit.
"""

import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import DEADLINE_S, ProcessTest
from quality_test import ROOT, SAMPLE, find_sample

sys.dont_write_bytecode = True  # The source tree stays as it is.
LOADER = os.path.realpath(os.path.join(harness._RUNFILES, 'deploy/python/thermocline_torch.py'))
try:
    import numpy as np
    import torch
    sys.path.insert(0, os.path.dirname(LOADER))
    import thermocline_log
    import thermocline_torch
except ImportError as error:
    torch = None
    print('SKIPPED: %s; deploy/setup.sh --tests installs it' % error, flush=True)

# Bags, missing values, negative numbers, one table for two features, means, another optimizer.
TSV_JOB = """
name: "small"
seed: 11
data { format: CRITEO_TSV path: "%(data)s" num_dense: 3 test_share: 0.25 }
default_table { dim: 7 init_scale: 0.3 }
table { name: "shared" settings { dim: 7 init_scale: 0.5 optimizer { adam {} } } }
feature { name: "a" table: "shared" }
feature { name: "b" pooling: MEAN }
feature { name: "c" table: "shared" pooling: SUM }
dlrm { bottom: [16] top: [16, 8] initializer { reference {} } }
train { batch_size: 64 learning_rate { base: 0.05 } }
checkpoint { }
cluster { worker_threads: 1 }
"""

# Weights of a list's values, summed and averaged; one table has a list without.
WEIGHTED_JOB = """
name: "weighted"
seed: 5
data { train { path: "%(data)s" csv { header: true } } split { last_share: 0.25 } label { column: "y" } }
default_table { dim: 6 init_scale: 0.3 optimizer { sgd {} } }
table { name: "shared" settings { dim: 6 init_scale: 0.3 optimizer { sgd {} } } }
feature { column: "x" numeric {} }
feature { column: "a" categorical { id: INTEGER separator: "|" weights: "wa" missing: NO_KEY } }
feature { column: "b" table: "shared" pooling: MEAN
          categorical { id: INTEGER separator: "|" weights: "wb" missing: NO_KEY } }
feature { column: "c" table: "shared" categorical { id: INTEGER separator: "|" missing: NO_KEY } }
dlrm { bottom: [8] top: [8] }
train { batch_size: 50 max_steps: 2 learning_rate { base: 0.5 } }
checkpoint { every_steps: 1 }
cluster { worker_threads: 1 servers: 2 }
"""

# Every kind of layer, and values of one and of several vectors.
LAYERS_JOB = """
name: "layers"
seed: 9
data { format: CRITEO_TSV path: "%(data)s" num_dense: 3 test_share: 0.25 }
default_table { dim: 6 init_scale: 0.3 }
table { name: "shared" settings { dim: 6 init_scale: 0.5 optimizer { adam {} } } }
feature { name: "a" table: "shared" }
feature { name: "b" pooling: MEAN }
feature { name: "c" table: "shared" }
group { name: "two" feature: ["b", "a"] }
layer { name: "wide" input: ["categorical", "numeric"]
        first_order { initializer { normal { std: 0.2 } } optimizer { ftrl { l1: 0.01 } } } }
layer { name: "numbers" input: "numeric" embed { dim: 6 } }
layer { name: "fm" input: ["numbers", "fields"] fm {} }
layer { name: "unit" input: ["two", "numbers"] normalize {} }
layer { name: "pairs" input: "unit" dot {} }
layer { name: "kept" input: ["c", "two"] dot { keep_first: true } }
layer { name: "gated" input: ["categorical", "numbers"] feature_gate { by: ["a", "numeric"] units: [5] } }
layer { name: "learned" input: "gated" feature_gate { units: [4] } }
layer { name: "cross" input: ["numeric", "learned"] cross { layers: 2 } }
layer { name: "low_rank" input: ["kept", "pairs"] cross { layers: 2 rank: 3 } }
layer { name: "first" input: "cross" mlp { units: [12, 8] activation: PRELU layer_norm: true dropout: 0.2 } }
layer { name: "second" input: "low_rank" mlp { units: [10, 8] activation: TANH last: SIGMOID } }
layer { name: "third" input: "learned" mlp { units: [5, 8] last: LINEAR layer_norm: true } }
layer { name: "fusion" input: ["first", "second"] bilinear { heads: 4 } }
layer { name: "sum" input: ["first", "second", "third"] add {} }
layer { name: "product" input: ["sum", "third"] multiply {} }
layer { name: "all" input: ["product", "a"] concat {} }
layer { name: "pooled" input: "learned" pool {} }
layer { name: "mean" input: "numbers" pool { mode: MEAN } }
layer { name: "last" input: ["pooled", "mean"] pool { mode: LAST } }
task { label: "label" input: ["wide", "all", "fm", "fusion", "last", "pooled"] }
train { batch_size: 64 learning_rate { base: 0.01 } }
checkpoint { }
cluster { worker_threads: 1 }
"""

# What reads sequences, with the sample's own step at their end and without, alone and beside other steps or a value of
# the sample; several tasks, one of them a product.
SEQUENCES_JOB = """
name: "sequences"
seed: 3
data { train { path: "%(data)s" csv { header: true } } split { last_share: 0.25 }
       label { column: ["seen", "click", "buy", "late"] may_be_missing: true } }
default_table { dim: 6 init_scale: 0.3 }
feature { column: "x" numeric {} }
feature { column: ["user", "item"] categorical { id: INTEGER } }
feature { column: "kind" }
feature { column: "tags" categorical { separator: "|" missing: NO_KEY } }
feature { column: "items" table: "item" categorical { id: INTEGER } sequence { max_length: 4 } }
feature { column: "kinds" table: "kind" sequence { max_length: 4 } }
feature { column: "first" table: "item" categorical { id: INTEGER } sequence { max_length: 2 keep: FIRST } }
sequence { name: "events" of: ["items", "kinds"] then: ["item", "kind"] }
sequence { name: "past" of: "first" }
layer { name: "mixed" input: ["events", "user"] self_attention { heads: 3 blocks: 2 units: 10 positions: 3 dropout: %(dropout)s } }
layer { name: "ends" input: "mixed" pool { mode: LAST } }
layer { name: "mean" input: "mixed" pool { mode: MEAN } }
layer { name: "interest" input: "events" attention { query: ["item", "kind"] units: [8, 5] activation: PRELU } }
layer { name: "shares" input: ["past", "user"] attention { query: ["item", "kind"] units: 4 softmax: true } }
layer { name: "who" input: "user" concat {} }
layer { name: "alike" input: "past" attention { query: "who" score: DOT } }
layer { name: "pairs" input: ["events", "user", "tags"] dot { keep_first: true } }
layer { name: "step" input: ["pairs", "numeric"] mlp { units: [9, 6] activation: TANH layer_norm: true } }
layer { name: "gated" input: ["step", "events"] feature_gate { by: "user" units: [5] } }
layer { name: "unit" input: "gated" normalize {} }
layer { name: "last" input: "unit" pool { mode: LAST } }
layer { name: "context" input: ["unit", "step"] attention { query: ["last", "user"] score: BILINEAR without_last: true } }
layer { name: "sharp" input: "unit" attention { query: "last" score: DOT softmax: true without_last: true } }
layer { name: "sum" input: "past" pool {} }
layer { name: "experts" input: ["ends", "mean", "interest", "shares", "alike", "context", "sharp", "last", "sum", "items"]
        copies: 3 mlp { units: [12, 8] dropout: %(dropout)s } }
layer { name: "of_click" input: "experts" gate { by: ["fields", "numeric"] } }
layer { name: "of_buy" input: ["experts", "of_click"] gate { by: "user" } }
layer { name: "number" input: "of_buy" mlp { units: 1 } }
task { label: "click" input: "of_click" }
task { label: "buy" input: ["of_buy", "number"] weight: 0.5 times: "click" }
task { label: "late" input: "number" }
train { batch_size: 64 learning_rate { base: 0.02 } }
checkpoint { }
cluster { worker_threads: 1 }
"""

PRESETS = {'wide_deep': 'deep: [16, 8] dropout: 0.1', 'deepfm': 'deep: [16]',
           'dcnv2': 'cross_layers: 2 cross_rank: 3 deep: [16, 8] dropout: 0.1',
           'finalmlp': 'first: [16, 8] second: [12] heads: 4 gate: [8] first_gate_by: "a"'}

# A model without dense columns has no bottom MLP.
NPY_JOB = """
name: "small"
seed: 5
data { format: DLRM_NPY path: "%(data)s" num_dense: 0 test_share: 0.25 }
default_table { dim: 6 initializer { normal { std: 0.3 } } }
feature { name: "a" }
feature { name: "b" columns: 3 pooling: MEAN }
feature { name: "c" columns: 2 padding_id: 7 table: "a" }
dlrm { top: [8] }
train { batch_size: 64 learning_rate { base: 0.05 } }
checkpoint { }
cluster { worker_threads: 1 }
"""


def bag(random_, size):
    return ','.join('%x' % random_.choice((random_.randrange(30), random_.getrandbits(64) >> 1))
                    for _ in range(size))


def lines(random_, count, texts=('', '-2', '0', '7', '123456', '2.5', '1e3')):
    """Lines in Criteo's text form: 3 numbers of these texts, 3 categories."""
    for _ in range(count):
        numbers = [random_.choice(texts) for _ in range(3)]
        bags = [bag(random_, random_.choice((0, 1, 1, 1, 4))) for _ in range(3)]
        yield '\t'.join([str(random_.randrange(2)), *numbers, *bags]) + '\n'


class MissingPackagesTest(unittest.TestCase):

    def run_without_packages(self, *arguments, stubs=()):
        """An interpreter that sees the standard library, and empty packages named `stubs`."""
        with tempfile.TemporaryDirectory() as folder:
            for name in stubs:
                open(os.path.join(folder, name + '.py'), 'w').close()
            return subprocess.run([sys.executable, '-S', *arguments], capture_output=True, text=True,
                                  timeout=DEADLINE_S, env=dict(os.environ, PYTHONPATH=folder))

    def test_what_is_missing_is_named(self):
        for stubs, missing in (((), ('numpy', 'torch')), (('numpy',), ('torch',)),
                               (('torch',), ('numpy',))):
            done = self.run_without_packages(LOADER, '--help', stubs=stubs)
            self.assertEqual((done.returncode, done.stdout), (1, ''), done.stderr)
            self.assertIn('needs %s, which' % ' and '.join(missing), done.stderr)
            self.assertIn('-m pip install %s (on Debian: apt install %s)'
                          % (' '.join(missing), ' '.join('python3-' + name for name in missing)),
                          done.stderr)
            self.assertNotIn('Traceback', done.stderr)

    def test_a_program_that_imports_it_can_catch_it(self):
        done = self.run_without_packages('-c', 'import sys; sys.path.insert(0, %r)\n'
                                         'try: import thermocline_torch\n'
                                         'except ImportError as error: print(error.name, error)'
                                         % os.path.dirname(LOADER))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, '^numpy thermocline_torch needs numpy and torch')


@unittest.skipIf(torch is None, 'no PyTorch')
class TorchTest(ProcessTest):

    def export(self):
        path = self.run_dir + '.safetensors'
        done = self.thermocline('checkpoint', 'export', self.run_dir, path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def evaluate(self, name, *flags):
        """The summary of `thermocline eval` with the run's checkpoint."""
        checkpoints = os.path.join(self.run_dir, 'checkpoints')
        newest = max(name for name in os.listdir(checkpoints) if name.startswith('step-'))
        folder = '%s-eval-%s' % (self.run_dir, name)
        done = self.thermocline('eval', os.path.join(self.run_dir, 'job.textproto'), '--checkpoint',
                                os.path.join(checkpoints, newest), '--run-dir', folder, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(folder, 'summary.json')) as file:
            return json.load(file)

    def score(self, *arguments):
        """What the loader's command line prints."""
        done = subprocess.run([sys.executable, thermocline_torch.__file__, *arguments, '--json'],
                              capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_same(self, scored, summary):
        self.assertEqual(scored['samples'], summary['eval_samples'])
        self.assertAlmostEqual(scored['auc'], summary['auc'], delta=1e-5)
        self.assertAlmostEqual(scored['logloss'], summary['logloss'], delta=1e-5)

    def test_the_label_that_is_scored_is_the_tasks(self):
        log = self.run_dir + '.csv'
        with open(log, 'w', encoding='utf-8') as file:
            file.write('like,buy,c\n0,1,x\n1,1,y\n1,0,z\n')
        described = {'data': {'train': {'csv': {'header': True}}, 'label': {'column': ['like', 'buy']}},
                     'feature': [{'name': 'c', 'column': ['c'], 'categorical': {}}]}
        config = {'described': described, 'features': [{'name': 'c', 'columns': 1}],
                  'data': {'format': 'DESCRIBED', 'num_dense': 0, 'test_share': 0}}
        for tasks, labels in (([{'label': 'buy', 'input': ['w']}], [1, 1, 0]), ([], [0, 1, 1])):
            batch, = thermocline_log.read_log(log, {**config, 'tasks': tasks})
            self.assertEqual(batch.labels.tolist(), labels)

    def test_initial_rows_and_hashes_have_their_golden_bits(self):
        self.assertEqual(thermocline_log.hash_text(b'85f751fd'), 0xdd945e02dcc5fabf)
        # The bits are those of common/math/row_init_test.cc and docs/formats.md.
        rows = thermocline_torch.initial_rows(42, 7, torch.tensor([123456789]), 5, np.float32(0.01))
        self.assertEqual([hex(bits) for bits in rows[0].numpy().view('<u4')],
                         ['0x3af16e29', '0xbc16ddf0', '0xbc212f18', '0xbc032f10', '0x3c1b8e73'])
        rows = thermocline_torch.initial_rows(0, 0, torch.tensor([5, 0]), 4, 1.0)
        self.assertEqual([hex(bits) for bits in rows[1].numpy().view('<u4')],
                         ['0x3e6ab018', '0xbe5d5930', '0xbed66068', '0x3f27d36a'])
        rows = thermocline_torch.initial_rows(42, 7, torch.tensor([123456789]), 5, np.float32(0.01), 'normal')
        self.assertEqual([hex(bits) for bits in rows[0].numpy().view('<u4')],
                         ['0x3b18a9e3', '0xbc8fce95', '0xbcc4f22d', '0xbc5249d5', '0x3ca02ba5'])
        rows = thermocline_torch.initial_rows(42, 7, torch.tensor([123456789]), 5, np.float32(0.01),
                                              'truncated_normal')
        self.assertEqual([hex(bits) for bits in rows[0].numpy().view('<u4')],
                         ['0x3b11995f', '0xbc7dfeac', '0xbc997e06', '0xbc424305', '0x3c894a16'])

    def test_logits_of_single_samples(self):
        seed = int(os.environ.get('THERMOCLINE_TEST_SEED', random.randrange(1 << 32)))
        print('THERMOCLINE_TEST_SEED=%d' % seed, flush=True)
        random_ = random.Random(seed)
        data = self.run_dir + '.tsv'
        with open(data, 'w') as file:
            file.writelines(lines(random_, 2000))
        with open(self.job, 'w') as job:
            job.write(TSV_JOB % {'data': data})
        self.train()
        export = self.export()
        self.assert_same(self.score(export, '--data', data, '--test-share', '0.25'),
                         self.evaluate('held-out'))
        model = thermocline_torch.ThermoclineModel.load(export).eval()
        # Every kind of value; keys and bags that training has seen and others.
        samples = ['1\t\t-2\t7\t\t1,2,fffffffffffffffe\t3\n', *lines(random_, 3)]
        for i, sample in enumerate(samples):
            path = '%s-%d.tsv' % (self.run_dir, i)
            with open(path, 'w') as file:
                file.write(sample)
            summary = self.evaluate(str(i), '--set', 'data.test_path=' + path, '--clear',
                                    'data.test_share')
            self.assertEqual(summary['eval_samples'], 1)
            (logit,), (label,) = thermocline_torch.score(
                model, thermocline_torch.read_log(path, model.config))
            # logloss = log(1 + exp(-x)) of the logit of what happened.
            of_the_label = -math.log(math.expm1(summary['logloss']))
            self.assertAlmostEqual(logit if label else -logit, of_the_label, delta=1e-5, msg=sample)

    def assert_same_logits(self, data):
        """The export of the run has the logits of `predict` on a log."""
        export, scores = self.export(), self.run_dir + '.npy'
        done = self.thermocline('predict', '--checkpoint', self.run_dir, '--data', data, '--out', scores)
        self.assertEqual(done.returncode, 0, done.stderr)
        model = thermocline_torch.ThermoclineModel.load(export).eval()
        logits, _ = thermocline_torch.score(model, thermocline_torch.read_log(data, model.config))
        predicted = np.load(scores).astype(np.float64)
        self.assertEqual(predicted.shape, logits.shape)
        self.assertGreater(logits.std(), 0.05)
        self.assertLess(np.abs(logits).max(), 9)  # Else its probability says too little of it.
        self.assertLess(float(np.abs(np.log(predicted / (1 - predicted)) - logits).max()), 1e-4)
        return model

    def write_layers_log(self):
        data = self.run_dir + '.tsv'
        with open(data, 'w') as file:
            file.writelines(lines(random.Random(4), 1200, ('', '0', '1', '2.5')))
        return data

    def test_every_kind_of_layer(self):
        data = self.write_layers_log()
        with open(self.job, 'w') as job:
            job.write(LAYERS_JOB % {'data': data})
        self.train()
        model = self.assert_same_logits(data)
        kinds = {kind for stanza in model.config['layers'] for kind in stanza} - {'name', 'input'}
        self.assertEqual(kinds, set(thermocline_torch.LAYERS) - {'attention', 'self_attention', 'gate'})
        self.assertEqual(model.layer('fusion').first.weight.shape, (1, 8))
        self.assertEqual([layer.__class__.__name__ for layer in model.layer('third').layers],
                         ['Linear', 'LayerNorm', 'ReLU', 'Linear'])

    def write_histories(self):
        """A log for SEQUENCES_JOB, with empty histories, longer ones than count, and labels that are missing."""
        random_ = random.Random(6)
        data = self.run_dir + '.csv'
        join = lambda values: '|'.join(map(str, values))
        with open(data, 'w') as file:
            file.write('seen,click,buy,late,x,user,item,kind,tags,items,kinds,first\n')
            for i in range(1200):
                history = [random_.randrange(20) for _ in range(random_.choice((0, 0, 1, 2, 4, 7)))]
                first = [random_.randrange(25) for _ in range(random_.choice((0, 1, 3)))]
                labels = ['1', *(random_.choice(('0', '1', '1', '' if i % 3 else 'NA')) for _ in range(3))]
                item = random_.randrange(22)
                file.write(','.join([*labels, '%.2f' % random_.random(), str(random_.randrange(30)), str(item),
                                     'k%d' % (item % 5), join('ab'[:random_.randrange(3)]), join(history),
                                     join('k%d' % (of % 5) for of in history), join(first)]) + '\n')
        return data

    def test_sequences_and_tasks(self):
        data = self.write_histories()
        with open(self.job, 'w') as job:
            job.write(SEQUENCES_JOB % {'data': data, 'dropout': 0.1})
        self.train()
        model = self.assert_same_logits(data)
        self.assertEqual([sequence['name'] for sequence in model.config['sequences']], ['events', 'past'])
        self.assertEqual(len(model.layer('experts').copies), 3)
        # What other samples of its batch have says nothing of a sample.
        batch = next(thermocline_torch.read_log(data, model.config, batch_size=40))
        alone = thermocline_torch.score(model, thermocline_torch.read_log(data, model.config, batch_size=1))[0][:40]
        with torch.no_grad():
            together = model(batch.dense, batch.keys, batch.offsets, batch.weights).numpy()
        self.assertLess(np.abs(alone - together).max(), 1e-5)
        self.assertTrue(np.isnan(batch.labels).any() and batch.labels.shape == (40, 3))
        scored, evaluated = self.score(self.export(), '--data', data, '--held-out'), self.evaluate('held-out')
        self.assertEqual(scored['samples'], evaluated['eval_samples'])
        for of in evaluated['tasks']:
            self.assertLess(of['samples'], scored['samples'])  # Some of its labels are missing.
            self.assert_same(scored['tasks'][of['label']], {**of, 'eval_samples': of['samples']})

    def steps_of_sgd(self, data, weights):
        """Trains two steps of the job by SGD, and compares the second with autograd, over tasks of these weights.

        Returns the names of the parameters without a gradient.
        """
        self.train('--set=train.max_steps=2', '--set=checkpoint.every_steps=1', '--set=train.learning_rate={base: 0.5}',
                   '--set=default_table.optimizer={sgd {}}')
        models = []
        for step in (0, 1):
            path = '%s-%d.safetensors' % (self.run_dir, step)
            done = self.thermocline('checkpoint', 'export',
                                    os.path.join(self.run_dir, 'checkpoints', 'step-%09d' % step), path)
            self.assertEqual(done.returncode, 0, done.stderr)
            models.append(thermocline_torch.ThermoclineModel.load(path))
        model, after = models
        _, batch = itertools.islice(thermocline_torch.read_log(data, model.config, batch_size=64), 2)
        labels = torch.from_numpy(batch.labels)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            model(batch.dense, batch.keys, batch.offsets, batch.weights), labels.nan_to_num(), reduction='none')
        (losses * ~labels.isnan() * torch.tensor(weights)).sum().div(64).backward()
        silent = []
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                wanted, got = parameter - 0.5 * parameter.grad, after.get_parameter(name)
                if name.startswith('tables.'):  # Rows that the step before had looked up.
                    table = name.rsplit('.', 1)[0]
                    got = got[torch.searchsorted(after.get_submodule(table).keys, model.get_submodule(table).keys)]
                silent += [name] if float(parameter.grad.abs().max()) < 1e-7 else []
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, msg=name)
        return silent

    def test_a_step_goes_where_autograd_says(self):
        data = self.write_histories()
        with open(self.job, 'w') as job:
            job.write(SEQUENCES_JOB % {'data': data, 'dropout': 0})
        silent = self.steps_of_sgd(data, [1, 0.5, 1])
        # A softmax does not see what is added to all scores of a sample.
        self.assertEqual([name.split('.')[-2:] for name in silent if 'key' in name], [['key', 'bias']] * 2)
        self.assertLessEqual(len(silent), 3, silent)

    def test_a_step_of_every_kind_of_layer_goes_where_autograd_says(self):
        data = self.write_layers_log()
        layers = LAYERS_JOB % {'data': data}
        for other in (' optimizer { adam {} }', ' optimizer { ftrl { l1: 0.01 } }', ' dropout: 0.2'):
            self.assertIn(other, layers)
            layers = layers.replace(other, '')
        with open(self.job, 'w') as job:
            job.write(layers)
        self.assertEqual(self.steps_of_sgd(data, 1), [])

    def test_bad_lines_of_sequences_are_named(self):
        described = {'data': {'train': {'csv': {'header': True}}, 'label': {'column': ['y', 'z'], 'may_be_missing': True}},
                     'feature': [{'name': 'a', 'column': ['a'], 'sequence': {'max_length': 1},
                                  'categorical': {'id': 'INTEGER', 'separator': '|', 'missing': 'NO_KEY'}},
                                 {'name': 'b', 'column': ['b'], 'sequence': {'max_length': 1},
                                  'categorical': {'separator': '|', 'missing': 'OWN_KEY'}}]}
        config = {'described': described, 'features': [{'name': 'a', 'sequence': True}, {'name': 'b', 'sequence': True}],
                  'data': {'format': 'DESCRIBED', 'num_dense': 0, 'test_share': 0},
                  'sequences': [{'name': 's', 'of': ['a', 'b']}],
                  'tasks': [{'label': 'z', 'input': ['w']}, {'label': 'y', 'input': ['w']}]}
        path = self.run_dir + '.csv'
        for line, message in (('1,0,1|2,x', "the lists of a sequence differ in length: 'a' has 2, 'b' has 1"),
                              ('1,0,,x', "'a' has 0, 'b' has 1"), ('1,0,1|NA,x|y', 'has no key, as each step'),
                              (',,1,x', 'no label is there'), ('2,,1,x', "the label b'2' is not 0 or 1")):
            with open(path, 'w') as file:
                file.write('y,z,a,b\n1,0,1|2,x|y\n%s\n0,,,\n' % line)
            with self.assertRaisesRegex(ValueError, '%s:3: .*%s' % (path, message)):
                list(thermocline_log.read_log(path, config))
            batch, = thermocline_log.read_log(path, config, max_bad_rows=1)
            self.assertEqual([of.tolist() for of in batch.offsets], [[0, 1, 1]] * 2)
            self.assertEqual((batch.keys[0].tolist(), batch.labels[0].tolist()), ([2], [0, 1]))
            self.assertTrue(np.isnan(batch.labels[1][0]))

    def test_presets(self):
        data = self.write_layers_log()
        with open(self.job, 'w') as job:
            job.write(TSV_JOB % {'data': data})
        run_dir = self.run_dir
        for name, fields in PRESETS.items():
            with self.subTest(name):
                self.run_dir = '%s-%s' % (run_dir, name)
                self.train('--clear=dlrm', '--set=%s={%s}' % (name, fields))
                self.assert_same_logits(data)

    def test_exports_of_earlier_versions(self):
        # They have the widths of a DLRM's MLPs, and no layers.
        self.train('--set=checkpoint.every_steps=0', '--set=train.max_steps=20')
        tensors, metadata = thermocline_torch.read_safetensors(self.export())
        now = thermocline_torch.ThermoclineModel(tensors, metadata).eval()
        self.assertEqual([stanza['name'] for stanza in now.config['layers']], ['bottom', 'pairs', 'top'])
        config = {name: value for name, value in now.config.items() if name not in ('layers', 'tasks')}
        self.assertEqual(len(config['bottom']), len(now.layer('bottom').layers) // 2 + 1)
        before = thermocline_torch.ThermoclineModel(tensors, dict(metadata, model=json.dumps(config))).eval()
        batch = next(thermocline_torch.read_log(self.data, now.config))
        with torch.no_grad():
            logits = [model(batch.dense, batch.keys, batch.offsets).tolist() for model in (now, before)]
        self.assertEqual(*logits)

    def test_weights_of_lists(self):
        # A step of SGD by PyTorch, whose EmbeddingBag takes weights of single lookups, moves the rows as ours does.
        random_ = random.Random(7)
        data = self.run_dir + '.csv'
        rows = []
        for _ in range(200):
            lists = [[random_.randrange(12) for _ in range(random_.choice((0, 1, 2, 6)))] for _ in 'abc']
            weights = [[random_.randrange(low, 9) / 4 for _ in bag] for low, bag in zip((-8, 1), lists)]
            rows.append((random_.randrange(2), random_.random(), lists, weights))
        join = lambda values: '|'.join(map(str, values))
        with open(data, 'w') as file:
            file.write('y,x,a,wa,b,wb,c\n')
            for y, x, (a, b, c), (wa, wb) in rows:
                file.write('%d,%r,%s,%s,%s,%s,%s\n' % (y, x, *map(join, (a, wa, b, wb, c))))
        with open(self.job, 'w') as job:
            job.write(WEIGHTED_JOB % {'data': data})
        self.train()
        models = []
        for step in (0, 1):
            path = '%s-%d.safetensors' % (self.run_dir, step)
            folder = os.path.join(self.run_dir, 'checkpoints', 'step-%09d' % step)
            done = self.thermocline('checkpoint', 'export', folder, path)
            self.assertEqual(done.returncode, 0, done.stderr)
            models.append(thermocline_torch.read_safetensors(path)[0])
        before, after = models
        model = thermocline_torch.ThermoclineModel.load('%s-0.safetensors' % self.run_dir)
        self.assertEqual([feature.get('weights') for feature in model.config['features']], ['wa', 'wb', None])
        tables = {}
        for name in ('a', 'shared'):
            of = {int(key): row for key, row in zip(before[name + '.keys'], torch.tensor(before[name + '.rows']))}
            later = {int(key) for key in after[name + '.keys']}
            table = next(t for t in model.config['tables'] if t['name'] == name)
            initial = thermocline_torch.initial_rows(5, table['id'], torch.arange(12), 6, np.float32(0.3))
            self.assertLessEqual(later, set(range(12)))
            tables[name] = torch.stack([of.get(key, initial[key]) for key in range(12)]).requires_grad_()
        batch = rows[50:100]

        def pooled(name, column, weights=None, mean=False):
            bags = [lists[column] for _, _, lists, _ in batch]
            flat = torch.tensor([key for bag in bags for key in bag])
            offsets = torch.tensor([0] + [len(bag) for bag in bags]).cumsum(0)[:-1]
            if weights is None:
                return torch.nn.functional.embedding_bag(flat, tables[name], offsets, mode='sum')
            of_bags = [torch.tensor(row[3][weights]) for row in batch]
            if mean:
                of_bags = [of / of.sum() if len(of) else of for of in of_bags]
            return torch.nn.functional.embedding_bag(flat, tables[name], offsets, mode='sum',
                                                     per_sample_weights=torch.cat(of_bags).float())

        bottom = model.layer('bottom').layers(torch.tensor([[row[1]] for row in batch], dtype=torch.float32))
        z = torch.stack([bottom, pooled('a', 0, 0), pooled('shared', 1, 1, mean=True), pooled('shared', 2)], dim=1)
        i, j = torch.tril_indices(4, 4, offset=-1)
        logits = model.layer('top').layers(torch.cat([z[:, 0], torch.bmm(z, z.transpose(1, 2))[:, i, j]], dim=1)).squeeze(1)
        labels = torch.tensor([float(row[0]) for row in batch])
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        for name, table in tables.items():
            with torch.no_grad():
                wanted = table - 0.5 * table.grad
            for key, row in zip(after[name + '.keys'], after[name + '.rows']):
                self.assertTrue(np.allclose(wanted[int(key)].numpy(), row, atol=1e-6), (name, int(key)))
            self.assertGreater(float(table.grad.abs().max()), 1e-4)
        # The loader pools the same.
        with torch.no_grad():
            keys = [torch.tensor([key for row in batch for key in row[2][f]]) for f in range(3)]
            offsets = [torch.tensor([0] + [len(row[2][f]) for row in batch]).cumsum(0) for f in range(3)]
            weights = [torch.tensor([w for row in batch for w in row[3][f]]) for f in range(2)] + [None]
            scored = model(torch.tensor([[row[1]] for row in batch], dtype=torch.float32), keys, offsets, weights)
        self.assertTrue(np.allclose(scored.numpy(), logits.detach().numpy(), atol=1e-5))
        with self.assertRaisesRegex(ValueError, "'a' has weights"):
            model(torch.zeros(50, 1), keys, offsets)
        # And reads the same.
        read, = thermocline_torch.read_log(data, model.config)
        self.assertEqual(read.dense.tolist(), [[float(np.float32(row[1]))] for row in rows])
        self.assertEqual([of.tolist() for of in read.keys],
                         [[key for row in rows for key in row[2][f]] for f in range(3)])
        self.assertEqual([of.tolist() for of in read.weights[:2]],
                         [[w for row in rows for w in row[3][f]] for f in range(2)])
        self.assertIsNone(read.weights[2])
        held_out, = thermocline_torch.read_log(data, model.config, held_out=True)
        self.assertEqual(held_out.labels.tolist(), [float(row[0]) for row in rows[150:]])

    def test_a_job_that_inspect_wrote(self):
        # Every kind of column that it knows: PyTorch reads the log as `predict` does.
        random_ = random.Random(3)
        log, job = self.run_dir + '.csv', self.run_dir + '-drafted.textproto'
        header = 'when,user,code,shop,price,temper,tags,seen,note,bought\n'
        with open(log, 'w', encoding='utf-8') as file:
            file.write(header)
            for i in range(800):
                item = random_.randrange(30)
                file.write('2026-11-%02d %02d:00:00,%s,%08x,%d,%s,%s,%s,%s,"a ""%d"", b",%s\n' % (
                    random_.randint(1, 24), random_.randrange(24), random_.choice(['anna', 'José Ñandú', 'bo', '']),
                    item * 2654435761 % 2**32, 1000 + item, random_.choice(['', '1e3', *['3.5', '20', '7'] * 5, '123456.789']),
                    1234567890 + random_.random(), random_.choice(['a|b', 'c', 'b|c|d', '']),
                    '|'.join(str(random_.randrange(9)) for _ in range(random_.randrange(70))), i % 7,
                    'yes' if random_.random() < (0.8 if item % 3 == 0 else 0.1) else 'no'))
        done = self.thermocline('inspect', log, '--job', job)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(job) as file:
            text = file.read()
        for part in ('log1p', 'standardize', 'missing: NO_KEY', 'sequence', 'id: HEX', 'id: INTEGER', 'id: STRING',
                     'substring', 'test_from', 'positive: ["yes"]'):
            self.assertIn(part, text)
        self.train('--set=cluster.worker_threads=1', job=job)
        export = self.export()
        scores = self.run_dir + '.npy'
        done = self.thermocline('predict', '--checkpoint', self.run_dir, '--data', log, '--out', scores)
        self.assertEqual(done.returncode, 0, done.stderr)
        model = thermocline_torch.ThermoclineModel.load(export).eval()
        logits, labels = thermocline_torch.score(model, thermocline_torch.read_log(log, model.config))
        self.assertEqual(len(set(logits)), 800)
        predicted = np.load(scores)
        self.assertEqual(predicted.shape, (800,))
        self.assertLess(float(np.abs(1 / (1 + np.exp(-logits)) - predicted).max()), 2e-6)
        self.assert_same(self.score(export, '--data', log, '--held-out'), self.evaluate('held-out'))
        # Without labels, and with what no job takes.
        with open(log, encoding='utf-8') as file:
            lines = file.read().splitlines()
        with open(log, 'w', encoding='utf-8') as file:
            file.write('\n'.join(line.rsplit(',', 1)[0] for line in lines))
        self.assertEqual(self.score(export, '--data', log), {'samples': 800})
        with open(log, 'a', encoding='utf-8') as file:
            file.write('\n' + lines[1].rsplit(',', 1)[0] + ',\n')
        with self.assertRaisesRegex(ValueError, '%s:802: 10 columns, not 9' % log):
            list(thermocline_torch.read_log(log, model.config))

    def test_npy_files(self):
        run_dir = self.run_dir
        for name, flags in (('all', []), ('dense', ['--set=data.num_categorical=0']),
                            ('sparse', ['--set=data.num_dense=0', '--clear=dlrm.bottom'])):
            self.run_dir = run_dir + '-' + name
            self.train('--set=checkpoint.every_steps=0', *flags)
            self.assert_same(self.score(self.export(), '--data', self.data),
                             self.evaluate('held-out'))

    def test_npy_files_without_dense_columns(self):
        random_ = np.random.default_rng(3)
        folder = self.run_dir + '-log'
        os.mkdir(folder)
        np.save(os.path.join(folder, 'train_labels.npy'), random_.integers(0, 2, 2000, np.int32))
        with open(self.job, 'w') as job:
            job.write(NPY_JOB % {'data': folder})
        # Negative ids: keys of one column, padding of several where no other is.
        for dtype, low in ((np.int32, -9), (np.int64, -9), (np.uint64, 0)):
            with self.subTest(dtype=dtype):
                self.run_dir = '%s-%s' % (folder, dtype.__name__)
                np.save(os.path.join(folder, 'train_sparse.npy'),
                        random_.integers(low, 40, (2000, 6)).astype(dtype))
                self.train()
                self.assert_same(self.score(self.export(), '--data', folder, '--test-share', '0.25'),
                                 self.evaluate('held-out'))

    def test_the_real_sample(self):
        sample = find_sample()
        if sample is None:
            self.skipTest('no %s; set THERMOCLINE_DATA to its folder' % SAMPLE)
        self.train('--data', sample, '--set=train.max_steps=100', '--set=checkpoint.every_steps=0',
                   job=os.path.join(ROOT, 'deploy/jobs/criteo_kaggle.textproto'))
        summary = self.evaluate('held-out')
        self.assertEqual(summary['eval_samples'], 13714)
        self.assert_same(self.score(self.export(), '--data', sample, '--test-share', '0.1'), summary)

    def test_what_is_wrong_is_named(self):
        self.train('--set=checkpoint.every_steps=0', '--set=train.max_steps=1')
        export = self.export()
        for file, message in ((self.job, 'is no safetensors file'), (self.run_dir, 'Is a directory'),
                              ('/no/such/file', 'No such file')):
            done = subprocess.run([sys.executable, thermocline_torch.__file__, file, '--data',
                                   self.data], capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(message, done.stderr)
        model = thermocline_torch.ThermoclineModel.load(export)
        config = dict(model.config, data=dict(model.config['data'], format='CRITEO_TSV'))
        path = self.run_dir + '.tsv'
        good = '\t'.join(['1'] + ['2'] * 13 + ['a'] * 26)
        for line, message in (('1', '1 columns, not 40'), (good.replace('1', '7', 1), 'label'),
                              (good.replace('2', 'nan', 1), 'is not a number'),
                              (good.replace('2', '1e999', 1), 'is not finite'),
                              (good.replace('a', 'f' * 16, 1), 'reserved'),
                              (good.replace('a', 'a,,b', 1), 'not hexadecimal')):
            with open(path, 'w') as file:
                file.write('%s\n%s\n\n%s\r\n\n' % (good, line, good))
            with self.assertRaisesRegex(ValueError, '%s:2: .*%s' % (path, message)):
                list(thermocline_torch.read_log(path, config))
            with self.assertRaisesRegex(ValueError, '%s:3: .*; max_bad_rows allows 1, and this is malformed '
                                        'row 2; the first was %s:2: .*%s' % (path, path, message)):
                list(thermocline_torch.read_log(path, config, max_bad_rows=1))
            batch, = thermocline_torch.read_log(path, config, max_bad_rows=2)
            self.assertEqual(batch.dense.shape, (2, 13))


if __name__ == '__main__':
    unittest.main(verbosity=2)
