"""The states of random generators: the global ones, and those that a script tracks."""
from __future__ import annotations

import random
import sys
import typing

import torch

NAMES = ('_python', '_torch', '_numpy')  # In a checkpoint.


def now() -> dict[str, typing.Any]:
    """The states of the global generators: of Python, PyTorch, and NumPy where it is imported."""
    states = {'_python': random.getstate(), '_torch': torch.random.get_rng_state()}
    numpy = sys.modules.get('numpy')
    if numpy is not None:
        states['_numpy'] = numpy.random.get_state()
    return states


def restore(states: dict[str, typing.Any]) -> None:
    """Sets those of the global generators that are there."""
    if '_python' in states:
        random.setstate(states['_python'])
    if '_torch' in states:
        torch.random.set_rng_state(states['_torch'])
    if '_numpy' in states:
        import numpy
        numpy.random.set_state(states['_numpy'])


class Generator:
    """A random generator of PyTorch or NumPy, with its state as an object has it that is tracked."""

    def __init__(self, generator: typing.Any) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, typing.Any]:
        is_torch = isinstance(self._generator, torch.Generator)
        return {'state': self._generator.get_state() if is_torch else self._generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, typing.Any]) -> None:
        if isinstance(self._generator, torch.Generator):
            self._generator.set_state(state['state'])
        else:
            self._generator.bit_generator.state = state['state']


def is_generator(value: typing.Any) -> bool:
    return isinstance(value, torch.Generator) or hasattr(getattr(value, 'bit_generator', None), 'state')
