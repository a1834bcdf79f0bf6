"""Trainer: runs a training loop that goes on, after any crash, as if nothing had happened."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import time
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

from . import _native, _tree
from ._arguments import PathLike, json_values, whole
from ._epoch_reader import EpochReader
from ._generators import generators_in, put_states, states_of
from ._random import host_states, put_host_states, random_state, set_random_state
from ._save_cost import cost_warning
from ._stop_signals import StopSignals
from ._tables_within import refuse_lost_tables, with_tables_within
from ._wording import a_type
from .errors import Invalid, Mismatch
from .manager import CheckpointManager, Restored, SaveHandle
from .observe import SavedCallback
from .row_tracked import RowTracked
from .table import EmbeddingTable, stamp
from .table import tables as all_tables

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

_INT64 = 1 << 63  # a manifest's numbers have 64 bits


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
    """An epoch begins; or goes on with `step`, after a resume inside of it.

    The event comes then too, so that a handler can make again what it keeps in memory for an epoch.
    What it changes in the state (the model, the optimizer, `state`, rows of tables) is put back: the
    checkpoint was saved changed.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.BeginEpochEvent):
    ...         print("epoch", event.epoch)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(2, [1.0], handler)
    epoch 0
    epoch 1
    """

    epoch: int
    step: int = 0


@dataclasses.dataclass(frozen=True)
class EndEpochEvent:
    """All steps of an epoch are done.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.EndEpochEvent):
    ...         print("validate after epoch", event.epoch)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(1, [1.0, 2.0], handler)
    validate after epoch 0
    """

    epoch: int


@dataclasses.dataclass(frozen=True)
class BeginStepEvent:
    """A step begins.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.BeginStepEvent):
    ...         print(event.epoch, event.step)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(1, [1.0, 2.0], handler)
    0 0
    0 1
    """

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class EndStepEvent:
    """A step is done; `metrics` is what it returned.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.EndStepEvent):
    ...         print(event.step, event.metrics)
    >>> summary = cairn.Trainer({}, lambda model, batch: {"loss": batch}).train(1, [0.5, 0.25], handler)
    0 {'loss': 0.5}
    1 {'loss': 0.25}
    """

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

    >>> import os, numpy as np, cairn
    >>> def run(epochs):
    ...     trainer = cairn.Trainer({"w": np.zeros(2)}, lambda model, batch: None,
    ...                             checkpoint_config=cairn.CheckpointConfig("runs/a", step_interval=2))
    ...     return trainer.train(epochs, [1.0] * 4)
    >>> first, second = run(1), run(3)
    >>> first.steps, first.resumed_from, first.stopped
    (4, None, False)
    >>> second.steps, second.global_step, second.resumed_from is not None
    (8, 12, True)
    """

    steps: int
    global_step: int
    resumed_from: Optional[str]
    saves: int
    stall_seconds: float
    stopped: bool


class _Repository(CheckpointManager):
    """The trainers' checkpoints: trainer 0 writes the model, each trainer its own arguments."""

    _may_grow = ("optimizer", "state")

    def __init__(self, directory: PathLike, **options: Any) -> None:
        self.position: Tuple[int, int] = (0, 0)
        super().__init__(directory, participant="trainer", naming="serial", **options)

    def _layout(self) -> _tree.Layout:
        return super()._layout()._replace(own="args", common=True, plain="model")

    def _state_files(self) -> Dict[str, str]:
        epoch, step = self.position
        return {"epoch_id": f"{epoch}\n", "step_id": f"{step}\n"}


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
                epoch when it takes an argument). With state() and load_state() a resume finds its
                place at once; otherwise the epoch's batches are read again up to it.
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
            run = _Run(self, repository, batches, handler, signals)
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


class _Refused(Exception):
    """The checkpoint as a whole, whatever else of it fits; with the Mismatch to raise."""


class _Arguments(_tree.Stateful):
    """A trainer's own arguments, as a restore brings them back. Those of another training are refused
    before anything is changed."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loaded: Dict[str, Any] = {}

    def cairn_save(self) -> Any:
        # Asked for where no tree of Python values is stored.
        raise _Refused(_not_a_trainers("the checkpoint"))

    def cairn_template(self, stored: _tree.Stored) -> Any:
        args = stored.skeleton()  # type: ignore[attr-defined]
        if not isinstance(args, dict) or not {"trainer", "epoch", "step", "global_step"} <= set(args):
            raise _Refused(_not_a_trainers(stored.where))
        # Those from before do not say how many there were; a trainer without a part was none of them.
        count = args.get("trainers", self._trainer._num_trainers)
        if count == self._trainer._num_trainers and args["trainer"] == self._trainer._trainer_id:
            return None
        what = (
            f"restore {stored.where}: it was saved by {count} trainers, and there are "
            f"{self._trainer._num_trainers} now"
            if count != self._trainer._num_trainers
            else f"restore {stored.where}: it has no part of trainer {self._trainer._trainer_id}"
        )
        if self._trainer._strict:
            raise _Refused(
                Mismatch(
                    f"{what}. Nothing was changed. Start as many, or give strict=False: the model and "
                    "the counts of epochs and steps are then restored, each trainer's own state is not"
                )
            )
        log.warning("%s: each trainer's own state starts anew", what)
        return None

    def cairn_load(self, state: Any) -> None:
        self.loaded = dict(state)
        mine = (self._trainer._num_trainers, self._trainer._trainer_id)
        if (state.get("trainers", mine[0]), state["trainer"]) != mine:
            for name in ("rng", "epoch_rng", "reader", "generators", "epoch_generators"):
                self.loaded[name] = None


def _not_a_trainers(where: str) -> Mismatch:
    return Mismatch(
        f"restore {where}: it was not saved by a cairn.Trainer of Python. Nothing was changed; train "
        "in another checkpoint_dir"
    )


def _other_training(error: Mismatch) -> Mismatch:
    """Says what a Trainer's user can do about it; there is no rename and no skip here."""
    names = [*error.missing, *error.unexpected, *error.mismatched]
    what, _, _ = str(error).partition(" Nothing was changed")
    if "args" in error.missing:
        advice = "It was not saved by a Trainer: train in another checkpoint_dir"
    elif names and all(name.startswith(("optimizer", "state/")) for name in names):
        advice = (
            "It was saved with another optimizer or state: give what was given then, or train in "
            "another checkpoint_dir"
        )
    else:
        advice = (
            "It is the checkpoint of another model: train this one in another checkpoint_dir; "
            "cairn.io.load_params takes what fits over"
        )
    return Mismatch(
        f"{what} Nothing was changed. {advice}", error.missing, error.unexpected, error.mismatched
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


_NO_MORE = object()  # batches in this epoch
_ENDED = object()  # by a signal, while a batch was awaited

# Global step, epoch and step done last, whether all steps of that epoch are.
_Progress = Tuple[int, int, int, bool]


class _Run:
    """One call of train."""

    def __init__(
        self,
        trainer: Trainer,
        repository: Optional[_Repository],
        reader: EpochReader,
        handler: Optional[Callable[[Any], Any]],
        signals: StopSignals,
    ) -> None:
        self._trainer = trainer
        self._repository = repository
        self._reader = reader
        self._has_handler = handler is not None
        self._handler = handler or _ignore
        self._signals = signals
        self._together = trainer._together and repository is not None
        self._agreement: Optional[_native.StopAgreement] = None  # after a signal
        # Seconds of the last steps. The quickest tells how far the others may be when a signal comes:
        # those that waited for a save, or for a compiler, do not.
        self._paces: Deque[float] = collections.deque(maxlen=8)
        self._steps = 0
        self._longest = 0  # epoch that ended, in steps; 0: none did
        self._saves = 0
        self._stall = 0.0
        self._warned = False
        self._named: Set[str] = set()  # tables that were warned of
        self._begun = time.perf_counter()
        self._last_save = self._begun
        self._saved: Optional[_Progress] = None  # of the newest checkpoint
        self._position: Tuple[int, int] = (0, -1)  # epoch and step done last
        self._epoch_rng: Any = None  # as the epoch found it
        self._epoch_generators: Dict[str, Any] = {}  # those in the state, likewise
        self._epoch_done = False  # all steps of the position's epoch
        self._metrics: Any = None  # of the step done last
        self._handle: Optional[SaveHandle] = None
        self._position_before: Any = None  # the reader's, when reading failed

    def train(self, num_epochs: int) -> TrainSummary:
        resumed = self._restore()
        epoch = 0
        if resumed is not None:
            epoch = int(resumed["epoch"])
            if resumed.get("epoch_done"):
                if epoch + 1 < num_epochs:
                    generators = self._generators()
                    saved = states_of(generators)
                    self._reader.put_workers_for_next(epoch, resumed.get("found_workers"))
                    self._reader.end(epoch, resumed.get("reader"), resumed.get("generators"))
                    put_states(generators, saved)
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
            # Several trainers agree on a step, and this is none.
            if self._signals.received is not None and not self._together:
                break
        self._save_last()
        return self._summary()

    def _progress(self) -> "_Progress":
        return (self._trainer.global_step, *self._position, self._epoch_done)

    def _save_last(self) -> None:
        if self._repository is None or self._position[1] < 0:
            return
        # A checkpoint of the last step is enough when nothing of the program's ran since: a handler
        # may have changed the state at the epoch's end. Several trainers must decide alike, whether
        # or not each has a handler.
        may_differ = self._has_handler or self._together
        progress = self._progress()
        same_step = self._saved is not None and self._saved[0] == progress[0]
        if not same_step or (may_differ and self._saved != progress):
            self._save(self._metrics)

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

    def _may_stop(self) -> bool:
        """Several trainers end after the same step, which trainer 0 chooses: a signal reaches them at
        different moments. stop() is up to the program."""
        if self._trainer._stop:
            return True
        if self._signals.received is None:
            return False
        if not self._together:
            return True
        repository = self._repository
        assert repository is not None
        if self._agreement is None:
            self._agreement = _native.StopAgreement(
                directory=repository.directory,
                generation=repository.generation,
                chooses=self._trainer._trainer_id == 0,
                patience=self._trainer._options["join_deadline"],
            )
        return self._agreement.last_step(
            global_step=self._trainer.global_step, seconds_per_step=min(self._paces)
        )

    def _begin_epoch(
        self, epoch: int, resumed: Optional[Dict[str, Any]]
    ) -> Tuple[Iterator[Any], int]:
        rng = self._trainer._rng
        if resumed is None:
            self._epoch_rng = random_state() if rng else None
            self._epoch_generators = states_of(self._generators())
            self._handler(BeginEpochEvent(epoch, 0))
            return self._reader.begin(epoch), 0
        # The beginning of the epoch comes again, with the random states that it found: a loader
        # shuffles by them, and a handler makes in memory what it needs for an epoch. Then all is put
        # back as it was saved, which is with what the beginning did to it.
        done = int(resumed["step"]) + 1
        generators = self._generators()
        saved = states_of(generators)
        self._epoch_rng = resumed.get("epoch_rng")
        self._epoch_generators = resumed.get("epoch_generators") or {}
        self._reader.put_workers(epoch, resumed.get("found_workers"))
        put_states(generators, saved)
        if self._has_handler:
            before = self._fingerprint()
        if rng and self._epoch_rng is not None:
            set_random_state(self._epoch_rng)
        put_states(generators, self._epoch_generators)
        if self._has_handler:
            self._handler(BeginEpochEvent(epoch, done))
            drawn = states_of(generators)
            put_states(generators, saved)
            if self._fingerprint() != before:
                self._put_back()
            put_states(generators, drawn)
        batches = self._reader.resume(
            epoch, done, resumed.get("reader"), resumed.get("generators")
        )
        put_states(generators, saved)
        if rng and resumed.get("rng") is not None:
            set_random_state(resumed["rng"])
        return batches, done

    def _generators(self) -> Dict[str, Any]:
        """Those that are saved with the state."""
        return {} if self._repository is None else generators_in(self._trainer._common)

    def _fingerprint(self) -> Any:
        """Something that differs when the state was changed."""
        trainer = self._trainer
        if self._repository is None:
            return None
        if any(getattr(table, "_counts_lookups", False) for table in trainer._tables):
            return object()  # the changed rows do not show how often others were looked up
        encoded = _tree.encode(trainer._common, _tree.Layout())
        rows = [table._native.changed_rows("consecutive") for table in trainer._tables]
        return encoded.json, encoded.tensors.digest(), rows

    def _put_back(self) -> None:
        trainer = self._trainer
        assert self._repository is not None and trainer.restored is not None
        state = {**trainer._common, "args": _Arguments(trainer)}
        self._repository.restore(
            state, id=trainer.restored.info.id, strict=trainer._strict, tables=trainer._tables
        )
        stamp(trainer._tables, trainer.global_step)

    def _epoch(self, epoch: int, batches: Iterator[Any], first: int) -> bool:
        """False when it was stopped before its end."""
        step = first
        self._epoch_done = False
        last = time.perf_counter()
        while True:
            batch = self._next(batches)
            if batch is _NO_MORE:
                break
            if batch is _ENDED:
                return False
            self._handler(BeginStepEvent(epoch, step))
            metrics = self._trainer._step(self._trainer._model, batch)
            self._steps += 1
            self._trainer.global_step += 1
            stamp(self._trainer._tables, self._trainer.global_step)
            self._position = (epoch, step)
            self._metrics = metrics
            self._end_step()
            self._handler(EndStepEvent(epoch, step, metrics))
            if self._is_due(epoch, step):
                self._save(metrics)
            now = time.perf_counter()
            self._paces.append(now - last)
            last = now
            if self._may_stop():
                return False
            step += 1
        self._longest = max(self._longest, step)
        self._handler(EndEpochEvent(epoch))
        self._epoch_done = True
        return True

    def _next(self, batches: Iterator[Any]) -> Any:
        """The next batch, or why there is none. A signal to all processes of a job ends the workers of
        a loader too, and reading fails: this training ends then with the step before, as it was before
        it read on."""
        may_fail = self._repository is not None and not self._together
        if not may_fail or not self._reader.has_workers() or self._position[1] < 0:
            return next(batches, _NO_MORE)
        put_back = self._random_states() if self._reader.draws() else None
        position = self._reader.state()
        try:
            return next(batches, _NO_MORE)
        except Exception as error:
            if self._signals.received is None:
                raise
            log.warning("after the signal to end, the reader failed, and is read no more: %s", error)
        if put_back is not None:
            put_back()
        self._position_before = position
        return _ENDED

    def _random_states(self) -> Callable[[], None]:
        """What puts all random states that are saved back to where they are now, in this process."""
        generators, loaders = self._generators(), self._reader.generators()
        states, drawn = host_states(), states_of(generators)

        def put_back() -> None:
            if self._trainer._rng:
                put_host_states(states)
            if loaders is not None:
                self._reader.put_back(loaders["now"])
            put_states(generators, drawn)

        return put_back

    def _end_step(self) -> None:
        """What others have to know before the step counts."""

    def _arguments(self) -> Dict[str, Any]:
        """All that this trainer needs to go on after the last step."""
        epoch, step = self._position
        return {
            "trainer": self._trainer._trainer_id,
            "trainers": self._trainer._num_trainers,
            "epoch": epoch,
            "step": step,
            "global_step": self._trainer.global_step,
            "epoch_done": self._epoch_done,
            "reader": self._position_before or self._reader.state(),
            "generators": self._reader.generators(),
            "found_workers": self._reader.found_workers,
            "rng": random_state() if self._trainer._rng else None,
            "epoch_rng": self._epoch_rng,
            "epoch_generators": self._epoch_generators,
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
        if trainer._options["private"] and trainer._num_trainers > 1:
            _native.refuse_unmerged_parts(self._repository.directory)
        arguments = _Arguments(trainer)
        try:
            restored = self._repository.restore(
                {**trainer._common, "args": arguments},
                strict=trainer._strict,
                tables=trainer._tables,
            )
        except _Refused as refused:
            raise refused.args[0] from None
        except Mismatch as error:
            raise _other_training(error) from None
        if trainer._strict:
            refuse_lost_tables(restored, trainer._tables)
        trainer.restored = restored
        if restored is None:
            return None
        for name, why in [] if trainer._strict else restored.skipped:
            log.warning("resume: %s was not restored: %s", name, why)
        args = restored.state["args"] = arguments.loaded
        trainer.global_step = int(args["global_step"])
        stamp(trainer._tables, trainer.global_step)
        self._position = (int(args["epoch"]), int(args["step"]))
        self._epoch_done = bool(args.get("epoch_done"))
        self._saved = self._progress()
        return args

    def _save(self, metrics: Any = None) -> None:
        repository = self._repository
        assert repository is not None
        trainer = self._trainer
        epoch, step = self._position
        args = self._arguments()
        repository.position = (epoch, step)
        self._warn_of_other_tables()
        begun = time.perf_counter()
        self._handle = repository.save(
            trainer.global_step,
            {**trainer._common, "args": args},
            metrics=_metrics(metrics),
            metadata={"epoch": epoch, "step": step},
            tables=trainer._tables,
        )
        self._saves += 1
        self._saved = self._progress()
        self._last_save = time.perf_counter()
        self._stall += self._last_save - begun
        self._warn_when_slow()

    def _warn_of_other_tables(self) -> None:
        saved = {id(table) for table in self._trainer._tables}
        others = {table.name for table in all_tables() if id(table) not in saved} - self._named
        if others:
            self._named |= others
            log.warning(
                "the rows of %s are in no checkpoint of this Trainer; give the tables that it "
                "trains as tables=[…]",
                ", ".join(f"table {name!r}" for name in sorted(others)),
            )

    def _warn_when_slow(self) -> None:
        config = self._trainer._config
        if self._warned or config is None:
            return
        spent = time.perf_counter() - self._begun
        warning = cost_warning(config, self._saves, self._stall, spent, self._steps, self._longest)
        if warning is not None:
            self._warned = True
            log.warning("%s", warning)


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
            if isinstance(number, float) or (isinstance(number, int) and -_INT64 <= number < _INT64):
                kept[str(name)] = number
    return kept
