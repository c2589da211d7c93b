"""The objects that a script keeps in checkpoints, with the global random states."""
from __future__ import annotations

import collections
import functools
import sys
import types
import typing

import torch

from thermocline import _random_states
from thermocline import _state
from thermocline._library import Error

_SCHEDULERS = tuple(getattr(torch.optim.lr_scheduler, name)
                    for name in ('LRScheduler', '_LRScheduler', 'ReduceLROnPlateau')
                    if hasattr(torch.optim.lr_scheduler, name))


def _is_enabled_scaler(value: typing.Any) -> bool:
    return hasattr(value, 'unscale_') and hasattr(value, 'is_enabled') and bool(value.is_enabled())


def _is_called_by_scaler() -> bool:
    """Whether an optimizer's step() is called by an enabled GradScaler, maybe by way of schedulers, which wrap it."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if _is_enabled_scaler(frame.f_locals.get('self')):
            return True
        frame = frame.f_back
    return False


class Tracked:
    """The objects of run.track() by name, and what the checkpoint has for them that training goes on from.

    Attributes:
        objects: All of them.
        optimizers: The optimizers among them.
        stepped: The optimizers that have stepped since it was cleared, and whether a GradScaler has called them.
        has_loaded: Whether load() was called.
    """

    def __init__(self, max_bytes: int | None, warn: typing.Callable[[str], None]) -> None:
        self.objects: dict[str, typing.Any] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.stepped: dict[str, bool] = {}
        self.has_loaded = False
        self._max_bytes = max_bytes
        self._warn = warn
        self._bytes: dict[str, int] = {}  # As they were tracked.
        self._loaded: dict[str, typing.Any] | None = None  # What the checkpoint has for objects not yet tracked.
        self._first_random_states = {name: _state.encode({name: now}) for name, now in _random_states.now().items()}
        self._random_states: dict[str, typing.Any] = {}  # What the checkpoint has, until the first batch.

    def add(self, name: str, value: typing.Any) -> None:
        """Keeps an object; see Run.track()."""
        if _random_states.is_generator(value):
            value = _random_states.Generator(value)
        if not (callable(getattr(value, 'state_dict', None)) and callable(getattr(value, 'load_state_dict', None))):
            raise Error("'%s' cannot be tracked: %s has no state_dict() and load_state_dict()."
                        % (name, type(value).__name__))
        if name.startswith('_'):
            raise Error("'%s' cannot be tracked: names that begin with '_' are the package's own." % name)
        if name in self.objects:
            raise Error("There is a tracked object '%s' already." % name)
        self.objects[name] = value
        self._bytes[name] = _state.check(name, self._state_of(name), isinstance(value, _SCHEDULERS))
        self._check_size(sum(self._bytes.values()))
        if isinstance(value, torch.optim.Optimizer):
            self._watch(name, value)

    def _check_size(self, size: int) -> None:
        if self._max_bytes is None or size <= self._max_bytes:
            return
        sizes = sorted(self._bytes.items(), key=lambda item: -item[1])
        raise Error('What is tracked has %s (%s), and a checkpoint takes %s of a script, a part of '
                    'cluster.max_pending_size: raise that, or track less.'
                    % (_megabytes(size), ', '.join("'%s' %s" % (name, _megabytes(each)) for name, each in sizes),
                       _megabytes(self._max_bytes)))

    def _watch(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Notes the steps of an optimizer, however often schedulers wrap its step(), before or after."""
        self.optimizers[name] = optimizer
        step, stepped = optimizer.step, self.stepped

        def noted(_: torch.optim.Optimizer, *arguments: typing.Any, **named: typing.Any) -> typing.Any:
            result = step(*arguments, **named)
            stepped[name] = _is_called_by_scaler()
            return result
        functools.update_wrapper(noted, step)  # With the marks of a scheduler that has wrapped it.
        setattr(optimizer, 'step', types.MethodType(noted, optimizer))  # Schedulers ask for a bound method.

    def has_scaler(self) -> bool:
        """Whether a GradScaler scales the losses: one is tracked, or has called an optimizer in this step."""
        return any(self.stepped.values()) or any(_is_enabled_scaler(value) for value in self.objects.values())

    # From a checkpoint
    # ------------------------------------------------------------------------------------------------------------------

    def load(self, data: bytes) -> None:
        """Takes the state of the checkpoint that training goes on from, and gives the objects theirs."""
        self.has_loaded = True
        if not data:
            return
        self._loaded = _state.decode(data)
        self._random_states = {name: self._loaded.pop(name) for name in _random_states.NAMES if name in self._loaded}
        self.give_states(self.objects)

    def give_states(self, names: typing.Iterable[str]) -> None:
        """Gives these objects what the checkpoint has for them, where there is one."""
        if self._loaded is None:
            return
        for name in names:
            if name not in self._loaded:
                self._warn("The checkpoint has no state of '%s', which begins anew." % name)
                continue
            value, state = self.objects[name], self._loaded.pop(name)
            settings = list(getattr(value, 'defaults', []))  # An optimizer has them.
            try:
                if isinstance(value, torch.nn.Module):
                    state = _with_names_of(value, state)
                value.load_state_dict(state)
                misfit, cause = '', None
                if isinstance(value, torch.optim.Optimizer):
                    misfit = _missing_settings(settings, value.param_groups)
            except Exception as error:
                misfit, cause = str(error), error
                if isinstance(error, KeyError):
                    groups = state.get('param_groups', []) if isinstance(value, torch.optim.Optimizer) else []
                    misfit = _missing_settings(settings, groups) or 'it has no %s.' % error
            if misfit:
                raise Error("The checkpoint's state of '%s' does not fit the %s of this script: %s"
                            % (name, type(value).__name__, misfit)) from cause

    def forget_others(self) -> None:
        """Training begins: warns of what the checkpoint has for objects that are not tracked."""
        if self._loaded:
            self._warn('The checkpoint has states of objects that this script does not track: %s. The next '
                       'checkpoint is without them.' % ', '.join(sorted(self._loaded)))
            self._loaded.clear()

    def restore_random_states(self) -> None:
        """As late as the first batch, since the script may have used random numbers for its initial values."""
        states, self._random_states = self._random_states, {}
        _random_states.restore(states)

    # Into a checkpoint
    # ------------------------------------------------------------------------------------------------------------------

    def state_bytes(self, step: int | None) -> bytes:
        """The state of all, after a step; None: before the first."""
        state: dict[str, typing.Any] = {name: self._state_of(name) for name in self.objects}
        self._check_finite(state, step)
        # A generator that nothing has used or seeded since the beginning may have begun anywhere.
        state.update((name, now) for name, now in _random_states.now().items()
                     if _state.encode({name: now}) != self._first_random_states.get(name))
        skips_functions = [name for name, value in self.objects.items() if isinstance(value, _SCHEDULERS)]
        data = _state.encode(state, skips_functions)
        if self._max_bytes is not None and len(data) > self._max_bytes:
            # An optimizer has its state from its first step on.
            self._bytes = {name: _state.check(name, state[name], name in skips_functions) for name in self.objects}
            self._check_size(len(data))
        return data

    def _state_of(self, name: str) -> typing.Any:
        """What the state_dict() of an object returns, with plain names."""
        value = self.objects[name]
        state = value.state_dict()
        if not isinstance(value, torch.nn.Module):
            return state
        plain = _state.plain_names(state)
        return collections.OrderedDict((plain[key], item) for key, item in state.items())

    def _check_finite(self, state: dict[str, typing.Any], step: int | None) -> None:
        """Refuses what training could not go on from: trained parameters that are not finite, optimizers with a NaN."""
        for name, value in self.objects.items():
            found = None
            if isinstance(value, torch.nn.Module):
                # What is not trained may hold anything, such as masks of attention and marks of missing values.
                plain = _state.plain_names(value.state_dict())
                trained = {plain.get(key, key) for key, each in value.named_parameters() if each.requires_grad}
                found = _state.find_not_finite({key: each for key, each in state[name].items() if key in trained},
                                               False)
            elif isinstance(value, torch.optim.Optimizer):
                found = _state.find_not_finite(state[name], True)
            if found is not None:
                raise Error("Step %s: the tracked '%s' cannot be saved: %s, from which training could not go on. An "
                            'earlier checkpoint is without it.' % ('?' if step is None else step, name, found))


def _with_names_of(module: torch.nn.Module, state: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """A state with plain names under the names that the module gives them."""
    own = module.state_dict()
    given = {plain: key for key, plain in _state.plain_names(own).items()}
    renamed = collections.OrderedDict((given.get(key, key), item) for key, item in state.items())
    setattr(renamed, '_metadata', getattr(own, '_metadata', None))  # The versions of the modules' formats.
    return renamed


def _missing_settings(settings: typing.Sequence[str], groups: typing.Sequence[dict[str, typing.Any]]) -> str:
    """Which settings of an optimizer its state lacks; '' where it has all."""
    missing = [key for key in settings if any(key not in group for group in groups)]
    return 'it has no %s, and is of another optimizer.' % ', '.join(missing) if missing else ''


def _megabytes(size: int) -> str:
    return '%.1f MiB' % (size / 1024 ** 2)
