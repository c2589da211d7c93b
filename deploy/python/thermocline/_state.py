"""What a script keeps in checkpoints, as the bytes of a safetensors file.

Equal states make equal bytes: no pickle, no addresses, no times. A tensor stands in the file under a readable name
('net.bottom.0.weight'), and once where several names share it. What is no tensor stands as JSON in the file's
metadata, with a reference where a tensor belongs.
"""
from __future__ import annotations

import collections
import json
import math
import struct
import types
import typing
import weakref

import torch

from thermocline._library import Error, view_memory

_NAMES = {
    torch.float64: 'F64', torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16',
    torch.int64: 'I64', torch.int32: 'I32', torch.int16: 'I16', torch.int8: 'I8',
    torch.uint8: 'U8', torch.bool: 'BOOL',
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ALIGNMENT = 8
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, weakref.ref)


def plain_name(name: str) -> str:
    """The name of a parameter without what DistributedDataParallel and torch.compile put into it."""
    return '.'.join(part for part in name.split('.') if part not in ('module', '_orig_mod')) or name


def plain_names(names: typing.Iterable[str]) -> dict[str, str]:
    """The plain name of each name, or the name itself where several would share one."""
    plain = {name: plain_name(name) for name in names}
    counts = collections.Counter(plain.values())
    return {name: short if counts[short] == 1 else name for name, short in plain.items()}


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._known: dict[tuple[typing.Any, ...], str] = {}
        self._begun: set[int] = set()  # The dicts and lists around the value.

    def _tensor(self, tensor: torch.Tensor, name: str) -> dict[str, typing.Any]:
        if torch.nn.parameter.is_lazy(tensor):
            raise Error('%s belongs to a lazy module and has no values yet. Before run.track(), call the module once '
                        'with zeros of the shape of its input: net.layer(torch.zeros(1, inputs)).' % name)
        if tensor.layout != torch.strided or tensor.device.type == 'meta' or tensor.dtype not in _NAMES:
            raise Error('%s is a tensor (%s, %s, %s) that a checkpoint cannot hold: only dense tensors of %s.'
                        % (name, tensor.dtype, tensor.layout, tensor.device,
                           ', '.join(str(dtype)[len('torch.'):] for dtype in _NAMES)))
        tensor = tensor.detach()
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() > 0 and key in self._known:
            return {'tensor': self._known[key]}
        unique, number = name, 1
        while unique in self.tensors or unique == '__metadata__':
            number += 1
            unique = '%s#%d' % (name, number)
        self.tensors[unique] = tensor
        self._known[key] = unique
        return {'tensor': unique}

    def value(self, value: typing.Any, name: str, skips_functions: bool = False) -> typing.Any:
        """JSON of a value; an object with one key stands for what JSON has no form of."""
        if not isinstance(value, (dict, list, tuple)):
            return self._single(value, name)
        if id(value) in self._begun:
            raise Error('%s contains itself, which a checkpoint cannot hold.' % name)
        self._begun.add(id(value))
        try:
            if isinstance(value, dict):
                return self._dict(value, name, skips_functions)
            if hasattr(value, '_fields'):
                return self._single(value, name)
            items = [self.value(item, '%s.%d' % (name, i), skips_functions) for i, item in enumerate(value)]
            return {'list' if isinstance(value, list) else 'tuple': items}
        finally:
            self._begun.remove(id(value))

    def _single(self, value: typing.Any, name: str) -> typing.Any:
        """JSON of a value that is no dict, list or tuple."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if abs(value) < 1 << 53 else {'int': str(value)}
        if kind is float:
            return {'float': value.hex() if math.isfinite(value) else repr(value)}
        if kind in (bytes, bytearray):
            return {'bytes': value.hex()}
        if kind in (set, frozenset):
            return {'set': sorted((self.value(item, name) for item in value), key=json.dumps)}
        if kind.__module__ == 'numpy':
            return self._numpy(value, name)
        raise Error('%s is of the type %s, which a checkpoint cannot hold: only tensors, arrays, numbers, texts, '
                    'bytes, and dicts, lists and sets of them. Let state_dict() return one of these for it.'
                    % (name, kind.__name__))

    def _dict(self, value: dict[typing.Any, typing.Any], name: str, skips_functions: bool) -> dict[str, typing.Any]:
        items = list(value.items())
        if skips_functions:
            items = [item for item in items if not isinstance(item[1], _FUNCTIONS)]
        if isinstance(value, collections.OrderedDict):
            form = 'ordered'
        else:
            # Equal dicts may have been filled in different orders.
            form = 'counter' if isinstance(value, collections.Counter) else 'dict'
            items.sort(key=lambda item: (type(item[0]).__name__, item[0] if isinstance(item[0], (int, float)) else 0,
                                         repr(item[0])))
        return {form: [[self.value(key, '%s (a key)' % name),
                        self.value(item, '%s.%s' % (name, key), skips_functions)] for key, item in items]}

    def _numpy(self, value: typing.Any, name: str) -> typing.Any:
        """A scalar becomes one of Python; an array is kept as its bytes."""
        import numpy
        if not isinstance(value, (numpy.generic, numpy.ndarray)) or value.dtype.kind not in 'biuf':
            raise Error('%s is of the type numpy.%s (%s), which a checkpoint cannot hold: only numbers and arrays of '
                        'them.' % (name, type(value).__name__, getattr(value, 'dtype', 'no numbers')))
        if isinstance(value, numpy.generic):
            return self.value(value.item(), name)
        data = bytearray(value.tobytes())
        tensor = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8, device='cpu')
        return {'array': [value.dtype.str, list(value.shape), self._tensor(tensor, name)]}


def _bytes_of(tensor: torch.Tensor) -> bytes:
    content = tensor.detach().to('cpu').contiguous()
    # Not ctypes.string_at(), whose size is an int of C.
    size = content.numel() * content.element_size()
    return bytes(view_memory(content.data_ptr(), size)) if size else b''


def check(name: str, state: typing.Any, skips_functions: bool) -> int:
    """The bytes of the tensors in what state_dict() returns. Errors: as encode()."""
    encoder = _Encoder()
    encoder.value(state, name, skips_functions)
    return sum(tensor.numel() * tensor.element_size() for tensor in encoder.tensors.values())


def find_not_finite(state: typing.Any, may_be_infinite: bool, path: str = '') -> str | None:
    """'layers.0.weight holds nan' for the first tensor of a state that holds nan or, unless it may, inf."""
    if isinstance(state, dict):
        for key, value in state.items():
            found = find_not_finite(value, may_be_infinite, '%s.%s' % (path, key) if path else str(key))
            if found is not None:
                return found
    elif isinstance(state, torch.Tensor) and state.is_floating_point():
        if bool(torch.isnan(state).any()):
            return path + ' holds nan'
        if not may_be_infinite and bool(torch.isinf(state).any()):
            return path + ' holds inf'
    return None


def encode(state: typing.Mapping[str, typing.Any], skips_functions: typing.Collection[str] = ()) -> bytes:
    """The bytes of a safetensors file with what state_dict() returns, by the names of the objects.

    skips_functions: the objects whose functions are left out, since their constructor makes them again. Errors: a
    value that a file without pickle cannot hold, with its path in the message.
    """
    encoder = _Encoder()
    values = {name: encoder.value(state[name], name, name in skips_functions) for name in sorted(state)}
    metadata = {'thermocline': json.dumps(values, separators=(',', ':'))}
    header: dict[str, typing.Any] = {'__metadata__': metadata}
    # The widest elements stand first, so that all are aligned in a mapped file.
    tensors = sorted(encoder.tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    pieces, offset = [], 0
    for name, tensor in tensors:
        data = _bytes_of(tensor)
        header[name] = {'dtype': _NAMES[tensor.dtype], 'shape': list(tensor.shape),
                        'data_offsets': [offset, offset + len(data)]}
        pieces.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % _ALIGNMENT)
    return b''.join([struct.pack('<Q', len(text)), text, *pieces])


def _decode(value: typing.Any, tensors: dict[str, torch.Tensor]) -> typing.Any:
    if not isinstance(value, dict):
        return value
    (kind, content), = value.items()
    if kind == 'tensor':
        return tensors[content]
    if kind == 'int':
        return int(content)
    if kind == 'float':
        return float.fromhex(content)
    if kind == 'bytes':
        return bytes.fromhex(content)
    if kind == 'array':
        import numpy
        dtype, shape, data = content
        return numpy.frombuffer(bytearray(_bytes_of(_decode(data, tensors))), dtype=dtype).reshape(shape)
    if kind in ('dict', 'ordered', 'counter'):
        items = [(_decode(key, tensors), _decode(item, tensors)) for key, item in content]
        made = {'dict': dict, 'ordered': collections.OrderedDict}.get(kind, dict)(items)
        return collections.Counter(made) if kind == 'counter' else made
    return {'list': list, 'tuple': tuple, 'set': set}[kind](_decode(item, tensors) for item in content)


def decode(data: bytes) -> dict[str, typing.Any]:
    """What encode() was given, from its bytes. Tensors are on the CPU, and own their memory."""
    try:
        length, = struct.unpack_from('<Q', data)
        header = json.loads(data[8:8 + length])
        values = json.loads(header.pop('__metadata__')['thermocline'])
        tensors = {}
        for name, entry in header.items():
            begin, end = entry['data_offsets']
            content = bytearray(data[8 + length + begin:8 + length + end])
            dtype = _DTYPES[entry['dtype']]
            flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype, device='cpu')
            tensors[name] = flat.reshape(entry['shape'])
        return {name: _decode(value, tensors) for name, value in values.items()}
    except Exception as error:
        raise Error('The state of the script in the checkpoint is damaged: %s: %s.'
                    % (type(error).__name__, error)) from None
