"""Modules that look up the rows of a batch. Their tensors are on the CPU, whatever device is the default."""
from __future__ import annotations

import typing

import torch
from torch.nn import functional

from thermocline._batch import Batch, Segments
from thermocline._library import Error

if typing.TYPE_CHECKING:
    from thermocline._job import Feature


class _Group(typing.NamedTuple):
    """Features that one call looks up: of one dim, and pooled alike."""
    mode: str  # 'one' (one lookup a sample), or the mode of embedding_bag
    dim: int  # index of the dim
    places: tuple[int, ...]  # where the module has the features
    indices: torch.Tensor  # 'one': [size, features] int32; else [lookups] int32
    offsets: torch.Tensor | None  # [features * size + 1] int32, feature by feature
    weights: torch.Tensor | None  # [lookups] float32
    segments: Segments | None  # The lookups of bags by row, where they are trained.


class _Inputs(typing.NamedTuple):
    """What a module looks up in a batch."""
    groups: tuple[_Group, ...]
    lengths: torch.Tensor | None  # [size, features, 1]: lookups of the mean's bags, at least 1; else 1; None: all are 1


class _WithGradients(torch.autograd.Function):
    """Vectors that were looked up outside of autograd, whose gradients go to the rows.

    It adds up each row's gradients in one pass over the lookups by row, which the worker has planned; PyTorch's own
    backward pass of an embedding takes many times as long.
    """

    @staticmethod
    def forward(ctx: typing.Any, rows: torch.Tensor, vectors: torch.Tensor, offsets: torch.Tensor,
                segments: torch.Tensor, weights: torch.Tensor | None, lengths: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(offsets, segments, weights, lengths)
        ctx.mark_dirty(vectors)  # It is the result itself, which may be changed in place, as that of an embedding.
        return vectors

    @staticmethod
    def backward(ctx: typing.Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        offsets, segments, weights, lengths = ctx.saved_tensors
        if lengths is not None:
            gradient = gradient / lengths
        of_vectors = gradient.reshape(-1, gradient.shape[-1]).float()
        of_rows = functional.embedding_bag(segments, of_vectors, offsets, mode='sum', include_last_offset=True,
                                           per_sample_weights=weights)
        return of_rows, None, None, None, None, None


def _with_gradients(*arguments: typing.Any) -> torch.Tensor:
    return typing.cast(torch.Tensor, _WithGradients.apply(*arguments))


def _segments_of(indices: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, rows: int) -> Segments:
    """The lookups of bags by row. Those of a row are in the order of the bags, however the rows are numbered."""
    order = torch.sort(indices, stable=True).indices
    begins = torch.zeros(rows + 1, dtype=torch.int32, device='cpu')
    begins[1:] = torch.bincount(indices, minlength=rows).cumsum(0)
    bags = torch.arange(len(offsets) - 1, dtype=torch.int32, device='cpu').repeat_interleave(offsets.diff().long())
    return Segments(begins, bags[order], None if weights is None else weights[order])


def _pool(group: _Group, rows: torch.Tensor) -> torch.Tensor:
    """The pooled vectors of a group's bags, [features * size, dim].

    PyTorch's own backward pass adds a row's gradients up in an order that depends on the rows' numbers, and so on the
    number of servers.
    """
    if group.segments is None or not torch.is_grad_enabled():
        return functional.embedding_bag(group.indices, rows, group.offsets, mode=group.mode, include_last_offset=True,
                                        per_sample_weights=group.weights)
    assert group.offsets is not None
    with torch.no_grad():
        pooled = functional.embedding_bag(group.indices, rows, group.offsets, mode=group.mode,
                                          include_last_offset=True, per_sample_weights=group.weights)
    lengths = group.offsets.diff().clamp(min=1).unsqueeze(1) if group.mode == 'mean' else None
    return _with_gradients(rows, pooled, *group.segments, lengths)


def _check_batch(batch: typing.Any, run_id: str, maker: str) -> None:
    if not isinstance(batch, Batch):
        raise Error('The module of %s is called with a batch of run.batches(), and not with %s.'
                    % (maker, type(batch).__name__))
    if batch._run_id != run_id:
        raise Error('The module of %s was made by another run: call %s of the run that the batch is of again.'
                    % (maker, maker))


class Embeddings(torch.nn.Module):
    """The vectors of features, a sample's lookups pooled as the job says; made by `run.embeddings()`.

    `forward(batch)` returns [size, features, dim] float32 in the order of `features`. Where the tables of the features
    have different dims, it returns a list with one [size, dim] a feature. An empty bag has the vector 0.

    The module has no parameters: its rows live on the servers, and the job's optimizer updates them. It may be used
    more than once in a step, and by several parts of a model; the gradients of a row add up to one update.
    """

    def __init__(self, run_id: str, number: int, features: typing.Sequence[Feature],
                 others: typing.Collection[int] = (), has_all: bool = False) -> None:
        super().__init__()
        self.run_id = run_id  # Its copies have the same.
        self.number = number
        self.features = list(features)
        self.dims = sorted({feature.dim_index for feature in features})
        # others: dims of features that the module does not look up. All rows of a covered dim are looked up.
        self.covered = set(self.dims).difference(others)
        self.has_all = has_all  # The features are all of the job's, in its order.

    def extra_repr(self) -> str:
        """The features and their dims."""
        return ', '.join('%s: %d' % (feature.name, feature.dim) for feature in self.features)

    def _prepare(self, batch: Batch) -> _Inputs:
        """The index tensors of a batch. They are made outside of the graph."""
        members: dict[tuple[str, int], list[int]] = {}
        for place, feature in enumerate(self.features):
            lookups = batch._lookups[feature.name]
            if lookups.weights is not None:
                mode = 'weighted'  # For MEAN, the worker has divided the weights by their sum.
            elif lookups.offsets is None:
                mode = 'one'
            else:
                mode = feature.pooling
            members.setdefault((mode, feature.dim_index), []).append(place)
        groups = tuple(self._group(batch, mode, dim, places) for (mode, dim), places in members.items())
        means = [place for (mode, _), places in members.items() if mode == 'mean' for place in places]
        return _Inputs(groups, self._lengths(batch, means) if means and batch._segments is not None else None)

    def _lengths(self, batch: Batch, means: list[int]) -> torch.Tensor:
        lengths = torch.ones(batch.size, len(self.features), 1, device='cpu')
        for place in means:
            offsets = batch._lookups[self.features[place].name].offsets_or_ones()
            lengths[:, place, 0] = offsets.diff().clamp(min=1)
        return lengths

    def _group(self, batch: Batch, mode: str, dim: int, places: list[int]) -> _Group:
        lookups = [batch._lookups[self.features[place].name] for place in places]
        if mode == 'one':
            indices = torch.stack([each.indices for each in lookups], dim=1)
            return _Group(mode, dim, tuple(places), indices, None, None, None)
        starts, base = [], 0
        for each in lookups:
            starts.append(each.offsets_or_ones()[:-1] + base)
            base += each.indices.numel()
        starts.append(torch.tensor([base], dtype=torch.int32, device='cpu'))
        indices, offsets = torch.cat([each.indices for each in lookups]), torch.cat(starts)
        given = [each.weights for each in lookups if each.weights is not None]
        weights = torch.cat(given) if given else None
        has_plan = batch.is_evaluation or (self.has_all and batch._segments is not None)
        segments = None if has_plan else _segments_of(indices, offsets, weights, len(batch._leaf(self.number, dim)))
        return _Group('sum' if mode == 'weighted' else mode, dim, tuple(places), indices, offsets, weights, segments)

    def _looked_up(self, batch: Batch) -> typing.Iterator[tuple[int, torch.Tensor]]:
        """(index of a dim, int32 rows of its leaf) of all lookups."""
        for group in batch._inputs[self.number].groups:
            yield group.dim, group.indices.reshape(-1)

    if typing.TYPE_CHECKING:
        # A tensor, or a list of them, as the job has it.
        def __call__(self, batch: Batch) -> typing.Any: ...

    def forward(self, batch: Batch) -> torch.Tensor | list[torch.Tensor]:
        """The vectors of a batch of run.batches()."""
        _check_batch(batch, self.run_id, 'run.embeddings()')
        segments = batch._segments
        if segments is None or not self.has_all or not torch.is_grad_enabled():
            return self._look_up(batch, batch._rows[self.number])
        leaf = batch._rows[self.number][0]
        with torch.no_grad():
            vectors = self._look_up(batch, {0: leaf})
        return _with_gradients(leaf, vectors, *segments, batch._inputs[self.number].lengths)

    def _look_up(self, batch: Batch, rows_of: dict[int, torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        groups: tuple[_Group, ...] = batch._inputs[self.number].groups
        found: dict[int, torch.Tensor] = {}
        for group in groups:
            rows = rows_of[group.dim]
            if group.mode == 'one':
                vectors = functional.embedding(group.indices, rows)  # [size, features, dim]
            else:
                pooled = _pool(group, rows)
                # A copy in any case: no view of what was made without gradients may be changed in place.
                vectors = pooled.view(len(group.places), batch.size, -1).transpose(0, 1).clone(
                    memory_format=torch.contiguous_format)
            if len(groups) == 1:
                return vectors
            for place, vector in zip(group.places, vectors.unbind(1)):
                found[place] = vector
        in_order = [found[place] for place in range(len(self.features))]
        # The results of unbind() may not be changed in place, their copies may.
        return torch.stack(in_order, dim=1) if len(self.dims) == 1 else [each.clone() for each in in_order]


class Sequences(torch.nn.Module):
    """The vectors of features that are lists, entry by entry; made by `run.sequences()`.

    `forward(batch)` returns (vectors, mask): vectors [size, length, features, dim] float32, mask [size, length] bool.
    mask[b, i] is true where the lists of sample b have an entry i; where it is false the vectors are 0. Of longer
    lists the last `length` entries count, in their order. The features' lists have one length in each sample, which is
    checked.
    """

    def __init__(self, run_id: str, number: int, features: typing.Sequence[Feature], length: int) -> None:
        super().__init__()
        self.run_id = run_id
        self.number = number
        self.features = list(features)
        self.length = length
        self.dims = sorted({feature.dim_index for feature in features})
        self.covered: set[int] = set()

    def extra_repr(self) -> str:
        """The features and their dims."""
        names = ', '.join('%s: %d' % (feature.name, feature.dim) for feature in self.features)
        return '%s, length=%d' % (names, self.length)

    def _prepare(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(indices [size, length, features] int32, mask [size, length] bool). They are made outside of the graph."""
        first = self._ranges(batch, self.features[0])
        lengths = first[1] - first[0]
        indices = []
        for feature in self.features:
            begin, end = self._ranges(batch, feature)
            if not torch.equal(end - begin, lengths):
                sample = int(torch.nonzero(end - begin != lengths)[0])
                raise Error('Step %d, sample %d: the list %s has %d entries and %s has %d. The lists of one '
                            'run.sequences() have one length in each sample.'
                            % (batch.step, sample, self.features[0].name, lengths[sample], feature.name,
                               end[sample] - begin[sample]))
            places = torch.maximum(begin, end.sub(self.length)).unsqueeze(1) + torch.arange(self.length, device='cpu')
            found = batch._lookups[feature.name].indices
            # Its last entry stands for no entry.
            found = torch.cat([found, torch.zeros(1, dtype=torch.int32, device='cpu')])
            indices.append(found[torch.where(places < end.unsqueeze(1), places, found.numel() - 1)])
        mask = torch.arange(self.length, device='cpu').unsqueeze(0) < lengths.unsqueeze(1)
        return torch.stack(indices, dim=2), mask

    def _ranges(self, batch: Batch, feature: Feature) -> tuple[torch.Tensor, torch.Tensor]:
        """(begin, end) of each sample's list, [size] int64 both."""
        lookups = batch._lookups[feature.name]
        if lookups.weights is not None:
            raise Error("The feature '%s' has weights, and run.sequences() has no use for them: take `weights` out of "
                        'the feature, or pool it with run.embeddings().' % feature.name)
        offsets = lookups.offsets_or_ones().long()
        return offsets[:-1], offsets[1:]

    def _looked_up(self, batch: Batch) -> typing.Iterator[tuple[int, torch.Tensor]]:
        """(index of the dim, int32 rows of its leaf) of all entries that the mask has."""
        indices, mask = batch._inputs[self.number]
        yield self.dims[0], indices[mask].reshape(-1)

    if typing.TYPE_CHECKING:
        def __call__(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(vectors, mask) of a batch of run.batches()."""
        _check_batch(batch, self.run_id, 'run.sequences()')
        indices, mask = batch._inputs[self.number]
        mask = mask.clone()  # The step reads its own when it is closed.
        rows = batch._rows[self.number][self.dims[0]]
        if rows.shape[0] == 0:  # All lists are empty.
            return rows.sum() + rows.new_zeros(batch.size, self.length, len(self.features), rows.shape[1]), mask
        vectors = functional.embedding(indices, rows)
        return vectors.masked_fill(~mask[:, :, None, None], 0.0), mask
