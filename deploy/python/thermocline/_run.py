"""A script's run: the batches of its worker, and the steps that it closes."""
from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import time
import traceback
import types
import typing

import torch

from thermocline import _library as lib
from thermocline import _random_states
from thermocline._batch import Batch, Slot, cut_batch, kind_of, make_batch
from thermocline._embeddings import Embeddings, Sequences
from thermocline._job import Feature, Job
from thermocline._library import Error
from thermocline._scoring import Metric, Score, Scoring
from thermocline._trace import Trace
from thermocline._tracked import Tracked

_MANY_BATCHES = 100  # So many that are kept are rather a mistake.
Gradients = typing.List[typing.List[typing.Tuple[typing.Union[Embeddings, Sequences], torch.Tensor]]]


def _did_you_mean(name: str, names: typing.Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return "Did you mean '%s'?" % close[0] if close else 'It has %s.' % ', '.join(names)


class Run:
    """A script's part of a job; `thermocline.worker()` returns it.

    Use it in a `with` statement: at its end the worker learns how the script ended, with the traceback of an error.
    All calls are made by the thread and the process that made the run.

    Attributes:
        job: What the job says of its data and its steps.
        metrics: The figures of the last evaluation, by name; empty before the first.
    """
    _CALL = 'thermocline.worker()'  # What makes it.

    def __init__(self, connection: lib.Connection) -> None:
        self.job = Job(json.loads(connection.job))
        self.metrics: dict[str, typing.Any] = {}
        self._connection = connection
        self._trace = Trace(self.job.traced)
        self._trace.step = self.job.start_step
        self._handed_out_ns = 0  # When the open step's batch was handed out.
        self._id = os.urandom(8).hex()  # Its modules and batches have it, and their copies.
        self._released: list[int] = []  # Slots that no tensor needs any more; filled by any thread.
        self._num_held = 0  # Slots that were not given back.
        self._is_entered = False
        self._modules: list[Embeddings | Sequences] = []
        self._tracked = Tracked(self.job.max_state_bytes, self._warn)
        self._scoring = Scoring(self.job.own_metric, self._warn)
        self._rows_optimizer: torch.optim.Optimizer | None = None  # What a scaler sees of the open step's rows.
        self._unscaler: typing.Any = None  # The scaler of unscale_(), until it is updated.
        self._has_batch = False
        self._open: Batch | None = None  # The batch of the step that is not closed yet, whole.
        self._pieces: list[Batch] = []  # The same, or those pieces of it that were handed out.
        self._closed_step: int | None = None
        self._is_trained = False

    def _warn(self, text: str) -> None:
        self._connection.warn(text)  # The launcher's console has it.

    # Modules
    # ------------------------------------------------------------------------------------------------------------------

    def embeddings(self, features: typing.Sequence[str] | None = None) -> Embeddings:
        """A torch.nn.Module that looks up the rows of these features, or of all, and pools them as the job says.

        Its call with a batch returns [size, features, dim], or a list of [size, dim] where the dims of the features
        differ. It is made before the first batch.
        """
        found = self._find(features)
        others = {feature.dim_index for feature in self.job.features if feature not in found}
        made = Embeddings(self._id, len(self._modules), found, others, found == self.job.features)
        return typing.cast(Embeddings, self._add(made))

    def sequences(self, features: typing.Sequence[str], length: int) -> Sequences:
        """A torch.nn.Module that looks up the rows of lists, entry by entry, for attention and the like.

        Its call with a batch returns (vectors [size, length, features, dim], mask [size, length]): the last `length`
        entries of each list, and which of them are there. It is made before the first batch.
        """
        found = self._find(features)
        if len({feature.dim for feature in found}) != 1:
            raise Error('The features of one run.sequences() have one dim, and these have several: %s.'
                        % ', '.join('%s has %d' % (feature.name, feature.dim) for feature in found))
        if not _is_count(length):
            raise Error('The length of a run.sequences() is a whole number of 1 or more, and not %r.' % (length,))
        return typing.cast(Sequences, self._add(Sequences(self._id, len(self._modules), found, length)))

    def _add(self, module: Embeddings | Sequences) -> Embeddings | Sequences:
        if self._has_batch:
            raise Error('run.embeddings() and run.sequences() are called before the first batch.')
        self._modules.append(module)
        return module

    def _find(self, features: typing.Sequence[str] | None) -> list[Feature]:
        by_name = {feature.name: feature for feature in self.job.features}
        if isinstance(features, str):
            raise Error("Features are given as a list of names: ['%s']." % features)
        names = list(by_name) if features is None else list(features)
        if not names:
            raise Error('There is no feature to look up.' if by_name else 'The job has no feature with embeddings.')
        for name in names:
            if name not in by_name:
                raise Error("The job has no feature '%s' with embeddings. %s"
                            % (name, _did_you_mean(name, list(by_name))))
        return [by_name[name] for name in names]

    # State
    # ------------------------------------------------------------------------------------------------------------------

    def track(self, **objects: typing.Any) -> None:
        """Keeps objects in every checkpoint, under the names that they are given here.

        An object has state_dict() and load_state_dict(): a module, an optimizer, a scheduler, a GradScaler, or one of
        your own. A torch.Generator or a numpy.random.Generator may be given as well. Where training goes on from a
        checkpoint, the object gets its state back. The names of parameters are kept without `module.` and
        `_orig_mod.`, so that a compiled or parallel module and a plain one have the same.
        The global random states of Python, NumPy and PyTorch are kept, too, where they were used or seeded after the
        run was made, and come back before the first batch.

        Errors: an object has something in its state that a file without pickle cannot hold; the message has its path.
        The objects take more than a checkpoint holds. When a checkpoint is written, the script fails where a trained
        parameter is not finite or an optimizer has a NaN, since training could not go on from that.
        """
        for name, value in objects.items():
            self._tracked.add(name, value)
        if self.job.loads and not self._tracked.has_loaded:
            event = self._receive()
            if event.kind != lib.LOAD:
                raise Error('The worker sends event %d in place of the state of the checkpoint: worker and package are '
                            'of different builds.' % event.kind)
            self._tracked.load(self._connection.loaded())
        else:
            self._tracked.give_states(objects)

    # Batches
    # ------------------------------------------------------------------------------------------------------------------

    def batches(self, evaluate: Score | None = None, metric: Metric | None = None,
                accumulate: int = 1) -> typing.Iterator[Batch]:
        """The batches of the job's steps, until training is over. `run.step()` or `run.skip()` closes each.

        evaluate: A module, or a function, that returns the logits [size] of a batch. It scores what the job evaluates
            on the way, without gradients; the module, those that the function refers to by name, and all that are
            tracked are in evaluation mode meanwhile. The job's policy (best checkpoint, patience) decides on the
            figures.
        metric: Computes the job's own metric (evaluate.own_metric): metric(logits, labels, weights) has the tensors
            [samples] of all that an evaluation scores, weights being None where the job has none, and returns a
            number, by which the policy decides.
        accumulate: Cuts each batch into so many pieces of near equal size, which need less memory at once. All pieces
            are one step:

                for batch in run.batches(accumulate=4):
                    loss = F.binary_cross_entropy_with_logits(net(batch), batch.label)   # the mean over the piece
                    run.backward(loss)
                    if batch.closes:
                        opt.step(); opt.zero_grad()
                        run.step()

            `run.backward(loss)` is `(loss * batch.share).backward()`, where `batch.share` is the piece's size by
            `run.job.batch_size`: so the pieces' mean losses add up to the mean loss of the step, and their gradients
            to its gradient, of the rows and of all parameters. A plain loss.backward() is refused there. The loop does
            the same with accumulate=1. Each sample counts as much as any other, also in a step that has fewer, as the
            last of a pass may; where a loop calls loss.backward() itself, such a step counts as much as a full one.
        """
        self._require_with()
        if self._is_trained:
            raise Error('Training is over: one loop over run.batches() is the whole of it, with all passes over the '
                        'data. How many there are, train.passes says in the job.')
        if self.job.evaluates and evaluate is None:
            raise Error('The job evaluates while it trains: give a module to run.batches(evaluate=net).')
        if not _is_count(accumulate):
            raise Error('run.batches(accumulate=%r): a step has 1 piece or more.' % (accumulate,))
        if self._open is not None:
            raise Error('Step %d is not closed: call run.step(loss) or run.skip() before run.batches().'
                        % self._open.step)
        self._scoring.use(evaluate, metric, 'run.batches(evaluate=net, metric=function)')
        return self._batches(accumulate)

    def _require_with(self) -> None:
        if not self._is_entered:
            raise Error('The run is used in a `with` statement: `with %s as run:`. At its end the worker learns that '
                        'the script has ended well.' % self._CALL)

    def _batches(self, accumulate: int) -> typing.Iterator[Batch]:
        self._tracked.restore_random_states()
        while not self._is_trained:
            event = self._next()
            if event.kind == lib.EVALUATION:
                self._score(event)
            elif event.kind == lib.PHASE:
                self._take_phase(event)
            elif event.size == 0:
                self._connection.step(event.slot, 0.0, math.nan, lib.SKIPS)
                self._connection.release(event.slot)
            else:
                yield from self._train(event, accumulate)

    def _train(self, event: lib.Event, accumulate: int) -> typing.Iterator[Batch]:
        if not self._has_batch:
            self._tracked.forget_others()
        self._has_batch = True
        self._tracked.stepped.clear()
        self._trace.begin(event.step)
        with self._trace.span('make batch'):
            self._open = make_batch(self._id, self._slot(event), event, self.job, self._modules)
        self._handed_out_ns = time.monotonic_ns()
        pieces = min(accumulate, event.size)
        for number in range(pieces):
            self._pieces.append(cut_batch(self._open, number, pieces, self._modules))
            yield self._pieces[-1]
            if self._open is None:  # It is closed, and may have been skipped before its last piece.
                return
        raise Error('Step %d is not closed: call run.step(loss) at its end, or run.skip().' % self._open.step)

    def _slot(self, event: lib.Event) -> Slot:
        self._num_held += 1
        if self._num_held == _MANY_BATCHES:
            self._warn('The script keeps the memory of %d batches. A batch is kept by every tensor over it, and by '
                       'every loss that was not detached: keep float(loss), and clones of what you need.'
                       % _MANY_BATCHES)
        return Slot(self._connection, event.slot, len(self.job.dims), len(self.job.features), self._released)

    def _receive(self) -> lib.Event:
        """The next event, after all slots that nothing needs any more were given back."""
        while self._released:
            self._connection.release(self._released.pop())
            self._num_held -= 1
        with self._trace.span('wait for worker'):
            return self._connection.next()

    def _next(self) -> lib.Event:
        """The next event that is no matter of the state."""
        while True:
            event = self._receive()
            if event.kind == lib.SAVE:
                with self._trace.span('save state'):
                    self._connection.save(self._tracked.state_bytes(self._closed_step))
            elif event.kind == lib.LOAD:
                self._tracked.load(self._connection.loaded())
                self._tracked.restore_random_states()
            else:
                return event

    # Steps
    # ------------------------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, scaler: typing.Any = None) -> None:
        """The backward pass of a batch, or of a piece of it: `(loss * batch.share).backward()`.

        loss: The mean over the samples of the batch or piece. With a scaler, which scales it, it is the loss before
        scaling. The step's loss is the sum of what the calls are given, weighted so; run.step() needs none then. It
        may be called several times for a batch. `batch.share` is 1 but in pieces and in a step of fewer samples than
        the job's batch_size.
        """
        batch = self._require_open('run.backward()')
        piece = self._pieces[-1]
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise _no_mean('run.backward()', batch, loss)
        weighted = loss if piece.share == 1.0 else loss.mul(piece.share)
        batch._state.is_in_backward = True
        try:
            with self._trace.span('backward'):
                (weighted if scaler is None else scaler.scale(weighted)).backward()
        finally:
            batch._state.is_in_backward = False
        batch._state.loss_sum = (batch._state.loss_sum or 0.0) + float(loss.detach()) * piece.size

    def unscale_(self, scaler: typing.Any) -> None:
        """Unscales the gradients of the rows and of the tracked optimizers, to clip them before run.step().

            scaler.scale(loss).backward()
            run.unscale_(scaler)
            torch.nn.utils.clip_grad_norm_([*net.parameters(), *batch.leaves], 1.0)
            run.step(loss, scaler=scaler)

        run.step(scaler=scaler) does not unscale them again. Where run.skip() follows instead, it updates the scaler.
        """
        batch = self._require_last('run.unscale_()')
        for optimizer in self._optimizers_with_rows(batch):
            self._unscale(batch, scaler, optimizer)
        self._unscaler = scaler

    def step(self, loss: torch.Tensor | float | None = None, learning_rate: float | None = None,
             scaler: typing.Any = None, *, rows: bool = True) -> bool:
        """Closes a step: the servers apply the gradients that the step's rows have now, exactly once.

        It is called once a batch, after backward() and after the steps of the tracked optimizers. The gradients are
        copied before it returns. A row that no module has looked up in a forward pass with a backward pass has no
        gradient, which is not a gradient of zero: its optimizer state stays as it is.

        loss: The mean over the samples of the batch, for the job's figures. Where run.backward() was called it may be
            left out; where the batch has pieces it is not read, since run.backward() has added up theirs.
        learning_rate: Of the rows in this step; each table multiplies it with its learning_rate_scale. Without one,
            the job's schedule counts.
        scaler: A GradScaler. With it this call unscales the gradients of the rows and of the tracked optimizers, steps
            these optimizers and updates the scaler; where any gradient is not finite it skips the step instead. A loop
            has no scaler.step() and scaler.update() then.
        rows: False trains the script's own parameters alone: no row is updated, whatever gradients there are.

        Returns whether the step was made: False where the scaler has skipped it.
        """
        batch = self._require_last('run.step()')
        loss_sum = self._loss_sum(batch, loss)
        if learning_rate is not None and not 0 <= learning_rate < math.inf:
            raise Error('Step %d: the learning rate is a finite number of 0 or more, and not %s.'
                        % (batch.step, learning_rate))
        gradients = self._gradients(batch) if rows else [[] for _ in self.job.dims]
        if scaler is not None:
            if not self._scaler_steps(batch, scaler, rows):
                self._close(batch, loss_sum, math.nan, lib.SKIPS)
                return False
        elif rows and self._modules and self._tracked.has_scaler():
            raise Error("Step %d: a GradScaler scales the gradients of the rows as well. Call run.step(loss, "
                        'scaler=scaler), which unscales them, steps the tracked optimizers and updates the scaler, and '
                        'leave scaler.step() and scaler.update() out.' % batch.step)
        for name in self._tracked.optimizers:
            if name not in self._tracked.stepped:
                raise Error("Step %d: the tracked optimizer '%s' has not stepped since the last step. Call its step() "
                            'before run.step(loss) (with accumulate= in each batch with batch.closes), or run.skip() '
                            'for a batch that counts for nothing. With a GradScaler, run.step(loss, scaler=scaler) '
                            'steps it.' % (batch.step, name))
        with self._trace.span('write gradients'):
            self._write(batch, gradients)
        self._close(batch, loss_sum, math.nan if learning_rate is None else float(learning_rate), 0)
        return True

    def skip(self) -> None:
        """Closes a step without any gradient: the batch counts for nothing, and the job's figures say so.

        The rows and their optimizer state stay as they are. Where the batch has pieces, those behind are left out.
        """
        batch = self._require_open('run.skip()')
        if self._unscaler is not None:
            with contextlib.suppress(AssertionError):  # The script has updated it.
                self._unscaler.update()
        self._close(batch, 0.0, math.nan, lib.SKIPS)

    def trace(self, name: str) -> typing.ContextManager[None]:
        """A span of your own in the job's trace (`thermocline train --trace FIRST:LAST`):

            with run.trace('augment'):
                ...

        It belongs to the step that is open at its begin, or comes next. Without a trace it costs a microsecond.
        """
        return self._trace.span(name)

    def _require_open(self, call: str) -> Batch:
        if self._open is not None:
            return self._open
        if self._closed_step is None:
            raise Error('%s closes a batch, and there is none yet: take it from run.batches().' % call)
        raise Error('Step %d is closed already: run.step() or run.skip() is called once a batch, and nothing of the '
                    'batch after it.' % self._closed_step)

    def _require_last(self, call: str) -> Batch:
        batch = self._require_open(call)
        if not self._pieces[-1].closes:
            raise Error('Step %d has another piece: call %s after the last one, where batch.closes is true.'
                        % (batch.step, call))
        return batch

    def _loss_sum(self, batch: Batch, loss: torch.Tensor | float | None) -> float:
        """The sum of the samples' losses."""
        has_pieces = batch._state.pieces > 1
        if loss is None or has_pieces:
            if batch._state.loss_sum is None:
                raise Error('Step %d: no loss was given, neither to run.step(loss) nor to run.backward(loss).'
                            % batch.step)
            return batch._state.loss_sum
        if isinstance(loss, torch.Tensor) and loss.numel() != 1:
            raise _no_mean('run.step()', batch, loss)
        return float(loss.detach() if isinstance(loss, torch.Tensor) else loss) * batch.size

    def _gradients(self, batch: Batch) -> Gradients:
        """By dim: the modules that a backward pass has reached, and the gradients of their leaves."""
        gradients: Gradients = []
        for dim in range(len(self.job.dims)):
            gradients.append([])
            for module in self._modules:
                leaf = batch._leaves[module.number].get(dim)
                if leaf is not None and leaf.grad is not None:
                    gradient = leaf.grad if leaf.grad.layout == torch.strided else leaf.grad.to_dense()
                    gradients[dim].append((module, gradient))  # It was sparse after F.embedding(..., sparse=True).
        if self._modules and not any(gradients) and any(leaf.numel() > 0 for leaf in batch.leaves):
            raise Error('Step %d: no gradient has reached the embeddings of this batch. Call loss.backward() before '
                        'run.step(loss), with a loss that was computed from the batch; or run.skip() for a batch that '
                        'counts for nothing, or run.step(loss, rows=False) where the rows are not trained.'
                        % batch.step)
        return gradients

    def _write(self, batch: Batch, gradients: Gradients) -> None:
        """Copies the gradients into the slot, and marks the rows that have one."""
        for dim, of_dim in enumerate(gradients):
            has_gradient = batch._slot.required(lib.HAS_GRADIENT, dim).zero_()
            out = batch._slot.required(lib.GRADIENTS, dim).view(-1, self.job.dims[dim])
            for place, (module, gradient) in enumerate(of_dim):
                if place == 0:
                    out.copy_(gradient.detach())
                else:
                    out.add_(gradient.detach())
                self._mark(batch, module, dim, has_gradient)

    def _mark(self, batch: Batch, module: Embeddings | Sequences, dim: int, has_gradient: torch.Tensor) -> None:
        """Sets the mask of the rows of a dim that a module has looked up for a backward pass."""
        pieces = [piece for number, piece in enumerate(self._pieces)
                  if batch._state.pieces == 1 or (module.number, number) in batch._state.reached]
        if dim in module.covered and len(pieces) == batch._state.pieces:
            has_gradient.fill_(1)
            return
        for piece in pieces:
            for at, rows in module._looked_up(piece):
                if at == dim:
                    has_gradient.index_fill_(0, rows.long(), 1)

    def _optimizers_with_rows(self, batch: Batch) -> list[torch.optim.Optimizer]:
        """The tracked optimizers, and before them one of the step's rows, which never steps."""
        if self._rows_optimizer is None and batch.leaves:
            self._rows_optimizer = torch.optim.SGD(batch.leaves, lr=0.0)
        return [*([] if self._rows_optimizer is None else [self._rows_optimizer]), *self._tracked.optimizers.values()]

    @staticmethod
    def _unscale(batch: Batch, scaler: typing.Any, optimizer: torch.optim.Optimizer) -> None:
        """Unscales the gradients of an optimizer, unless that was done in this step."""
        try:
            scaler.unscale_(optimizer)
        except RuntimeError as error:
            if 'unscale_() has already been called' not in str(error):
                raise Error('Step %d: the scaler cannot unscale the gradients: %s' % (batch.step, error)) from error

    def _scaler_steps(self, batch: Batch, scaler: typing.Any, rows: bool) -> bool:
        """Unscales all gradients, and steps the tracked optimizers where all are finite; returns whether they are."""
        if self._tracked.stepped:
            raise Error("Step %d: run.step(scaler=scaler) steps the tracked optimizers itself, and '%s' has stepped "
                        'already. Leave scaler.step() and scaler.update() out.'
                        % (batch.step, min(self._tracked.stepped)))
        if not self._tracked.optimizers:
            raise Error('Step %d: run.step(scaler=scaler) steps the tracked optimizers, and there is none: call '
                        'run.track(opt=optimizer) before.' % batch.step)
        for name, optimizer in self._tracked.optimizers.items():
            if all(each.grad is None for group in optimizer.param_groups for each in group['params']):
                raise Error("Step %d: no gradient has reached the parameters of the tracked optimizer '%s', which a "
                            'scaler needs. Is it of another module than the loss?' % (batch.step, name))
        is_finite = True
        for optimizer in self._optimizers_with_rows(batch) if rows else self._tracked.optimizers.values():
            self._unscale(batch, scaler, optimizer)
            if scaler.is_enabled():
                found = scaler._found_inf_per_device(optimizer)
                is_finite = is_finite and not any(float(each) for each in found.values())
        if is_finite:
            for optimizer in self._tracked.optimizers.values():
                scaler.step(optimizer)
        scaler.update()
        return is_finite

    def _close(self, batch: Batch, loss_sum: float, learning_rate: float, flags: int) -> None:
        self._connection.step(batch._slot.number, loss_sum, learning_rate, flags)
        self._trace.add('script step', self._handed_out_ns, batch.step)  # All that the loop does with the batch.
        self._trace.step = batch.step + 1
        batch._state.is_open = False
        for leaf in batch.leaves:
            leaf.grad = None
        self._closed_step = batch.step
        self._rows_optimizer = self._unscaler = None
        self._open = None
        self._pieces.clear()

    # Evaluation
    # ------------------------------------------------------------------------------------------------------------------

    def evaluate(self, net: Score, metric: Metric | None = None) -> dict[str, typing.Any]:
        """Scores the data that the job holds out, after training, and returns the figures: auc, logloss, ...

        net: A module, or a function, that returns the logits [size] of a batch, as for run.batches(evaluate=net).
        metric: As that of run.batches(), which counts where none is given. Each call scores again; the job's summary
        has the figures of the last one.
        """
        if self._open is not None:
            raise Error('Step %d is not closed: run.evaluate() comes after the loop over run.batches().'
                        % self._open.step)
        self._require_with()
        self._scoring.use(net, metric or self._scoring.metric, 'run.evaluate(net, metric=function)')
        self._connection.evaluate()
        while True:
            event = self._next()
            if event.kind == lib.EVALUATION:
                self._score(event)
            elif event.kind == lib.PHASE and self._take_phase(event) == 'evaluated' and self._is_trained:
                return self.metrics
            elif event.kind == lib.BATCH:
                raise Error('run.evaluate() comes after training: let the loop over run.batches() end first.')

    def _take_phase(self, event: lib.Event) -> str:
        phase = json.loads(event.text or b'{}')
        if phase.get('phase') == 'trained':
            self._is_trained = True
        elif phase.get('phase') == 'evaluated':
            self.metrics = phase['metrics']
        return str(phase.get('phase'))

    def _score(self, event: lib.Event) -> None:
        # What an evaluation draws does not change what training draws: one that is repeated has no other effect.
        before = _random_states.now()
        try:
            with self._trace.span('score batch'):
                batch = make_batch(self._id, self._slot(event), event, self.job, self._modules)
                self._scoring.score(batch, self._tracked.objects.values())
                self._connection.scores(event.slot)
        finally:
            _random_states.restore(before)

    # End
    # ------------------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        self._is_entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        try:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                error = None
            if error is None and not self._is_trained:
                self._connection.fail('The script has left `with %s` before training was over: let the loop over '
                                      'run.batches() end by itself. The job says how long it trains.' % self._CALL)
            elif error is None:
                self._connection.done()
            elif not isinstance(error, lib.WorkerGone):
                self._connection.fail(''.join(traceback.format_exception(type(error), error, trace)))
        except Error:
            pass  # The worker is gone, and needs no words.
        finally:
            self._trace.write()
            self._connection.close()


def _is_count(value: typing.Any) -> bool:
    return isinstance(value, int) and value >= 1


def _no_mean(call: str, batch: Batch, loss: typing.Any) -> Error:
    return Error('Step %d: %s takes the mean loss over the samples, one number; this is %s.'
                 % (batch.step, call, kind_of(loss)))


def worker() -> Run:
    """The run of the worker that has started this script."""
    return Run(lib.Connection())
