"""Thermocline: train your own PyTorch model, with its embeddings on the servers.

A job with `worker { command: ["python3", "train.py"] }` starts this script beside its worker. The worker reads and
plans the job's batches, pulls the rows of their keys, and hands both to the script through shared memory; what the
script's backward pass leaves as gradients of these rows updates them on the servers, exactly once:

    import thermocline, torch
    from torch.nn import functional as F

    with thermocline.worker() as run:
        net = MyNet(run.embeddings())                 # an nn.Module; run.embeddings() is one, too
        opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
        run.track(net=net, opt=opt)                   # in every checkpoint, and back when training goes on from one
        for batch in run.batches():                   # batch.numeric, batch.label, batch.weight
            loss = F.binary_cross_entropy_with_logits(net(batch), batch.label)
            run.backward(loss)                        # loss.backward(), each sample counting alike in a short batch
            opt.step()
            opt.zero_grad()
            run.step(loss)                            # closes the step: its only push
        run.evaluate(net)                             # AUC and logloss of what the job holds out

`net(batch)` calls `embeddings(batch)`, which returns the vectors [size, features, dim] of the batch's samples.

What a step is:

* One call of run.step() closes the step of one batch. All gradients that backward passes have left until then add up
  to one update a row, however often and from how many modules a row was used, also under activation checkpointing.
* A row that no forward pass has looked up has no gradient, and its optimizer state stays as it is.
* run.skip() closes a step without any gradient. run.step() is refused where a tracked optimizer has not stepped.
* run.step(loss, rows=False) trains your own parameters and leaves the rows as they are.
* opt.zero_grad() does not clear the rows, which are new with each batch: batch.zero_grad() is for two passes a step.
* run.batches(accumulate=k) hands a step's batch out in k pieces; see Run.batches.
* A GradScaler belongs to run.step(loss, scaler=scaler); see Run.step and Run.unscale_.
* The memory of a batch stays as it is while the batch, or a tensor of it, is kept.
* The learning rate of the rows is the job's, or run.step(loss, learning_rate=...).

A notebook, or a script that no worker has started, begins with `with thermocline.local('job.textproto') as run:`,
which starts the whole job; all else is the same.

Names: worker() makes the Run of this script, local() that of a job which it starts; Run, LocalRun, Job, Feature,
Batch, Embeddings and Sequences are what they hand out. load() reads the Model of a checkpoint.
Error is raised where a call may not be made or the job cannot go on, and WorkerGone, an Error, where the worker has
ended. The package needs PyTorch 1.13 or newer, which it imports with the first of these names that needs it.
This page leaves out Embeddings, Sequences, Feature, LocalRun and WorkerGone, most of whose methods are those of PyTorch
and Python: help(thermocline.Embeddings) shows them.
"""
from __future__ import annotations

import typing

from thermocline._library import VERSION as __version__
from thermocline._library import Error, WorkerGone

if typing.TYPE_CHECKING:
    import os

    from thermocline._batch import Batch
    from thermocline._embeddings import Embeddings as Embeddings
    from thermocline._embeddings import Sequences as Sequences
    from thermocline._job import Feature as Feature
    from thermocline._job import Job
    from thermocline._load import Model
    from thermocline._local import LocalRun as LocalRun
    from thermocline._run import Run

# What help() shows, and `from thermocline import *` gives; dir() has all names.
__all__ = ['Batch', 'Error', 'Job', 'Model', 'Run', '__version__', 'load', 'local', 'worker']

_MODULES = {'Batch': '_batch', 'Embeddings': '_embeddings', 'Sequences': '_embeddings',
            'LocalRun': '_local', 'Model': '_load', 'Feature': '_job', 'Job': '_job', 'Run': '_run'}


def _import(module: str) -> typing.Any:
    """A module of this package that needs PyTorch."""
    import importlib
    import sys
    try:
        return importlib.import_module('thermocline.' + module)
    except ModuleNotFoundError as error:
        if error.name != 'torch':
            raise
        raise Error('The package thermocline needs PyTorch 1.13 or newer, which this Python (%s) does not have. '
                    'Install it with: %s -m pip install torch (on Debian: apt install python3-torch).'
                    % (sys.executable, sys.executable)) from None


def worker() -> Run:
    """The run of the worker that has started this script; see the example in help(thermocline).

    Errors: no worker has started the script, PyTorch is missing, or package and programs are of different builds.
    """
    return typing.cast('Run', _import('_run').worker())


def local(job: str | os.PathLike[str], run_dir: str | os.PathLike[str] | None = None, *, resume: bool = False,
          set: typing.Mapping[str, typing.Any] | None = None, progress: bool = True) -> typing.ContextManager[LocalRun]:
    """Starts a job on this machine, with this process as its script: for notebooks and for plain scripts.

        with thermocline.local('job.textproto', run_dir='run', set={'checkpoint.every_steps': 100}) as run:
            ...  # as with thermocline.worker()
        run.summary['auc']

    job: The job's file; its `worker.command`, `worker.directory` and `dlrm` do not count. Paths in it are relative to
        the working directory, as for `thermocline train`.
    run_dir: The job's run directory; without one runs/NAME-TIME, by the name of the job.
    resume: Whether the job goes on from the last checkpoint in run_dir, as `thermocline train --resume` does; tracked
        objects get their states back. Where there is none yet, the job begins anew.
    set: Changes fields of the job: {'train.passes': 2}, as `--set train.passes=2`.
    progress: Whether a line on standard error shows how far the job is.

    The job's worker holds the rows itself, in its own process, where neither the job nor `set` names servers, several
    workers or a durability; {'cluster.servers': 1} has a server hold them.

    At the end of the `with` block the job is finished, and `run.summary` is what summary.json has. An error within the
    block, KeyboardInterrupt included, stops the job: from its last checkpoint it goes on with resume=True. So it does
    after the worker is lost: the job does not go back to a checkpoint by itself (checkpoint.max_rollbacks is 0), since
    the loop over its batches cannot go back. A server that is lost is replaced. No process of the job outlives this
    process, even where that is killed.

    The program `thermocline` is looked for in $THERMOCLINE_PROGRAMS, where that is set; else where the programs'
    package has it beside this one, and on PATH.

    Errors: the programs are not there, or of another build; what the launcher says of a job that fails.
    """
    made = _import('_local').local(job, run_dir, resume=resume, set=set, progress=progress)
    return typing.cast('typing.ContextManager[LocalRun]', made)


def load(checkpoint: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Model:
    """Reads the rows of a checkpoint, and what its script has tracked, without servers.

        model = thermocline.load('run')
        keys, vectors = model.rows('C1')                 # uint64 [n], float32 [n, dim]
        net.load_state_dict(model.state['net'])

    checkpoint: A checkpoint, or a run directory, of which the newest is taken, as for `thermocline eval`.
    folder: Where the rows are unpacked to, as a file of their size without a name, which goes with the model; the
        folder of temporary files without one.

    The program `thermocline`, which local() looks for, verifies the checkpoint and unpacks it. Needs NumPy. Errors:
    there is no checkpoint, or it is damaged.
    """
    from thermocline import _load
    return _load.load(checkpoint, folder)


def __getattr__(name: str) -> typing.Any:
    if name in _MODULES:
        return getattr(_import(_MODULES[name]), name)
    raise AttributeError("The module thermocline has no attribute '%s'" % name)


def __dir__() -> list[str]:
    import importlib.util
    has_torch = importlib.util.find_spec('torch') is not None  # help() imports what is named here.
    return sorted({*globals(), *(_MODULES if has_torch else ())})
