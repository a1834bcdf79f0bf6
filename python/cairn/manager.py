"""CheckpointManager: saves a training job's state and brings it back."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _location, _native, _tree
from ._arguments import (
    Files,
    PathLike,
    choice,
    name_set,
    names_by_name,
    not_negative,
    positive,
    rank_number,
    seconds,
    text_argument,
    user_files,
    value_dict,
    whole,
)
from ._restore import STATE_FILE, CheckpointInfo, Restore, Restored
from ._tables_within import with_tables_within
from ._wording import a_type
from .errors import Error, Invalid
from .observe import SavedCallback, SaveWatcher
from .row_tracked import RowTracked
from .table import EmbeddingTable

__all__ = ["CheckpointInfo", "CheckpointManager", "Restored", "SaveHandle"]


def _natives(tables: Sequence[Union[EmbeddingTable, RowTracked]]) -> List[Any]:
    for table in tables:
        if not isinstance(table, (EmbeddingTable, RowTracked)):
            raise Invalid(
                f"tables: EmbeddingTable and RowTracked, not {a_type(table)}; other "
                "values belong into the state"
            )
    return [table._native for table in tables]


class SaveHandle:
    """A save under way.

    Attributes:
        stall_seconds: how long the caller of save (and guard) was held up.
        durable_seconds: from the call of save until it was durable; 0 before.
        bytes_written: by this rank, so far.
        bytes_shared: of files that did not change and were linked instead of written.

    >>> import numpy as np, cairn
    >>> w = np.zeros(1000)
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     handle = m.save(1, {"w": w}, lazy=True)
    ...     handle.guard()                        # from here on w may change
    ...     w += 1
    ...     info = handle.wait()                  # from here on it is durable
    >>> info.step, handle.done(), handle.bytes_written > 8000, handle.bytes_shared
    (1, True, True, 0)
    >>> handle.stall_seconds < handle.durable_seconds
    True
    """

    def __init__(
        self, native: Any, keep: List[Any], step: int, settle: Optional[Callable[[], None]] = None
    ) -> None:
        self._native = native
        self._settle = settle
        self._keep: Optional[List[Any]] = keep
        self._pid = os.getpid()
        self.step = step
        _of_this_process.add(self)

    def wait(self) -> CheckpointInfo:
        """Waits until the save is durable. Raises what went wrong, if it failed; Cancelled, if it was
        skipped. Ctrl-C ends the wait, not the save."""
        _check_process(self._pid)
        try:
            info = self._native.wait()
        finally:
            if self._settle is not None and self.done():
                self._settle()
        self._keep = None
        return CheckpointInfo(**info)

    def done(self) -> bool:
        """True when it is durable or has failed."""
        return bool(self._native.done())

    def guard(self) -> None:
        """Waits until the arrays may be changed again: at once, unless the save is lazy. Ctrl-C is
        raised after that: until then the arrays are being read."""
        _check_process(self._pid)
        self._native.guard()
        self._keep = None

    def _outcome(self) -> Tuple[Optional[Dict[str, Any]], Optional[Error]]:
        """The info or the error of a save that is over. A failure seen here is still reported to
        whoever waits."""
        try:
            return self._native.outcome(), None
        except Error as error:
            return None, error

    @property
    def stall_seconds(self) -> float:
        """How long the caller of save (and guard) was held up."""
        return float(self._native.stall_seconds)

    @property
    def durable_seconds(self) -> float:
        """From the call of save until it was durable; 0 before."""
        return float(self._native.durable_seconds)

    @property
    def bytes_written(self) -> int:
        """By this rank, so far."""
        return int(self._native.bytes_written)

    @property
    def bytes_shared(self) -> int:
        """Of files that did not change and were linked instead of written."""
        return int(self._native.bytes_shared)

    def __repr__(self) -> str:
        state = "done" if self.done() else "in flight"
        return f"SaveHandle(step {self.step}, {state})"


def _check_process(pid: int) -> None:
    if os.getpid() != pid:
        raise Error(
            f"this CheckpointManager belongs to process {pid}, and this is a fork of it, which has "
            "none of its threads; open the directory here with read_only=True"
        )


class CheckpointManager:
    """Saves the state of one job into a directory of checkpoints and brings it back.

    Start the same program again after any crash: restore() gives the last state whose save was
    acknowledged.

    May be used from any thread, one call at a time; others wait. What is still being written when
    the program ends, or when the last reference to the manager is gone, is finished first; a failure
    is printed. A fork of the process cannot use it: its calls raise Error there.

    Args:
        directory: where the checkpoints are; made when missing (unless read_only).
        job: a name for the job. None adopts the directory's. Another job's: OwnedByAnotherJob.
        keep_last: how many of the newest stay; None keeps all.
        keep_best: how many of the best by `score` (a metric, "a/b" reaches into nested ones) stay.
        order: "max" or "min" is best.
        keep_fulls: keep the newest so many full checkpoints, whatever increments came since.
        keep_every: multiples of this step stay.
        rank, world_size: one of several processes that save together, through the directory.
        naming: "step" (checkpoint_000040) or "serial" (checkpoint_0, checkpoint_1, …).
        on_busy: a save while one is in flight waits ("wait") or is skipped ("skip").
        deadline: seconds within which all ranks must have written their parts.
        low_memory: stream through a small buffer instead of a copy of the state.
        read_only: only look; needs no ownership.
        private: each rank has a directory of its own; `cairn checkpoint merge` brings them together.
        takeover: do not wait for a living writer: fence it out.
        upload_limit: bytes per second of all uploads to a bucket; None: CAIRN_UPLOAD_LIMIT, or none.
        single_writer: write to a server without create-only puts: you promise that one process at a
            time, at most, ever writes here.
        disk_writes: how files get to a local disk: past the kernel's cache ("direct", where the file
            system knows it) or through it, with fsync ("buffered"). Which is faster depends on the
            machine: "auto" finds out while it writes its first blocks.
        pool_bytes: of files of removed checkpoints, how many are kept to be written over, which is
            faster than writing new ones. None: as many as one checkpoint has; 0: none.
        copy_threads: that copy the state when it is saved. None: as many as there are cores.
        on_saved: called with a SaveRecord after every save; see add_callback.
        progress: show background saves as one line on stderr. None: when it is a terminal.

    >>> import numpy as np, cairn
    >>> w = np.arange(4.0)
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     info = m.save(10, {"w": w, "lr": 0.1}).wait()
    >>> w[:] = 0
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     r = m.restore({"w": w, "lr": None})
    >>> r.step, w.tolist(), r.state["lr"]
    (10, [0.0, 1.0, 2.0, 3.0], 0.1)
    """

    # For those who start with empty lists and dicts (losses so far) and go on: what grew since is filled
    # instead of refused; see _plan.Plan.
    _may_grow: Optional[Tuple[str, ...]] = None

    def __init__(
        self,
        directory: PathLike,
        *,
        job: Optional[str] = None,
        keep_last: Optional[int] = 3,
        keep_best: Optional[int] = None,
        score: Optional[str] = None,
        order: str = "max",
        keep_every: Optional[int] = None,
        rank: int = 0,
        world_size: int = 1,
        naming: str = "step",
        on_busy: str = "wait",
        deadline: float = 600,
        low_memory: bool = False,
        read_only: bool = False,
        private: bool = False,
        takeover: bool = False,
        upload_limit: Optional[int] = None,
        single_writer: bool = False,
        join_deadline: float = 30,
        participant: str = "rank",
        run: int = 0,
        keep_fulls: Optional[int] = None,
        disk_writes: str = "auto",
        pool_bytes: Optional[int] = None,
        copy_threads: Optional[int] = None,
        on_saved: Optional[SavedCallback] = None,
        progress: Optional[bool] = None,
    ) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise Invalid(f"directory must be a path, not {type(directory).__name__}")
        text_argument(participant, "participant")
        for text, what in ((job, "job"), (score, "score")):
            if text is not None:
                text_argument(text, what)
        if job == "":
            raise Invalid("job must not be empty; None adopts the directory's job")
        if not _location.text_of(directory):
            raise Invalid("the directory's name is empty")
        self._directory = _location.absolute(directory)  # wherever the program goes later
        self._rank = rank_number(rank, "rank")
        self._world_size = rank_number(world_size, "world_size")
        if whole(run, "run") < 0:
            raise Invalid(f"run must not be negative: {run}")
        self._participant = participant
        self._skips = choice(on_busy, "on_busy", ("wait", "skip")) == "skip"
        self._last: Optional[SaveHandle] = None  # the newest save that was not skipped
        self._lock = threading.RLock()
        self._known = _native.KnownState()  # what was saved last
        self._pid = os.getpid()
        self._watcher = SaveWatcher(progress, self._rank)
        if on_saved is not None:
            self._watcher.add(on_saved)
        weakref.finalize(self, self._watcher.forget).atexit = False
        self._native = _native.Manager.open(
            {
                "directory": self._directory,
                "job": job,
                "run": whole(run, "run"),
                "keep_last": positive(keep_last, "keep_last"),
                "keep_best": positive(keep_best, "keep_best"),
                "keep_every": positive(keep_every, "keep_every"),
                "keep_fulls": positive(keep_fulls, "keep_fulls"),
                "score": score,
                "maximize": choice(order, "order", ("max", "min")) == "max",
                "rank": self._rank,
                "world_size": self._world_size,
                "participant": participant,
                "serial": choice(naming, "naming", ("step", "serial")) == "serial",
                "skip_when_busy": self._skips,
                "deadline": seconds(deadline, "deadline"),
                "join_deadline": seconds(join_deadline, "join_deadline"),
                "low_memory": bool(low_memory),
                "read_only": bool(read_only),
                "private": bool(private),
                "takeover": bool(takeover),
                "upload_limit": positive(upload_limit, "upload_limit"),
                "single_writer": bool(single_writer),
                "disk_writes": choice(disk_writes, "disk_writes", ("auto", "direct", "buffered")),
                "pool_bytes": not_negative(pool_bytes, "pool_bytes"),
                "copy_threads": positive(copy_threads, "copy_threads"),
            }
        )
        self._closed = False
        _open_managers.add(self)
        _of_this_process.add(self)

    @property
    def directory(self) -> str:
        """Where the checkpoints are.

        >>> import os, cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     m.directory == os.path.abspath("runs/a")
        True
        """
        return self._directory

    @property
    def job(self) -> str:
        """The job that owns the directory.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a", job="nightly") as m:
        ...     m.job
        'nightly'
        """
        return str(self._native.job)

    @property
    def generation(self) -> int:
        """Which opening of the directory this is; 0 when read-only.

        >>> import cairn
        >>> for _ in range(2):
        ...     with cairn.CheckpointManager("runs/a") as m:
        ...         m.generation
        1
        2
        """
        return int(self._native.generation)

    def save(
        self,
        step: int,
        state: Any,
        metrics: Optional[Mapping[str, Any]] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        files: Optional[Files] = None,
        blocking: bool = False,
        lazy: bool = False,
        *,
        tables: Sequence[Union[EmbeddingTable, RowTracked]] = (),
        kind: str = "full",
        quantize: bool = False,
        compress_keys: bool = False,
        lineage: Optional[Mapping[str, Any]] = None,
    ) -> SaveHandle:
        """Saves a state. Returns when it is copied; it is written in the background.

        Args:
            step: not negative.
            state: nested dicts, lists and tuples of arrays, tensors and values. Values that are
                changed after save returned are not in the checkpoint.
            metrics: numbers, for keep_best and for people.
            metadata: any JSON-like values.
            files: files of your own: a directory, paths, or {name: path or bytes}. Paths must not
                change until the save is done.
            blocking: return when it is durable. No copy is made: Ctrl-C is raised when the arrays
                have been read, and the save goes on to its end.
            lazy: return before the copy, which runs behind your next computation; call
                handle.guard() before you change the arrays.
            tables: whose rows, as they are now, belong to the checkpoint: EmbeddingTables, and
                arrays that are tracked by row (RowTracked). Those of torch modules in the state
                (cairn.torch.Embedding) belong to it anyway.
            kind: "full", or an increment, which holds the rows that changed: "cumulative" (since
                the last full one) or "consecutive" (since the last save). The state is whole in
                each. An increment needs a full one, saved or restored with the same tables.
            quantize: rows of increments with 8 bits a number; see quantization_error.
            compress_keys: the tables' keys as zstd.
            lineage: where the state came from. A UUID under "registration" becomes the
                checkpoint's id.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     m.save(0, {"epoch": 3}, metrics={"loss": 0.5}, blocking=True).wait().metrics
        {'loss': 0.5}
        """
        number = whole(step, "step")
        choice(kind, "kind", ("full", "cumulative", "consecutive"))
        self._check_open()
        with self._lock:
            if not self._skips:
                self._settle()
            self._native.await_turn()
            encoded = _tree.encode(state, self._layout(), bool(lazy), self._known)
            every = with_tables_within(tables, state)
            native = self._native.save(
                step=number,
                tensors=encoded.tensors,
                counters={},
                metrics=value_dict(metrics, "metrics"),
                metadata=value_dict(metadata, "metadata"),
                lineage=value_dict(lineage, "lineage"),
                files=user_files(files),
                state_files=self._state_files(),
                state_file=STATE_FILE,
                lazy=bool(lazy),
                stream=bool(blocking),
                kind=kind,
                tables=_natives(every),
                quantize=bool(quantize),
                compress_keys=bool(compress_keys),
            )
            handle = SaveHandle(
                native,
                encoded.keep if lazy or blocking else [],
                number,
                self._settle_tables if every else None,
            )
            if not (self._skips and handle.done()):
                self._last = handle  # a skipped save does not take the place of the one in flight
            self._watcher.watch(handle, encoded.nbytes)
            for stateful in encoded.stateful:
                stateful.cairn_saved(handle)
        if blocking:
            handle.guard()
            handle.wait()
            self._native.settle()
        return handle

    def _layout(self) -> _tree.Layout:
        """Who writes what; for subclasses."""
        return _tree.Layout(self._rank, self._world_size, f"{self._participant}_{self._rank}")

    def _state_files(self) -> Dict[str, str]:
        """Further small files of this participant; for subclasses."""
        return {}

    def restore(
        self,
        state: Any = None,
        step: Optional[int] = None,
        id: Optional[str] = None,
        path: Optional[PathLike] = None,
        strict: bool = True,
        rename: Optional[Mapping[str, str]] = None,
        skip: Optional[Iterable[str]] = None,
        atomic: bool = False,
        *,
        tables: Sequence[Union[EmbeddingTable, RowTracked]] = (),
        merge_tables: bool = False,
    ) -> Optional[Restored]:
        """Brings a state back. None only if nothing was ever committed.

        Args:
            state: what to fill. Arrays and tensors are filled in place and stay the same objects;
                values in dicts and lists are replaced, and arrays that nobody may write to (jax,
                all that is known by DLPack alone) by NumPy arrays; None stands for whatever is
                stored; objects with load_state_dict get theirs. Without a state everything is
                made anew.
            step, id, path: a certain checkpoint instead of the latest. The latest falls back to an
                older one when it is damaged (see Restored.fallbacks); a certain one does not.
            strict: names, dtypes and shapes must match (Mismatch). False restores what matches and
                lists the rest in Restored.skipped.
            rename: {stored name: your name}, of values or of whole subtrees.
            skip: names, of values or of whole subtrees, to leave alone. Misspelt names are refused.
            atomic: verify every byte before the first one is changed.
            tables: to be filled, besides those of modules in the state; their own rows are dropped.
                RowTracked arrays are filled in place.
            merge_tables: rows of the tables stay where none is stored. The next save is then a
                full one.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     print(m.restore())
        ...     m.save(7, {"names": ["a", "b"], "big": 2**100}).wait().step
        ...     m.restore().state
        None
        7
        {'names': ['a', 'b'], 'big': 1267650600228229401496703205376}
        """
        given = sum(x is not None for x in (step, id, path))
        if given > 1:
            raise Invalid("restore: give one of step, id and path")
        wanted = None if step is None else whole(step, "step")
        self._check_open()
        with self._lock:
            self._settle()
            skipped = name_set(skip)
            renamed = names_by_name(rename, "rename")
            plan = Restore(state, bool(strict), renamed, skipped, self._may_grow)
            result = self._native.restore(
                prepare=plan.prepare,
                step=wanted,
                id="" if id is None else _id(id),
                path="" if path is None else _place(path),
                atomic=bool(atomic),
                tables=_natives(with_tables_within(tables, state, skipped)),
                strict=bool(strict),
                merge=bool(merge_tables),
            )
            return None if result is None else plan.finish(result)

    def can_increment(self) -> bool:
        """Whether an increment of the tables used last can be saved: something to build on is
        there.

        >>> import cairn
        >>> users = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD(0.1))
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     before = m.can_increment()
        ...     handle = m.save(0, {}, tables=[users], blocking=True)
        ...     before, m.can_increment()
        (False, True)
        """
        self._check_open()
        return self._native.can_increment()

    def quantization_error(self) -> Tuple[float, float]:
        """Of the last increment with quantize=True: the greatest error of a number, and the
        greatest in parts of its row's largest.

        >>> import numpy as np, cairn
        >>> users = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD(0.1))
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     handle = m.save(0, {}, tables=[users], blocking=True)
        ...     users.assign([1], [[0.1, 0.2, 0.3, 0.4]])
        ...     handle = m.save(1, {}, tables=[users], kind="cumulative", quantize=True, blocking=True)
        ...     absolute, relative = m.quantization_error()
        >>> 0 < absolute < 0.002, 0 < relative < 0.005
        (True, True)
        """
        return self._native.quantization_error()

    def list(self) -> List[CheckpointInfo]:
        """All checkpoints that count, and foreign ones, oldest first.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a", keep_last=2) as m:
        ...     for step in range(4):
        ...         handle = m.save(step, {"x": step})
        ...     m.wait()                         # also until what need not stay is removed
        ...     [info.step for info in m.list()]
        [2, 3]
        """
        self._check_open()
        return [CheckpointInfo(**info) for info in self._native.list()]

    def latest(self) -> Optional[CheckpointInfo]:
        """The newest checkpoint, or None.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     handle = m.save(40, {"x": 1}, metrics={"loss": 0.5}, blocking=True)
        ...     m.latest().step, m.latest().metrics
        (40, {'loss': 0.5})
        """
        self._check_open()
        info = self._native.latest()
        return None if info is None else CheckpointInfo(**info)

    def add_callback(self, callback: SavedCallback) -> None:
        """Calls `callback(record)` with a SaveRecord whenever a save became durable or failed.

        It runs on a thread of its own, after the save and outside of all locks, so it may use this
        manager; what it raises is logged. wait() and close() return when callbacks were called.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     m.add_callback(lambda record: print("step", record.step, record.ok))
        ...     handle = m.save(1, {"x": 1})
        ...     m.wait()
        step 1 True
        """
        self._watcher.add(callback)

    def wait(self) -> None:
        """Waits for the save in flight, and until what need not stay is removed. Raises what went
        wrong, if nobody was told yet."""
        self._check_open()
        with self._lock:
            self._settle()
        self._watcher.drain()
        with self._lock:
            self._check_open()
            self._native.wait()

    def pin(self, id: str) -> None:
        """Keeps a checkpoint (its id) from being removed.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a", keep_last=1) as m:
        ...     m.pin(m.save(0, {"x": 0}).wait().id)
        ...     for step in (1, 2):
        ...         handle = m.save(step, {"x": step})
        ...     m.wait()
        ...     [(info.step, info.pinned) for info in m.list()]
        [(0, True), (2, False)]
        """
        self._check_open()
        self._native.pin(_id(id))

    def unpin(self, id: str) -> None:
        """Leaves a pinned checkpoint to retention again.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a", keep_last=1) as m:
        ...     first = m.save(0, {"x": 0}).wait()
        ...     m.pin(first.id)
        ...     m.unpin(first.id)
        ...     handle = m.save(1, {"x": 1})
        ...     m.wait()
        ...     [info.step for info in m.list()]
        [1]
        """
        self._check_open()
        self._native.unpin(_id(id))

    def delete(self, id: str) -> None:
        """Removes a checkpoint (its id).

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a") as m:
        ...     infos = [m.save(step, {"x": step}).wait() for step in range(2)]
        ...     m.delete(infos[1].id)
        ...     m.restore().step
        0
        """
        self._check_open()
        with self._lock:
            self._settle()
            self._native.delete(_id(id))

    def add_metrics(self, id: str, metrics: Mapping[str, Any]) -> None:
        """Adds metrics that came later (a validation) and applies retention.

        A manager with read_only=True may do it while another process trains: that one looks before it removes.

        >>> import cairn
        >>> with cairn.CheckpointManager("runs/a", keep_last=1, keep_best=1, score="accuracy") as m:
        ...     for step, accuracy in enumerate([0.7, 0.9, 0.8]):
        ...         info = m.save(step, {"x": step}).wait()
        ...         m.add_metrics(info.id, {"accuracy": accuracy})
        ...     [(info.step, info.metrics) for info in m.list()]
        [(1, {'accuracy': 0.9}), (2, {'accuracy': 0.8})]
        """
        self._check_open()
        with self._lock:
            self._settle()
            self._native.add_metrics(_id(id), value_dict(metrics, "metrics"))

    def close(self) -> None:
        """Waits for the save in flight, reports its failure, gives up the directory.

        >>> import cairn
        >>> m = cairn.CheckpointManager("runs/a")
        >>> handle = m.save(1, {"x": 1})
        >>> m.close()
        >>> handle.done()
        True
        """
        if self._closed or os.getpid() != self._pid:
            return
        with self._lock:
            self._settle()
        self._watcher.close()  # callbacks may still use the manager
        with self._lock:
            if self._closed:
                return
            self._settle()
            self._native.await_idle()
            self._closed = True
            _open_managers.discard(self)
            self._native.close()

    def _settle_tables(self) -> None:
        """Releases the rows of a save that is over: the tables are free for whatever comes."""
        with self._lock:
            if not self._closed:
                self._native.settle()

    def _settle(self) -> None:
        """Waits, interruptibly, until no save is in flight."""
        last = self._last
        if last is None:
            return
        while not last._native.wait_for(0.02):
            pass  # Python runs its signal handlers here
        last._keep = None

    def _check_open(self) -> None:
        _check_process(self._pid)
        if self._closed:
            raise Error("this CheckpointManager is closed")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # it was opened
            _close_reporting(self)

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Error as failure:  # the first error is the one to show
            print(f"cairn: a save failed as well: {failure}", file=sys.stderr)

    def __repr__(self) -> str:
        return f"CheckpointManager({self._directory!r}, job {self.job!r})"


def _id(value: Any) -> str:
    if isinstance(value, CheckpointInfo):
        return value.id
    if not isinstance(value, str):
        raise Invalid(f"id must be a checkpoint's id, not {value!r}")
    if not value:
        raise Invalid("id is empty; an id, or the CheckpointInfo of a checkpoint, is wanted")
    return text_argument(value, "id")


def _place(path: PathLike) -> str:
    text = _location.text_of(path)
    if not text:
        raise Invalid("path is empty; None restores the latest")
    return text


_open_managers: "weakref.WeakSet[CheckpointManager]" = weakref.WeakSet()
_of_this_process: "weakref.WeakSet[Any]" = weakref.WeakSet()  # managers and handles


def _close_reporting(manager: CheckpointManager) -> None:
    try:
        manager.close()
    except Error as failure:
        print(f"cairn: {manager.directory}: {failure}", file=sys.stderr)


def _close_all() -> None:
    """At the end of the interpreter: saves in flight are finished, failures are reported."""
    for manager in list(_open_managers):
        _close_reporting(manager)


def _leave_to_parent() -> None:
    """In a fork: the threads behind these objects are the parent's. Ending the objects would wait
    for them for ever."""
    for owner in list(_of_this_process):
        owner._native.abandon()
    _of_this_process.clear()
    _open_managers.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_leave_to_parent)
