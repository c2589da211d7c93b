#!/usr/bin/env python3
"""A model that Thermocline trained, in PyTorch: loads an export and scores click logs with it.

    thermocline checkpoint export RUN_DIR model.safetensors
    python3 thermocline_torch.py model.safetensors --data log.tsv

scores as `thermocline eval` does: what differs is the rounding of sums, some 1e-6 of a logit. As a library:

    from thermocline_torch import ThermoclineModel, read_log
    model = ThermoclineModel.load('model.safetensors').eval()
    for batch in read_log('log.tsv', model.config):
        logits = model(batch.dense, batch.keys, batch.offsets, batch.weights)   # [samples], or [samples, tasks]

Needs torch, numpy, and thermocline_log.py in the same folder; nothing else of Thermocline. docs/formats.md
("Exported checkpoints") defines what is computed here.
"""

import argparse
import importlib.util
import json
import math
import os
import struct
import sys
from typing import List, Optional, Tuple

_MISSING = [name for name in ('numpy', 'torch') if importlib.util.find_spec(name) is None]
if _MISSING:
    _MESSAGE = ('thermocline_torch needs %s, which this Python (%s) does not have; install with: %s -m pip '
                'install %s (on Debian: apt install %s)'
                % (' and '.join(_MISSING), sys.executable, sys.executable, ' '.join(_MISSING),
                   ' '.join('python3-' + name for name in _MISSING)))
    if __name__ == '__main__':
        sys.exit(_MESSAGE)
    raise ModuleNotFoundError(_MESSAGE, name=_MISSING[0])

import numpy as np
import torch
from torch import nn

from thermocline_log import read_log  # Beside this file.

_MASK = 0xffffffffffffffff


def read_safetensors(path):
    """({name: numpy array}, {metadata}) of a safetensors file; the arrays are mapped, not read."""
    with open(path, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = struct.unpack('<Q', head)[0] if len(head) == 8 else size
        if length > size - 8:
            raise ValueError('%s is no safetensors file' % path)
        header = json.loads(file.read(length))
    metadata = header.pop('__metadata__', {})
    data = np.memmap(path, mode='r', offset=8 + length) if size > 8 + length else np.zeros(0, 'u1')
    tensors = {}
    for name, entry in header.items():
        dtype = {'U64': '<u8', 'F32': '<f4'}.get(entry['dtype'])
        begin, end = entry['data_offsets']
        if dtype is None or not 0 <= begin <= end <= len(data):
            raise ValueError('%s: tensor %r has type %s at bytes %d to %d of %d'
                             % (path, name, entry['dtype'], begin, end, len(data)))
        tensors[name] = data[begin:end].view(dtype).reshape(entry['shape'])
    return tensors, metadata


# --- Initial rows, of keys that were never trained -------------------------------------------------------------
#
# Torch has no unsigned 64-bit integers: keys and hashes are int64 tensors of the same bits, whose sums and
# products wrap around.

def _signed(bits):
    """The int64 of the same 64 bits."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _shift_right(x, n):
    """Shifts the 64 bits of an int64 tensor; zeros come in, whatever the sign."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def mix64(x):
    """The finalizer of SplitMix64, of an int64 tensor."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _horner(coefficients, x):
    value = coefficients[-1]
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


def _natural_log(x):
    """ln of a positive float64 array, without a library's log, whose last bits differ."""
    m, exponent = np.frexp(x)  # m in [1/2, 1)
    small = m < math.sqrt(0.5)
    m, exponent = np.where(small, 2 * m, m), exponent - small
    s = (m - 1) / (m + 1)
    return exponent * math.log(2) + 2 * s * _horner([1 / odd for odd in range(1, 22, 2)], s * s)


def normal_quantile(p):
    """The quantiles of the normal distribution at p, a float64 array in [2^-34, 1 - 2^-34]. Wichura (1988), algorithm
    AS 241, PPND16.
    """
    q = p - 0.5
    r = 0.180625 - q * q
    middle = q * _horner([3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                          1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                          3.3430575583588128105e4, 2.5090809287301226727e3], r) / _horner(
                              [1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
                               5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
                               2.8729085735721942674e4, 5.2264952788528545610e3], r)
    r = np.sqrt(-_natural_log(np.where(q < 0, p, 1 - p))) - 1.6
    tail = _horner([1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
                    3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
                    2.27238449892691845833e-2, 7.74545014278341407640e-4], r) / _horner(
                        [1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
                         6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
                         5.47593808499534494600e-4, 1.05075007164441684324e-9], r)
    return np.where(np.abs(q) <= 0.425, middle, np.where(q < 0, -tail, tail))


def initial_rows(seed, table_id, keys, dim, init_scale, initializer='uniform'):
    """The rows with which keys begin, bit for bit: [keys, dim] float32.

    seed, table_id: of the job and the table. keys: int64 tensor. init_scale: a float32's value, of
    `initializer`: 'uniform' in +-init_scale, 'normal' or 'truncated_normal' with that standard deviation, or
    'constant'.
    """
    def scalar(bits):
        return torch.tensor(_signed(bits & _MASK), dtype=torch.int64, device=keys.device)
    salt = mix64(scalar(0x7468726D636C696E ^ table_id))
    base = mix64(mix64(scalar(seed) ^ salt) ^ mix64(keys))
    even = torch.arange(0, dim, 2, dtype=torch.int64, device=keys.device)
    bits = mix64(base[:, None] + even)  # Two weights each: the low half, then the high one.
    if initializer == 'constant':
        return torch.full((len(keys), dim), init_scale, dtype=torch.float32, device=keys.device)
    if initializer in ('normal', 'truncated_normal'):
        halves = torch.stack([bits & 0xffffffff, _shift_right(bits, 32)], dim=2)
        halves = halves.reshape(len(keys), -1)[:, :dim].cpu().numpy()
        p = (halves.astype(np.float64) + 0.5) * 2.0**-32
        if initializer == 'truncated_normal':
            p = 0.022750131948179209 + p * 0.95449973610364158
        rows = (float(init_scale) * normal_quantile(p)).astype(np.float32)
        return torch.from_numpy(rows).to(keys.device)
    if initializer != 'uniform':
        raise ValueError('this program knows no initializer %r' % initializer)
    halves = torch.stack([_shift_right(bits, 8) & 0xffffff, _shift_right(bits, 40)], dim=2)
    unit = np.float32(init_scale) * np.float32(1 / (1 << 23))
    grid = (halves - (1 << 23)).reshape(len(keys), -1)[:, :dim]
    return grid.to(torch.float32) * float(unit)


# --- Tables ----------------------------------------------------------------------------------------------------

class EmbeddingTable(nn.Module):
    """Rows by key. Keys without a row read as their initial row, which no gradient changes."""

    def __init__(self, keys, rows, seed, table_id, init_scale, initializer='uniform', first_order=None):
        """keys: [n] uint64 array, in any order. rows: [n, dim] float32 array. first_order: what the export says of the
        rows' last numbers, where they are first-order weights."""
        super().__init__()
        signed = torch.from_numpy(np.array(keys).view('<i8'))
        order = torch.argsort(signed)
        self.register_buffer('keys', signed[order])  # [n] int64, ascending
        self.weight = nn.Parameter(torch.from_numpy(np.array(rows))[order])  # [n, dim]
        self.initial = {'seed': seed, 'table_id': table_id, 'init_scale': init_scale,
                        'initializer': initializer}
        self.first_order = first_order

    def begun(self, keys):
        """The initial rows of keys."""
        dim = self.weight.shape[1]
        if self.first_order is None:
            return initial_rows(keys=keys, dim=dim, **self.initial)
        seed = int(mix64(torch.tensor(_signed((self.initial['seed'] ^ 0x66697273744F7264) & _MASK))))
        weights = initial_rows(seed, self.initial['table_id'], keys, 1, self.first_order['init_scale'],
                               self.first_order['initializer'])
        return torch.cat([initial_rows(keys=keys, dim=dim - 1, **self.initial), weights], dim=1)

    def forward(self, keys):
        """keys: [m] int64, the bits of uint64. Returns [m, dim]."""
        n = len(self.weight)
        if n == 0:
            return self.begun(keys)
        at = torch.searchsorted(self.keys, keys).clamp(max=n - 1)
        rows = self.weight[at]
        missing = self.keys[at] != keys
        if missing.any():
            rows = rows.masked_scatter(missing[:, None], self.begun(keys[missing]))
        return rows


# --- Layers ----------------------------------------------------------------------------------------------------
#
# A value is a list of vectors, each [samples, width], or of a sequence [steps, width]. A layer is made of its stanza in
# the job (a dictionary, with the names of proto/job.proto) and of its own tensors, and called with the values of its
# inputs, one after the other. Over a sequence a layer works at each step, where a sample's vectors are repeated; one
# that does more has `over_steps` for it.

class Sequence:
    """The steps of a batch, those of a sample next to each other, without padding."""

    def __init__(self, offsets):
        """offsets: [samples + 1] int64: sample b has the steps offsets[b] to offsets[b + 1]."""
        self.sizes = offsets[1:] - offsets[:-1]
        self.samples = torch.repeat_interleave(torch.arange(len(self.sizes), device=offsets.device), self.sizes)
        self._places = torch.arange(len(self.samples), device=offsets.device) - offsets[self.samples]
        self._ends = offsets[1:] - 1

    def is_last(self):
        """[steps]: whether a step is the last of its sample."""
        return self._places == self.sizes[self.samples] - 1

    def from_last(self):
        """[steps] int64: how many steps of the sample come after."""
        return self.sizes[self.samples] - 1 - self._places

    def padded(self, x, padding=0.0):
        """x: [steps, ...]. Returns [samples, the most steps of a sample, ...]."""
        longest = int(self.sizes.max()) if len(self.samples) else 0
        return x.new_full((len(self.sizes), longest, *x.shape[1:]), padding).index_put((self.samples, self._places), x)

    def unpadded(self, x):
        return x[self.samples, self._places]

    def pool(self, x, mode='SUM'):
        """x: [steps, width]. Returns [samples, width]; zeros where there are no steps."""
        if mode == 'LAST':
            zeros = x.new_zeros(1, x.shape[1])
            return torch.cat([x, zeros])[torch.where(self.sizes > 0, self._ends, len(x))]
        sums = x.new_zeros(len(self.sizes), x.shape[1]).index_add(0, self.samples, x)
        return sums / self.sizes.clamp(min=1)[:, None] if mode == 'MEAN' else sums


class Steps(list):
    """The vectors of the steps of a sequence."""

    def __init__(self, vectors, sequence):
        super().__init__(vectors)
        self.sequence = sequence


def _call(layer, values):
    """What a layer gives; at each step, if one of the values has steps: those of samples are repeated there."""
    sequence = next((value.sequence for value in values if isinstance(value, Steps)), None)
    if sequence is None:
        return layer(*values)
    values = [value if isinstance(value, Steps) else [vector[sequence.samples] for vector in value]
              for value in values]
    if hasattr(layer, 'over_steps'):
        return layer.over_steps(sequence, *values)
    return Steps(layer(*values), sequence)


def _concat(values):
    return torch.cat([vector for value in values for vector in value], dim=1)


def _stack(values):
    return torch.stack([vector for value in values for vector in value], dim=1)  # [samples, vectors, width]


def _like(values, numbers):
    """The numbers, [samples, width], as a list of vectors of the same widths as those of `values`."""
    return list(numbers.split([vector.shape[1] for value in values for vector in value], dim=1))


def _parameter(array):
    return nn.Parameter(torch.from_numpy(np.array(array)))


def _linear(tensors, weight, bias=None):
    """A layer of a weight [in, out] of the export."""
    columns, rows = tensors[weight].shape
    linear = nn.Linear(columns, rows, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.array(tensors[weight])).T)
        if bias is not None:
            linear.bias.copy_(torch.from_numpy(np.array(tensors[bias])))
    return linear


def _norm(tensors, name):
    norm = nn.LayerNorm(len(tensors[name + '.weight']))
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(np.array(tensors[name + '.weight'])))
        norm.bias.copy_(torch.from_numpy(np.array(tensors[name + '.bias'])))
    return norm


def _activation(kind, tensors, slope):
    if kind == 'PRELU':
        prelu = nn.PReLU(len(tensors[slope]))
        with torch.no_grad():
            prelu.weight.copy_(torch.from_numpy(np.array(tensors[slope])))
        return [prelu]
    return {'RELU': [nn.ReLU()], 'SIGMOID': [nn.Sigmoid()], 'TANH': [nn.Tanh()], 'LINEAR': []}[kind]


def _mlp(tensors, activation='RELU', last=None, layer_norm=False, dropout=0):
    """Linear layers, each with norm, activation and dropout; after the last there are none if `last` is LINEAR."""
    parts = []
    count = sum(name.count('.') == 1 and name.endswith('.weight') for name in tensors)
    for i in range(count):
        parts.append(_linear(tensors, '%d.weight' % i, '%d.bias' % i))
        kind = last if last and i == count - 1 else activation
        if i == count - 1 and last == 'LINEAR':
            break
        if layer_norm:
            parts.append(_norm(tensors, '%d.norm' % i))
        parts += _activation(kind, tensors, '%d.slope' % i)
        parts += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*parts)


class Mlp(nn.Module):
    def __init__(self, stanza, tensors):
        super().__init__()
        self.layers = _mlp(tensors, stanza.get('activation', 'RELU'), stanza.get('last'),
                           stanza.get('layer_norm', False), stanza.get('dropout', 0))

    def forward(self, *values):
        return [self.layers(_concat(values))]


class MlpCopies(nn.Module):
    def __init__(self, stanza, tensors):
        super().__init__()
        copies = len({name.partition('.')[0] for name in tensors})
        self.copies = nn.ModuleList(Mlp(stanza, _under(str(copy), tensors)) for copy in range(copies))

    def forward(self, *values):
        return [vector for copy in self.copies for vector in copy(*values)]


class Function(nn.Module):
    """A layer without parameters."""

    def __init__(self, stanza, _tensors):
        super().__init__()
        self.stanza = stanza


class Dot(Function):
    def forward(self, *values):
        z = _stack(values)
        products = torch.bmm(z, z.transpose(1, 2))
        i, j = torch.tril_indices(z.shape[1], z.shape[1], offset=-1)  # (1,0), (2,0), (2,1), (3,0), ...
        first = [z[:, 0]] if self.stanza.get('keep_first') else []
        return [torch.cat(first + [products[:, i, j]], dim=1)]


class Fm(Function):
    def forward(self, *values):
        z = _stack(values)
        return [((z.sum(1) ** 2 - (z ** 2).sum(1)).sum(1, keepdim=True)) / 2]


class FirstOrder(nn.Module):
    """The sum of the inputs, which are the first-order weights of features; numbers have theirs here."""

    def __init__(self, _stanza, tensors):
        super().__init__()
        self.weight = _parameter(tensors['weight']) if 'weight' in tensors else None

    def forward(self, *values):
        return [sum(vector for value in values for vector in value)]


class Cross(nn.Module):
    def __init__(self, stanza, tensors):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(stanza['layers']):
            name = '%d.' % i
            self.layers.append(
                _linear(tensors, name + 'weight', name + 'bias') if not stanza.get('rank') else
                nn.Sequential(_linear(tensors, name + 'down'), _linear(tensors, name + 'up', name + 'bias')))

    def forward(self, *values):
        x0 = x = _concat(values)
        for layer in self.layers:
            x = x0 * layer(x) + x
        return [x]


class Bilinear(nn.Module):
    def __init__(self, stanza, tensors):
        super().__init__()
        self.first, self.second = _linear(tensors, 'first.weight', 'bias'), _linear(tensors, 'second.weight')
        heads = stanza.get('heads') or 1
        self.heads = nn.ParameterList(_parameter(tensors['%d.weight' % head]) for head in range(heads))

    def forward(self, *values):
        x, y = (_concat([value]) for value in values)
        parts = zip(self.heads, x.chunk(len(self.heads), 1), y.chunk(len(self.heads), 1))
        return [self.first(x) + self.second(y) + sum(((part @ w) * other).sum(1, keepdim=True)
                                                     for w, part, other in parts)]


class FeatureGate(nn.Module):
    """The values of `by` come before those of `input`. Without `by` the context is the number 1."""

    def __init__(self, stanza, tensors):
        super().__init__()
        self.by = len(stanza.get('by', []))
        self.layers = _mlp(tensors, last='LINEAR')

    def forward(self, *values):
        context, x = values[:self.by], values[self.by:]
        weights = 2 * torch.sigmoid(self.layers(_concat(context) if context else x[0][0].new_ones(1, 1)))
        return _like(x, weights * _concat(x))


class Embed(nn.Module):
    def __init__(self, _stanza, tensors):
        super().__init__()
        self.weight = _parameter(tensors['weight'])  # [numbers, dim]

    def forward(self, *values):
        return list((_concat(values)[:, :, None] * self.weight).unbind(1))


class Concat(Function):
    def forward(self, *values):
        return [_concat(values)]


class Add(Function):
    def forward(self, *values):
        return _like(values[:1], sum(_concat([value]) for value in values))


class Multiply(Function):
    def forward(self, *values):
        product = _concat(values[:1])
        for value in values[1:]:
            product = product * _concat([value])
        return _like(values[:1], product)


class Normalize(Function):
    def forward(self, *values):
        epsilon = self.stanza.get('epsilon', 1e-12)
        return [nn.functional.normalize(vector, eps=epsilon) for value in values for vector in value]


class Pool(Function):
    def forward(self, *values):
        z, mode = _stack(values), self.stanza.get('mode', 'SUM')
        return [z[:, -1] if mode == 'LAST' else z.mean(1) if mode == 'MEAN' else z.sum(1)]

    def over_steps(self, sequence, *values):
        return [sequence.pool(vector, self.stanza.get('mode', 'SUM')) for value in values for vector in value]


class Attention(nn.Module):
    """The values of `query` come before those of `input`."""

    def __init__(self, stanza, tensors):
        super().__init__()
        self.stanza, self.queries = stanza, len(stanza['query'])
        self.kind = stanza.get('score', 'MLP')
        self.layers = _mlp(tensors, stanza.get('activation', 'RELU'), 'LINEAR') if self.kind == 'MLP' else None
        self.weight = _parameter(tensors['weight']) if self.kind == 'BILINEAR' else None

    def over_steps(self, sequence, *values):
        steps = values[self.queries:]
        q, k = _concat(values[:self.queries]), _concat(steps)
        q = q if self.weight is None else q @ self.weight
        if self.kind == 'MLP':
            score = self.layers(torch.cat([q, k, q - k, q * k], dim=1))
        else:
            score = (q * k).sum(1, keepdim=True) / (math.sqrt(k.shape[1]) if self.kind == 'DOT' else 1)
        is_last = sequence.is_last()[:, None] & bool(self.stanza.get('without_last'))
        if self.stanza.get('softmax'):
            score = sequence.padded(score.masked_fill(is_last, -math.inf), -math.inf).softmax(1)
            score = sequence.unpadded(score)
        score = score.masked_fill(is_last, 0)
        return [sequence.pool(score * vector) for value in steps for vector in value]


class SelfAttention(nn.Module):
    def __init__(self, stanza, tensors):
        super().__init__()
        self.positions = _parameter(tensors['positions']) if 'positions' in tensors else None
        self.heads = stanza.get('heads') or 1
        self.blocks = nn.ModuleList()
        for block in range(stanza.get('blocks') or 1):
            name = '%d.' % block
            parts = {part: _linear(tensors, name + part + '.weight', name + part + '.bias')
                     for part in ('query', 'key', 'value', 'output', 'up', 'down')}
            parts.update((norm, _norm(tensors, name + norm)) for norm in ('first_norm', 'second_norm'))
            self.blocks.append(nn.ModuleDict(parts))
        self.dropout = nn.Dropout(stanza.get('dropout', 0))

    def over_steps(self, sequence, *values):
        x = _concat(values)
        if self.positions is not None:
            x = x + self.positions[sequence.from_last().clamp(max=len(self.positions) - 1)]
        is_step = sequence.padded(torch.ones(len(x), 1, dtype=torch.bool, device=x.device), False)
        for block in self.blocks:
            q, k, v = (sequence.padded(block[part](x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
                       for part in ('query', 'key', 'value'))  # [samples, heads, steps, width / heads]
            scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(~is_step[:, None, None, :, 0], -1e30)
            mixed = sequence.unpadded((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
            x = block['first_norm'](x + self.dropout(block['output'](mixed)))
            x = block['second_norm'](x + self.dropout(block['down'](torch.relu(block['up'](x)))))
        return Steps([x], sequence)


class Gate(nn.Module):
    """The values of `by` come before those of `input`."""

    def __init__(self, stanza, tensors):
        super().__init__()
        self.by, self.linear = len(stanza['by']), _linear(tensors, 'weight', 'bias')

    def forward(self, *values):
        shares = self.linear(_concat(values[:self.by])).softmax(1)
        return [(shares[:, :, None] * _stack(values[self.by:])).sum(1)]


LAYERS = {'mlp': Mlp, 'dot': Dot, 'fm': Fm, 'first_order': FirstOrder, 'cross': Cross, 'bilinear': Bilinear,
          'feature_gate': FeatureGate, 'embed': Embed, 'concat': Concat, 'add': Add, 'multiply': Multiply,
          'normalize': Normalize, 'pool': Pool, 'attention': Attention, 'self_attention': SelfAttention, 'gate': Gate}
# What a layer of these kinds reads before its `input`.
CONTEXTS = {'feature_gate': 'by', 'attention': 'query', 'gate': 'by'}


def _dlrm_layers(tensors):
    """The layers of an export of an earlier version, which knew DLRM alone."""
    bottom = [{'name': 'bottom', 'input': ['numeric'], 'mlp': {}}] if 'bottom.0.weight' in tensors else []
    return bottom + [{'name': 'pairs', 'input': ['bottom', 'categorical'] if bottom else ['categorical'],
                      'dot': {'keep_first': True}},
                     {'name': 'top', 'input': ['pairs'], 'mlp': {'last': 'LINEAR'}}]


# --- The model -------------------------------------------------------------------------------------------------

class ThermoclineModel(nn.Module):
    """A job's model as Thermocline computes it. `config` is what the export says of the model: docs/formats.md has
    its fields; `metadata` has the file's other texts (job, step, ...)."""

    def __init__(self, tensors, metadata):
        super().__init__()
        self.metadata = metadata
        self.config = config = json.loads(metadata['model'])
        self.tables = nn.ModuleDict()
        self._index, self._dims = {}, {}
        for i, table in enumerate(config['tables']):
            name = table['name']
            self._index[name] = str(i)  # A module's name may not have dots; a table's may.
            self._dims[name] = table['dim'] - ('first_order' in table)
            self.tables[str(i)] = EmbeddingTable(tensors[name + '.keys'], tensors[name + '.rows'],
                                                 config['seed'], table['id'], table['init_scale'],
                                                 table.get('initializer', 'uniform'), table.get('first_order'))
        self._groups = {group['name']: group['feature'] for group in config.get('groups', [])}
        self._sequences = {stanza['name']: stanza for stanza in config.get('sequences', [])}
        self._stanzas = config.get('layers') or _dlrm_layers(tensors)
        self._tasks = config.get('tasks', [{'label': '', 'input': ['top']}])
        # A label may begin as a layer's name does: its tensors are taken out first.
        of_layers = dict(tensors)
        self.tasks = nn.ModuleList()  # A task without wide inputs has none.
        for task in self._tasks:
            own = {part: of_layers.pop('%s.%s' % (task['label'], part)) for part in ('weight', 'bias')
                   if '%s.%s' % (task['label'], part) in tensors}
            self.tasks.append(_linear(own, 'weight', 'bias') if 'weight' in own else None)
        self.layers = nn.ModuleList()
        for stanza in self._stanzas:
            kind, = (kind for kind in LAYERS if kind in stanza)
            made = MlpCopies if stanza.get('copies') else LAYERS[kind]
            self.layers.append(made(stanza[kind], _under(stanza['name'], of_layers)))

    def layer(self, name):
        """The module of the layer of this name."""
        names = [stanza['name'] for stanza in self._stanzas]
        if name not in names:
            raise KeyError('no layer is called %r; there are %s' % (name, ', '.join(map(repr, names))))
        return self.layers[names.index(name)]

    @classmethod
    def load(cls, path):
        """Reads an export. Raises ValueError if the file is not one."""
        tensors, metadata = read_safetensors(path)
        if 'model' not in metadata:
            raise ValueError('%s has no "model" in its metadata: no export of Thermocline, or of an old one'
                             % path)
        script = json.loads(metadata['model']).get('script')
        if script is not None:
            raise ValueError('%s is of a job whose model is a script (%s): it has tables and no layers; '
                             'thermocline.load() reads the rows of its checkpoints' % (path, script))
        return cls(tensors, metadata)

    def pooled(self, feature, keys, offsets, weights=None):
        """One feature's bags, pooled: [samples, dim]. Empty bags are zeros."""
        if (weights is None) != ('weights' not in feature):
            raise ValueError('feature %r %s' % (feature['name'], 'has weights' if weights is None else 'has no weights'))
        rows = self.tables[self._index[feature['table']]](keys)
        sizes = offsets[1:] - offsets[:-1]
        if weights is None and len(keys) == len(sizes) and bool((sizes == 1).all()):
            return rows
        sample = torch.repeat_interleave(torch.arange(len(sizes), device=keys.device), sizes)
        add = lambda of: of.new_zeros(len(sizes), *of.shape[1:]).index_add(0, sample, of)
        if weights is None:
            counts = sizes.clamp(min=1)
        else:
            rows = rows * weights[:, None]
            counts = add(weights)
            counts = torch.where(counts == 0, torch.ones_like(counts), counts)
        return add(rows) / counts[:, None] if feature['pooling'] == 'MEAN' else add(rows)

    def steps(self, stanza, keys, offsets):
        """The steps of one of the job's sequences: each has a vector of each list, in its table."""
        places = {feature['name']: f for f, feature in enumerate(self.config['features'])}
        lists, then = stanza['of'], stanza.get('then', [])
        begins = offsets[places[lists[0]]]
        vectors = []
        for i, name in enumerate(lists):
            of_list = keys[places[name]]
            if not torch.equal(offsets[places[name]], begins):
                raise ValueError('the lists of sequence %r differ in length' % stanza['name'])
            if then:
                own = keys[places[then[i]]]
                if len(own) != len(begins) - 1:
                    raise ValueError('feature %r has no key, or several, in a sample: sequence %r ends with it'
                                     % (then[i], stanza['name']))
                # After the steps of each sample one more.
                with_own = own.new_empty(len(of_list) + len(own))
                is_own = torch.zeros(len(with_own), dtype=torch.bool, device=own.device)
                is_own[begins[1:] + torch.arange(len(own), device=own.device)] = True
                with_own[is_own], with_own[~is_own] = own, of_list
                of_list = with_own
            table = self.config['features'][places[name]]['table']
            vectors.append(self.tables[self._index[table]](of_list)[:, :self._dims[table]])
        if then:
            begins = begins + torch.arange(len(begins), device=begins.device)
        return Steps(vectors, Sequence(begins))

    def forward(self, dense, keys, offsets, weights=None):
        """Logits of a batch, [samples] float32, or of several tasks [samples, tasks]; torch.sigmoid makes
        probabilities of them.

        dense:   [samples, num_dense] float32, transformed as read_log does
        keys:    for each feature int64 [lookups], the keys' bits, sample after sample
        offsets: for each feature int64 [samples + 1], where in `keys` a sample's begin
        weights: for each feature float32 [lookups], or None where it has none; None: no feature has
        """
        weights = weights or [None] * len(keys)
        rows = {}  # The pooled rows of the features that are read so.
        of_batch = {feature['name']: (feature, *of)
                    for feature, *of in zip(self.config['features'], keys, offsets, weights)}

        def row(name):
            if name not in rows:
                rows[name] = self.pooled(*of_batch[name])
            return rows[name]
        dims = {name: self._dims[feature['table']] for name, (feature, *_) in of_batch.items()}
        steps = {name: self.steps(stanza, keys, offsets) for name, stanza in self._sequences.items()}

        def features(name):
            return steps[name] if name in steps else [dense if name == 'numeric' else row(name)[:, :dims[name]]]
        values = {}  # The values of the layers so far.
        for stanza, layer in zip(self._stanzas, self.layers):
            read, names = features, list(stanza['input'])
            for kind, context in CONTEXTS.items():
                names = stanza.get(kind, {}).get(context, []) + names
            if 'first_order' in stanza:
                def read(name, layer=layer):
                    if name != 'numeric':
                        return [row(name)[:, dims[name]:]]
                    return [] if layer.weight is None else [dense @ layer.weight]
            values[stanza['name']] = _call(layer, [self._read(name, values, read) for name in names])
        logits = {}
        for task, linear in zip(self._tasks, self.tasks):
            narrow, wide = [], []
            for name in task['input']:
                value = self._read(name, values, features)
                width = sum(vector.shape[1] for vector in value)
                (narrow if name in values and width == 1 else wide).append(value)
            logit = sum([value[0] for value in narrow] + ([linear(_concat(wide))] if wide else [])).squeeze(1)
            if task.get('times'):
                logit = _logit_of_product(logit, logits[task['times']])
            logits[task['label']] = logit
        return logit if len(logits) == 1 else torch.stack(list(logits.values()), 1)

    def _read(self, name, values, features):
        """What an input of this name is: the value of a layer, or a list of features' vectors, which `features` gives
        by name."""
        if name in values:
            return values[name]
        if name in self._groups:
            return [vector for member in self._groups[name] for vector in self._read(member, {}, features)]
        if name in ('categorical', 'fields'):
            return [vector for feature in self.config['features']
                    if name == 'categorical' or not feature.get('sequence') for vector in features(feature['name'])]
        return features(name)


def _logit_of_product(a, b):
    """The logit of the product of two probabilities, of which a and b are the logits: 1 / p - 1 is
    exp(-a) + exp(-b) + exp(-a - b)."""
    return -torch.logsumexp(torch.stack([-a, -b, -a - b]), 0)


ThermoclineDlrm = ThermoclineModel  # Its name in earlier versions.


def _under(name, tensors):
    """The tensors called NAME.REST, by REST."""
    return {key[len(name) + 1:]: tensor for key, tensor in tensors.items() if key.startswith(name + '.')}


# --- Scores ----------------------------------------------------------------------------------------------------

def auc(scores, labels):
    """Area under the ROC curve; a tie counts one half, and 0.5 is that of one class alone."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return 0.5
    above = rank[labels > 0].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def metrics(logits, labels):
    """{'samples', 'auc', 'logloss'} of one task over the samples with a label; {} where none has one."""
    has_label = ~np.isnan(labels)
    if len(labels) and not has_label.any():
        return {}
    logits, labels = logits[has_label], labels[has_label]
    return {'samples': len(labels), 'auc': auc(logits, labels), 'logloss': logloss(logits, labels)}


def logloss(logits, labels):
    """Mean binary cross entropy of logits; 0 of none."""
    if len(logits) == 0:
        return 0.0
    x = np.asarray(logits, np.float64)
    return float(np.mean(np.maximum(x, 0) - x * labels + np.log1p(np.exp(-np.abs(x)))))


@torch.no_grad()
def score(model, batches, device='cpu') -> Tuple[np.ndarray, np.ndarray]:
    """(logits, labels) of all samples, [samples] float32 each, or of several tasks [samples, tasks]."""
    shape = (0, len(model.tasks)) if len(model.tasks) > 1 else 0
    logits, labels = [np.zeros(shape, np.float32)], [np.zeros(shape, np.float32)]
    move = lambda tensors: [None if of is None else of.to(device) for of in tensors]
    for batch in batches:
        out = model(batch.dense.to(device), move(batch.keys), move(batch.offsets),
                    None if batch.weights is None else move(batch.weights))
        logits.append(out.cpu().numpy())
        labels.append(batch.labels)
    return np.concatenate(logits), np.concatenate(labels)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description='Scores a click log with an exported Thermocline model, as `thermocline eval` does.')
    parser.add_argument('export', metavar='EXPORT', help='what `thermocline checkpoint export` wrote')
    parser.add_argument('--data', metavar='PATH', required=True,
                        help='the log: a file, or a folder of .npy files')
    parser.add_argument('--test-share', type=float, default=0.0, metavar='SHARE',
                        help='only the last SHARE of the rows, which a job with this data.test_share '
                             'holds out (default: all rows; of a folder with test_*.npy those)')
    parser.add_argument('--held-out', action='store_true',
                        help="only the rows that the model's job holds out of its training files (data.split)")
    parser.add_argument('--max-bad-rows', type=int, default=0, metavar='N',
                        help='so many malformed rows are skipped (default: 0)')
    parser.add_argument('--batch-size', type=int, default=4096, metavar='N')
    parser.add_argument('--device', default='cpu', help='a PyTorch device (default: cpu)')
    parser.add_argument('--logits', metavar='FILE', help='writes the logit of each sample, one a line; those of several tasks with commas between')
    parser.add_argument('--json', action='store_true', help='prints the result as JSON')
    flags = parser.parse_args(arguments)
    if not 0 <= flags.test_share < 1 or flags.batch_size < 1:
        parser.error('--test-share is in [0, 1), --batch-size at least 1')
    try:
        model = ThermoclineModel.load(flags.export).eval().to(flags.device)
        batches = read_log(flags.data, model.config, flags.batch_size, flags.test_share,
                           flags.max_bad_rows, flags.held_out)
        logits, labels = score(model, batches, flags.device)
    except (OSError, ValueError) as error:
        print('thermocline_torch: %s' % error, file=sys.stderr)
        return 1
    if flags.logits:
        with open(flags.logits, 'w') as file:
            file.writelines(','.join('%.9g' % logit for logit in np.atleast_1d(of)) + '\n' for of in logits)
    columns = [logits, labels] if logits.ndim == 1 else [logits.T, labels.T]
    tasks = [metrics(*of) for of in (zip(*columns) if logits.ndim > 1 else [columns])]
    result = {**tasks[0], 'samples': len(labels)}
    if len(tasks) > 1:
        result['tasks'] = {task['label']: of for task, of in zip(model.config['tasks'], tasks)}
    if flags.json:
        print(json.dumps(result))
    elif not any(tasks):
        print('%d samples; the log has no labels' % len(labels))
    else:
        for label, of in zip(result.get('tasks', ['']), tasks):
            print((label and label + ': ') +
                  ('AUC %(auc).4f  logloss %(logloss).4f  on %(samples)d samples' % of if of else 'no labels'))
    return 0


if __name__ == '__main__':
    sys.exit(main())
