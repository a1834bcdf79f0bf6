"""Trainer: runs a training loop that goes on, after any crash, as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import signal
import sys
import threading
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from . import _tree
from ._arguments import PathLike, json_values, whole
from ._random import random_state, set_random_state
from ._tables_within import with_tables_within
from .errors import Error, Invalid, Mismatch
from .manager import CheckpointManager, Restored, SaveHandle
from .observe import SavedCallback
from .row_tracked import RowTracked
from .table import EmbeddingTable, stamp

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "CheckpointConfig",
    "EndEpochEvent",
    "EndStepEvent",
    "TrainSummary",
    "Trainer",
]

log = logging.getLogger("cairn")

_STALL_SHARE = 0.05  # of the training time; more is worth a warning …
_WARN_AFTER = 1.0  # … when so many seconds were measured


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


@dataclasses.dataclass(frozen=True)
class BeginEpochEvent:
    """An epoch begins (or goes on, after a resume)."""

    epoch: int


@dataclasses.dataclass(frozen=True)
class EndEpochEvent:
    """All steps of an epoch are done."""

    epoch: int


@dataclasses.dataclass(frozen=True)
class BeginStepEvent:
    """A step begins."""

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class EndStepEvent:
    """A step is done; `metrics` is what it returned."""

    epoch: int
    step: int
    metrics: Any


@dataclasses.dataclass(frozen=True)
class TrainSummary:
    """What one call of train did.

    Attributes:
        steps: made by this call.
        global_step: made in all.
        resumed_from: the checkpoint it went on from, or None.
        saves: checkpoints saved by this call.
        stall_seconds: that training waited for saves.
        stopped: True when stop() or a signal ended it.
    """

    steps: int
    global_step: int
    resumed_from: Optional[str]
    saves: int
    stall_seconds: float
    stopped: bool


class _Repository(CheckpointManager):
    """The trainers' checkpoints: trainer 0 writes the model, each trainer its own arguments."""

    def __init__(self, directory: PathLike, **options: Any) -> None:
        self.position: Tuple[int, int] = (0, 0)
        super().__init__(directory, participant="trainer", naming="serial", **options)

    def _layout(self) -> _tree.Layout:
        return super()._layout()._replace(own="args", common=True, plain="model")

    def _state_files(self) -> Dict[str, str]:
        epoch, step = self.position
        return {"epoch_id": f"{epoch}\n", "step_id": f"{step}\n"}


class _Reader:
    """A user's reader: opens epochs, and finds its place again after a resume."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._calls = callable(reader) and not hasattr(reader, "__iter__")
        if not self._calls and not hasattr(reader, "__iter__"):
            raise Invalid(
                f"reader must be an iterable or a callable that returns one, not a "
                f"{type(reader).__name__}"
            )
        self._wants_epoch = self._calls and _takes_argument(reader)
        self._current: Any = None

    def check(self, num_epochs: int) -> None:
        """Invalid for a reader that is used up after the first epoch."""
        if not self._calls and num_epochs > 1 and iter(self._reader) is self._reader:
            raise Invalid(
                "reader is an iterator and is used up after one epoch; give a list, a loader, or a "
                "callable that returns a new iterable for each epoch"
            )

    def open(self, epoch: int) -> Any:
        if self._calls:
            self._current = self._reader(epoch) if self._wants_epoch else self._reader()
            if not hasattr(self._current, "__iter__"):
                raise Invalid(f"reader returned a {type(self._current).__name__}, no iterable")
        else:
            self._current = self._reader
        return self._current

    def _seekable(self) -> Optional[Any]:
        for candidate in (self._current, self._reader):
            if callable(getattr(candidate, "state", None)) and callable(
                getattr(candidate, "load_state", None)
            ):
                return candidate
        return None

    def state(self) -> Any:
        seekable = self._seekable()
        return None if seekable is None else seekable.state()

    def begin(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, from its start."""
        current = self.open(epoch)
        if callable(getattr(current, "set_epoch", None)):
            current.set_epoch(epoch)
        return iter(current)

    def resume(self, epoch: int, done: int, state: Any) -> Iterator[Any]:
        """The batches of an epoch after the first `done`."""
        current = self.open(epoch)
        seekable = self._seekable()
        if seekable is not None and state is not None:
            seekable.load_state(state)
            return iter(current)
        if callable(getattr(current, "set_epoch", None)):
            current.set_epoch(epoch)
        begun = time.perf_counter()
        batches = iter(current)
        for number in range(done):
            if next(batches, _END) is _END:
                raise Error(
                    f"resume: the reader gave {number} batches of epoch {epoch}, and {done} were "
                    "trained before the restart: it does not give the same data again"
                )
        log.warning(
            "the reader cannot seek (it has no state and load_state): %d batches of epoch %d were "
            "read again and dropped, in %.1f s",
            done,
            epoch,
            time.perf_counter() - begun,
        )
        return batches


_END = object()


def _takes_argument(reader: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(reader).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


class _Signals:
    """While training runs, SIGTERM and Ctrl-C end it after the step, with a save. A second Ctrl-C
    ends it at once. Only on the main thread, as Python has it."""

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks for
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            print("cairn: saving after this step; Ctrl-C again ends at once", file=sys.stderr)
        self.received = number

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """What the signal would have done without us; with the handlers put back."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            os.kill(os.getpid(), self.received)


class Trainer:
    """Trains; saves on the way; started again, goes on with the next step.

    The state holds the model, the optimizer, further `state`, the random states, and the position
    in the data, so that weights and losses are those of an undisturbed run, bit for bit.

    Args:
        model: a dict of arrays, a Scope, or anything with state_dict and load_state_dict.
        step: called as ``step(model, batch)``; returns a dict of metrics, a number or None.
        optimizer: with state_dict and load_state_dict.
        checkpoint_config: a CheckpointConfig; None saves nothing.
        trainer_id, num_trainers: one of several processes on a shared directory. Trainer 0 saves
            the model, every trainer its own position and random states.
        pservers: addresses of parameter servers, or a :class:`cairn.ps.Client`. What is learned is
            then on the servers (``trainer.client.table(…)``, ``trainer.client.dense(…)``), which save
            it with this trainer's position as they were told; `checkpoint_config` only names the
            directory where they are registered. `model` is handed to `step` and not saved.
        state: {name: object with state_dict and load_state_dict, or values} saved besides.
        rng: save and restore the global random states of Python, NumPy and torch.
        job: see CheckpointManager.
        private: each trainer has a directory of its own (see `cairn checkpoint merge`).
        callbacks: called with a SaveRecord after every save; see CheckpointManager.add_callback.
        progress: see CheckpointManager.
        tables: EmbeddingTables and RowTracked arrays whose rows belong to each checkpoint. Of
            several trainers each has its own shards of a table, its own piece of an array. Tables
            of the model (cairn.torch.Embedding) need not be named.

    >>> import numpy as np, tempfile, cairn
    >>> def step(model, batch):
    ...     model["w"] += batch
    ...     return {"sum": float(model["w"].sum())}
    >>> directory = tempfile.mkdtemp()
    >>> def run(epochs):
    ...     model = {"w": np.zeros(2)}
    ...     config = cairn.CheckpointConfig(directory, step_interval=1)
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
        state: Optional[Mapping[str, Any]] = None,
        rng: bool = True,
        job: Optional[str] = None,
        private: bool = False,
        join_deadline: float = 30,
        deadline: float = 600,
        callbacks: Iterable[SavedCallback] = (),
        progress: Optional[bool] = None,
        tables: Sequence[Union[EmbeddingTable, RowTracked]] = (),
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
        self._model = model
        self._step = step
        self._config = checkpoint_config
        self._common: Dict[str, Any] = {"model": _saveable(model, "model")}
        if optimizer is not None:
            self._common["optimizer"] = _saveable(optimizer, "optimizer")
        if state is not None:
            self._common["state"] = dict(state)
        self._rng = bool(rng)
        self._options = {
            "job": job,
            "private": private,
            "join_deadline": join_deadline,
            "deadline": deadline,
            "progress": progress,
        }
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
        if isinstance(pservers, str) or not all(isinstance(each, str) for each in pservers):
            raise Invalid('pservers: a list of "host:port", or a cairn.ps.Client')
        directory = None if self._config is None else os.fspath(self._config.checkpoint_dir)
        self.client = ps.Client(
            list(pservers),
            directory=directory,
            trainer_id=self._trainer_id,
            num_trainers=self._num_trainers,
        )
        self._own_client = True

    def stop(self) -> None:
        """Ends train() after the step that is under way, with a save. A later train() goes on."""
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
                epoch when it takes an argument). With state() and load_state() a resume finds its
                place at once; otherwise the epoch's batches are read again up to it.
            event_handler: called with BeginEpochEvent, BeginStepEvent, EndStepEvent, EndEpochEvent.
        """
        if whole(num_epochs, "num_epochs") < 0:
            raise Invalid(f"num_epochs must not be negative: {num_epochs}")
        if event_handler is not None and not callable(event_handler):
            raise Invalid("event_handler must be callable")
        batches = _Reader(reader)
        batches.check(num_epochs)
        try:
            return self._train(num_epochs, batches, event_handler or _ignore)
        finally:
            self._stop = False  # it ended this call; the next one trains

    def _train(
        self, num_epochs: int, batches: _Reader, handler: Callable[[Any], Any]
    ) -> TrainSummary:
        if self.client is not None:
            return self._train_on_servers(num_epochs, batches, handler)
        with contextlib.ExitStack() as stack:
            repository = self._open(stack)
            signals = stack.enter_context(_Signals())
            run = _Run(self, repository, batches, handler, signals)
            summary = run.train(num_epochs)
            if repository is not None:
                repository.wait()
        signals.deliver()
        return summary

    def _train_on_servers(
        self, num_epochs: int, batches: _Reader, handler: Callable[[Any], Any]
    ) -> TrainSummary:
        from ._server_run import ServerRun

        with _Signals() as signals:
            summary = ServerRun(self, batches, handler, signals).train(num_epochs)
        signals.deliver()
        return summary

    def _open(self, stack: contextlib.ExitStack) -> Optional[_Repository]:
        config = self._config
        if config is None:
            return None
        repository = stack.enter_context(
            _Repository(
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


def _other_training(error: Mismatch) -> Mismatch:
    """Says what a Trainer's user can do about it; there is no rename, skip or strict here."""
    what, _, _ = str(error).partition(" Nothing was changed")
    return Mismatch(
        f"{what} Nothing was changed. It is the checkpoint of another model: train this one in "
        "another checkpoint_dir; cairn.io.load_params takes what fits over",
        error.missing,
        error.unexpected,
        error.mismatched,
    )


def _saveable(value: Any, name: str) -> Any:
    if _tree.as_stateful(value) is None and not isinstance(value, (dict, list, tuple)):
        raise Invalid(
            f"{name} must be a dict of arrays or have state_dict and load_state_dict, not a "
            f"{type(value).__name__}"
        )
    return value


def _ignore(event: Any) -> None:
    pass


class _Run:
    """One call of train."""

    def __init__(
        self,
        trainer: Trainer,
        repository: Optional[_Repository],
        reader: _Reader,
        handler: Callable[[Any], Any],
        signals: _Signals,
    ) -> None:
        self._trainer = trainer
        self._repository = repository
        self._reader = reader
        self._handler = handler
        self._signals = signals
        self._steps = 0
        self._saves = 0
        self._stall = 0.0
        self._warned = False
        self._begun = time.perf_counter()
        self._last_save = self._begun
        self._saved_step = -1  # global step of the newest checkpoint
        self._position: Tuple[int, int] = (0, -1)  # epoch and step done last
        self._epoch_rng: Any = None
        self._epoch_done = False  # all steps of the position's epoch
        self._metrics: Any = None  # of the step done last
        self._handle: Optional[SaveHandle] = None

    def train(self, num_epochs: int) -> TrainSummary:
        resumed = self._restore()
        epoch = 0
        if resumed is not None:
            epoch = int(resumed["epoch"])
            if resumed.get("epoch_done") and resumed.get("reader") is None:
                # A reader that cannot seek would be read to its end to find that nothing is left.
                if self._trainer._rng and resumed.get("rng") is not None:
                    set_random_state(resumed["rng"])
                epoch, resumed = epoch + 1, None
            if epoch >= num_epochs:
                log.warning("all %d epochs were trained before; nothing is left to do", num_epochs)
                return self._summary()
        while epoch < num_epochs and not self._trainer._stop:
            batches, first = self._begin_epoch(epoch, resumed)
            resumed = None
            if not self._epoch(epoch, batches, first):
                break
            epoch += 1
        if self._repository is not None and self._trainer.global_step != self._saved_step:
            if self._position[1] >= 0:
                self._save(self._metrics)
        return self._summary()

    def _summary(self) -> TrainSummary:
        restored = self._trainer.restored
        return TrainSummary(
            steps=self._steps,
            global_step=self._trainer.global_step,
            resumed_from=None if restored is None else restored.info.path,
            saves=self._saves,
            stall_seconds=self._stall,
            stopped=self._stopping(),
        )

    def _stopping(self) -> bool:
        return self._trainer._stop or self._signals.received is not None

    def _may_stop(self, saved: bool) -> bool:
        """Several trainers end together, at a step that all of them save: a signal reaches them at
        different moments. stop() is up to the program."""
        if self._trainer._stop:
            return True
        if self._signals.received is None:
            return False
        return saved or self._trainer._num_trainers == 1 or self._repository is None

    def _begin_epoch(
        self, epoch: int, resumed: Optional[Dict[str, Any]]
    ) -> Tuple[Iterator[Any], int]:
        rng = self._trainer._rng
        if resumed is None:
            self._epoch_rng = random_state() if rng else None
            self._handler(BeginEpochEvent(epoch))
            return self._reader.begin(epoch), 0
        done = int(resumed["step"]) + 1
        self._handler(BeginEpochEvent(epoch))
        # A loader that shuffles by the global random state needs the one the epoch began with.
        self._epoch_rng = resumed.get("epoch_rng")
        if rng and self._epoch_rng is not None:
            set_random_state(self._epoch_rng)
        batches = self._reader.resume(epoch, done, resumed.get("reader"))
        if rng and resumed.get("rng") is not None:
            set_random_state(resumed["rng"])
        return batches, done

    def _epoch(self, epoch: int, batches: Iterator[Any], first: int) -> bool:
        """False when it was stopped before its end."""
        step = first
        self._epoch_done = False
        for batch in batches:
            self._handler(BeginStepEvent(epoch, step))
            metrics = self._trainer._step(self._trainer._model, batch)
            self._steps += 1
            self._trainer.global_step += 1
            stamp(self._trainer._tables, self._trainer.global_step)
            self._position = (epoch, step)
            self._metrics = metrics
            self._end_step()
            self._handler(EndStepEvent(epoch, step, metrics))
            due = self._is_due(epoch, step)
            if due:
                self._save(metrics)
            if self._may_stop(due):
                return False
            step += 1
        self._handler(EndEpochEvent(epoch))
        self._epoch_done = True
        return True

    def _end_step(self) -> None:
        """What others have to know before the step counts."""

    def _arguments(self) -> Dict[str, Any]:
        """All that this trainer needs to go on after the last step."""
        epoch, step = self._position
        return {
            "trainer": self._trainer._trainer_id,
            "epoch": epoch,
            "step": step,
            "global_step": self._trainer.global_step,
            "epoch_done": self._epoch_done,
            "reader": self._reader.state(),
            "rng": random_state() if self._trainer._rng else None,
            "epoch_rng": self._epoch_rng,
        }

    def _is_due(self, epoch: int, step: int) -> bool:
        config = self._trainer._config
        if config is None:
            return False
        if epoch % config.epoch_interval == 0 and step % config.step_interval == 0:
            return True
        seconds = config.save_seconds
        return seconds is not None and time.perf_counter() - self._last_save >= seconds

    def _restore(self) -> Optional[Dict[str, Any]]:
        if self._repository is None:
            return None
        trainer = self._trainer
        try:
            restored = self._repository.restore(
                {**trainer._common, "args": None}, tables=trainer._tables
            )
        except Mismatch as error:
            raise _other_training(error) from None
        trainer.restored = restored
        if restored is None:
            return None
        args: Dict[str, Any] = dict(restored.state["args"])
        trainer.global_step = int(args["global_step"])
        stamp(trainer._tables, trainer.global_step)
        self._saved_step = trainer.global_step
        self._position = (int(args["epoch"]), int(args["step"]))
        if int(args["trainer"]) != trainer._trainer_id:
            log.warning(
                "the checkpoint has no trainer %d: it begins with trainer %d's position and its own "
                "random states",
                trainer._trainer_id,
                int(args["trainer"]),
            )
            args.update(rng=None, epoch_rng=None)
        return args

    def _save(self, metrics: Any = None) -> None:
        repository = self._repository
        assert repository is not None
        trainer = self._trainer
        epoch, step = self._position
        args = self._arguments()
        repository.position = (epoch, step)
        begun = time.perf_counter()
        self._handle = repository.save(
            trainer.global_step,
            {**trainer._common, "args": args},
            metrics=_metrics(metrics),
            metadata={"epoch": epoch, "step": step},
            tables=trainer._tables,
        )
        self._saves += 1
        self._saved_step = trainer.global_step
        self._last_save = time.perf_counter()
        self._stall += self._last_save - begun
        self._warn_when_slow()

    def _warn_when_slow(self) -> None:
        spent = time.perf_counter() - self._begun
        config = self._trainer._config
        if self._warned or config is None or self._saves < 3 or spent < _WARN_AFTER:
            return
        share = self._stall / spent
        if share <= _STALL_SHARE:
            return
        self._warned = True
        per_save = self._stall / self._saves
        per_step = max(spent - self._stall, 1e-9) / max(self._steps, 1)
        right = int(per_save / (_STALL_SHARE * per_step)) + 1
        log.warning(
            "saving takes %.0f %% of the training time (%.3f s each); step_interval=%d would take "
            "under %.0f %%",
            100 * share,
            per_save,
            max(right, config.step_interval + 1),
            100 * _STALL_SHARE,
        )


def _metrics(value: Any) -> Optional[Dict[str, Any]]:
    """The numbers of what a step returned; other things are the handler's."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        value = {"loss": value}
    kept: Dict[str, Any] = {}
    for name, item in value.items():
        with contextlib.suppress(Invalid):
            number = json_values(item, str(name))
            if isinstance(number, (int, float)):
                kept[str(name)] = number
    return kept
