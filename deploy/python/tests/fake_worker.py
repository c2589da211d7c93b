"""A worker for tests of the Python package, and a server that applies what it is sent: both in Python, in a thread.

FakeWorker speaks the protocol of worker/api/script_protocol.h over a socket pair and memory files. It hands out the
batches of a plan, and keeps what the script answers. FakeServer has the rows: tables of keys 0, 1, 2, ..., updated by
SGD or by an Adam that leaves rows without a gradient alone.
"""
from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import mmap
import os
import random
import shutil
import socket
import struct
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True  # The source tree stays as it is.
HERE = os.path.dirname(os.path.realpath(__file__))
PACKAGE = os.path.dirname(HERE)
sys.path.insert(0, PACKAGE)
_RUNFILES = os.path.join(os.environ.get('TEST_SRCDIR', ''), os.environ.get('TEST_WORKSPACE', ''))
LIBRARY = os.environ.get('THERMOCLINE_LIBRARY') or os.path.realpath(
    os.path.join(_RUNFILES, 'worker/api/libthermocline.so'))

try:
    import numpy as np
    import torch
    torch.set_num_threads(1)
except ImportError as error:
    print('SKIPPED: %s; deploy/setup.sh --tests installs it' % error, flush=True)
    sys.exit(0)

DEADLINE_S = 120
PROTOCOL = 3
HEADER = struct.Struct('=IIqQdfIII')  # tc_header
PLACE = struct.Struct('=IIQQ')  # tc_array_place
HELLO, BATCH, SAVE, LOAD, PHASE, END = range(1, 7)
READY, STEP, SCORES, RELEASE, STATE, EVALUATE, FAILED, DONE, WARNING = range(32, 41)
EVALUATES, SKIPS = 1, 2
(NUMERIC, LABELS, WEIGHTS, ROWS, INDICES, OFFSETS, LOOKUP_WEIGHTS, GRADIENTS, HAS_GRADIENT,
 SCORES_ARRAY, OWN_METRIC, SEGMENT_OFFSETS, SEGMENTS, SEGMENT_WEIGHTS) = range(1, 15)
_DTYPES = {INDICES: np.int32, OFFSETS: np.int32, HAS_GRADIENT: np.uint8, SEGMENT_OFFSETS: np.int32, SEGMENTS: np.int32}


def memory_file(data: bytes) -> int:
    """The descriptor of a memory file."""
    fd = os.memfd_create('fake', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


@dataclasses.dataclass
class FakeFeature:
    name: str
    table: str
    pooling: str = 'sum'
    is_list: bool = False


@dataclasses.dataclass
class FakeBatch:
    """keys: by feature, [size] keys, or lists of keys where the feature is a list."""
    keys: dict
    numeric: np.ndarray | None = None
    labels: np.ndarray | None = None
    weights: np.ndarray | None = None
    lookup_weights: dict = dataclasses.field(default_factory=dict)
    size: int = -1

    def __post_init__(self):
        if self.size < 0:
            self.size = len(next(iter(self.keys.values())))
        if self.labels is None:
            self.labels = (np.arange(self.size) % 2).astype(np.float32)


class FakeServer:
    """tables: by name, the initial weights [keys, dim]."""

    def __init__(self, tables, optimizer='sgd', rate=0.1):
        self.tables = {name: torch.as_tensor(weights, dtype=torch.float32).clone() for name, weights in tables.items()}
        self.optimizer = optimizer
        self.rate = rate
        self.moments = {name: torch.zeros(2, *weights.shape) for name, weights in self.tables.items()}
        self.steps = {name: torch.zeros(len(weights), dtype=torch.int64) for name, weights in self.tables.items()}

    def apply(self, table, keys, gradients, rate=None):
        """One update of each of these distinct keys."""
        rate = self.rate if rate is None else rate
        weights = self.tables[table]
        if self.optimizer == 'sgd':
            weights[keys] = weights[keys].add(gradients, alpha=-rate)
            return
        self.steps[table][keys] += 1
        steps = self.steps[table][keys].unsqueeze(1).double()
        first, second = self.moments[table]
        first[keys] = first[keys] * 0.9 + gradients * 0.1
        second[keys] = second[keys] * 0.999 + gradients * gradients * 0.001
        corrected = (first[keys] / (1 - 0.9 ** steps)) / ((second[keys] / (1 - 0.999 ** steps)).sqrt() + 1e-8)
        weights[keys] = weights[keys] - (rate * corrected).float()


class Slot:
    def __init__(self, size):
        self.size = size
        self.fd = os.memfd_create('slot', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.memory = mmap.mmap(self.fd, size)
        self.is_known = False
        self.is_held = False


class FakeWorker(threading.Thread):
    """plan: FakeBatch to train, ('eval', *FakeBatches), ('save',), ('load', bytes), ('phase', dict), ('wait', event),
    ('end', text).
    """

    def __init__(self, features, server, plan, held_out=(), metrics=None, facts=None, version=None):
        super().__init__(daemon=True)
        self.features, self.server, self.plan = features, server, plan
        self.held_out, self.metrics = list(held_out), metrics or {'auc': 0.75, 'logloss': 0.5}
        self.dims = sorted({server.tables[feature.table].shape[1] for feature in features})
        self.num_numeric = max([item.numeric.shape[1] for item in [*plan, *self.held_out]
                                if isinstance(item, FakeBatch) and item.numeric is not None], default=0)
        sizes = [item.size for item in [*plan, *self.held_out] if isinstance(item, FakeBatch)]
        self.facts = {
            'name': 'fake', 'seed': 7, 'rank': 0, 'batch_size': max([1, *sizes]), 'start_step': 0,
            'passes': 1, 'max_steps': 0,
            'numeric': ['x%d' % i for i in range(self.num_numeric)], 'dims': self.dims,
            'features': [{'name': feature.name, 'dim_index': self.dims.index(server.tables[feature.table].shape[1]),
                          'pooling': feature.pooling, 'is_list': feature.is_list} for feature in features],
            'evaluates': any(isinstance(item, tuple) and item[0] == 'eval' for item in plan),
            'loads': any(isinstance(item, tuple) and item[0] == 'load' for item in plan),
            **(facts or {})}
        self.version = version
        self.slots = []
        self.steps = []  # dicts: step, loss_sum, rate, flags, slot, and by table keys, gradients, has_gradient
        self.states = []  # bytes
        self.scores = []  # [size] float32
        self.own_metrics = []  # a number an evaluation
        self.releases = []  # slots
        self.warnings = []
        self.end = None  # 'done', or the text of a failure, or 'closed'
        self.error = None
        self.socket, self.script_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(DEADLINE_S)

    # ------------------------------------------------------------------------------------------------------------------

    def send(self, kind, payload=b'', fd=None, **fields):
        header = HEADER.pack(kind, fields.get('slot', 0), fields.get('step', 0), fields.get('bytes', len(payload)),
                             0.0, 0.0, fields.get('flags', 0), fields.get('count', 0), 0)
        socket.send_fds(self.socket, [header + payload], [] if fd is None else [fd])

    def receive(self):
        """(kind, fields, payload, descriptors) of the next message; releases are carried out, warnings kept."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 65536, 4)
            except ConnectionResetError:  # Said once where the script has left messages unread.
                continue
            if not data:
                return None, {}, b'', []
            kind, slot, step, size, value, rate, flags, count, _ = HEADER.unpack_from(data)
            if kind == RELEASE:
                assert self.slots[slot].is_held
                self.slots[slot].is_held = False
                self.releases.append(slot)
                continue
            if kind == WARNING:
                self.warnings.append(data[HEADER.size:].decode())
                continue
            fields = {'slot': slot, 'step': step, 'bytes': size, 'value': value, 'rate': rate, 'flags': flags,
                      'count': count}
            return kind, fields, data[HEADER.size:], fds

    def run(self):
        try:
            self.serve()
        except (BrokenPipeError, ConnectionResetError):
            self.end = 'closed'  # The script was, while it was sent something.
        except BaseException as error:  # The test reads it.
            self.error = error
        finally:
            self.socket.close()
            for slot in self.slots:
                os.close(slot.fd)

    def serve(self):
        job = json.dumps(self.facts).encode()
        self.send(HELLO, (self.version or version_of_library()).encode(), fd=memory_file(job), bytes=len(job),
                  count=PROTOCOL)
        kind, *_ = self.receive()
        if kind is None:
            self.end = 'closed'
            return
        assert kind == READY, kind
        step = self.facts['start_step']
        for item in self.plan:
            if isinstance(item, FakeBatch):
                if not self.train(item, step):
                    return
                step += 1
            elif item[0] == 'eval':
                if not self.evaluate(item[1:], step):
                    return
            elif item[0] == 'save':
                self.send(SAVE)
                kind, fields, _, fds = self.receive()
                if not self.expect(kind, fields, STATE, _):
                    return
                self.states.append(os.pread(fds[0], fields['bytes'], 0))
                os.close(fds[0])
            elif item[0] == 'load':
                self.send(LOAD, fd=memory_file(item[1]) if item[1] else memory_file(b'\0'), bytes=len(item[1]))
            elif item[0] == 'phase':
                self.send(PHASE, json.dumps(item[1]).encode())
            elif item[0] == 'wait':
                item[1].wait(DEADLINE_S)
            elif item[0] == 'end':
                self.send(END, item[1].encode())
                self.end = 'ended'
                return
        self.send(PHASE, b'{"phase": "trained"}')
        while True:
            kind, fields, payload, _ = self.receive()
            if kind != EVALUATE:
                self.expect(kind, fields, DONE, payload)
                return
            if not self.evaluate(self.held_out, step):
                return
            self.send(PHASE, json.dumps({'phase': 'evaluated', 'metrics': self.metrics}).encode())

    def expect(self, kind, fields, wanted, payload):
        """Whether the message is of this kind; otherwise it is the script's end."""
        if kind == wanted != DONE:
            return True
        if kind == DONE:
            self.end = 'done'
        elif kind == FAILED:
            self.end = payload.decode()
        elif kind is None:
            self.end = 'closed'
        else:
            raise AssertionError('message %r in place of %d' % (kind, wanted))
        return False

    # ------------------------------------------------------------------------------------------------------------------

    def train(self, batch, step):
        number, places, keys = self.send_batch(batch, step, 0)
        kind, fields, payload, _ = self.receive()
        if not self.expect(kind, fields, STEP, payload):
            return False
        assert fields['slot'] == number and fields['step'] == step, fields
        record = {'step': step, 'loss_sum': fields['value'], 'rate': fields['rate'], 'flags': fields['flags'],
                  'slot': number, 'tables': {}}
        for dim_index, dim in enumerate(self.dims):
            gradients = self.read(number, places, GRADIENTS, dim_index).reshape(-1, dim)
            has_gradient = self.read(number, places, HAS_GRADIENT, dim_index)
            begin = 0
            for table in self.tables_of(dim):
                end = begin + len(keys[table])
                record['tables'][table] = (keys[table], torch.from_numpy(gradients[begin:end].copy()),
                                           torch.from_numpy(has_gradient[begin:end].astype(bool)))
                begin = end
        self.steps.append(record)
        if not fields['flags'] & SKIPS:
            rate = None if np.isnan(fields['rate']) else fields['rate']
            for table, (ids, gradients, has_gradient) in record['tables'].items():
                ids = torch.tensor(ids, dtype=torch.int64)
                self.server.apply(table, ids[has_gradient], gradients[has_gradient], rate)
        return True

    def evaluate(self, batches, step):
        for i, batch in enumerate(batches):
            is_last = i == len(batches) - 1
            number, places, _ = self.send_batch(batch, step, EVALUATES, is_last)
            kind, fields, payload, _ = self.receive()
            if not self.expect(kind, fields, SCORES, payload):
                return False
            assert fields['slot'] == number, fields
            self.scores.append(self.read(number, places, SCORES_ARRAY, 0).copy())
            if is_last:
                self.own_metrics.append(float(self.read(number, places, OWN_METRIC, 0)[0]))
        return True

    def tables_of(self, dim):
        return [name for name, weights in self.server.tables.items()
                if weights.shape[1] == dim and any(feature.table == name for feature in self.features)]

    def arrays_of(self, batch, evaluates):
        """({(what, index): array}, distinct keys by table), in the order in which they lie in the slot."""
        keys, bases = {}, {}
        for dim in self.dims:
            base = 0
            for table in self.tables_of(dim):
                distinct = {}  # By first appearance, sample by sample.
                for sample in range(batch.size):
                    for feature in self.features:
                        if feature.table == table:
                            found = batch.keys[feature.name][sample]
                            for key in found if feature.is_list else [found]:
                                distinct.setdefault(int(key), len(distinct))
                keys[table], bases[table] = distinct, base
                base += len(distinct)
        arrays = {}
        arrays[NUMERIC, 0] = np.asarray(batch.numeric if self.num_numeric else [], np.float32)
        arrays[LABELS, 0] = np.asarray(batch.labels, np.float32)
        if batch.weights is not None:
            arrays[WEIGHTS, 0] = np.asarray(batch.weights, np.float32)
        for i, feature in enumerate(self.features):
            distinct, base = keys[feature.table], bases[feature.table]
            lists = [found if feature.is_list else [found] for found in batch.keys[feature.name]]
            arrays[INDICES, i] = np.array([distinct[int(key)] + base for found in lists for key in found], np.int32)
            if feature.is_list:
                arrays[OFFSETS, i] = np.concatenate([[0], np.cumsum([len(found) for found in lists])]).astype(np.int32)
            if feature.name in batch.lookup_weights:
                arrays[LOOKUP_WEIGHTS, i] = np.array(
                    [weight for found in batch.lookup_weights[feature.name] for weight in found], np.float32)
        for i, dim in enumerate(self.dims):
            rows = [self.server.tables[table][list(keys[table])].reshape(-1, dim) for table in self.tables_of(dim)]
            arrays[ROWS, i] = torch.cat(rows).numpy()
        for i, dim in enumerate(self.dims):
            if not evaluates:
                self.add_segments(arrays, i, dim, batch.size)
                arrays[GRADIENTS, i] = np.full_like(arrays[ROWS, i], np.nan)
                arrays[HAS_GRADIENT, i] = np.full(len(arrays[ROWS, i]), 7, np.uint8)
        if evaluates:
            arrays[SCORES_ARRAY, 0] = np.full(batch.size, np.nan, np.float32)
        return arrays, {table: list(distinct) for table, distinct in keys.items()}

    def add_segments(self, arrays, index, dim, size):
        """The lookups of a dim by row: vectors are numbered sample by sample, over all features."""
        found = []  # (row, vector, weight)
        for sample in range(size):
            for i, feature in enumerate(self.features):
                if self.server.tables[feature.table].shape[1] != dim:
                    continue
                offsets = arrays.get((OFFSETS, i), np.arange(size + 1))
                for lookup in range(offsets[sample], offsets[sample + 1]):
                    weights = arrays.get((LOOKUP_WEIGHTS, i))
                    found.append((arrays[INDICES, i][lookup], sample * len(self.features) + i,
                                  1 if weights is None else weights[lookup]))
        found.sort(key=lambda each: each[0])
        rows = np.array([row for row, _, _ in found], np.int64)
        arrays[SEGMENT_OFFSETS, index] = np.searchsorted(rows, np.arange(len(arrays[ROWS, index]) + 1)).astype(np.int32)
        arrays[SEGMENTS, index] = np.array([vector for _, vector, _ in found], np.int32)
        if any((LOOKUP_WEIGHTS, i) in arrays for i in range(len(self.features))):
            arrays[SEGMENT_WEIGHTS, index] = np.array([weight for _, _, weight in found], np.float32)

    def send_batch(self, batch, step, flags, is_last=False):
        arrays, keys = self.arrays_of(batch, bool(flags & EVALUATES))
        if is_last:
            arrays[OWN_METRIC, 0] = np.full(1, np.nan, np.float32)
        places, size = {}, 0
        for key, array in arrays.items():
            places[key] = (size, array.size)
            size += (array.nbytes + 63) // 64 * 64
        number = next((i for i, slot in enumerate(self.slots) if not slot.is_held and slot.size >= size), None)
        if number is None:
            number = len(self.slots)
            self.slots.append(Slot(max(size, 64)))
        slot = self.slots[number]
        for key, array in arrays.items():
            slot.memory[places[key][0]:places[key][0] + array.nbytes] = array.tobytes()
        payload = b''.join(PLACE.pack(what, index, *places[what, index]) for what, index in arrays)
        self.send(BATCH, payload, None if slot.is_known else slot.fd, slot=number, step=step, bytes=batch.size,
                  flags=flags, count=len(arrays))
        slot.is_known = slot.is_held = True
        return number, places, keys

    def read(self, number, places, what, index):
        offset, count = places[what, index]
        dtype = _DTYPES.get(what, np.float32)
        return np.frombuffer(self.slots[number].memory, dtype, count, offset)


def version_of_library():
    library = ctypes.CDLL(LIBRARY)
    library.tc_version.restype = ctypes.c_char_p
    return library.tc_version().decode()


class ScriptTest(unittest.TestCase):
    """Tests whose script runs in the test's own thread."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='thermocline-')
        self.addCleanup(shutil.rmtree, self.folder)
        self.fakes = []

    def connect(self, features, server, plan, **options):
        """(the package's run, the fake worker) of a new connection."""
        import thermocline
        # As in a process of its own, the generators begin anywhere.
        random.seed()
        np.random.seed()
        torch.seed()
        fake = FakeWorker(features, server, plan, **options)
        # A library connects once a process; each copy of its file is one of its own.
        path = os.path.join(self.folder, 'libthermocline-%d.so' % len(self.fakes))
        shutil.copyfile(LIBRARY, path)
        os.environ['THERMOCLINE_LIBRARY'] = path
        os.environ['THERMOCLINE_WORKER'] = '%d:%d' % (fake.script_socket.detach(), os.getpid())
        self.fakes.append(fake)
        fake.start()
        return thermocline.worker(), fake

    def finish(self, fake):
        """Waits for the fake worker, whose own error fails the test."""
        fake.join(DEADLINE_S)
        self.assertFalse(fake.is_alive(), 'the fake worker still waits for the script')
        if fake.error is not None:
            raise fake.error
        return fake

    def assert_equal_bits(self, first, second):
        if not torch.equal(first, second):
            self.fail('%s differs from %s' % (first, second))


def random_batches(count, size=6, keys=10, features=('a', 'b'), lists=(), num_numeric=3, seed=1):
    """Batches of random keys, numbers and labels."""
    generator = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        found = {name: generator.integers(0, keys, size) for name in features}
        for name in lists:
            found[name] = [list(generator.integers(0, keys, generator.integers(0, 4))) for _ in range(size)]
        batches.append(FakeBatch(found, generator.standard_normal((size, num_numeric)).astype(np.float32),
                                 generator.integers(0, 2, size).astype(np.float32)))
    return batches


def random_tables(seed=2, keys=10, **dims):
    """Initial weights [keys, dim] of tables by name."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(keys, dim, generator=generator) for name, dim in dims.items()}
