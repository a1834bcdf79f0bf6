"""CheckpointManager: saves a training job's state and brings it back."""

from __future__ import annotations

import atexit
import dataclasses
import operator
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _arrays, _location, _native, _plan, _tree
from .errors import Error, Invalid
from .observe import SavedCallback, SaveWatcher
from .row_tracked import RowTracked
from .shard import Replicated, Shard
from .table import EmbeddingTable

__all__ = ["CheckpointInfo", "CheckpointManager", "Restored", "SaveHandle"]

PathLike = Union[str, "os.PathLike[str]"]
Files = Union[PathLike, Sequence[PathLike], Mapping[str, Union[PathLike, bytes]]]

_STATE_FILE = "state.json"
_MAX_VALUE_DEPTH = 60


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A committed checkpoint.

    Attributes:
        id: a UUID.
        step: the step it was saved at.
        kind: "full" or "increment".
        path: its directory.
        bytes: of all its files.
        metrics: as given to save, with later ones added.
        metadata: as given to save.
        time: when it was committed, in seconds since 1970.
        parent: the id of the checkpoint that training stood on, or None.
        generation: which opening of the directory wrote it.
        base: of an increment, the id of the full checkpoint it builds on.
        chain: of an increment, "cumulative" or "consecutive".
        tables: of each sparse table its name, dim, dtype, rows, and deleted keys.
        pinned: True while it may not be removed.
        foreign: True for another job's checkpoint, which is never chosen.
    """

    id: str
    step: int
    kind: str
    path: str
    bytes: int
    metrics: Dict[str, Any]
    metadata: Dict[str, Any]
    time: float
    parent: Optional[str]
    generation: int
    counters: Dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    base: Optional[str] = dataclasses.field(default=None, repr=False)
    chain: Optional[str] = dataclasses.field(default=None, repr=False)
    tables: List[Dict[str, Any]] = dataclasses.field(default_factory=list, repr=False)
    sequence: int = dataclasses.field(default=0, repr=False)
    pinned: bool = False
    foreign: bool = False


class SaveHandle:
    """A save under way.

    Attributes:
        stall_seconds: how long the caller of save (and guard) was held up.
        durable_seconds: from the call of save until it was durable; 0 before.
        bytes_written: by this rank, so far.
        bytes_shared: of files that did not change and were linked instead of written.
    """

    def __init__(self, native: Any, keep: List[Any], step: int) -> None:
        self._native = native
        self._keep: Optional[List[Any]] = keep
        self._pid = os.getpid()
        self.step = step
        _of_this_process.add(self)

    def wait(self) -> CheckpointInfo:
        """Waits until the save is durable. Raises what went wrong, if it failed; Cancelled, if it was
        skipped. Ctrl-C ends the wait, not the save."""
        _check_process(self._pid)
        info = self._native.wait()
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
        return float(self._native.stall_seconds)

    @property
    def durable_seconds(self) -> float:
        return float(self._native.durable_seconds)

    @property
    def bytes_written(self) -> int:
        return int(self._native.bytes_written)

    @property
    def bytes_shared(self) -> int:
        return int(self._native.bytes_shared)

    def __repr__(self) -> str:
        state = "done" if self.done() else "in flight"
        return f"SaveHandle(step {self.step}, {state})"


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a restore brought back.

    Attributes:
        step: the checkpoint's step.
        state: the nested state; arrays that were given are the same objects, filled.
        metrics, metadata: as given to save.
        info: the checkpoint.
        skipped: (name, reason) of all that was not restored.
        fallbacks: newer checkpoints that were damaged and passed over, and how.
        bytes: that were read into arrays.
        files: paths of the user's own files, by name; those on a bucket are fetched when asked for.
    """

    step: int
    state: Any
    metrics: Dict[str, Any]
    metadata: Dict[str, Any]
    info: CheckpointInfo
    skipped: List[Tuple[str, str]]
    fallbacks: List[str]
    bytes: int
    files: Mapping[str, str]


class _Restore:
    """One restore: asks the native module for tensors when the stored tree is known."""

    def __init__(self, state: Any, strict: bool, rename: Dict[str, str], skip: Set[str]) -> None:
        self._state = state
        self._strict = strict
        self._rename = rename
        self._skip = skip
        self.alike: Optional[_native.MatchedState] = None
        self.plan: Optional[_plan.Plan] = None
        self.flat: Optional[_FlatPlan] = None

    def prepare(self, info: Dict[str, Any], state_files: Dict[str, bytes]) -> Dict[str, Any]:
        where = str(info["path"])
        text = state_files.get(_STATE_FILE, b"")
        self.alike = self.plan = self.flat = None
        if self._state is not None and not self._rename and not self._skip:
            self.alike = _native.match_state(text, self._state)
        if self.alike is not None:
            return _asking(self.alike)
        if not _tree.Stored.is_one(text):
            # Written by another program: tensors by their names, no values beside them.
            self.flat = _FlatPlan(self._state)
            return {
                "into": self.flat.into,
                "allocate": self._state is None,
                "allocate_names": [],
                "strict": self._strict,
                "rename": self._rename,
                "skip": self._skip,
            }
        with _tree.collector_paused():
            self.plan = _plan.Plan(
                _tree.Stored(text, where),
                self._state,
                anything=self._state is None,
                strict=self._strict,
                rename=self._rename,
                skip=self._skip,
            )
        return _asking(self.plan.into, self.plan.allocate)

    def finish(self, result: Dict[str, Any]) -> Restored:
        info = CheckpointInfo(**result["info"])
        skipped: List[Tuple[str, str]] = []
        if self.alike is not None:
            if len(result["restored"]) != self.alike.count:
                raise Error(f"restore {info.path}: not all of the arrays were restored")
            self.alike.put_values()
            state = self._state
        elif self.plan is not None:
            lost = {d[0] for d in self.plan.into} - set(result["restored"])
            if lost:
                raise Error(f"restore {info.path}: not restored: {', '.join(sorted(lost)[:10])}")
            with _tree.collector_paused():
                state = self.plan.finish(result["tensors"])
            skipped = self.plan.skipped
        else:
            assert self.flat is not None
            state = self.flat.finish(result["tensors"])
            skipped = [(str(name), str(why)) for name, why in result["skipped"]]
        return Restored(
            step=info.step,
            state=state,
            metrics=info.metrics,
            metadata=info.metadata,
            info=info,
            skipped=skipped,
            fallbacks=list(result["fallbacks"]),
            bytes=int(result["bytes"]),
            files=_files_of(info.path),
        )


def _asking(into: Any, allocate: Iterable[str] = ()) -> Dict[str, Any]:
    """What to ask the native module for when the state was compared already."""
    return {
        "into": into,
        "allocate": bool(allocate),
        "allocate_names": allocate,
        "strict": False,
        "rename": {},
        "skip": [],
    }


class _FlatPlan:
    """Restores checkpoints that hold named tensors and no tree of Python values."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._keep: List[Any] = []
        self._finish: List[Any] = []
        self.into: List[_tree.Described] = []
        if state is not None:
            self._add(state, "")

    def _add(self, value: Any, path: str) -> None:
        stateful = _tree.as_stateful(value)
        if stateful is not None:
            self._add(stateful.cairn_save(), path)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._add(item, _tree.join(path, key))
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                self._add(item, _tree.join(path, i))
        else:
            self._add_leaf(value, path)

    def _add_leaf(self, value: Any, path: str) -> None:
        shard = value if isinstance(value, Shard) else None
        array = value.array if isinstance(value, (Shard, Replicated)) else value
        if not _arrays.is_array(array):
            return
        target = _arrays.target(array, path)
        whole = shard.global_shape if shard else None
        offset = shard.offset if shard else None
        self.into.append(
            (
                path or "value",
                target.stored,
                target.shape,
                target.address,
                whole,
                offset,
                False,
                "model",
            )
        )
        self._keep.append(target.keep)
        if target.finish is not None:
            self._finish.append(target.finish)

    def finish(self, tensors: Iterable[Tuple[str, str, str, Tuple[int, ...], Any]]) -> Any:
        for finish in self._finish:
            finish()
        if self._state is not None:
            return self._state
        made = {}
        for group, name, dtype, shape, data in tensors:
            if group == "model":
                made[name] = _arrays.make("numpy", dtype, tuple(shape), data, {}, name)
        return made


def _files_of(path: str) -> Mapping[str, str]:
    if _location.is_remote(path):
        return _location.RemoteFiles(path)
    root = Path(path) / "files"
    if not root.is_dir():
        return {}
    return {str(p.relative_to(root)): str(p) for p in sorted(root.rglob("*")) if p.is_file()}


def _user_files(files: Optional[Files]) -> List[Tuple[str, Any]]:
    if files is None:
        return []
    if isinstance(files, (str, os.PathLike)):
        root = Path(files)
        if root.is_dir():
            found = [(str(p.relative_to(root)), p) for p in sorted(root.rglob("*")) if p.is_file()]
            return [(name, os.path.abspath(p)) for name, p in found]
        files = [files]
    if isinstance(files, Mapping):
        named = [(str(name), content) for name, content in files.items()]
    else:
        named = [(os.path.basename(os.fspath(p)), p) for p in files]
    out: List[Tuple[str, Any]] = []
    for name, content in named:
        if isinstance(content, (bytes, bytearray, memoryview)):
            out.append((name, bytes(content)))
            continue
        if not isinstance(content, (str, os.PathLike)):
            raise Invalid(f"files: {name!r} must be a path or bytes, not {type(content).__name__}")
        if not os.path.isfile(content):
            raise Invalid(f"files: {name!r}: there is no file {os.fspath(content)!r}")
        out.append((name, os.path.abspath(content)))
    return out


def _json_values(value: Any, where: str, depth: int = 0) -> Any:
    """NumPy and torch numbers as Python's; the rest is judged by the native module."""
    if depth > _MAX_VALUE_DEPTH:
        raise Invalid(f"{where[:100]}…: nested deeper than {_MAX_VALUE_DEPTH} levels")
    if isinstance(value, Mapping):
        return {k: _json_values(v, f"{where}/{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(v, f"{where}/{i}", depth + 1) for i, v in enumerate(value)]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        size = getattr(value, "size", None)
        count = value.numel() if callable(size) else size
        if count != 1:
            raise Invalid(f"{where}: an array of {count} elements is no number")
        return value.item()
    return value


def _values(given: Optional[Mapping[str, Any]], where: str) -> Dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise Invalid(f"{where} must be a dict, not {type(given).__name__}")
    return dict(_json_values(given, where))


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool):
        raise Invalid(f"{what} must be an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise Invalid(f"{what} must be an integer, not {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise Invalid(f"{what} has more than 64 bits: {number:#x}")
    return number


def _positive(value: Any, what: str) -> Optional[int]:
    if value is None:
        return None
    number = _whole(value, what)
    if number < 1:
        raise Invalid(f"{what} must be at least 1 (or None), not {number}")
    return number


def _choice(value: Any, what: str, allowed: Tuple[str, ...]) -> str:
    if value not in allowed:
        raise Invalid(f"{what} must be {' or '.join(repr(a) for a in allowed)}, not {value!r}")
    return str(value)


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
        on_saved: called with a SaveRecord after every save; see add_callback.
        progress: show background saves as one line on stderr. None: when it is a terminal.

    >>> import numpy as np, tempfile, cairn
    >>> directory = tempfile.mkdtemp()
    >>> w = np.arange(4.0)
    >>> with cairn.CheckpointManager(directory) as m:
    ...     info = m.save(10, {"w": w, "lr": 0.1}).wait()
    >>> w[:] = 0
    >>> with cairn.CheckpointManager(directory) as m:
    ...     r = m.restore({"w": w, "lr": None})
    >>> r.step, w.tolist(), r.state["lr"]
    (10, [0.0, 1.0, 2.0, 3.0], 0.1)
    """

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
        on_saved: Optional[SavedCallback] = None,
        progress: Optional[bool] = None,
    ) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise Invalid(f"directory must be a path, not {type(directory).__name__}")
        if job is not None and not isinstance(job, str):
            raise Invalid(f"job must be a str, not {type(job).__name__}")
        if job == "":
            raise Invalid("job must not be empty; None adopts the directory's job")
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float)):
            raise Invalid(f"deadline must be seconds, not {deadline!r}")
        self._directory = _location.text_of(directory)
        self._rank = _whole(rank, "rank")
        self._world_size = _whole(world_size, "world_size")
        self._participant = participant
        self._skips = _choice(on_busy, "on_busy", ("wait", "skip")) == "skip"
        self._last: Optional[SaveHandle] = None  # the newest save that was not skipped
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._watcher = SaveWatcher(progress, self._rank)
        if on_saved is not None:
            self._watcher.add(on_saved)
        weakref.finalize(self, self._watcher.forget).atexit = False
        self._native = _native.Manager.open(
            {
                "directory": self._directory,
                "job": job,
                "run": run,
                "keep_last": _positive(keep_last, "keep_last"),
                "keep_best": _positive(keep_best, "keep_best"),
                "keep_every": _positive(keep_every, "keep_every"),
                "keep_fulls": _positive(keep_fulls, "keep_fulls"),
                "score": score,
                "maximize": _choice(order, "order", ("max", "min")) == "max",
                "rank": self._rank,
                "world_size": self._world_size,
                "participant": participant,
                "serial": _choice(naming, "naming", ("step", "serial")) == "serial",
                "skip_when_busy": self._skips,
                "deadline": float(deadline),
                "join_deadline": float(join_deadline),
                "low_memory": bool(low_memory),
                "read_only": bool(read_only),
                "private": bool(private),
                "takeover": bool(takeover),
                "upload_limit": _positive(upload_limit, "upload_limit"),
                "single_writer": bool(single_writer),
            }
        )
        self._closed = False
        _open_managers.add(self)
        _of_this_process.add(self)

    @property
    def directory(self) -> str:
        """Where the checkpoints are."""
        return self._directory

    @property
    def job(self) -> str:
        """The job that owns the directory."""
        return str(self._native.job)

    @property
    def generation(self) -> int:
        """Which opening of the directory this is; 0 when read-only."""
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
                arrays that are tracked by row (RowTracked).
            kind: "full", or an increment, which holds the rows that changed: "cumulative" (since
                the last full one) or "consecutive" (since the last save). The state is whole in
                each. An increment needs a full one, saved or restored with the same tables.
            quantize: rows of increments with 8 bits a number; see quantization_error.
            compress_keys: the tables' keys as zstd.

        >>> import tempfile, cairn
        >>> with cairn.CheckpointManager(tempfile.mkdtemp()) as m:
        ...     m.save(0, {"epoch": 3}, metrics={"loss": 0.5}, blocking=True).wait().metrics
        {'loss': 0.5}
        """
        number = _whole(step, "step")
        self._check_open()
        with self._lock:
            if not self._skips:
                self._settle()
            encoded = _tree.encode(state, self._layout())
            native = self._native.save(
                step=number,
                tensors=encoded.tensors,
                counters={},
                metrics=_values(metrics, "metrics"),
                metadata=_values(metadata, "metadata"),
                lineage={},
                files=_user_files(files),
                state_files={_STATE_FILE: encoded.json, **self._state_files()},
                lazy=bool(lazy),
                stream=bool(blocking),
                kind=kind,
                tables=[table._native for table in tables],
                quantize=bool(quantize),
                compress_keys=bool(compress_keys),
            )
            handle = SaveHandle(native, encoded.keep if lazy or blocking else [], number)
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
                values in dicts and lists are replaced; None stands for whatever is stored; objects
                with load_state_dict get theirs. Without a state everything is made anew.
            step, id, path: a certain checkpoint instead of the latest. The latest falls back to an
                older one when it is damaged (see Restored.fallbacks); a certain one does not.
            strict: names, dtypes and shapes must match (Mismatch). False restores what matches and
                lists the rest in Restored.skipped.
            rename: {stored name: your name}, of values or of whole subtrees.
            skip: names, of values or of whole subtrees, to leave alone.
            atomic: verify every byte before the first one is changed.
            tables: to be filled; their own rows are dropped. RowTracked arrays are filled in place.
            merge_tables: rows of the tables stay where none is stored. The next save is then a
                full one.

        >>> import tempfile, cairn
        >>> with cairn.CheckpointManager(tempfile.mkdtemp()) as m:
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
        wanted = None if step is None else _whole(step, "step")
        self._check_open()
        with self._lock:
            self._settle()
            plan = _Restore(state, bool(strict), dict(rename or {}), _names(skip))
            result = self._native.restore(
                prepare=plan.prepare,
                step=wanted,
                id=id or "",
                path="" if path is None else _location.text_of(path),
                atomic=bool(atomic),
                tables=[table._native for table in tables],
                strict=bool(strict),
                merge=bool(merge_tables),
            )
            return None if result is None else plan.finish(result)

    def can_increment(self) -> bool:
        """Whether an increment of the tables used last can be saved: something to build on is
        there."""
        self._check_open()
        return self._native.can_increment()

    def quantization_error(self) -> Tuple[float, float]:
        """Of the last increment with quantize=True: the greatest error of a number, and the
        greatest in parts of its row's largest."""
        return self._native.quantization_error()

    def list(self) -> List[CheckpointInfo]:
        """All checkpoints that count, and foreign ones, oldest first."""
        self._check_open()
        return [CheckpointInfo(**info) for info in self._native.list()]

    def latest(self) -> Optional[CheckpointInfo]:
        """The newest checkpoint, or None."""
        self._check_open()
        info = self._native.latest()
        return None if info is None else CheckpointInfo(**info)

    def add_callback(self, callback: SavedCallback) -> None:
        """Calls `callback(record)` with a SaveRecord whenever a save became durable or failed.

        It runs on a thread of its own, after the save and outside of all locks, so it may use this
        manager; what it raises is logged. wait() and close() return when callbacks were called.

        >>> import tempfile, cairn
        >>> with cairn.CheckpointManager(tempfile.mkdtemp()) as m:
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
        """Keeps a checkpoint (its id) from being removed."""
        self._check_open()
        self._native.pin(_id(id))

    def unpin(self, id: str) -> None:
        """Leaves a pinned checkpoint to retention again."""
        self._check_open()
        self._native.unpin(_id(id))

    def delete(self, id: str) -> None:
        """Removes a checkpoint (its id)."""
        self._check_open()
        with self._lock:
            self._settle()
            self._native.delete(_id(id))

    def add_metrics(self, id: str, metrics: Mapping[str, Any]) -> None:
        """Adds metrics that came later (a validation) and applies retention."""
        self._check_open()
        with self._lock:
            self._settle()
            self._native.add_metrics(_id(id), _values(metrics, "metrics"))

    def close(self) -> None:
        """Waits for the save in flight, reports its failure, gives up the directory."""
        if self._closed or os.getpid() != self._pid:
            return
        with self._lock:
            self._settle()
        self._watcher.close()  # callbacks may still use the manager
        with self._lock:
            if self._closed:
                return
            self._settle()
            self._closed = True
            _open_managers.discard(self)
            self._native.close()

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
    return value


def _names(names: Optional[Iterable[str]]) -> Set[str]:
    if names is None:
        return set()
    if isinstance(names, str):
        return {names}
    return {str(name) for name in names}


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
