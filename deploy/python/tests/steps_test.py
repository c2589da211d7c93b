"""What a step is: every gradient counts once, and a training of the package has the bits of plain PyTorch."""
import copy
import gc
import math
import unittest

from fake_worker import FakeBatch, FakeFeature, FakeServer, ScriptTest, random_batches, random_tables, np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint

import thermocline

FEATURES = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb'), FakeFeature('c', 'ta', is_list=True)]
BOTH = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb')]


class Net(nn.Module):
    """A small model over any source of vectors [size, features, dim]."""

    def __init__(self, embeddings, inputs):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = embeddings
        self.top = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        vectors = self.embeddings(batch)
        return self.top(torch.cat([vectors.flatten(1), batch.numeric], dim=1)).squeeze(1)


def loss_of(net, batch):
    return F.binary_cross_entropy_with_logits(net(batch), batch.label)


class PlainEmbeddings(nn.Module):
    """nn.Embedding tables, looked up with the keys of a FakeBatch; all in one weight, so that sums have one order."""

    def __init__(self, tables, features):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([weights.clone() for weights in tables.values()]))
        self.bases, base = {}, 0
        for name, weights in tables.items():
            self.bases[name] = base
            base += len(weights)
        self.features = features

    def forward(self, batch):
        columns = [torch.as_tensor(batch.fake.keys[feature.name]) + self.bases[feature.table]
                   for feature in self.features]
        return F.embedding(torch.stack(columns, dim=1), self.weight)


class PlainBatch:
    def __init__(self, fake):
        self.fake = fake
        self.numeric, self.label = torch.from_numpy(fake.numeric), torch.from_numpy(fake.labels)


def train_plainly(plan, tables, features, rate=0.1):
    """(weights by table, dense parameters, losses) of plain PyTorch with SGD."""
    net = Net(PlainEmbeddings(tables, features), 2 * 4 + 3)
    opt = torch.optim.SGD(net.parameters(), lr=rate)
    losses = []
    for fake in plan:
        loss = loss_of(net, PlainBatch(fake))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    sizes = [len(weights) for weights in tables.values()]
    return dict(zip(tables, net.embeddings.weight.detach().split(sizes))), list(net.top.parameters()), losses


class StepsTest(ScriptTest):

    def train(self, plan, tables, features=BOTH, body=None, optimizer='sgd', make=None, accumulate=1, scaler=None):
        """Trains with SGD, a loop body for each batch; returns (net, fake worker)."""
        run, fake = self.connect(features, FakeServer(tables, optimizer), plan)
        with run:
            net = make(run) if make else Net(run.embeddings(), 2 * 4 + 3)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            run.track(net=net, opt=opt)
            for batch in run.batches(accumulate=accumulate):
                if body is not None:
                    body(run, net, opt, batch)
                    continue
                loss = loss_of(net, batch)
                loss.backward()
                opt.step()
                opt.zero_grad()
                run.step(loss)
        self.finish(fake)
        self.assertEqual(fake.end, 'done')
        return net, fake

    def test_a_training_has_the_bits_of_plain_pytorch(self):
        plan, tables = random_batches(12), random_tables(ta=4, tb=4)
        net, fake = self.train(plan, tables)
        weights, dense, losses = train_plainly(plan, tables, BOTH)
        for name, expected in weights.items():
            self.assert_equal_bits(fake.server.tables[name], expected)
        for ours, expected in zip(net.top.parameters(), dense):
            self.assert_equal_bits(ours, expected)
        self.assertEqual([record['loss_sum'] for record in fake.steps], [loss * 6 for loss in losses])
        self.assertEqual([record['step'] for record in fake.steps], list(range(12)))
        self.assertTrue(all(math.isnan(record['rate']) for record in fake.steps))

    def test_two_trainings_have_the_same_bits(self):
        plan, tables = random_batches(8, lists=['c']), random_tables(ta=4, tb=4)
        make = lambda run: Net(run.embeddings(), 3 * 4 + 3)  # noqa: E731
        torch.use_deterministic_algorithms(True)
        try:
            results = [self.train(plan, tables, FEATURES, make=make) for _ in range(2)]
        finally:
            torch.use_deterministic_algorithms(False)
        for name in tables:
            self.assert_equal_bits(results[0][1].server.tables[name], results[1][1].server.tables[name])

    def test_the_loop_may_release_memory_for_the_next_step(self):
        _, fake = self.train(random_batches(10), random_tables(ta=4, tb=4))
        # The loop's variable holds a batch until the next one is there.
        self.assertLessEqual(len(fake.slots), 3)
        self.assertGreaterEqual(len(fake.releases), 8)

    # Exactly once
    # ------------------------------------------------------------------------------------------------------------------

    def gradients_of(self, body, make=None, features=BOTH, plan=None, accumulate=1):
        plan = plan or random_batches(1)
        _, fake = self.train(plan, random_tables(ta=4, tb=4), features, body, make=make, accumulate=accumulate)
        return fake.steps[0]['tables']

    @staticmethod
    def step(run, net, opt, batch, loss):
        loss.backward()
        opt.step()
        opt.zero_grad()
        run.step(loss)

    def test_gradients_of_two_modules_and_of_two_calls_add_up(self):
        class TwoTowers(Net):
            def __init__(self, run):
                super().__init__(run.embeddings(), 2 * 4 + 3)
                self.second = run.embeddings(['b', 'a'])
                self.scale = nn.Parameter(torch.ones(1))

            def forward(self, batch):
                return super().forward(batch) + self.scale * self.second(batch).sum((1, 2)) + \
                    self.embeddings(batch).square().sum((1, 2))

        def body(run, net, opt, batch):
            self.step(run, net, opt, batch, loss_of(net, batch))
        plan, tables = random_batches(1), random_tables(ta=4, tb=4)
        ours = self.gradients_of(body, TwoTowers, plan=plan)

        plain = PlainEmbeddings(tables, BOTH)
        net, batch = Net(plain, 2 * 4 + 3), PlainBatch(plan[0])
        logits = net(batch) + plain(batch).sum((1, 2)) + plain(batch).square().sum((1, 2))
        F.binary_cross_entropy_with_logits(logits, batch.label).backward()
        expected = dict(zip(tables, plain.weight.grad.split([10, 10])))
        for name, (keys, gradients, has_gradient) in ours.items():
            self.assertTrue(has_gradient.all())
            torch.testing.assert_close(gradients, expected[name][keys], rtol=1e-5, atol=1e-7)

    def test_a_repeated_forward_pass_counts_once(self):
        def body(run, net, opt, batch):
            self.step(run, net, opt, batch, loss_of(net, batch))

        def checkpointed(use_reentrant):
            def body(run, net, opt, batch):
                dummy = torch.zeros(1, requires_grad=True)  # Reentrant checkpoints want an input with a gradient.
                logits = checkpoint.checkpoint(lambda batch, _: net(batch), batch, dummy, use_reentrant=use_reentrant)
                self.step(run, net, opt, batch, F.binary_cross_entropy_with_logits(logits, batch.label))
            return body
        expected = self.gradients_of(body)
        for use_reentrant in (False, True):
            ours = self.gradients_of(checkpointed(use_reentrant))
            for name in expected:
                self.assert_equal_bits(ours[name][1], expected[name][1])

    def test_backward_passes_before_a_step_accumulate(self):
        def once(run, net, opt, batch):
            self.step(run, net, opt, batch, loss_of(net, batch))

        def twice(run, net, opt, batch):
            loss_of(net, batch).backward()
            self.step(run, net, opt, batch, loss_of(net, batch))
        one, two = self.gradients_of(once), self.gradients_of(twice)
        for name in one:
            self.assert_equal_bits(two[name][1], one[name][1] * 2)

    def test_a_second_pass_may_forget_the_first(self):
        """For optimizers that call a closure, and for two passes a step."""
        def once(run, net, opt, batch):
            self.step(run, net, opt, batch, loss_of(net, batch))

        def in_a_closure(run, net, opt, batch):
            def closure():
                net.zero_grad()
                batch.zero_grad()
                loss = loss_of(net, batch)
                run.backward(loss)
                return loss
            closure()
            opt.step(closure)
            run.step()

        def in_two_passes(run, net, opt, batch):
            with torch.no_grad():  # As SAM does, which comes back before its step.
                (parameter, *_) = net.parameters()
                parameter.add_(1)
            loss_of(net, batch).backward()
            with torch.no_grad():
                parameter.copy_(Net(None, 2 * 4 + 3).top[0].weight)
            opt.zero_grad()
            batch.zero_grad()
            self.step(run, net, opt, batch, loss_of(net, batch))
        plan = random_batches(1)
        _, expected = self.train(plan, random_tables(ta=4, tb=4), body=once)
        for body in (in_a_closure, in_two_passes):
            net, fake = self.train(plan, random_tables(ta=4, tb=4), body=body)
            self.assertEqual(fake.steps[0]['loss_sum'], expected.steps[0]['loss_sum'])
            for name, (_, gradients, _) in expected.steps[0]['tables'].items():
                self.assert_equal_bits(fake.steps[0]['tables'][name][1], gradients)

    def test_a_skipped_batch_changes_nothing(self):
        plan, tables = random_batches(3), random_tables(ta=4, tb=4)

        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            if batch.step == 1:
                loss.backward()
                opt.zero_grad()
                run.skip()
            else:
                self.step(run, net, opt, batch, loss)
        net, fake = self.train(plan, tables, body=body)
        weights, dense, _ = train_plainly([plan[0], plan[2]], tables, BOTH)
        for name, expected in weights.items():
            self.assert_equal_bits(fake.server.tables[name], expected)
        for ours, expected in zip(net.top.parameters(), dense):
            self.assert_equal_bits(ours, expected)
        self.assertEqual([record['flags'] for record in fake.steps], [0, 2, 0])

    def test_an_empty_batch_is_skipped_by_itself(self):
        plan = random_batches(3)
        plan[1] = FakeBatch({'a': [], 'b': []}, np.zeros((0, 3), np.float32), size=0)
        seen = []

        def body(run, net, opt, batch):
            seen.append(batch.step)
            self.step(run, net, opt, batch, loss_of(net, batch))
        _, fake = self.train(plan, random_tables(ta=4, tb=4), body=body)
        self.assertEqual(seen, [0, 2])
        self.assertEqual([record['flags'] for record in fake.steps], [0, 2, 0])

    def test_a_step_without_an_optimizer_step_is_refused(self):
        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            if batch.step == 1:
                with self.assertRaisesRegex(thermocline.Error, "Step 1: the tracked optimizer 'opt' has not stepped"):
                    run.step(loss)
            opt.step()
            opt.zero_grad()
            run.step(loss)
        _, fake = self.train(random_batches(2), random_tables(ta=4, tb=4), body=body)
        self.assertEqual(len(fake.steps), 2)

    def test_optimizers_are_watched_beside_schedulers(self):
        def make_first(run):
            net = Net(run.embeddings(), 2 * 4 + 3)
            net.opt = torch.optim.SGD(net.parameters(), lr=0.1)
            net.sched = torch.optim.lr_scheduler.StepLR(net.opt, 1, 0.5)
            run.track(opt2=net.opt)
            net.late = torch.optim.lr_scheduler.StepLR(net.opt, 1, 0.5)
            return net

        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            opt.step()
            with self.assertRaisesRegex(thermocline.Error, "'opt2' has not stepped"):
                run.step(loss)
            net.opt.step()
            opt.zero_grad()
            run.step(loss)
            net.sched.step()
            net.late.step()
        net, _ = self.train(random_batches(2), random_tables(ta=4, tb=4), body=body, make=make_first)
        self.assertEqual(net.opt.param_groups[0]['lr'], 0.1 / 16)

    def test_no_gradient_is_not_a_gradient_of_zero(self):
        """Adam moves a row with a gradient of zero by its momentum; a row without one stays."""
        plan = [FakeBatch({'a': [0, 1], 'b': [0, 1]}, np.zeros((2, 3), np.float32)),
                FakeBatch({'a': [0, 1], 'b': [0, 1]}, np.zeros((2, 3), np.float32)),
                FakeBatch({'a': [0, 1], 'b': [0, 1]}, np.zeros((2, 3), np.float32))]

        class Parts(nn.Module):
            def __init__(self, run):
                super().__init__()
                self.a, self.b = run.embeddings(['a']), run.embeddings(['b'])
                self.scale = nn.Parameter(torch.ones(1))

        kept = {}

        def body(run, net, opt, batch):
            loss = net.a(batch).sum() * net.scale.sum()
            if batch.step == 0:
                loss = loss + net.b(batch).sum()
            elif batch.step == 1:
                loss = loss * 0.0 + net.b(batch).sum() * 0.0  # Zeros, for both.
            else:
                net.b(batch)  # A forward pass that no backward pass reaches.
            for name, weights in self.fakes[-1].server.tables.items():
                kept[batch.step, name] = weights.clone()
            self.step(run, net, opt, batch, loss)
        _, fake = self.train(plan, random_tables(ta=4, tb=4), body=body, optimizer='adam', make=Parts)
        has = [{name: bool(each[2].any()) for name, each in record['tables'].items()} for record in fake.steps]
        self.assertEqual(has, [{'ta': True, 'tb': True}, {'ta': True, 'tb': True}, {'ta': True, 'tb': False}])
        self.assertFalse(torch.equal(kept[1, 'tb'], kept[2, 'tb']))  # Moved by a gradient of zero.
        self.assert_equal_bits(kept[2, 'tb'], fake.server.tables['tb'])
        self.assertEqual(fake.server.steps['tb'].tolist()[:3], [2, 2, 0])
        self.assertEqual(fake.server.steps['ta'].tolist()[:3], [3, 3, 0])

    def test_rows_of_other_features_have_no_gradient(self):
        """Two features of one table, of which the model looks one up."""
        features = [FakeFeature('a', 'ta'), FakeFeature('b', 'ta')]
        plan = [FakeBatch({'a': [0, 1], 'b': [1, 2]}, np.zeros((2, 3), np.float32))]

        def make(run):
            return Net(run.embeddings(['b']), 4 + 3)

        def body(run, net, opt, batch):
            self.step(run, net, opt, batch, loss_of(net, batch))
        _, fake = self.train(plan, random_tables(ta=4), features, body, make=make)
        keys, _, has_gradient = fake.steps[0]['tables']['ta']
        self.assertEqual(dict(zip(keys, has_gradient.tolist())), {0: False, 1: True, 2: True})

    def test_gradients_changed_after_a_step_do_not_count(self):
        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            opt.step()
            kept = [leaf.grad for leaf in batch.leaves]
            run.step(loss)
            for gradient in kept:
                gradient.fill_(1e9)
            self.assertTrue(all(leaf.grad is None for leaf in batch.leaves))
            opt.zero_grad()
        plan, tables = random_batches(4), random_tables(ta=4, tb=4)
        _, fake = self.train(plan, tables, body=body)
        weights, _, _ = train_plainly(plan, tables, BOTH)
        for name, expected in weights.items():
            self.assert_equal_bits(fake.server.tables[name], expected)

    def test_gradients_may_be_changed_before_a_step(self):
        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            opt.step()
            for leaf in batch.leaves:
                leaf.grad.zero_()
            run.step(loss)
        tables = random_tables(ta=4, tb=4)
        _, fake = self.train(random_batches(1), tables, body=body)
        for name, expected in tables.items():
            self.assert_equal_bits(fake.server.tables[name], expected)

    def test_gradients_may_be_sparse(self):
        """The gradients of the rows, and of tables that the script has beside."""
        plan, results = random_batches(2), []
        for is_sparse in (False, True):
            def make(run):
                net = nn.Module()
                net.embeddings = run.embeddings()
                torch.manual_seed(1)
                net.beside = nn.Embedding(5, 4, sparse=is_sparse)
                return net

            def body(run, net, opt, batch):
                loss = F.embedding(torch.tensor([0, 1, 1]), batch.leaves[0], sparse=is_sparse).square().sum() \
                    + net.beside(torch.tensor([batch.step, 4])).square().sum()
                self.step(run, net, opt, batch, loss)
            results.append(self.train([*plan, ('save',)], random_tables(ta=4, tb=4), body=body, make=make)[1])
        for name, weights in results[0].server.tables.items():
            self.assert_equal_bits(results[1].server.tables[name], weights)
        self.assertEqual(results[0].states, results[1].states)

    def test_a_backward_pass_after_the_step_is_refused(self):
        def body(run, net, opt, batch):
            loss, late = loss_of(net, batch), net.embeddings(batch).sum()
            run.backward(loss)
            if batch.closes:
                opt.step()
                run.step()
                with self.assertRaisesRegex(thermocline.Error, 'Step 0 is closed, and a backward pass reaches its'):
                    late.backward()
        for accumulate in (1, 2):
            self.gradients_of(body, accumulate=accumulate)

    @unittest.skipUnless(torch.distributed.is_available(), 'this PyTorch has no torch.distributed')
    def test_a_module_of_distributed_data_parallel_trains_the_same(self):
        torch.distributed.init_process_group('gloo', init_method='file://%s/store' % self.folder, rank=0, world_size=1)
        try:
            plan, tables = random_batches(4), random_tables(ta=4, tb=4)
            net, fake = self.train([*plan, ('save',)], tables, make=lambda run: nn.parallel.DistributedDataParallel(
                Net(run.embeddings(), 2 * 4 + 3)))
        finally:
            torch.distributed.destroy_process_group()
        weights, dense, _ = train_plainly(plan, tables, BOTH)
        for name, expected in weights.items():
            self.assert_equal_bits(fake.server.tables[name], expected)
        for ours, expected in zip(net.parameters(), dense):
            self.assert_equal_bits(ours, expected)
        self.assertIn(b'"net.top.0.weight"', fake.states[0])

    def test_learning_rates_come_from_the_script(self):
        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            opt.step()
            if batch.step == 0:
                for rate in (-0.1, math.inf, math.nan):
                    with self.assertRaisesRegex(thermocline.Error, 'learning rate is a finite number'):
                        run.step(loss, learning_rate=rate)
            run.step(loss, learning_rate=0.25 / (batch.step + 1))
        _, fake = self.train(random_batches(2), random_tables(ta=4, tb=4), body=body)
        self.assertEqual([record['rate'] for record in fake.steps], [0.25, 0.125])

    # A batch that is kept
    # ------------------------------------------------------------------------------------------------------------------

    def test_kept_memory_is_not_used_again(self):
        """Whatever refers to a batch's memory keeps its slot; a copy does not."""
        makers = {
            'batch': lambda batch: batch,
            'tensor': lambda batch: batch.numeric,
            'view': lambda batch: batch.label.view(2, -1)[1],
            'detached': lambda batch: batch.numeric.detach().t(),
            'numpy': lambda batch: batch.label.numpy()[1:],
            'rows': lambda batch: batch.leaves[0],
            'graph': lambda batch: (batch.leaves[0] * batch.leaves[0]).sum(),
            'deep numpy': lambda batch: memoryview(batch.label.detach().view(-1, 1).numpy()),
        }
        for name, maker in makers.items():
            with self.subTest(name):
                self.keep(maker, True)
        copies = {
            'clone': lambda batch: batch.numeric.clone(),
            'clone of a view': lambda batch: batch.numeric[1:, :2].clone(),
            'deep copy': lambda batch: copy.deepcopy(batch.label),
            'nothing': lambda batch: None,
        }
        for name, maker in copies.items():
            with self.subTest(name):
                self.keep(maker, False)

    def keep(self, maker, keeps):
        kept = []

        def body(run, net, opt, batch):
            if batch.step == 1:
                kept.append(maker(batch))
            self.step(run, net, opt, batch, loss_of(net, batch))
            if batch.step == 2:  # The loop's variable has let go of it.
                gc.collect()
        _, fake = self.train(random_batches(6), random_tables(ta=4, tb=4), body=body)
        slot = fake.steps[1]['slot']
        later = [record['slot'] for record in fake.steps[2:]]
        if keeps:
            self.assertNotIn(slot, later)
            self.assertNotIn(slot, fake.releases)
        else:
            self.assertIn(slot, later)

    def test_kept_batches_have_their_values_after_the_run(self):
        kept = []

        def body(run, net, opt, batch):
            kept.append((batch, batch.numeric.clone(), batch.leaves[0].detach().clone()))
            self.step(run, net, opt, batch, loss_of(net, batch))
        net, _ = self.train(random_batches(5), random_tables(ta=4, tb=4), body=body)
        gc.collect()
        for batch, numeric, rows in kept:
            self.assert_equal_bits(batch.numeric, numeric)
            self.assert_equal_bits(batch.leaves[0].detach(), rows)
            with torch.no_grad():
                self.assertEqual(net(batch).shape, (6,))

    def test_many_kept_batches_are_pointed_out(self):
        """Losses with their graphs keep their batches; their values do not."""
        for keep, num_warnings in ((lambda loss: loss, 1), (lambda loss: loss.detach(), 0)):
            losses = []

            def body(run, net, opt, batch):
                losses.append(loss_of(net, batch))
                self.step(run, net, opt, batch, losses[-1])
                losses[-1] = keep(losses[-1])
            _, fake = self.train(random_batches(1) * 105, random_tables(ta=4, tb=4), body=body)
            self.assertEqual(len(fake.warnings), num_warnings)
            self.assertTrue(all('keeps the memory of 100 batches' in text for text in fake.warnings))

    def test_reference_cycles_do_not_keep_memory(self):
        gc.disable()
        try:
            _, fake = self.train(random_batches(12), random_tables(ta=4, tb=4))
        finally:
            gc.enable()
        self.assertLessEqual(len(fake.slots), 3)


if __name__ == '__main__':
    unittest.main()
