"""The examples, in the test's own process."""
import contextlib
import io
import os
import runpy
import unittest
import unittest.mock

from fake_worker import PACKAGE, FakeFeature, FakeServer, ScriptTest, random_batches, random_tables

import thermocline


class ExamplesTest(ScriptTest):
    def run_example(self, name, features, server, plan, held_out, **environment):
        """(the fake worker, what the example prints)."""
        run, fake = self.connect(features, server, plan, held_out=held_out)
        with contextlib.redirect_stdout(io.StringIO()) as out, unittest.mock.patch.dict(os.environ, environment), \
                unittest.mock.patch.object(thermocline, 'worker', lambda: run):
            runpy.run_path(os.path.join(PACKAGE, 'examples', name), run_name='__main__')
        self.assertEqual(self.finish(fake).end, 'done')
        return fake, out.getvalue()

    def check_that_it_learns(self, name, features, batch, rate, parameter, **environment):
        """Trains one batch again and again."""
        tables = random_tables(**{feature.table: 8 for feature in features})
        fake, out = self.run_example(name, features, FakeServer(tables, rate=rate), [batch] * 40 + [('save',)],
                                     [batch, batch], **environment)
        self.assertEqual(out, "{'auc': 0.75, 'logloss': 0.5}\n")
        self.assertEqual(len(fake.steps), 40)
        self.assertLess(fake.steps[-1]['loss_sum'], 0.9 * fake.steps[0]['loss_sum'])
        self.assertEqual([len(scores) for scores in fake.scores], [batch.size] * 2)
        self.assertIn(parameter, fake.states[0])
        return fake

    def test_dlrm(self):
        features = [FakeFeature('C%d' % i, 't%d' % i) for i in range(3)]
        batch, = random_batches(1, size=32, features=[feature.name for feature in features], num_numeric=4)
        self.check_that_it_learns('dlrm.py', features, batch, 1.0, b'net.top.0.weight', DLRM_LAYERS='small')

    def test_dcnv2(self):
        features = [FakeFeature('C%d' % i, 't%d' % i) for i in range(3)]
        batch, = random_batches(1, size=32, features=[feature.name for feature in features], num_numeric=4)
        self.check_that_it_learns('dcnv2.py', features, batch, 1.0, b'net.crosses.2.bias', DCN_LAYERS='small')

    def test_transformer(self):
        features = [FakeFeature(name, name) for name in ('user', 'item', 'year', 'gender', 'occupation')]
        features += [FakeFeature('genres', 'genres', is_list=True), FakeFeature('hist_item', 'item', is_list=True),
                     FakeFeature('hist_year', 'year', is_list=True)]
        batch, = random_batches(1, size=32, features=[feature.name for feature in features[:5]],
                                lists=['genres', 'hist_item'], num_numeric=1)
        batch.keys['hist_year'] = [[key % 3 for key in keys] for keys in batch.keys['hist_item']]
        fake = self.check_that_it_learns('transformer.py', features, batch, 1.0, b'net.encoder.linear1.weight')
        # Every row is looked up, by a target or in a history.
        self.assertTrue(all(has_gradient.all() for _, _, has_gradient in fake.steps[0]['tables'].values()))


if __name__ == '__main__':
    unittest.main()
