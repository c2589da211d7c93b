"""A batch, as tensors over the memory that the worker shares."""
from __future__ import annotations

import typing
import weakref

import torch

from thermocline import _library as lib
from thermocline._library import Error

if typing.TYPE_CHECKING:
    from thermocline._embeddings import Embeddings, Sequences
    from thermocline._job import Job

_DTYPES = {lib.INDICES: torch.int32, lib.OFFSETS: torch.int32, lib.HAS_GRADIENT: torch.uint8,
           lib.SEGMENT_OFFSETS: torch.int32, lib.SEGMENTS: torch.int32}
_ELEMENT_BYTES = {torch.float32: 4, torch.int32: 4, torch.uint8: 1}


class Slot:
    """The memory of one batch. It goes back to the worker when no tensor over it is left."""

    def __init__(self, connection: lib.Connection, number: int, num_dims: int, num_features: int,
                 released: list[int]) -> None:
        self.number = number
        self._arrays: dict[tuple[int, int], tuple[int, int]] = {}
        wanted = [(what, 0) for what in (lib.NUMERIC, lib.LABELS, lib.WEIGHTS, lib.SCORES, lib.OWN_METRIC)]
        wanted += [(what, i) for what in (lib.ROWS, lib.GRADIENTS, lib.HAS_GRADIENT, lib.SEGMENT_OFFSETS, lib.SEGMENTS,
                                          lib.SEGMENT_WEIGHTS) for i in range(num_dims)]
        wanted += [(what, i) for what in (lib.INDICES, lib.OFFSETS, lib.LOOKUP_WEIGHTS) for i in range(num_features)]
        for key in wanted:
            array = connection.array(number, *key)
            if array is not None:
                self._arrays[key] = array
        used = [(address, count * _ELEMENT_BYTES[_dtype(what)])
                for (what, _), (address, count) in self._arrays.items() if count > 0]
        self._begin = min((address for address, _ in used), default=0)
        size = max((address + length for address, length in used), default=0) - self._begin
        self._memory = lib.view_memory(self._begin, size) if size > 0 else memoryview(bytearray(1))
        # Each tensor refers to this one buffer, and so does whatever is made of the tensor without a copy. Any thread
        # may drop the last one: the run's own thread gives the slot back later. The connection, which keeps the memory
        # mapped, is among the arguments so that it lives as long.
        weakref.finalize(self._memory, _release, connection, released, number).atexit = False

    def tensor(self, what: int, index: int = 0) -> torch.Tensor | None:
        """The tensor over an array of the batch; None: the batch has no such array."""
        found = self._arrays.get((what, index))
        if found is None:
            return None
        address, count = found
        if count == 0:
            return torch.empty(0, dtype=_dtype(what), device='cpu')
        return torch.frombuffer(self._memory, dtype=_dtype(what), count=count, offset=address - self._begin)

    def required(self, what: int, index: int = 0) -> torch.Tensor:
        """As tensor(), of an array that each batch has."""
        tensor = self.tensor(what, index)
        if tensor is None:
            raise Error('The worker sends a batch without its array %d.%d: worker and package are of different builds.'
                        % (what, index))
        return tensor


def kind_of(value: typing.Any) -> str:
    """What a value is, for errors: 'a tensor [2, 3]'."""
    return 'a tensor %s' % list(value.shape) if isinstance(value, torch.Tensor) else 'of type ' + type(value).__name__


def _dtype(what: int) -> torch.dtype:
    return _DTYPES.get(what, torch.float32)


def _release(connection: lib.Connection, released: list[int], number: int) -> None:
    del connection
    released.append(number)


class Lookups(typing.NamedTuple):
    """The lookups of one feature, as rows of the leaf of its dim."""
    indices: torch.Tensor  # [lookups] int32
    offsets: torch.Tensor | None  # [size + 1] int32; None: one lookup a sample
    weights: torch.Tensor | None  # [lookups] float32; None: each is 1

    def offsets_or_ones(self) -> torch.Tensor:
        """The offsets, also where each sample has one lookup."""
        if self.offsets is not None:
            return self.offsets
        return torch.arange(self.indices.numel() + 1, dtype=torch.int32, device='cpu')

    def cut(self, begin: int, end: int) -> Lookups:
        """The lookups of the samples from `begin` to `end`."""
        if self.offsets is None:
            first, last, offsets = begin, end, None
        else:
            first, last = int(self.offsets[begin]), int(self.offsets[end])
            offsets = self.offsets[begin:end + 1] - first
        return Lookups(self.indices[first:last], offsets, None if self.weights is None else self.weights[first:last])


class Segments(typing.NamedTuple):
    """The lookups of all features, by row of the leaf of the job's only dim."""
    offsets: torch.Tensor  # [rows + 1] int32
    vectors: torch.Tensor  # [lookups] int32: sample * features + feature
    weights: torch.Tensor | None  # [lookups] float32; None: each is 1


class OpenStep:
    """What the hooks of a step's gradients know: no batch and no tensor, so that they keep none of it alive."""

    def __init__(self, step: int, pieces: int) -> None:
        self.step = step
        self.pieces = pieces
        self.is_open = True
        self.is_in_backward = False  # Within Run.backward().
        self.reached: set[tuple[int, int]] = set()  # (module, piece) that a backward pass has reached.
        self.loss_sum: float | None = None  # What Run.backward() had in this step.

    def check(self, _: torch.Tensor | None = None) -> None:
        """The hook of each leaf."""
        if not self.is_open:
            raise Error('Step %d is closed, and a backward pass reaches its rows: this gradient would be lost. Call '
                        'backward() before run.step(), and use a batch that you keep under torch.no_grad().'
                        % self.step)

    def note(self, module: int, piece: int) -> typing.Callable[[torch.Tensor], None]:
        """The hook of a piece's view of a leaf."""
        def hook(_: torch.Tensor) -> None:
            self.check()
            if not self.is_in_backward:
                raise Error('Step %d has %d pieces, and the loss of a piece counts by its share of the samples: call '
                            'run.backward(loss), which weights it, in place of loss.backward().'
                            % (self.step, self.pieces))
            self.reached.add((module, piece))
        return hook


class Batch:
    """The samples of a step, or of one piece of it where `batches(accumulate=k)` cuts it.

    Attributes:
        step: The number of the step, as in the job's metrics.
        size: How many samples the batch has.
        numeric: [size, numeric columns] float32, in the order of `run.job.numeric`.
        label: [size] float32.
        weight: [size] float32 sample weights; None where the job has none.
        closes: True for the batch after which `run.step()` or `run.skip()` is called: each one, or the last piece.
        share: The batch's part of a whole step: its size by the job's batch_size. It is below 1.0 for pieces, and where
            a step has fewer samples, as the last of a pass may.
        leaves: The rows that the modules look up, one tensor [rows, dim] a module and dim. Their `grad` is what
            `run.step()` pushes: it may be looked at, clipped or changed before.

    The rows of its features are looked up by the modules of `run.embeddings()` and `run.sequences()`. The tensors lie
    in memory that the worker shares, without a copy. They stay as they are for as long as the batch, or any tensor
    over them, is kept; that memory is used again only then.
    """

    def __init__(self, run_id: str, slot: Slot, step: int, size: int, batch_size: int, is_evaluation: bool) -> None:
        self.step = step
        self.size = size
        self.closes = True
        self.share = size / batch_size
        self.is_evaluation = is_evaluation
        self.numeric: torch.Tensor = torch.empty(size, 0, device='cpu')
        self.label: torch.Tensor = torch.empty(0, device='cpu')
        self.weight: torch.Tensor | None = None
        self._run_id = run_id
        self._slot = slot
        self._batch_size = batch_size  # The job's.
        self._state = OpenStep(step, 1)
        self._lookups: dict[str, Lookups] = {}
        self._segments: Segments | None = None  # None unless the job has one dim and a whole batch is trained.
        self._leaves: dict[int, dict[int, torch.Tensor]] = {}  # By module and dim.
        self._rows: dict[int, dict[int, torch.Tensor]] = {}  # The leaves, or a piece's views of them.
        self._inputs: dict[int, typing.Any] = {}  # By module: what its _prepare() made, outside of any graph.

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The rows that the modules look up: see the attributes of the class."""
        return [leaf for of_module in self._leaves.values() for leaf in of_module.values()]

    def zero_grad(self) -> None:
        """Forgets what backward passes have left in this step: the gradients of its rows, and run.backward()'s losses.

        For optimizers that call a closure (LBFGS) and for two passes a step (SAM), beside the optimizer's zero_grad().
        Without it the gradients of all backward passes add up. Where the batch is in pieces it counts for all of them.
        """
        for leaf in self.leaves:
            leaf.grad = None
        self._state.reached.clear()
        self._state.loss_sum = None

    def _leaf(self, module: int, dim: int) -> torch.Tensor:
        return self._leaves[module][dim]

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return '<thermocline.Batch of step %d: %d samples>' % (self.step, self.size)


Module = typing.Union['Embeddings', 'Sequences']


def _hook(tensor: typing.Any, hook: typing.Callable[[torch.Tensor], None]) -> None:
    tensor.register_hook(hook)  # It has no types in some versions of PyTorch.


def make_batch(run_id: str, slot: Slot, event: lib.Event, job: Job, modules: typing.Sequence[Module]) -> Batch:
    """The batch of an event, with leaves for its modules."""
    size = event.size
    batch = Batch(run_id, slot, event.step, size, job.batch_size, event.kind == lib.EVALUATION)
    numeric = slot.tensor(lib.NUMERIC)
    if numeric is not None and numeric.numel() > 0:
        # The worker may have padded the samples.
        batch.numeric = numeric.view(size, -1)[:, :len(job.numeric)].contiguous()
    batch.label = slot.required(lib.LABELS)
    batch.weight = slot.tensor(lib.WEIGHTS)
    batch._lookups = {feature.name: Lookups(slot.required(lib.INDICES, i), slot.tensor(lib.OFFSETS, i),
                                            slot.tensor(lib.LOOKUP_WEIGHTS, i))
                      for i, feature in enumerate(job.features)}
    if len(job.dims) == 1 and not batch.is_evaluation:
        batch._segments = Segments(slot.required(lib.SEGMENT_OFFSETS), slot.required(lib.SEGMENTS),
                                   slot.tensor(lib.SEGMENT_WEIGHTS))
    rows = [slot.required(lib.ROWS, i).view(-1, dim) for i, dim in enumerate(job.dims)]
    # Autograd adds up whatever uses a leaf. A module that took no part in a backward pass has leaves without gradient.
    for module in modules:
        leaves = {dim: rows[dim].detach() for dim in module.dims}
        if not batch.is_evaluation:
            for leaf in leaves.values():
                _hook(leaf.requires_grad_(), batch._state.check)
        batch._leaves[module.number] = batch._rows[module.number] = leaves
    if batch.is_evaluation:
        prepare(batch, modules)
    return batch


def prepare(batch: Batch, modules: typing.Sequence[Module]) -> None:
    """Makes what the modules look up, outside of any graph."""
    for module in modules:
        batch._inputs[module.number] = module._prepare(batch)


def cut_batch(batch: Batch, number: int, pieces: int, modules: typing.Sequence[Module]) -> Batch:
    """One of the pieces of near equal size, none of them empty, over the leaves of the batch."""
    if pieces == 1:
        prepare(batch, modules)
        return batch
    begin, end = batch.size * number // pieces, batch.size * (number + 1) // pieces
    piece = Batch(batch._run_id, batch._slot, batch.step, end - begin, batch._batch_size, False)
    piece.closes = number == pieces - 1
    piece.numeric, piece.label = batch.numeric[begin:end], batch.label[begin:end]
    piece.weight = None if batch.weight is None else batch.weight[begin:end]
    piece._state = batch._state
    piece._state.pieces = pieces
    piece._lookups = {name: lookups.cut(begin, end) for name, lookups in batch._lookups.items()}
    piece._leaves = batch._leaves
    for module in modules:
        with torch.enable_grad():
            views = {dim: leaf.view_as(leaf) for dim, leaf in batch._leaves[module.number].items()}
        for view in views.values():
            _hook(view, batch._state.note(module.number, number))
        piece._rows[module.number] = views
    prepare(piece, modules)
    return piece
