"""Trainer: runs a training loop that goes on, after any crash, as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Callable, Dict, Iterable, Optional, Sequence, Union

from . import _tree
from ._arguments import PathLike, float_of, whole
from ._epoch_reader import EpochReader
from ._stop_signals import StopSignals
from ._tables_within import with_tables_within
from ._train_events import (
    BeginEpochEvent,
    BeginStepEvent,
    EndEpochEvent,
    EndStepEvent,
    TrainSummary,
)
from ._trainer_checkpoints import TrainersRepository
from ._training_run import TrainingRun
from ._wording import a_type
from .errors import Invalid
from .manager import Restored
from .observe import SavedCallback
from .row_tracked import RowTracked
from .scope import Scope
from .table import EmbeddingTable

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "CheckpointConfig",
    "EndEpochEvent",
    "EndStepEvent",
    "TrainSummary",
    "Trainer",
]


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When and where a Trainer saves.

    Saves after step s of epoch e when ``e % epoch_interval == 0 and s % step_interval == 0``,
    and also at the end of training, on stop(), SIGTERM and Ctrl-C.

    Args:
        checkpoint_dir: the directory of checkpoints.
        max_num_checkpoints: how many stay; None keeps all.
        epoch_interval, step_interval: at least 1.
        save_seconds: also whenever this many seconds have passed (one trainer only).

    >>> import cairn
    >>> cairn.CheckpointConfig("runs/a", step_interval=0)
    Traceback (most recent call last):
    ...
    cairn.errors.Invalid: CheckpointConfig: step_interval must be at least 1, not 0
    """

    checkpoint_dir: PathLike
    max_num_checkpoints: Optional[int] = 3
    epoch_interval: int = 1
    step_interval: int = 10
    save_seconds: Optional[float] = None

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint_dir, (str, os.PathLike)):
            raise Invalid(
                "CheckpointConfig: checkpoint_dir must be a path, not "
                f"{type(self.checkpoint_dir).__name__}"
            )
        if not os.fspath(self.checkpoint_dir):
            raise Invalid("CheckpointConfig: checkpoint_dir is empty")
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            value = getattr(self, name)
            if name == "max_num_checkpoints" and value is None:
                continue
            if whole(value, f"CheckpointConfig: {name}") < 1:
                raise Invalid(f"CheckpointConfig: {name} must be at least 1, not {value}")
        seconds = self.save_seconds
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0
        ):
            raise Invalid(f"CheckpointConfig: save_seconds must be positive, not {seconds!r}")
        if seconds is not None:
            float_of(seconds, "CheckpointConfig: save_seconds")


class Trainer:
    """Trains; saves on the way; started again, goes on with the next step.

    The state holds the model, the optimizer, further `state`, the random states, and the position
    in the data, so that weights and losses are those of an undisturbed run, bit for bit.

    Args:
        model: a dict of arrays, a Scope, or anything with state_dict and load_state_dict. The
            temporaries of a Scope are destroyed after each step and its events.
        step: called as ``step(model, batch)``; returns a dict of metrics, a number or None.
        optimizer: with state_dict and load_state_dict.
        checkpoint_config: a CheckpointConfig; None saves nothing.
        trainer_id, num_trainers: one of several processes on a shared directory. Trainer 0 saves
            the model, every trainer its own position and random states.
        pservers: addresses of parameter servers, or a :class:`cairn.ps.Client`. What is learned is
            then on the servers (``trainer.client.table(…)``, ``trainer.client.dense(…)``), which save
            it with this trainer's position as they were told; `checkpoint_config` only names the
            directory where they are registered. `model` is handed to `step` and not saved.
        state: a dict, saved besides: {name: object with state_dict and load_state_dict, or values
            as they are when it saves}. A resume puts the values back into it.
        rng: save and restore the global random states of Python, NumPy and torch.
        job: see CheckpointManager.
        private: each trainer has a directory of its own (see `cairn checkpoint merge`).
        takeover: do not wait for a living process that trains here and cannot be stopped: fence it
            out, so that it can save nothing more.
        callbacks: called with a SaveRecord after every save; see CheckpointManager.add_callback.
        progress: see CheckpointManager.
        tables: EmbeddingTables and RowTracked arrays whose rows belong to each checkpoint. Of
            several trainers each has its own shards of a table, its own piece of an array. Tables
            of the model (cairn.torch.Embedding) need not be named.
        strict: False resumes with what matches (other variables, other state, another number of
            trainers) and warns of the rest. The result is then not that of an undisturbed run.

    >>> import numpy as np, cairn
    >>> def step(model, batch):
    ...     model["w"] += batch
    ...     return {"sum": float(model["w"].sum())}
    >>> def run(epochs):
    ...     model = {"w": np.zeros(2)}
    ...     config = cairn.CheckpointConfig("runs/a", step_interval=1)
    ...     summary = cairn.Trainer(model, step, checkpoint_config=config).train(epochs, [1.0, 2.0])
    ...     return model["w"].tolist(), summary.steps
    >>> run(1)
    ([3.0, 3.0], 2)
    >>> run(2)
    ([6.0, 6.0], 2)
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any, Any], Any],
        optimizer: Any = None,
        checkpoint_config: Optional[CheckpointConfig] = None,
        trainer_id: int = 0,
        num_trainers: int = 1,
        pservers: Any = None,
        *,
        state: Optional[Dict[str, Any]] = None,
        rng: bool = True,
        job: Optional[str] = None,
        private: bool = False,
        takeover: bool = False,
        join_deadline: float = 30,
        deadline: float = 600,
        callbacks: Iterable[SavedCallback] = (),
        progress: Optional[bool] = None,
        tables: Sequence[Union[EmbeddingTable, RowTracked]] = (),
        strict: bool = True,
    ) -> None:
        if not callable(step):
            raise Invalid(f"step must be callable, not a {type(step).__name__}")
        if pservers is not None and tables:
            raise Invalid("tables: with pservers they are the client's: trainer.client.table(…)")
        if checkpoint_config is not None and not isinstance(checkpoint_config, CheckpointConfig):
            raise Invalid(
                f"checkpoint_config must be a CheckpointConfig, not a "
                f"{type(checkpoint_config).__name__}"
            )
        self._trainer_id = whole(trainer_id, "trainer_id")
        self._num_trainers = whole(num_trainers, "num_trainers")
        if self._num_trainers < 1 or not 0 <= self._trainer_id < self._num_trainers:
            raise Invalid(
                f"trainer_id {trainer_id} is not one of num_trainers {num_trainers} (from 0)"
            )
        if checkpoint_config is not None and checkpoint_config.save_seconds is not None:
            if self._num_trainers > 1:
                raise Invalid(
                    "save_seconds: several trainers' clocks differ, and all must save the same "
                    "step; use step_interval"
                )
        if isinstance(model, Scope) and model.frozen:
            raise Invalid(
                "model: a frozen scope (a clone for testing) cannot be trained; give the one that it "
                "was cloned from"
            )
        self._model = model
        self._step = step
        self._config = checkpoint_config
        self._common: Dict[str, Any] = {"model": _saveable(model, "model")}
        if optimizer is not None:
            self._common["optimizer"] = _saveable(optimizer, "optimizer")
        if state is not None:
            if not isinstance(state, dict):
                raise Invalid(f"state must be a dict, not {a_type(state)}")
            self._common["state"] = state  # itself: its values change, and are put back into it
        self._rng = bool(rng)
        self._strict = bool(strict)
        self._together = self._num_trainers > 1 and not private  # they meet in one directory
        self._options = {
            "job": job,
            "private": private,
            "takeover": takeover,
            "join_deadline": join_deadline,
            "deadline": deadline,
            "progress": progress,
        }
        if not isinstance(callbacks, Iterable):
            raise Invalid(f"callbacks must be a list of functions, not {a_type(callbacks)}")
        self._callbacks = list(callbacks)
        self._tables = with_tables_within(tables, None if pservers is not None else self._common)
        self._stop = False
        self.client: Any = None
        self._own_client = False
        if pservers is not None:
            self._connect(pservers)
        self.restored: Optional[Restored] = None
        self.global_step = 0

    def _connect(self, pservers: Any) -> None:
        from . import ps  # wants gRPC

        if isinstance(pservers, ps.Client):
            self.client = pservers
            return
        if (
            isinstance(pservers, str)
            or not isinstance(pservers, Iterable)
            or not all(isinstance(each, str) for each in pservers)
        ):
            raise Invalid('pservers: a list of "host:port", or a cairn.ps.Client')
        directory = None if self._config is None else self._config.checkpoint_dir
        self.client = ps.Client(
            list(pservers),
            directory=directory,
            trainer_id=self._trainer_id,
            num_trainers=self._num_trainers,
        )
        self._own_client = True

    def stop(self) -> None:
        """Ends train() after the step that is under way, with a save. A later train() goes on.

        >>> import cairn
        >>> def handler(event):
        ...     if isinstance(event, cairn.EndStepEvent) and event.metrics < 0.3:
        ...         trainer.stop()
        >>> trainer = cairn.Trainer({}, lambda model, batch: batch)
        >>> summary = trainer.train(1, [0.5, 0.25, 0.125], handler)
        >>> summary.steps, summary.stopped
        (2, True)
        """
        self._stop = True

    def train(
        self,
        num_epochs: int,
        reader: Any,
        event_handler: Optional[Callable[[Any], Any]] = None,
    ) -> TrainSummary:
        """Trains until `num_epochs` epochs are done, or goes on from the last checkpoint.

        Args:
            num_epochs: in all, also after a resume.
            reader: the batches of an epoch: an iterable, or a callable that returns one (given the
                epoch when it takes an argument), and may be called more than once for an epoch when
                a training is resumed. With state() and load_state() a resume finds its place at
                once; otherwise the epoch's batches are read again up to it.
            event_handler: called with BeginEpochEvent, BeginStepEvent, EndStepEvent, EndEpochEvent.
        """
        if whole(num_epochs, "num_epochs") < 0:
            raise Invalid(f"num_epochs must not be negative: {num_epochs}")
        if event_handler is not None and not callable(event_handler):
            raise Invalid("event_handler must be callable")
        batches = EpochReader(reader)
        batches.check(num_epochs)
        try:
            return self._train(num_epochs, batches, event_handler)
        finally:
            self._stop = False  # it ended this call; the next one trains

    def _train(
        self, num_epochs: int, batches: EpochReader, handler: Optional[Callable[[Any], Any]]
    ) -> TrainSummary:
        if self.client is not None:
            return self._train_on_servers(num_epochs, batches, handler)
        with contextlib.ExitStack() as stack:
            repository = self._open(stack)
            signals = stack.enter_context(StopSignals())
            run = TrainingRun(self, repository, batches, handler, signals)
            summary = run.train(num_epochs)
            if repository is not None:
                repository.wait()
        signals.deliver()
        return summary

    def _train_on_servers(
        self, num_epochs: int, batches: EpochReader, handler: Optional[Callable[[Any], Any]]
    ) -> TrainSummary:
        from ._server_run import ServerRun

        with StopSignals() as signals:
            summary = ServerRun(self, batches, handler, signals).train(num_epochs)
        signals.deliver()
        return summary

    def _open(self, stack: contextlib.ExitStack) -> Optional[TrainersRepository]:
        config = self._config
        if config is None:
            return None
        repository = stack.enter_context(
            TrainersRepository(
                config.checkpoint_dir,
                keep_last=config.max_num_checkpoints,
                rank=self._trainer_id,
                world_size=self._num_trainers,
                **self._options,
            )
        )
        for callback in self._callbacks:
            repository.add_callback(callback)
        return repository


def _saveable(value: Any, name: str) -> Any:
    if _tree.as_stateful(value) is None and not isinstance(value, (dict, list, tuple)):
        raise Invalid(
            f"{name} must be a dict of arrays or have state_dict and load_state_dict, not a "
            f"{type(value).__name__}"
        )
    return value
