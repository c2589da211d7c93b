"""What the modules of a run look up."""
import copy
import unittest

from fake_worker import FakeBatch, FakeFeature, FakeServer, ScriptTest, random_tables, np, torch

import thermocline


class EmbeddingsTest(ScriptTest):
    def look_up(self, features, tables, batch, make, then=None):
        """What a module returns for a batch, its loss being the sum of all; (result, tables of the step)."""
        run, fake = self.connect(features, FakeServer(tables), [batch])
        results = []
        with run:
            module = make(run)
            for each in run.batches():
                results.append(module(each))
                if then is not None:
                    then(each, results[0])
                found = results[0][0] if isinstance(results[0], tuple) else results[0]
                sum(vectors.sum() for vectors in (found if isinstance(found, list) else [found])).backward()
                run.step(1.0)
        self.assertEqual(self.finish(fake).end, 'done')
        return results[0], fake.steps[0]['tables']

    def test_bags_are_pooled_as_the_job_says(self):
        tables = random_tables(ta=3, tb=3)
        features = [FakeFeature('one', 'ta'), FakeFeature('sum', 'ta', 'sum', True),
                    FakeFeature('mean', 'tb', 'mean', True), FakeFeature('weighted', 'tb', 'sum', True),
                    FakeFeature('other', 'tb')]
        batch = FakeBatch({'one': [4, 5], 'sum': [[1, 2, 2], []], 'mean': [[3, 6, 1], [3]], 'weighted': [[1, 3], [2]],
                           'other': [7, 7]}, lookup_weights={'weighted': [[0.5, 2.0], [-1.0]]})
        vectors, steps = self.look_up(features, tables, batch, lambda run: run.embeddings())
        a, b = tables['ta'], tables['tb']
        zero = torch.zeros(3)
        expected = torch.stack([
            torch.stack([a[4], a[1] + a[2] + a[2], (b[3] + b[6] + b[1]) / 3, 0.5 * b[1] + 2 * b[3], b[7]]),
            torch.stack([a[5], zero, b[3], -b[2], b[7]])])
        torch.testing.assert_close(vectors.detach(), expected)
        # The gradient of a sum: how often a row counts.
        counts = {'ta': {4: 1, 5: 1, 1: 1, 2: 2}, 'tb': {3: 1 / 3 + 1 + 2, 6: 1 / 3, 1: 1 / 3 + 0.5, 2: -1, 7: 2}}
        for name, (keys, gradients, has_gradient) in steps.items():
            self.assertEqual(set(keys), set(counts[name]))
            self.assertTrue(has_gradient.all())
            torch.testing.assert_close(gradients, torch.tensor([[counts[name][key]] * 3 for key in keys],
                                                               dtype=torch.float32))

    def test_vectors_may_be_changed_in_place(self):
        tables = random_tables(ta=3)
        features = [FakeFeature('a', 'ta'), FakeFeature('b', 'ta')]
        batch = FakeBatch({'a': [1, 2], 'b': [3, 1]})
        for names in (None, ['a', 'b'], ['b', 'a']):  # All features have a way of their own.
            run, fake = self.connect(features, FakeServer(tables), [batch])
            with run:
                module = run.embeddings(names)
                for each in run.batches():
                    vectors = module(each)
                    vectors.mul_(2).add_(1)
                    vectors[0, 0] = 0
                    torch.relu_(vectors.flatten(1)).sum().backward()
                    run.step(1.0)
            self.assertEqual(self.finish(fake).end, 'done')
            keys, gradients, _ = fake.steps[0]['tables']['ta']
            leaf = tables['ta'].clone().requires_grad_()
            places = [[1, 3], [2, 1]] if names != ['b', 'a'] else [[3, 1], [1, 2]]
            expected = leaf[torch.tensor(places)] * 2 + 1
            keep = torch.ones(2, 2, 1)
            keep[0, 0] = 0
            torch.relu(expected * keep).sum().backward()
            torch.testing.assert_close(gradients, leaf.grad[torch.tensor(keys)])

    def test_bags_may_be_changed_in_place(self):
        """One list, several in a batch of one sample, and features whose dims differ."""
        tables = random_tables(ta=3, tb=5)
        one, two = FakeFeature('a', 'ta', 'sum', True), FakeFeature('b', 'ta', 'sum', True)
        single, wide = FakeFeature('c', 'ta'), FakeFeature('d', 'tb')
        cases = [([one], {'a': [[1, 2], [3]]}), ([one, two], {'a': [[1, 2]], 'b': [[2]]}),
                 ([one, single, wide], {'a': [[1, 2], [3]], 'c': [1, 1], 'd': [1, 2]}),
                 ([one, two, wide], {'a': [[1, 2]], 'b': [[2]], 'd': [1]})]
        for features, keys in cases:
            for names in (None, ['a'], [feature.name for feature in features[::-1]]):
                run, fake = self.connect(features, FakeServer(tables), [FakeBatch(keys)])
                with run:
                    module = run.embeddings(names)
                    for batch in run.batches():
                        found = module(batch)
                        parts = found if isinstance(found, list) else [found[:, i] for i in range(found.shape[1])]
                        before = [part.detach().clone() for part in parts]
                        for vectors in found if isinstance(found, list) else [found]:
                            vectors.mul_(2).add_(1)
                        for ours, expected in zip(parts, before):
                            self.assert_equal_bits(ours.detach(), expected * 2 + 1)
                        sum(part.sum() for part in parts).backward()
                        run.step(1.0)
                self.assertEqual(self.finish(fake).end, 'done')
                counts = {'ta': dict.fromkeys(range(10), 0), 'tb': dict.fromkeys(range(10), 0)}
                for feature in features:
                    if names is None or feature.name in names:
                        for each in keys[feature.name]:
                            for key in each if isinstance(each, list) else [each]:
                                counts[feature.table][key] += 2
                for name, (ids, gradients, has_gradient) in fake.steps[0]['tables'].items():
                    for key, gradient, has in zip(ids, gradients, has_gradient):
                        self.assertEqual(bool(has), counts[name][key] > 0)
                        if has:
                            self.assertEqual(gradient.tolist(), [counts[name][key]] * len(gradient))

    @unittest.skipUnless(hasattr(torch, 'set_default_device'), 'this PyTorch has no default device')
    def test_the_default_device_does_not_matter(self):
        features = [FakeFeature('a', 'ta', 'mean', True), FakeFeature('b', 'ta'), FakeFeature('c', 'tb')]
        tables, batch = random_tables(ta=3, tb=5), FakeBatch({'a': [[1, 2, 2], [3]], 'b': [1, 4], 'c': [1, 1]})
        for number, make in enumerate((lambda run: run.embeddings(), lambda run: run.embeddings(['b', 'a']),
                                       lambda run: run.sequences(['a'], 2))):
            used = features if number == 0 else features[:2]
            run, fake = self.connect(used, FakeServer(tables), [batch])
            with run:
                module = make(run)
                with torch.device('meta'):
                    for each in run.batches():
                        found = module(each)
                        parts = found if isinstance(found, list) else [found[0] if number == 2 else found]
                        self.assertEqual({part.device.type for part in [*parts, each.numeric]}, {'cpu'})
                        sum(part.sum() for part in parts).backward()
                        run.step(1.0)
            self.assertEqual(self.finish(fake).end, 'done')

    def test_a_module_of_another_run_is_refused(self):
        kept = []
        for names in (['a'], ['b']):
            run, fake = self.connect([FakeFeature('a', 'ta'), FakeFeature('b', 'tb')],
                                     FakeServer(random_tables(ta=3, tb=3)), [FakeBatch({'a': [1], 'b': [2]})])
            with run:
                kept.append((run.embeddings(names), run.sequences(names, 2)))
                for batch in run.batches():
                    copied = copy.deepcopy(kept[-1][0])  # As torch.optim.swa_utils.AveragedModel does.
                    self.assert_equal_bits(copied(batch), kept[-1][0](batch))
                    for module, maker in zip(kept[0], ('embeddings', 'sequences')):
                        if len(kept) == 2:
                            with self.assertRaisesRegex(thermocline.Error, r'made by another run: call run.%s\(\) '
                                                        % maker):
                                module(batch)
                    run.skip()
            self.assertEqual(self.finish(fake).end, 'done')

    def test_features_are_in_the_order_of_the_call(self):
        tables = random_tables(ta=3, tb=3)
        features = [FakeFeature('a', 'ta'), FakeFeature('bag', 'ta', 'sum', True), FakeFeature('b', 'tb')]
        batch = FakeBatch({'a': [1, 2], 'bag': [[3], [4, 5]], 'b': [6, 7]})
        vectors, steps = self.look_up(features, tables, batch, lambda run: run.embeddings(['b', 'bag', 'a', 'b']))
        a, b = tables['ta'], tables['tb']
        self.assert_equal_bits(vectors.detach(), torch.stack([torch.stack([b[6], a[3], a[1], b[6]]),
                                                              torch.stack([b[7], a[4] + a[5], a[2], b[7]])]))
        torch.testing.assert_close(steps['tb'][1], torch.full((2, 3), 2.0))

    def test_features_of_several_dims_are_a_list(self):
        tables = random_tables(ta=3, tb=5)
        features = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb'), FakeFeature('c', 'ta')]
        batch = FakeBatch({'a': [1, 2], 'b': [3, 3], 'c': [2, 0]})
        vectors, steps = self.look_up(features, tables, batch, lambda run: run.embeddings())
        self.assertEqual([each.shape for each in vectors], [(2, 3), (2, 5), (2, 3)])
        for found, (name, keys) in zip(vectors, [('ta', [1, 2]), ('tb', [3, 3]), ('ta', [2, 0])]):
            self.assert_equal_bits(found.detach(), tables[name][keys])
        self.assertEqual(steps['ta'][0], [1, 2, 0])
        torch.testing.assert_close(steps['ta'][1], torch.tensor([[1.0], [2.0], [1.0]]).expand(3, 3))
        torch.testing.assert_close(steps['tb'][1], torch.full((1, 5), 2.0))

    def test_a_batch_without_any_lookup_has_vectors_of_zero(self):
        features = [FakeFeature('a', 'ta', 'sum', True), FakeFeature('b', 'ta', 'mean', True)]
        batch = FakeBatch({'a': [[], []], 'b': [[], []]})
        vectors, steps = self.look_up(features, random_tables(ta=3), batch, lambda run: run.embeddings())
        self.assert_equal_bits(vectors.detach(), torch.zeros(2, 2, 3))
        self.assertEqual(steps['ta'][0], [])
        (vectors, mask), _ = self.look_up(features, random_tables(ta=3), batch, lambda run: run.sequences(['a'], 4))
        self.assert_equal_bits(vectors.detach(), torch.zeros(2, 4, 1, 3))
        self.assertFalse(mask.any())

    def test_sequences_have_masks(self):
        tables = random_tables(items=2, times=2)
        features = [FakeFeature('item', 'items', is_list=True), FakeFeature('time', 'times', is_list=True),
                    FakeFeature('target', 'items')]
        batch = FakeBatch({'item': [[1, 2], [], [3, 4, 5, 6], [7]], 'time': [[0, 1], [], [2, 3, 4, 5], [9]],
                           'target': [8, 8, 8, 8]})
        masks = []

        def change_in_place(_, result):
            masks.append(result[1].clone())
            result[0].mul_(1)
            result[1].logical_not_()  # As attention wants it; the rows that have a gradient stay the same.
        (vectors, _), steps = self.look_up(features, tables, batch, lambda run: run.sequences(['item', 'time'], 3),
                                           change_in_place)
        self.assertEqual(vectors.shape, (4, 3, 2, 2))
        self.assertEqual(masks[0].tolist(), [[True, True, False], [False] * 3, [True] * 3, [True, False, False]])
        items, times, zero = tables['items'], tables['times'], torch.zeros(2)
        expected = [[(items[1], times[0]), (items[2], times[1]), (zero, zero)],
                    [(zero, zero)] * 3,
                    [(items[4], times[3]), (items[5], times[4]), (items[6], times[5])],
                    [(items[7], times[9]), (zero, zero), (zero, zero)]]
        self.assert_equal_bits(vectors.detach(), torch.stack([torch.stack([torch.stack(pair) for pair in sample])
                                                              for sample in expected]))
        # Row 3 of items and row 2 of times were cut off; the target was not looked up.
        has = {name: {key for key, each in zip(keys, has_gradient.tolist()) if each}
               for name, (keys, _, has_gradient) in steps.items()}
        self.assertEqual(has, {'items': {1, 2, 4, 5, 6, 7}, 'times': {0, 1, 3, 4, 5, 9}})
        for name, (keys, gradients, has_gradient) in steps.items():
            torch.testing.assert_close(gradients[has_gradient], torch.ones(6, 2))

    def test_a_sequence_of_single_values_has_one_entry(self):
        tables = random_tables(ta=2)
        (vectors, mask), _ = self.look_up([FakeFeature('a', 'ta')], tables, FakeBatch({'a': [1, 2]}),
                                          lambda run: run.sequences(['a'], 2))
        self.assertEqual(mask.tolist(), [[True, False], [True, False]])
        self.assert_equal_bits(vectors.detach()[:, 0, 0], tables['ta'][[1, 2]])

    def test_entries_that_are_not_there_harm_no_row(self):
        """A gradient that is not finite at a masked place stays there, and so does a row that is not finite."""
        tables = random_tables(ta=2)
        tables['ta'][5] = float('nan')
        features = [FakeFeature('first', 'ta'), FakeFeature('a', 'ta', is_list=True)]
        batch = FakeBatch({'first': [5, 5], 'a': [[1], [2, 3]]})

        def then(_, result):
            vectors, mask = result
            self.assertTrue(bool(torch.isfinite(vectors).all()))
            (vectors * torch.where(mask, 0.0, float('inf'))[:, :, None, None]).sum().backward(retain_graph=True)
        _, steps = self.look_up(features, tables, batch, lambda run: run.sequences(['a'], 2), then)
        keys, gradients, has_gradient = steps['ta']
        self.assertEqual([key for key, each in zip(keys, has_gradient.tolist()) if each], [1, 2, 3])
        torch.testing.assert_close(gradients[has_gradient], torch.ones(3, 2))

    def test_lists_of_a_sequence_have_one_length(self):
        features = [FakeFeature('item', 'ta', is_list=True), FakeFeature('time', 'ta', is_list=True)]
        batch = FakeBatch({'item': [[1], [2, 3]], 'time': [[1], [2]]})
        with self.assertRaisesRegex(thermocline.Error, 'Step 0, sample 1: the list item has 2 entries and time has 1'):
            self.look_up(features, random_tables(ta=2), batch, lambda run: run.sequences(['item', 'time'], 2))
        self.assertIn('sample 1: the list item has 2 entries', self.finish(self.fakes[-1]).end)

    def test_sequences_have_no_weights(self):
        batch = FakeBatch({'a': [[1], [2]]}, lookup_weights={'a': [[0.5], [1]]})
        with self.assertRaisesRegex(thermocline.Error, "The feature 'a' has weights"):
            self.look_up([FakeFeature('a', 'ta', is_list=True)], random_tables(ta=2), batch,
                         lambda run: run.sequences(['a'], 2))

    def test_numeric_columns_may_be_padded(self):
        batch = FakeBatch({'a': [1, 2]}, numeric=np.arange(16, dtype=np.float32).reshape(2, 8))
        run, fake = self.connect([FakeFeature('a', 'ta')], FakeServer(random_tables(ta=2)), [batch],
                                 facts={'numeric': ['x', 'y', 'z']})
        with run:
            module = run.embeddings()
            for each in run.batches():
                self.assertEqual(each.numeric.tolist(), [[0, 1, 2], [8, 9, 10]])
                module(each).sum().backward()
                run.step(0.0)
        self.finish(fake)

    def test_modules_say_what_they_are(self):
        features = [FakeFeature('a', 'ta'), FakeFeature('b', 'ta', is_list=True)]
        run, fake = self.connect(features, FakeServer(random_tables(ta=2)), [])
        with run:
            self.assertEqual(repr(run.embeddings()), 'Embeddings(a: 2, b: 2)')
            self.assertEqual(repr(run.sequences(['b'], 5)), 'Sequences(b: 2, length=5)')
            self.assertEqual(list(run.embeddings().parameters()), [])
            self.assertEqual(run.embeddings().state_dict(), {})
            list(run.batches())
        self.finish(fake)

    # Wrong calls
    # ------------------------------------------------------------------------------------------------------------------

    def test_unknown_features_are_named(self):
        features = [FakeFeature('user_id', 'ta'), FakeFeature('item_id', 'ta'), FakeFeature('day', 'tb')]
        run, fake = self.connect(features, FakeServer(random_tables(ta=2, tb=3)), [])
        with run:
            with self.assertRaisesRegex(thermocline.Error, "no feature 'usr_id' .*Did you mean 'user_id'?"):
                run.embeddings(['usr_id'])
            with self.assertRaisesRegex(thermocline.Error, "no feature 'zzz' .*It has user_id, item_id, day"):
                run.sequences(['zzz'], 4)
            with self.assertRaisesRegex(thermocline.Error, r"a list of names: \['day'\]"):
                run.embeddings('day')
            with self.assertRaisesRegex(thermocline.Error, 'There is no feature to look up'):
                run.embeddings([])
            with self.assertRaisesRegex(thermocline.Error, 'have one dim, and these have several: user_id has 2, day'):
                run.sequences(['user_id', 'day'], 4)
            for wrong in (0, 2.5, None):
                with self.assertRaisesRegex(thermocline.Error, 'a whole number of 1 or more, and not %s' % wrong):
                    run.sequences(['user_id'], wrong)
            module = run.embeddings()
            with self.assertRaisesRegex(thermocline.Error, 'called with a batch of run.batches.* not with Tensor'):
                module(torch.zeros(3))
            list(run.batches())
        self.finish(fake)

    def test_modules_are_made_before_the_first_batch(self):
        run, fake = self.connect([FakeFeature('a', 'ta')], FakeServer(random_tables(ta=2)), [FakeBatch({'a': [1]})])
        with run:
            for _ in run.batches():
                with self.assertRaisesRegex(thermocline.Error, 'before the first batch'):
                    run.embeddings()
                run.skip()
        self.finish(fake)

    def test_a_job_may_have_no_features(self):
        batch = FakeBatch({}, numeric=np.ones((2, 3), np.float32), size=2)
        run, fake = self.connect([], FakeServer({}), [batch])
        with run:
            with self.assertRaisesRegex(thermocline.Error, 'no feature with embeddings'):
                run.embeddings()
            net = torch.nn.Linear(3, 1)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            run.track(opt=opt)
            for each in run.batches():
                loss = net(each.numeric).mean()
                loss.backward()
                opt.step()
                run.step(loss)
        self.assertEqual(self.finish(fake).end, 'done')


if __name__ == '__main__':
    unittest.main()
