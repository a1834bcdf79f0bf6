"""One call of Trainer.train: from the newest checkpoint through epochs and steps to the last save."""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Set,
    Tuple,
)

from . import _native, _tree
from ._arguments import json_values
from ._epoch_reader import EpochReader
from ._generators import generators_in, put_states, states_of
from ._random import host_states, put_host_states, random_state, set_random_state
from ._save_cost import cost_warning
from ._stop_signals import StopSignals
from ._tables_within import refuse_lost_tables, refuse_lost_tables_of_one
from ._train_events import (
    BeginEpochEvent,
    BeginStepEvent,
    EndEpochEvent,
    EndStepEvent,
    TrainSummary,
)
from ._trainer_checkpoints import OwnArguments, Refused, TrainersRepository, other_training
from .errors import Invalid, Mismatch
from .manager import SaveHandle
from .scope import end_iteration_of
from .table import stamp
from .table import tables as all_tables

if TYPE_CHECKING:
    from .trainer import Trainer

log = logging.getLogger("cairn")

_INT64 = 1 << 63  # a manifest's numbers have 64 bits

_NO_MORE = object()  # batches in this epoch
_ENDED = object()  # by a signal, while a batch was awaited

# Global step, epoch and step done last, whether all steps of that epoch are.
_Progress = Tuple[int, int, int, bool]


def _ignore(event: Any) -> None:
    pass


class TrainingRun:
    """One call of train."""

    def __init__(
        self,
        trainer: Trainer,
        repository: Optional[TrainersRepository],
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
        state = {**trainer._common, "args": OwnArguments(trainer)}
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
            self._end_iteration()
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

    def _end_iteration(self) -> None:
        """The temporaries of scopes are gone with the step."""
        end_iteration_of(self._trainer._model)
        end_iteration_of(self._trainer._common.get("state"))

    def _arguments(self) -> Dict[str, Any]:
        """All that this trainer needs to go on after the last step."""
        epoch, step = self._position
        return {
            "trainer": self._trainer._trainer_id,
            "trainers": self._trainer._num_trainers,
            "tables": sorted({table.name for table in self._trainer._tables}),
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
        arguments = OwnArguments(trainer)
        try:
            restored = self._repository.restore(
                {**trainer._common, "args": arguments},
                strict=trainer._strict,
                tables=trainer._tables,
            )
        except Refused as refused:
            raise refused.args[0] from None
        except Mismatch as error:
            raise other_training(error) from None
        if trainer._strict and trainer._num_trainers == 1:
            refuse_lost_tables(restored, trainer._tables)
        elif trainer._strict:
            refuse_lost_tables_of_one(restored, trainer._tables, arguments.loaded.get("tables"))
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
