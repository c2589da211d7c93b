"""How a script scores what its job evaluates, and the job's own metric over it."""
from __future__ import annotations

import contextlib
import inspect
import math
import typing

import torch

from thermocline import _library as lib
from thermocline._batch import Batch, kind_of
from thermocline._library import Error

Score = typing.Callable[[Batch], torch.Tensor]
Metric = typing.Callable[[torch.Tensor, torch.Tensor, typing.Optional[torch.Tensor]], float]


class Scoring:
    """Scores the batches of evaluations.

    own_metric: The name of the metric that the script computes; '': none. `metric` computes it.
    """

    def __init__(self, own_metric: str, warn: typing.Callable[[str], None]) -> None:
        self._own_metric = own_metric
        self._warn = warn
        self._net: Score | None = None
        self.metric: Metric | None = None
        self._scored: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []  # For the metric.
        self._least_score, self._greatest_score = math.inf, -math.inf  # What the evaluation has seen.
        self._has_warned = False

    def use(self, net: Score | None, metric: Metric | None, call: str) -> None:
        """Scores with these from now on. `call` is where the metric is given, for errors."""
        if self._own_metric and net is not None and metric is None:
            raise Error("The job decides by the script's own metric '%s' (evaluate.own_metric): give the function that "
                        'computes it to %s.' % (self._own_metric, call))
        self._net, self.metric = net, metric

    def score(self, batch: Batch, tracked: typing.Iterable[typing.Any]) -> None:
        """Writes the batch's scores, and after the last batch the metric. Modules are in evaluation mode meanwhile."""
        net = self._net
        assert net is not None
        scored = [each for each in (*_used_by(net), *tracked) if isinstance(each, torch.nn.Module)]
        modes = [(module, module.training) for each in scored for module in each.modules()]
        try:
            for each in scored:
                each.eval()
            if batch.size > 0:
                with torch.no_grad():
                    self._take(batch, net(batch))
        finally:
            for module, mode in modes:  # A module comes before its parts.
                if module.training != mode:
                    module.train(mode)
        own_metric = batch._slot.tensor(lib.OWN_METRIC)
        if own_metric is not None:  # The last batch of an evaluation has it.
            own_metric.fill_(self._compute_metric())
            self._check_scores()

    def _take(self, batch: Batch, scores: typing.Any) -> None:
        if not isinstance(scores, torch.Tensor) or scores.numel() != batch.size:
            raise Error('The evaluation needs one logit a sample, %d of them, and got %s.'
                        % (batch.size, kind_of(scores)))
        out = batch._slot.required(lib.SCORES).copy_(scores.reshape(-1))
        self._least_score = min(self._least_score, float(out.min()))
        self._greatest_score = max(self._greatest_score, float(out.max()))
        if self.metric is not None:
            weight = None if batch.weight is None else batch.weight.clone()
            self._scored.append((out.clone(), batch.label.clone(), weight))

    def _check_scores(self) -> None:
        """Warns once of scores that are rather probabilities."""
        if 0 <= self._least_score < self._greatest_score <= 1 and not self._has_warned:
            self._has_warned = True
            self._warn('All scores of an evaluation lie between %.3g and %.3g. They are logits, not probabilities: the '
                       'function that scores returns what would go into sigmoid().'
                       % (self._least_score, self._greatest_score))
        self._least_score, self._greatest_score = math.inf, -math.inf

    def _compute_metric(self) -> float:
        """The own metric of what was scored since the last call; NaN: there is none."""
        scored, self._scored = self._scored, []
        if self.metric is None or not scored:
            return math.nan
        weights = [weight for _, _, weight in scored if weight is not None]
        logits = torch.cat([each for each, _, _ in scored])
        labels = torch.cat([each for _, each, _ in scored])
        value = self.metric(logits, labels, torch.cat(weights) if weights else None)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise Error('The metric returns one number, and not %s.' % kind_of(value)) from None


def _used_by(score: Score) -> list[typing.Any]:
    """A module itself, the object of a method, and what a function refers to by name."""
    found = [getattr(score, '__self__', score)]
    if inspect.isfunction(score):
        with contextlib.suppress(ValueError):  # A variable that has no value yet.
            names = inspect.getclosurevars(score)
            found += [*names.nonlocals.values(), *names.globals.values()]
    return found
