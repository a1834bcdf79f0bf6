"""What a trial says while it runs: results and checkpoints; and what it is told.

Inside of a worker there is one session; the functions here speak to it.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, Mapping, Optional

from ._worker_session import Session, TrialStopped
from .checkpoint import Checkpoint

__all__ = [
    "get_checkpoint",
    "get_context",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
    "should_checkpoint",
]

_session: Optional[Session] = None
_hurried_early = False

# To workers whose trials are to end now. Not one that users' programs are likely to send.
HURRY = int(signal.SIGRTMIN) + 7


def set_session(session: Optional[Session]) -> None:
    global _session
    _session = session
    if session is not None and _hurried_early:
        session.hurry()


def listen_for_hurry() -> None:
    """To be called before the tuner is told that there is a worker."""
    signal.signal(HURRY, lambda *_: _hurry())


def _hurry() -> None:
    global _hurried_early
    if _session is None:
        _hurried_early = True
    else:
        _session.hurry()


def current() -> Session:
    if _session is None:
        raise RuntimeError("this works inside of a trainable that a Tuner runs, and only there")
    return _session


def report(
    metrics: Optional[Mapping[str, Any]] = None,
    *,
    checkpoint: Optional[Checkpoint] = None,
    **more: Any,
) -> None:
    """Reports a result, and a checkpoint with it. Durable when it returns.

    Args:
        metrics: numbers and texts, also nested.
        checkpoint: kept as checkpoint_<training iteration>.
        more: metrics as keyword arguments, as older programs give them.

    >>> from cairn import tune
    >>> def train(config):
    ...     for step in range(3):
    ...         state = {"step": step, "w": config["lr"] * step}
    ...         tune.report({"loss": 1 / (step + 1)}, checkpoint=tune.Checkpoint.from_dict(state))
    >>> [result] = tune.Tuner(train, param_space={"lr": 0.5},
    ...                       run_config=tune.RunConfig(storage_path="runs", verbose=0)).fit()
    >>> result.metrics["training_iteration"], result.metrics["loss"], result.checkpoint.to_dict()
    (3, 0.3333333333333333, {'step': 2, 'w': 1.0})
    """
    session = current()
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be a dict, such as {{'loss': 0.5}}, not {metrics!r}")
    values = {**(metrics or {}), **more}
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ValueError(f"checkpoint must be a Checkpoint, not {type(checkpoint).__name__}")
    decision = session.report(values, checkpoint)
    if decision != "continue":
        raise TrialStopped(decision)


def get_checkpoint() -> Optional[Checkpoint]:
    """The checkpoint to begin with, or None: the trial's newest after a failure or a pause, another
    trial's when a scheduler has this one go on from there.

    >>> from cairn import tune
    >>> def train(config):
    ...     start = tune.get_checkpoint()
    ...     for step in range(start.to_dict()["step"] if start else 0, 3):
    ...         tune.report({"began_with": start and start.to_dict()},
    ...                     checkpoint=tune.Checkpoint.from_dict({"step": step + 1}))
    ...         if start is None and step == 1:
    ...             raise MemoryError("once")
    >>> run = tune.RunConfig(storage_path="runs", verbose=0,
    ...                      failure_config=tune.FailureConfig(max_failures=1))
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["began_with"]
    {'step': 2}
    """
    return current().start


def get_experiment_name() -> str:
    """The name of the experiment: the last part of its directory.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"told": tune.get_experiment_name()})
    >>> run = tune.RunConfig(name="rates", storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["told"]
    'rates'
    """
    return str(current().settings["directory"]).rstrip("/").rsplit("/", 1)[-1]


def get_trial_id() -> str:
    """The trial's id: its trainable's name and its number.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"told": tune.get_trial_id()})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["told"]
    'train_00000'
    """
    return current().trial_id


def get_trial_name() -> str:
    """The trial's name for people: by TuneConfig(trial_name_creator=…), otherwise its id.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"told": tune.get_trial_name()})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["told"]
    'train_00000'
    """
    return current().trial_name


def get_trial_dir() -> str:
    """The trial's directory. It may be moved between two runs: do not keep its name.

    >>> import os
    >>> from cairn import tune
    >>> def train(config):
    ...     with open(os.path.join(tune.get_trial_dir(), "notes.txt"), "w") as file:
    ...         file.write("beside the checkpoints")
    ...     tune.report({"loss": 1.0})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> open(os.path.join(result.path, "notes.txt")).read()
    'beside the checkpoints'
    """
    return current().directory


def get_trial_resources() -> Dict[str, Any]:
    """What the trial takes, as :func:`with_resources` said it; one CPU if it said nothing.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"threads": int(tune.get_trial_resources()["CPU"])})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(tune.with_resources(train, {"cpu": 2}), run_config=run).fit()[0].metrics["threads"]
    2
    """
    return dict(current().settings.get("resources") or {"CPU": 1})


# A trial is one process. Programs that also run as several ask for these.


def get_world_size() -> int:
    """How many processes the trial has: 1.

    >>> from cairn import tune
    >>> def train(config):
    ...     batch = 64 // tune.session.get_world_size()
    ...     tune.report({"batch": batch})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["batch"]
    64
    """
    current()
    return 1


def get_world_rank() -> int:
    """The number of this process among the trial's: 0.

    >>> from cairn import tune
    >>> def train(config):
    ...     if tune.session.get_world_rank() == 0:
    ...         tune.report({"loss": 0.5})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["loss"]
    0.5
    """
    current()
    return 0


def get_local_rank() -> int:
    """The number of this process among the trial's on this machine: 0.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"device": f"cuda:{tune.session.get_local_rank()}"})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["device"]
    'cuda:0'
    """
    current()
    return 0


def get_local_world_size() -> int:
    """How many processes the trial has on this machine: 1.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"threads": 8 // tune.session.get_local_world_size()})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["threads"]
    8
    """
    current()
    return 1


def get_node_rank() -> int:
    """The number of this machine among the trial's: 0.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"machine": tune.session.get_node_rank()})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["machine"]
    0
    """
    current()
    return 0


class TuneContext:
    """What get_context gives: the trial that this process runs.

    >>> from cairn import tune
    >>> def train(config):
    ...     ctx = tune.get_context()
    ...     tune.report({"told": [ctx.get_experiment_name(), ctx.get_trial_id(), ctx.get_trial_name(),
    ...                           ctx.get_world_rank(), ctx.get_world_size()]})
    >>> run = tune.RunConfig(name="rates", storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["told"]
    ['rates', 'train_00000', 'train_00000', 0, 1]
    """

    get_experiment_name = staticmethod(get_experiment_name)
    get_local_rank = staticmethod(get_local_rank)
    get_local_world_size = staticmethod(get_local_world_size)
    get_node_rank = staticmethod(get_node_rank)
    get_trial_dir = staticmethod(get_trial_dir)
    get_trial_id = staticmethod(get_trial_id)
    get_trial_name = staticmethod(get_trial_name)
    get_trial_resources = staticmethod(get_trial_resources)
    get_world_rank = staticmethod(get_world_rank)
    get_world_size = staticmethod(get_world_size)


def get_context() -> TuneContext:
    """The trial that runs here, as later versions of Ray Tune ask for it.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"told": tune.get_context().get_trial_name()})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(train, run_config=run).fit()[0].metrics["told"]
    'train_00000'
    """
    current()
    return TuneContext()


def should_checkpoint(every: Optional[int] = None) -> bool:
    """In a function: whether its next report should have a checkpoint. True when the scheduler asked
    for one, and at every `every`-th iteration, counted over all runs of the trial.

    >>> from cairn import tune
    >>> def train(config):
    ...     for step in range(5):
    ...         due = tune.should_checkpoint(every=2)
    ...         tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_dict({}) if due else None)
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> [metrics["training_iteration"] for _, metrics in tune.Tuner(train, run_config=run).fit()[0].best_checkpoints]
    [2, 4]
    """
    session = current()
    due = every is not None and (session.iteration + 1) % every == 0
    return due or session.wanted
