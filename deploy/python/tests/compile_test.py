"""Under torch.compile a model with the package's modules is one graph, and trains what it trains eagerly."""
import sys
import unittest

from fake_worker import FakeFeature, FakeServer, ScriptTest, random_batches, random_tables, torch
from torch import nn
from torch.nn import functional as F

if not hasattr(torch, 'compile'):
    print('SKIPPED: PyTorch %s has no torch.compile; $THERMOCLINE_TEST_PYTHON names another interpreter'
          % torch.__version__, flush=True)
    sys.exit(0)

FEATURES = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb'), FakeFeature('list', 'ta', is_list=True)]


class Net(nn.Module):
    """Looks up pooled vectors and sequences."""

    def __init__(self, run):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = run.embeddings()
        self.sequences = run.sequences(['list'], 3)
        self.top = nn.Sequential(nn.Linear(4 * 4 + 3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        vectors, mask = self.sequences(batch)
        mean = vectors.squeeze(2).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.top(torch.cat([self.embeddings(batch).flatten(1), mean, batch.numeric], dim=1)).squeeze(1)


class CompileTest(ScriptTest):
    def train(self, compiles, accumulate=1):
        """(fake worker, number of graphs, number of their calls)."""
        graphs, calls = [], []

        def backend(graph, inputs):
            graphs.append(graph)

            def call(*arguments):
                calls.append(len(graphs))
                return graph.forward(*arguments)
            return call
        torch._dynamo.reset()
        plan = random_batches(8, size=6, features=['a', 'b'], lists=['list'])
        run, fake = self.connect(FEATURES, FakeServer(random_tables(ta=4, tb=4)), [*plan, ('eval', plan[0])])
        with run:
            net = Net(run)
            used = torch.compile(net, backend=compiles, fullgraph=True) if isinstance(compiles, str) else \
                torch.compile(net, backend=backend, fullgraph=True) if compiles else net
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            run.track(net=used, opt=opt)
            for batch in run.batches(evaluate=used, accumulate=accumulate):
                run.backward(F.binary_cross_entropy_with_logits(used(batch), batch.label))
                if batch.closes:
                    opt.step()
                    opt.zero_grad()
                    run.step()
        self.assertEqual(self.finish(fake).end, 'done')
        return fake, len(graphs), len(calls)

    def test_the_graph_stays_whole(self):
        eager, _, _ = self.train(False)
        compiled, graphs, calls = self.train(True)
        self.assertEqual(calls, 9)  # One graph a batch: fullgraph refuses breaks.
        # One for the first shapes, one for any shapes, one without gradients: no batch makes one of its own.
        self.assertLessEqual(graphs, 3)
        for name, weights in eager.server.tables.items():
            self.assert_equal_bits(compiled.server.tables[name], weights)
        for record, expected in zip(compiled.steps, eager.steps):
            self.assertEqual(record['loss_sum'], expected['loss_sum'])

    def test_pieces_compile(self):
        eager, _, _ = self.train(False, accumulate=2)
        compiled, _, calls = self.train(True, accumulate=2)
        self.assertEqual(calls, 17)
        for name, weights in eager.server.tables.items():
            self.assert_equal_bits(compiled.server.tables[name], weights)

    def test_differentiated_graphs_train_the_same(self):
        eager, _, _ = self.train(False)
        compiled, _, _ = self.train('aot_eager')
        for name, weights in eager.server.tables.items():
            torch.testing.assert_close(compiled.server.tables[name], weights, rtol=1e-5, atol=1e-6)


if __name__ == '__main__':
    unittest.main()
