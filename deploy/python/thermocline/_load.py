"""A checkpoint, read without servers."""
from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
import types
import typing

from thermocline._library import Error
from thermocline._programs import find_launcher

if typing.TYPE_CHECKING:
    import numpy

_DTYPES = {'U64': '<u8', 'F32': '<f4'}
_ROWS_AT_ONCE = 1 << 20  # So many at a time go into a Parquet file.


def _import(name: str, wants: str) -> types.ModuleType:
    import importlib
    import sys
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Error('%s needs %s, which this Python (%s) does not have. Install it with: %s -m pip install %s.'
                    % (wants, name, sys.executable, sys.executable, name)) from None


def _read_safetensors(path: str) -> tuple[dict[str, typing.Any], dict[str, str]]:
    """The tensors of a file by name, mapped and not read, and its metadata."""
    np = _import('numpy', 'thermocline.load()')
    with open(path, 'rb') as file:
        length, = struct.unpack('<Q', file.read(8))
        header = json.loads(file.read(length))
    metadata = header.pop('__metadata__', {})
    size = os.path.getsize(path)
    data = np.memmap(path, dtype='u1', mode='r', offset=8 + length) if size > 8 + length else np.zeros(0, 'u1')
    tensors = {}
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        tensors[name] = data[begin:end].view(_DTYPES[entry['dtype']]).reshape(entry['shape'])
    return tensors, metadata


class Model:
    """What a checkpoint holds; `thermocline.load()` returns it.

    Attributes:
        tables: The dims of the tables of embeddings, by name.
        step: How far the job was: the checkpoint's last step.
        digest: The digest of the model, as in the job's summary.
    """

    def __init__(self, tensors: dict[str, typing.Any], metadata: dict[str, str], state: bytes | None) -> None:
        self.tables: dict[str, int] = {table['name']: table['dim'] for table in json.loads(metadata['model'])['tables']}
        self.step = int(metadata['step'])
        self.digest = metadata['model_digest']
        self._tensors = tensors
        self._state = state

    def rows(self, table: str) -> tuple[numpy.ndarray, numpy.ndarray]:
        """The keys [n] uint64 of a table and their vectors [n, dim] float32, in the checkpoint's order.

        Both are mapped from a file: what is read of them takes memory, and they cannot be written to. Rows that no
        step has trained are not among them. Errors: there is no such table.
        """
        if table not in self.tables:
            raise Error("The checkpoint has no table '%s'. It has %s." % (table, ', '.join(self.tables) or 'none'))
        return self._tensors[table + '.keys'], self._tensors[table + '.rows']

    @property
    def state(self) -> dict[str, typing.Any]:
        """What run.track() has kept: the state_dict() of each object, by the name it was tracked under.

        They are on the CPU. {} where the script has kept nothing, or the job's model is no script. Needs PyTorch.
        """
        if not self._state:
            return {}
        import thermocline
        decode = thermocline._import('_state').decode
        return {name: state for name, state in decode(self._state).items() if not name.startswith('_')}

    def to_parquet(self, folder: str | os.PathLike[str]) -> list[str]:
        """Writes TABLE.parquet for each table into a folder, which is made where there is none; returns their paths.

        Each has the columns `key` (uint64) and `vector` (fixed-size list of float32). Needs pyarrow.
        """
        arrow = _import('pyarrow', 'to_parquet()')
        parquet = _import('pyarrow.parquet', 'to_parquet()')
        os.makedirs(folder, exist_ok=True)
        paths = []
        for table, dim in self.tables.items():
            keys, vectors = self.rows(table)
            schema = arrow.schema([('key', arrow.uint64()), ('vector', arrow.list_(arrow.float32(), dim))])
            paths.append(os.path.join(os.fspath(folder), table + '.parquet'))
            with parquet.ParquetWriter(paths[-1], schema) as writer:
                for begin in range(0, len(keys), _ROWS_AT_ONCE):
                    end = begin + _ROWS_AT_ONCE
                    flat = arrow.array(vectors[begin:end].reshape(-1))
                    writer.write_table(arrow.table([arrow.array(keys[begin:end]),
                                                    arrow.FixedSizeListArray.from_arrays(flat, dim)], schema=schema))
        return paths

    def __repr__(self) -> str:
        return '<thermocline.Model of step %d: %d tables>' % (self.step, len(self.tables))


def load(checkpoint: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Model:
    """The model of a checkpoint; see help(thermocline.load)."""
    with tempfile.TemporaryDirectory(prefix='thermocline-', dir=folder) as temporary:
        path = os.path.join(temporary, 'model.safetensors')
        export = subprocess.run([find_launcher(), 'checkpoint', 'export', os.fspath(checkpoint), path],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if export.returncode != 0:
            raise Error(export.stderr.decode(errors='replace').strip())
        state = None
        state_path = os.path.join(temporary, 'model.state.safetensors')
        if os.path.exists(state_path):
            with open(state_path, 'rb') as file:
                state = file.read()
        return Model(*_read_safetensors(path), state)  # What is mapped stays when its file is removed.
