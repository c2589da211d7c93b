"""A step in pieces, with a GradScaler, and under autocast."""
import collections
import math
import unittest

from fake_worker import FakeBatch, FakeFeature, FakeServer, ScriptTest, random_batches, random_tables, np, torch
from torch import nn
from torch.nn import functional as F

import thermocline

FEATURES = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb', is_list=True, pooling='mean')]
NUM_INPUTS = 2 * 4 + 3


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = run.embeddings()
        self.top = nn.Sequential(nn.Linear(NUM_INPUTS, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        return self.top(torch.cat([self.embeddings(batch).flatten(1), batch.numeric], dim=1)).squeeze(1)


def loss_of(net, batch):
    return F.binary_cross_entropy_with_logits(net(batch), batch.label)


class FakeScaler:
    """torch.cuda.amp.GradScaler as it works on a GPU, for tensors of the host."""

    def __init__(self, scale=1024.0, fails_at=()):
        self.scale_now, self.fails_at, self.updates = scale, fails_at, 0
        self.found = collections.defaultdict(dict)
        self.done = {}

    def is_enabled(self):
        return True

    def scale(self, loss):
        return loss * self.scale_now

    def unscale_(self, optimizer):
        if id(optimizer) in self.done:
            raise RuntimeError('unscale_() has already been called on this optimizer since the last update().'
                               if self.done[id(optimizer)] == 'unscaled' else
                               'unscale_() is being called after step().')
        self.done[id(optimizer)] = 'unscaled'
        for group in optimizer.param_groups:
            for parameter in group['params']:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / self.scale_now)
                    is_finite = bool(torch.isfinite(parameter.grad).all())
                    self.found[id(optimizer)]['cpu'] = torch.tensor(
                        max(float(self.found[id(optimizer)].get('cpu', 0.0)), float(not is_finite)))

    def _found_inf_per_device(self, optimizer):
        return self.found[id(optimizer)]

    def step(self, optimizer):
        if self.done.get(id(optimizer)) != 'unscaled':
            self.unscale_(optimizer)
        self.done[id(optimizer)] = 'stepped'
        if not any(float(each) for each in self.found[id(optimizer)].values()):
            optimizer.step()

    def update(self):
        assert self.found, 'No inf checks were recorded prior to update.'
        if any(float(each) for found in self.found.values() for each in found.values()):
            self.scale_now /= 2
        self.updates += 1
        self.found.clear()
        self.done.clear()


class PiecesTest(ScriptTest):
    def train(self, plan, body, accumulate=1, facts=None):
        """A training with SGD; returns (net, fake worker)."""
        run, fake = self.connect(FEATURES, FakeServer(random_tables(ta=4, tb=4)), plan, facts=facts)
        with run:
            net = Net(run)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            run.track(opt=opt)
            for batch in run.batches(accumulate=accumulate):
                body(run, net, opt, batch)
        self.assertEqual(self.finish(fake).end, 'done')
        return net, fake

    @staticmethod
    def body(run, net, opt, batch):
        run.backward(loss_of(net, batch))
        if batch.closes:
            opt.step()
            opt.zero_grad()
            run.step()

    @staticmethod
    def plain(run, net, opt, batch):
        loss = loss_of(net, batch)
        loss.backward()
        opt.step()
        opt.zero_grad()
        run.step(loss)

    # Pieces
    # ------------------------------------------------------------------------------------------------------------------

    def test_pieces_train_what_the_batch_trains(self):
        plan = random_batches(6, size=11, features=['a'], lists=['b'])
        net, fake = self.train(plan, self.plain)
        for accumulate in (2, 3, 11, 50):
            with self.subTest(accumulate):
                in_pieces, pieces_fake = self.train(plan, self.body, accumulate)
                for name, weights in fake.server.tables.items():
                    torch.testing.assert_close(pieces_fake.server.tables[name], weights, rtol=1e-5, atol=1e-6)
                for ours, expected in zip(in_pieces.parameters(), net.parameters()):
                    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
                for ours, expected in zip(pieces_fake.steps, fake.steps):
                    self.assertAlmostEqual(ours['loss_sum'], expected['loss_sum'], places=5)
                    for name, (keys, _, has_gradient) in expected['tables'].items():
                        self.assertEqual(ours['tables'][name][0], keys)
                        self.assert_equal_bits(ours['tables'][name][2], has_gradient)

    def test_one_piece_has_the_bits_of_a_batch(self):
        plan = random_batches(6, size=11, features=['a'], lists=['b'])
        net, fake = self.train(plan, self.plain)
        same, same_fake = self.train(plan, self.body)
        for name, weights in fake.server.tables.items():
            self.assert_equal_bits(same_fake.server.tables[name], weights)
        for ours, expected in zip(same.parameters(), net.parameters()):
            self.assert_equal_bits(ours, expected)
        self.assertEqual([record['loss_sum'] for record in same_fake.steps],
                         [record['loss_sum'] for record in fake.steps])

    def test_each_sample_counts_alike_in_a_short_step(self):
        """As in native jobs: the gradient of a step of fewer samples is smaller in that measure."""
        plan = random_batches(1, size=8, features=['a'], lists=['b'])
        short = [FakeBatch({name: keys[:3] for name, keys in plan[0].keys.items()}, plan[0].numeric[:3],
                           plan[0].labels[:3])]

        def weighted(run, net, opt, batch):
            self.assertEqual((batch.share, run.job.batch_size), (3 / 8, 8))
            loss = loss_of(net, batch)
            (loss * batch.share).backward()
            opt.step()
            run.step(loss)
        before = []
        whole, whole_fake = self.train(short, lambda run, net, opt, batch: (
            before.extend(parameter.detach().clone() for parameter in net.parameters()),
            self.plain(run, net, opt, batch)))
        for accumulate, body in ((1, self.body), (2, self.body), (1, weighted)):
            net, fake = self.train(short, body, accumulate, facts={'batch_size': 8})
            for name, (_, gradients, _) in whole_fake.steps[0]['tables'].items():
                torch.testing.assert_close(fake.steps[0]['tables'][name][1], gradients * (3 / 8), rtol=1e-5, atol=1e-7)
            for ours, expected, first in zip(net.parameters(), whole.parameters(), before):
                torch.testing.assert_close(ours - first, (expected - first) * (3 / 8), rtol=1e-4, atol=1e-7)
            self.assertAlmostEqual(fake.steps[0]['loss_sum'], whole_fake.steps[0]['loss_sum'], places=5)

    def test_the_pieces_are_of_near_equal_size(self):
        sizes, shares, values = [], [], []

        def body(run, net, opt, batch):
            sizes.append(batch.size)
            shares.append(batch.share)
            values.append((batch.numeric.clone(), batch.label.clone(), batch.weight.clone(), net.embeddings(batch)))
            self.body(run, net, opt, batch)
        plan = random_batches(1, size=11, features=['a'], lists=['b'])
        plan[0].weights = np.arange(11, dtype=np.float32)
        self.train(plan, body, 4)
        self.assertEqual(sizes, [2, 3, 3, 3])
        self.assertEqual(shares, [size / 11 for size in sizes])
        for i, expected in enumerate((plan[0].numeric, plan[0].labels, plan[0].weights)):
            self.assertTrue(np.array_equal(torch.cat([value[i] for value in values]).numpy(), expected))
        whole = []
        self.train(plan, lambda run, net, opt, batch: (whole.append(net.embeddings(batch)),
                                                       self.plain(run, net, opt, batch)))
        self.assert_equal_bits(torch.cat([value[3] for value in values]), whole[0])

    def test_a_piece_needs_its_weight(self):
        def body(run, net, opt, batch):
            with self.assertRaisesRegex(thermocline.Error, 'Step 0 has 2 pieces, .* call run.backward'):
                loss_of(net, batch).backward()
            net.zero_grad()
            if batch.closes:
                run.skip()
        self.train(random_batches(1, features=['a'], lists=['b']), body, 2)

    def test_a_step_is_closed_after_its_last_piece(self):
        def body(run, net, opt, batch):
            if not batch.closes:
                run.backward(loss_of(net, batch))
                with self.assertRaisesRegex(thermocline.Error, 'Step 0 has another piece: call run.step'):
                    run.step()
            else:
                self.body(run, net, opt, batch)
        _, fake = self.train(random_batches(1, features=['a'], lists=['b']), body, 3)
        self.assertEqual(len(fake.steps), 1)

    def test_a_skipped_piece_ends_its_step(self):
        seen = []

        def body(run, net, opt, batch):
            seen.append((batch.step, batch.size))
            if batch.step == 0 and len(seen) == 2:
                net.zero_grad()
                run.skip()
            else:
                self.body(run, net, opt, batch)
        _, fake = self.train(random_batches(2, size=6, features=['a'], lists=['b']), body, 3)
        self.assertEqual(seen, [(0, 2), (0, 2), (1, 2), (1, 2), (1, 2)])
        self.assertEqual([record['flags'] for record in fake.steps], [2, 0])

    def test_rows_of_a_piece_without_a_backward_pass_have_no_gradient(self):
        plan = [FakeBatch({'a': [0, 1, 2, 0], 'b': [[0], [1], [2], []]}, np.zeros((4, 3), np.float32))]

        def body(run, net, opt, batch):
            if not batch.closes:
                run.backward(loss_of(net, batch))
            else:
                net(batch)
                opt.step()
                run.step()
        _, fake = self.train(plan, body, 2)
        for name in ('ta', 'tb'):
            keys, gradients, has_gradient = fake.steps[0]['tables'][name]
            self.assertEqual(dict(zip(keys, has_gradient.tolist())), {0: True, 1: True, 2: False})

    def test_a_step_needs_a_loss(self):
        def body(run, net, opt, batch):
            loss_of(net, batch).backward()
            opt.step()
            with self.assertRaisesRegex(thermocline.Error, 'Step 0: no loss was given'):
                run.step()
            with self.assertRaisesRegex(thermocline.Error, r'the mean loss .* this is a tensor \[6\]'):
                run.step(net(batch))
            with self.assertRaisesRegex(thermocline.Error, r'the mean loss .* this is a tensor \[6\]'):
                run.backward(net(batch))
            run.step(1.5)
        _, fake = self.train(random_batches(1, features=['a'], lists=['b']), body)
        self.assertEqual(fake.steps[0]['loss_sum'], 9.0)

    def test_there_is_a_piece_or_more(self):
        run, fake = self.connect(FEATURES, FakeServer(random_tables(ta=4, tb=4)), [])
        with run:
            for wrong in (0, 2.5, '2'):
                with self.assertRaisesRegex(thermocline.Error, 'accumulate=%r' % (wrong,)):
                    run.batches(accumulate=wrong)
            self.assertEqual(list(run.batches()), [])
        self.finish(fake)

    # Scalers
    # ------------------------------------------------------------------------------------------------------------------

    def test_a_scaler_changes_no_bit(self):
        """Its scale is a power of 2."""
        plan = random_batches(5, features=['a'], lists=['b'])
        net, fake = self.train(plan, self.plain)
        for accumulate in (1, 3):
            expected, expected_fake = (net, fake) if accumulate == 1 else self.train(plan, self.body, accumulate)
            scaler = FakeScaler()

            def body(run, net, opt, batch):
                loss = loss_of(net, batch)
                run.backward(loss, scaler)
                if batch.closes:
                    self.assertTrue(run.step(scaler=scaler))
                    opt.zero_grad()
            scaled, scaled_fake = self.train(plan, body, accumulate)
            for name, weights in expected_fake.server.tables.items():
                self.assert_equal_bits(scaled_fake.server.tables[name], weights)
            for ours, theirs in zip(scaled.parameters(), expected.parameters()):
                self.assert_equal_bits(ours, theirs)
            self.assertEqual(scaler.updates, 5)
            self.assertEqual([record['loss_sum'] for record in scaled_fake.steps],
                             [record['loss_sum'] for record in expected_fake.steps])

    def test_gradients_that_are_not_finite_skip_the_step_everywhere(self):
        """Whether a row's gradient or a parameter's is not finite."""
        for where in ('rows', 'parameters'):
            with self.subTest(where):
                plan = random_batches(3, features=['a'], lists=['b'])
                scaler, results, before = FakeScaler(), [], []

                def body(run, net, opt, batch):
                    before.append([parameter.detach().clone() for parameter in net.parameters()])
                    loss = loss_of(net, batch)
                    scaler.scale(loss).backward()
                    if batch.step == 1:
                        gradients = [leaf.grad for leaf in batch.leaves] if where == 'rows' else \
                            [parameter.grad for parameter in net.parameters()]
                        gradients[-1].view(-1)[0] = math.inf
                    results.append(run.step(loss, scaler=scaler))
                    opt.zero_grad()
                net, fake = self.train(plan, body)
                self.assertEqual(results, [True, False, True])
                self.assertEqual([record['flags'] for record in fake.steps], [0, 2, 0])
                self.assertEqual(scaler.scale_now, 512.0)
                for ours, same in zip(before[2], before[1]):
                    self.assert_equal_bits(ours, same)

    def test_gradients_may_be_unscaled_and_clipped_before(self):
        plan = random_batches(2, features=['a'], lists=['b'])

        def clipped(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            opt.step()
            opt.zero_grad()
            run.step(loss)
        scaler = FakeScaler()

        def scaled(run, net, opt, batch):
            loss = loss_of(net, batch)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            run.step(loss, scaler=scaler)
            opt.zero_grad()
        expected, _ = self.train(plan, clipped)
        ours, _ = self.train(plan, scaled)
        for one, other in zip(ours.parameters(), expected.parameters()):
            self.assert_equal_bits(one, other)

    def test_a_scaler_steps_only_once(self):
        scaler = FakeScaler()

        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            scaler.scale(loss).backward()
            scaler.step(opt)
            with self.assertRaisesRegex(thermocline.Error, "steps the tracked optimizers itself, and 'opt' has"):
                run.step(loss, scaler=scaler)
            run.skip()
        self.train(random_batches(1, features=['a'], lists=['b']), body)

    def test_a_scaler_beside_the_run_is_refused(self):
        """The rows' gradients would be pushed scaled: where the scaler is tracked, and where it steps an optimizer."""
        for is_tracked in (True, False):
            scaler = FakeScaler()
            scaler.state_dict, scaler.load_state_dict = dict, lambda state: None

            def body(run, net, opt, batch):
                if is_tracked:
                    run.track(scaler=scaler)
                loss = loss_of(net, batch)
                scaler.scale(loss).backward()
                if not is_tracked:
                    torch.optim.lr_scheduler.StepLR(opt, 1)  # It wraps step().
                scaler.step(opt)
                scaler.update()
                with self.assertRaisesRegex(thermocline.Error, 'Step 0: a GradScaler scales .* as well. Call run.step'):
                    run.step(loss)
                run.step(loss, rows=False)
            _, fake = self.train(random_batches(1, features=['a'], lists=['b']), body)
            self.assertFalse(any(has.any() for _, _, has in fake.steps[0]['tables'].values()))

    def test_a_step_may_leave_the_rows_as_they_are(self):
        plan, tables = random_batches(2, features=['a'], lists=['b']), random_tables(ta=4, tb=4)
        for looks_up in (True, False):
            def body(run, net, opt, batch):
                with torch.set_grad_enabled(looks_up):
                    vectors = net.embeddings(batch)
                loss = net.top(torch.cat([vectors.flatten(1), batch.numeric], dim=1)).mean()
                loss.backward()
                before = net.top[0].weight.detach().clone()
                opt.step()
                self.assertFalse(torch.equal(net.top[0].weight, before))
                opt.zero_grad()
                if not looks_up:
                    with self.assertRaisesRegex(thermocline.Error, r'or run.step\(loss, rows=False\) where the rows'):
                        run.step(loss)
                run.step(loss, rows=False)
            _, fake = self.train(plan, body)
            self.assertEqual([record['flags'] for record in fake.steps], [0, 0])  # No skipped step.
            for name, expected in tables.items():
                self.assert_equal_bits(fake.server.tables[name], expected)

    def test_rows_may_be_unscaled_and_clipped_before(self):
        plan = random_batches(3, features=['a'], lists=['b'])

        def clipped(run, net, opt, batch):
            loss = loss_of(net, batch)
            loss.backward()
            if batch.step == 1:
                opt.zero_grad()
                run.skip()
                return
            norms.append(float(nn.utils.clip_grad_norm_([*net.parameters(), *batch.leaves], 0.01)))
            opt.step()
            opt.zero_grad()
            run.step(loss)

        def scaled(run, net, opt, batch):
            loss = loss_of(net, batch)
            scaler.scale(loss).backward()
            run.unscale_(scaler)
            if batch.step == 1:
                opt.zero_grad()
                run.skip()
                return
            norms.append(float(nn.utils.clip_grad_norm_([*net.parameters(), *batch.leaves], 0.01)))
            self.assertTrue(run.step(loss, scaler=scaler))
            opt.zero_grad()
        norms = []
        expected, expected_fake = self.train(plan, clipped)
        self.assertTrue(all(norm > 0.02 for norm in norms))
        scalers = [FakeScaler()]
        if hasattr(torch.amp, 'GradScaler'):
            scalers.append(torch.amp.GradScaler('cpu', init_scale=1024.0))
        for scaler in scalers:
            expected_norms, norms = norms, []
            net, fake = self.train(plan, scaled)
            self.assertEqual(norms, expected_norms)
            for ours, theirs in zip(net.parameters(), expected.parameters()):
                self.assert_equal_bits(ours, theirs)
            for name, weights in expected_fake.server.tables.items():
                self.assert_equal_bits(fake.server.tables[name], weights)

    def test_a_scaler_needs_an_optimizer_that_it_can_step(self):
        run, fake = self.connect([FakeFeature('a', 'ta')], FakeServer(random_tables(ta=3)), [FakeBatch({'a': [1]})])
        with run:
            module = run.embeddings()
            for batch in run.batches():
                loss = module(batch).sum()
                loss.backward()
                with self.assertRaisesRegex(thermocline.Error, r'there is none: call run.track\(opt=optimizer\)'):
                    run.step(loss, scaler=FakeScaler())
                run.track(idle=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
                with self.assertRaisesRegex(thermocline.Error, "reached the parameters of .* optimizer 'idle', which"):
                    run.step(loss, scaler=FakeScaler())
                run.skip()
        self.assertEqual(self.finish(fake).end, 'done')

    def test_a_disabled_scaler_is_none(self):
        """What PyTorch 1.13 makes of a GradScaler where there is no GPU."""
        plan = random_batches(3, features=['a'], lists=['b'])
        _, fake = self.train(plan, self.plain)
        scaler = torch.cuda.amp.GradScaler(enabled=False)

        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            scaler.scale(loss).backward()
            self.assertTrue(run.step(loss, scaler=scaler))
            opt.zero_grad()
        _, scaled_fake = self.train(plan, body)
        for name, weights in fake.server.tables.items():
            self.assert_equal_bits(scaled_fake.server.tables[name], weights)

    @unittest.skipUnless(hasattr(torch.amp, 'GradScaler'), 'this PyTorch has no GradScaler for the CPU')
    def test_a_scaler_of_pytorch_changes_no_bit(self):
        plan = random_batches(5, features=['a'], lists=['b'])
        scaler = torch.amp.GradScaler('cpu', init_scale=1024.0, growth_interval=2)
        scales = []

        def body(run, net, opt, batch):
            loss = loss_of(net, batch)
            scaler.scale(loss).backward()
            if batch.step == 3:
                batch.leaves[0].grad[0, 0] = math.nan
            self.assertEqual(run.step(loss, scaler=scaler), batch.step != 3)
            opt.zero_grad()
            scales.append(scaler.get_scale())
        scaled, fake = self.train(plan, body)
        self.assertEqual(scales, [1024.0, 2048.0, 2048.0, 1024.0, 1024.0])
        expected, expected_fake = self.train([*plan[:3], plan[4]], self.plain)
        for name, weights in expected_fake.server.tables.items():
            self.assert_equal_bits(fake.server.tables[name], weights)
        for ours, theirs in zip(scaled.parameters(), expected.parameters()):
            self.assert_equal_bits(ours, theirs)

    def test_autocast_trains_with_gradients_of_float32(self):
        plan = random_batches(30, size=16, features=['a'], lists=['b'])
        losses = []

        def body(run, net, opt, batch):
            with torch.autocast('cpu', dtype=torch.bfloat16):
                logits = net(batch)
                self.assertEqual(logits.dtype, torch.bfloat16)
                loss = F.binary_cross_entropy_with_logits(logits.float(), batch.label)
            loss.backward()
            self.assertTrue(all(leaf.grad.dtype == torch.float32 for leaf in batch.leaves))
            opt.step()
            opt.zero_grad()
            run.step(loss)
            losses.append(float(loss.detach()))
        _, fake = self.train([plan[0]] * 30, body)
        self.assertLess(losses[-1], 0.95 * losses[0])
        _, again = self.train([plan[0]] * 30, body)
        for name, weights in fake.server.tables.items():
            self.assert_equal_bits(again.server.tables[name], weights)


if __name__ == '__main__':
    unittest.main()
