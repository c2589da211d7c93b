"""What a script keeps in checkpoints: the bytes of a state, and a training that goes on from them."""
import collections
import contextlib
import copy
import json
import math
import random
import struct
import unittest

from fake_worker import FakeBatch, FakeFeature, FakeServer, ScriptTest, random_batches, random_tables, np, torch
from torch import nn
from torch.nn import functional as F

import thermocline
from thermocline import _state

BOTH = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb')]


class Net(nn.Module):
    """Has buffers, dropout and tied weights."""

    def __init__(self, embeddings):
        super().__init__()
        self.embeddings = embeddings
        self.norm = nn.BatchNorm1d(11)
        self.top = nn.Sequential(nn.Linear(11, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Linear(8, 1))
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.top[3].weight

    def forward(self, batch):
        x = self.norm(torch.cat([self.embeddings(batch).flatten(1), batch.numeric], dim=1))
        x = self.top[:3](x)
        return self.top[4](self.tied(self.top[3](x)).relu()).squeeze(1)


class Wrapper(nn.Module):
    """Names as DistributedDataParallel and torch.compile make them."""

    def __init__(self, inner, name):
        super().__init__()
        setattr(self, name, inner)
        self.name = name

    def forward(self, *arguments):
        return getattr(self, self.name)(*arguments)


def parse(data):
    """(metadata, {name: (dtype, shape, bytes)}) of a safetensors file, as its specification has it."""
    length, = struct.unpack('<Q', data[:8])
    header = json.loads(data[8:8 + length])
    metadata = header.pop('__metadata__')
    assert all(isinstance(value, str) for value in metadata.values())
    end = 0
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]['data_offsets']):
        first, last = entry['data_offsets']
        assert first == end, 'no gaps'
        end = last
        tensors[name] = (entry['dtype'], entry['shape'], data[8 + length + first:8 + length + last])
    assert 8 + length + end == len(data) and (8 + length) % 8 == 0
    return metadata, tensors


class EncodingTest(unittest.TestCase):
    def test_values_come_back_as_they_are(self):
        state = {'one': {
            'none': None, 'true': True, 'int': -3, 'large': 1 << 80, 'float': 0.1, 'inf': float('inf'), 'text': 'ü\n"',
            'bytes': b'\0\xff', 'list': [1, [2.5, 'x']], 'tuple': (1, (2,)), 'set': {3, 1, 2}, 5: 'five', (1, 'k'): 0,
            'empty': {}, 'ordered': collections.OrderedDict([('z', 1), ('a', 2)]),
            'counter': collections.Counter('aab'), 'size': torch.Size([2, 3])}}
        decoded = _state.decode(_state.encode(state))
        self.assertEqual(decoded, state)
        self.assertIs(type(decoded['one']['ordered']), collections.OrderedDict)
        self.assertIs(type(decoded['one']['counter']), collections.Counter)
        self.assertIs(decoded['one']['true'], True)
        zero = _state.decode(_state.encode({'x': {'minus': -0.0, 'nan': float('nan')}}))['x']
        self.assertEqual(str(zero), "{'minus': -0.0, 'nan': nan}")

    def test_tensors_come_back_as_they_are(self):
        dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool]
        tensors = {str(dtype): (torch.randn(3, 2) * 3).to(dtype) for dtype in dtypes}
        tensors.update(scalar=torch.tensor(2.5), empty=torch.empty(0, 4), transposed=torch.randn(3, 2).t(),
                       step=torch.arange(10)[::3], parameter=nn.Parameter(torch.randn(2)))
        decoded = _state.decode(_state.encode({'x': tensors}))['x']
        self.assertEqual(set(decoded), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual((decoded[name].dtype, decoded[name].shape), (tensor.dtype, tensor.shape))
            self.assertTrue(torch.equal(decoded[name], tensor), name)
            self.assertFalse(decoded[name].requires_grad)

    def test_arrays_come_back_as_they_are(self):
        arrays = {'u4': np.arange(5, dtype=np.uint32), 'f8': np.random.rand(2, 3), 'empty': np.zeros((0, 2), np.int16),
                  'zero dims': np.array(3)}
        scalars = {'scalar': np.float32(0.5), 'bool': np.bool_(True)}
        decoded = _state.decode(_state.encode({'x': {**arrays, **scalars}}))['x']
        for name, array in arrays.items():
            self.assertEqual((decoded[name].dtype, decoded[name].shape), (array.dtype, array.shape))
            self.assertTrue(np.array_equal(decoded[name], array))
            self.assertTrue(decoded[name].flags.writeable)
        self.assertEqual((decoded['scalar'], decoded['bool']), (0.5, True))

    def test_equal_states_have_equal_bytes(self):
        weight = torch.randn(4, 3)
        first = {'net': {'b': weight, 'a': 1, 3: 'x', 1: 'y'}, 'opt': {'set': {'q', 'w', 'e'}}}
        second = {'opt': {'set': {'e', 'q', 'w'}}, 'net': {1: 'y', 'a': 1, 'b': weight.clone(), 3: 'x'}}
        self.assertEqual(_state.encode(first), _state.encode(second))
        self.assertEqual(_state.encode(_state.decode(_state.encode(first))), _state.encode(first))
        second['net']['b'][0, 0] += 1
        self.assertNotEqual(_state.encode(first), _state.encode(second))

    def test_the_bytes_are_a_safetensors_file(self):
        net = Net(nn.Identity())
        opt = torch.optim.Adam(net.parameters())
        net.top(torch.randn(2, 11)).sum().backward()
        opt.step()
        metadata, tensors = parse(_state.encode({'net': net.state_dict(), 'opt': opt.state_dict()}))
        self.assertIn('thermocline', metadata)
        dtype, shape, data = tensors['net.top.0.weight']
        self.assertEqual((dtype, shape), ('F32', [8, 11]))
        self.assertEqual(data, net.top[0].weight.detach().numpy().tobytes())
        self.assertIn('opt.state.2.exp_avg', tensors)
        # What is tied is stored once.
        self.assertEqual([name for name in tensors if name in ('net.tied.weight', 'net.top.3.weight')],
                         ['net.top.3.weight'])

    def test_what_cannot_be_saved_is_named(self):
        class Thing:
            pass
        cases = [
            ({'net': {'parts': [1, {'thing': Thing()}]}}, r'net\.parts\.1\.thing is of the type Thing, which a'),
            ({'sched': {'fn': lambda x: x}}, r'sched\.fn is of the type function'),
            ({'net': {'w': torch.zeros(2, dtype=torch.complex64)}}, r'net\.w is a tensor \(torch.complex64'),
            ({'net': {'w': torch.eye(2).to_sparse()}}, r'net\.w is a tensor .*sparse'),
            ({'net': {'w': torch.zeros(2, device='meta')}}, r'net\.w is a tensor .*meta'),
            ({'net': {'names': np.array(['x'])}}, r'net\.names is of the type numpy.ndarray'),
            ({'net': {Thing(): 1}}, r'net \(a key\) is of the type Thing'),
            ({'net': {'dtype': torch.float32}}, r'net\.dtype is of the type dtype'),
        ]
        around = {'inner': [{}]}
        around['inner'][0]['again'] = around
        cases.append(({'net': around}, r'net\.inner\.0\.again contains itself'))
        for state, message in cases:
            with self.subTest(message), self.assertRaisesRegex(thermocline.Error, message):
                _state.encode(state)

    def test_damaged_bytes_are_refused(self):
        data = _state.encode({'x': {'a': torch.arange(10), 'b': 'text'}})
        for damaged in (b'', data[:20], data[:-8], b'\xff' * len(data), data.replace(b'I64', b'I65'),
                        data.replace(b'thermocline', b'thermoclinE')):
            with self.assertRaisesRegex(thermocline.Error, 'in the checkpoint is damaged'):
                _state.decode(damaged)

    def test_names_are_plain(self):
        self.assertEqual(_state.plain_name('module._orig_mod.top.0.weight'), 'top.0.weight')
        self.assertEqual(_state.plain_name('top._orig_mod.weight'), 'top.weight')
        self.assertEqual(_state.plain_name('submodule.weight'), 'submodule.weight')
        # A module that has a part named `module` of its own.
        self.assertEqual(_state.plain_names(['weight', 'module.weight', 'module.bias']),
                         {'weight': 'weight', 'module.weight': 'module.weight', 'module.bias': 'bias'})


class ResumeTest(ScriptTest):
    def script(self, run, steps=100, wrap=lambda net: net, random_numbers=None):
        """Trains with all that has a state; returns the net."""
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        net = Net(run.embeddings())
        wrapped = wrap(net)
        opt = torch.optim.Adam(net.parameters(), lr=0.01)
        schedulers = {
            'step': torch.optim.lr_scheduler.StepLR(opt, 3, 0.5),
            'multi': torch.optim.lr_scheduler.MultiStepLR(opt, [2, 5], 0.9),
            'lambda': torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.98 ** step),
            'cosine': torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20),
            'cycle': torch.optim.lr_scheduler.OneCycleLR(opt, 0.02, total_steps=50),
        }
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
        run.track(net=wrapped, opt=opt, plateau=plateau, **schedulers)
        for batch in run.batches():
            # Random states of all three count for the bits.
            numeric = batch.numeric * random.random() + float(np.random.rand())
            if random_numbers is not None:
                random_numbers.append(float(numeric.sum()))
            loss = F.binary_cross_entropy_with_logits(wrapped(batch), batch.label)
            loss.backward()
            opt.step()
            opt.zero_grad()
            run.step(loss)
            for scheduler in schedulers.values():
                scheduler.step()
            plateau.step(float(loss.detach()))
        return net

    def train(self, plan, server=None, wrap=lambda net: net, facts=None, random_numbers=None):
        run, fake = self.connect(BOTH, server or FakeServer(random_tables(ta=4, tb=4), 'adam'), plan, facts=facts)
        with run:
            net = self.script(run, wrap=wrap, random_numbers=random_numbers)
        self.assertEqual(self.finish(fake).end, 'done')
        return net, fake

    def test_a_training_goes_on_with_the_same_bits(self):
        batches = random_batches(9)
        numbers = []
        net, fake = self.train(batches, random_numbers=numbers)
        for loads in (True, False):  # The state may come with track(), or with the first batch.
            with self.subTest(loads=loads):
                server = FakeServer(random_tables(ta=4, tb=4), 'adam')
                _, first = self.train([*batches[:5], ('save',)], server)
                torch.rand(100)
                later_numbers = []
                later, second = self.train([('load', first.states[0]), *batches[5:], ('save',)], server,
                                           facts={'start_step': 5, 'loads': loads}, random_numbers=later_numbers)
                self.assertEqual(later_numbers, numbers[5:])
                self.assertEqual([record['loss_sum'] for record in second.steps],
                                 [record['loss_sum'] for record in fake.steps[5:]])
                for ours, expected in zip(later.state_dict().values(), net.state_dict().values()):
                    self.assert_equal_bits(ours, expected)
                for name, weights in fake.server.tables.items():
                    self.assert_equal_bits(server.tables[name], weights)
                # And the checkpoint of the whole training has the same bytes.
                _, whole = self.train([*batches, ('save',)])
                self.assertEqual(second.states[0], whole.states[0])

    def test_a_state_is_that_of_a_step_s_end(self):
        """Also the changes that the loop's body makes after run.step()."""
        _, fake = self.train([*random_batches(2), ('save',)])
        state = _state.decode(fake.states[0])
        self.assertEqual(state['step']['last_epoch'], 2)
        self.assertEqual(set(state), {'net', 'opt', 'plateau', 'step', 'multi', 'lambda', 'cosine', 'cycle', '_python',
                                      '_torch', '_numpy'})

    def test_generators_that_were_not_used_are_not_kept(self):
        """They may have begun anywhere, and equal trainings have equal checkpoints."""
        uses = {'_python': random.random, '_numpy': np.random.rand, '_torch': lambda: torch.rand(1)}
        for used in ([], ['_python'], ['_numpy'], ['_torch'], list(uses)):
            run, fake = self.connect(BOTH, FakeServer(random_tables(ta=4, tb=4)), [*random_batches(1), ('save',)])
            with run:
                for _ in run.batches():
                    for name in used:
                        uses[name]()
                    run.skip()
            self.assertEqual(set(_state.decode(self.finish(fake).states[0])), set(used))

    def test_names_do_not_depend_on_wrappers(self):
        batches = random_batches(4)
        plain_net, plain = self.train([*batches, ('save',)])
        wrappers = {'ddp': lambda net: Wrapper(net, 'module'), 'compile': lambda net: Wrapper(net, '_orig_mod'),
                    'both': lambda net: Wrapper(Wrapper(net, '_orig_mod'), 'module')}

        def wrap_part(net):
            net.norm = Wrapper(net.norm, '_orig_mod')
            return net
        wrappers['part'] = wrap_part
        for name, wrap in wrappers.items():
            with self.subTest(name):
                _, wrapped = self.train([*batches, ('save',)], wrap=wrap)
                self.assertEqual(wrapped.states, plain.states)
                net, _ = self.train([('load', plain.states[0])], wrap=wrap)
                for ours, expected in zip(net.state_dict().values(), plain_net.state_dict().values()):
                    self.assert_equal_bits(ours, expected)

    def test_a_state_of_no_bytes_is_none(self):
        net, fake = self.train([('load', b''), *random_batches(2)])
        expected, _ = self.train(random_batches(2))
        for ours, theirs in zip(net.state_dict().values(), expected.state_dict().values()):
            self.assert_equal_bits(ours, theirs)

    def test_a_state_that_does_not_fit_is_refused(self):
        run, fake = self.connect([], FakeServer({}), [('save',)])
        with run:
            run.track(net=nn.Linear(3, 2))
            list(run.batches())
        self.finish(fake)
        run, other = self.connect([], FakeServer({}), [('load', fake.states[0])])
        with self.assertRaisesRegex(thermocline.Error, "state of 'net' does not fit the Linear of this script: .*"):
            with run:
                run.track(net=nn.Linear(4, 2))
        self.assertIn('size mismatch for weight', self.finish(other).end)

    def test_a_state_of_another_optimizer_is_refused(self):
        net = nn.Linear(3, 2)

        def state_of(kind):
            opt = kind(net.parameters(), lr=0.1)
            net(torch.ones(1, 3)).sum().backward()
            opt.step()
            return _state.encode({'opt': opt.state_dict()})
        kinds = {'SGD': 'dampening', 'Adam': 'betas', 'Adagrad': 'lr_decay', 'RMSprop': 'alpha'}
        for name, lacks in kinds.items():
            for other in kinds:
                run, fake = self.connect([], FakeServer({}), [('load', state_of(getattr(torch.optim, other)))])
                with contextlib.ExitStack() as stack:
                    if other != name:
                        stack.enter_context(self.assertRaisesRegex(
                            thermocline.Error, "state of 'opt' does not fit the %s of this script: it has no .*, and "
                                               'is of another optimizer' % name))
                    stack.enter_context(run)
                    run.track(opt=getattr(torch.optim, name)(net.parameters(), lr=0.1))
                    list(run.batches())
                self.finish(fake)
                if other != name:
                    self.assertIn(lacks, fake.end.splitlines()[-1])

    def test_what_is_not_finite_is_not_saved(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(3)
                self.register_buffer('mask', torch.full((2, 2), -math.inf))  # It is meant so.
                self.register_buffer('missing', torch.full((1,), math.nan))
                self.short = nn.Parameter(torch.ones(2, dtype=torch.float16))
                self.fixed = nn.Parameter(torch.full((2,), math.inf), requires_grad=False)

        def change(number):
            def changes(net, opt):
                net.fixed.data[0] = math.nan
                tensors = [net.norm.weight, net.norm.running_mean, net.short, opt.state[net.norm.weight]['exp_avg']]
                if number < len(tensors):
                    tensors[number].data[1] = (math.inf, math.nan, -math.inf, math.nan)[number]
            return changes
        messages = ["'net' cannot be saved: norm.weight holds inf",
                    None,  # It is not trained.
                    "'net' cannot be saved: short holds inf", "'opt' cannot be saved: state.0.exp_avg holds nan", None]
        for number, message in enumerate(messages):
            batch = FakeBatch({}, np.ones((2, 3), np.float32), size=2)
            run, fake = self.connect([], FakeServer({}), [batch, ('save',)],
                                     facts={'start_step': 4})
            with contextlib.ExitStack() as stack:
                if message:
                    stack.enter_context(self.assertRaisesRegex(thermocline.Error, 'Step 4: the tracked ' + message))
                stack.enter_context(run)
                net = Wrapper(Net(), 'module')
                opt = torch.optim.Adam(net.module.norm.parameters())
                run.track(net=net, opt=opt)
                for batch in run.batches():
                    loss = net.module.norm(batch.numeric).sum()
                    loss.backward()
                    opt.step()
                    run.step(loss)
                    change(number)(net.module, opt)
            self.assertEqual(self.finish(fake).states != [], message is None)

    def test_a_state_that_is_too_large_is_refused(self):
        net = nn.Linear(100, 100, bias=False)
        limit = r'What is tracked has %s MiB \(%s\), and a checkpoint takes %s MiB of a script, .*cluster.max_pending_s'
        run, fake = self.connect([], FakeServer({}), [], facts={'max_state_bytes': 65536})
        with self.assertRaisesRegex(thermocline.Error, limit % ('0.1', "'b' 0.0 MiB, 'a' 0.0 MiB", '0.1')):
            with run:
                run.track(a=net)
                run.track(b=nn.Linear(100, 101, bias=False))
        self.assertIn('cluster.max_pending_size', self.finish(fake).end)
        # An optimizer has a state when it has stepped.
        run, fake = self.connect([], FakeServer({}), [FakeBatch({}, np.ones((2, 100), np.float32), size=2), ('save',)],
                                 facts={'max_state_bytes': 65536})
        with self.assertRaisesRegex(thermocline.Error, limit % ('0.1', "'opt' 0.1 MiB, 'net' 0.0 MiB", '0.1')):
            with run:
                opt = torch.optim.Adam(net.parameters())
                run.track(net=net, opt=opt)
                for batch in run.batches():
                    loss = net(batch.numeric).sum()
                    loss.backward()
                    opt.step()
                    run.step(loss)
        self.finish(fake)

    def test_objects_that_only_one_side_has_are_named(self):
        run, fake = self.connect(BOTH, FakeServer(random_tables(ta=4, tb=4)), [('save',)])
        with run:
            run.track(net=nn.Linear(3, 2), other=nn.Linear(1, 1))
            list(run.batches())
        self.finish(fake)
        run, fake = self.connect(BOTH, FakeServer(random_tables(ta=4, tb=4)),
                                 [('load', fake.states[0]), *random_batches(1), ('save',)])
        with run:
            run.track(net=nn.Linear(3, 2), new=nn.Linear(1, 1))
            for _ in run.batches():
                run.skip()
        self.finish(fake)
        self.assertEqual(fake.warnings,
                         ["The checkpoint has no state of 'new', which begins anew.",
                          'The checkpoint has states of objects that this script does not track: other. The next '
                          'checkpoint is without them.'])
        self.assertEqual(set(_state.decode(fake.states[0])), {'net', 'new', '_torch'})

    def test_modules_know_the_version_of_their_state(self):
        class Versioned(nn.Linear):
            _version = 3

            def _load_from_state_dict(self, state, prefix, metadata, *others):
                self.loaded = metadata.get('version')
                super()._load_from_state_dict(state, prefix, metadata, *others)
        run, fake = self.connect([], FakeServer({}), [('save',)])
        with run:
            run.track(net=Versioned(1, 1))
            list(run.batches())
        self.finish(fake)
        run, fake = self.connect([], FakeServer({}), [('load', fake.states[0])])
        with run:
            net = Versioned(1, 1)
            run.track(net=net)
            list(run.batches())
        self.finish(fake)
        self.assertEqual(net.loaded, 3)

    def test_objects_of_one_s_own_are_tracked(self):
        class Counter:
            def __init__(self):
                self.count = 0

            def state_dict(self):
                return {'count': self.count}

            def load_state_dict(self, state):
                self.count = state['count']
        states = b''
        for expected in (2, 4):
            counter = Counter()
            run, fake = self.connect(BOTH, FakeServer(random_tables(ta=4, tb=4)),
                                     [('load', states), *random_batches(2), ('save',)])
            with run:
                run.track(counter=counter)
                for _ in run.batches():
                    counter.count += 1
                    run.skip()
            states = self.finish(fake).states[0]
            self.assertEqual(counter.count, expected)

    def test_generators_and_schedulers_with_functions_are_tracked(self):
        states, expected = b'', [np.random.default_rng(5).random(4), torch.rand(4, generator=torch.Generator())]
        found = [[], []]
        for part in range(2):
            generators = np.random.default_rng(5), torch.Generator()
            run, fake = self.connect([], FakeServer({}), [('load', states), *[FakeBatch({}, size=1)] * 2, ('save',)])
            with run:
                opt = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
                cyclic = torch.optim.lr_scheduler.CyclicLR(opt, 0.1, 1.0, 2)  # It has a weak reference, or a function.
                run.track(numpy=generators[0], torch=generators[1], cyclic=cyclic)
                self.assertEqual(cyclic.last_epoch, 2 * part)
                for _ in run.batches():
                    opt.step()
                    cyclic.step()
                    found[0].append(generators[0].random())
                    found[1].append(float(torch.rand(1, generator=generators[1])))
                    run.skip()
            states = self.finish(fake).states[0]
        for ours, each in zip(found, expected):
            self.assertEqual(ours, each.tolist())

    def test_what_cannot_be_tracked_is_refused(self):
        run, fake = self.connect([], FakeServer({}), [])
        with run:
            with self.assertRaisesRegex(thermocline.Error, "'lr' cannot be tracked: float has no state_dict"):
                run.track(lr=0.1)
            with self.assertRaisesRegex(thermocline.Error, "'_torch' cannot be tracked: names that begin"):
                run.track(_torch=nn.Linear(1, 1))
            with self.assertRaisesRegex(thermocline.Error, 'lazy.0.weight belongs to a lazy module .* Before run'):
                run.track(lazy=nn.Sequential(nn.LazyLinear(1)))
            run.track(net=nn.Linear(1, 1))
            with self.assertRaisesRegex(thermocline.Error, "There is a tracked object 'net' already"):
                run.track(net=nn.Linear(1, 1))
            list(run.batches())
        self.finish(fake)

    def test_an_object_that_cannot_be_saved_fails_the_script(self):
        """At once where it is there at once, or with the checkpoint."""
        for later in (False, True):
            net = nn.Linear(1, 1)
            bad = {'weight': net.weight, 'extra': {'thing': object()}}
            net.state_dict = lambda: {} if later else bad
            run, fake = self.connect([], FakeServer({}), [('save',)])
            with self.assertRaisesRegex(thermocline.Error, r'net\.extra\.thing is of the type object'):
                with run:
                    try:
                        run.track(net=net)
                    finally:
                        self.assertEqual(fake.states, [])
                    net.state_dict = lambda: bad
                    list(run.batches())
            self.assertIn('net.extra.thing is of the type object', self.finish(fake).end)

    def test_states_are_copies(self):
        """A loaded state shares no memory with the worker's, and a saved one none with the script's."""
        run, fake = self.connect([], FakeServer({}), [('save',)])
        net = nn.Linear(2, 2)
        with run:
            run.track(net=net)
            list(run.batches())
        before = copy.deepcopy(self.finish(fake).states[0])
        net.weight.data.fill_(3.0)
        self.assertEqual(fake.states[0], before)


if __name__ == '__main__':
    unittest.main()
