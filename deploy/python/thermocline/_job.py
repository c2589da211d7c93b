"""What a job says of its data and its steps, to its script."""
from __future__ import annotations

import typing


class Feature(typing.NamedTuple):
    """A feature of the job that is looked up in a table."""
    name: str
    dim: int  # floats of a vector
    dim_index: int  # which of Job.dims
    pooling: str  # 'sum' or 'mean'
    is_list: bool  # a sample may have any number of lookups


class Job:
    """What the job says of its data and its steps.

    Attributes:
        name: The job's name.
        seed: The job's seed; `torch.manual_seed(run.job.seed)` makes initial values that come again.
        rank: The number of this worker, from 0.
        batch_size: Samples of a step.
        passes: How often the job goes over its data (train.passes); a checkpoint may lie within them.
        max_steps: Where training ends if the passes are longer (train.max_steps); None: the passes alone count.
        start_step: The step of the first batch; above 0 where training goes on from a checkpoint.
        numeric: The names of the columns of `batch.numeric`.
        features: The features that have embeddings.
        dims: The dims of the tables, each once.
        evaluates: Whether the job evaluates while it trains: then `run.batches(evaluate=net)` is needed.
        own_metric: The name of the script's own metric, by which the job decides on evaluations; '' where it has none.
    """

    def __init__(self, facts: dict[str, typing.Any]) -> None:
        self.name: str = facts['name']
        self.seed: int = facts['seed']
        self.rank: int = facts['rank']
        self.batch_size: int = facts['batch_size']
        self.passes: int = facts.get('passes', 1)
        self.max_steps: int | None = facts.get('max_steps') or None
        self.start_step: int = facts['start_step']
        self.numeric: list[str] = facts['numeric']
        self.dims: list[int] = facts['dims']
        self.features = [Feature(each['name'], self.dims[each['dim_index']], each['dim_index'], each['pooling'],
                                 each['is_list']) for each in facts['features']]
        self.evaluates: bool = facts['evaluates']
        self.own_metric: str = facts.get('own_metric', '')
        self.loads: bool = facts.get('loads', False)  # The worker sends the state of a checkpoint before any batch.
        self.max_state_bytes: int | None = facts.get('max_state_bytes')  # The most that the tracked objects take.
        self.traced: dict[str, typing.Any] | None = facts.get('trace')  # Where --trace wants the script's spans.
