"""One restore: what is asked of the native module, and what becomes of its answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from . import _arrays, _location, _native, _plan, _tree
from ._user_files import shown_name
from .errors import Error
from .shard import Replicated, Shard

STATE_FILE = "state.json"


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

    >>> import os, cairn
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     info = m.save(40, {"x": 1}, metrics={"loss": 0.5}, metadata={"by": "night"}).wait()
    >>> info.step, info.kind, os.path.basename(info.path), info.metrics, info.metadata
    (40, 'full', 'checkpoint_000040', {'loss': 0.5}, {'by': 'night'})
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


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a restore brought back.

    Attributes:
        step: the checkpoint's step.
        state: the nested state; arrays that were given are the same objects, filled.
        metrics, metadata: as given to save.
        info: the checkpoint.
        skipped: (name, reason) of all that was not restored: newer checkpoints that were damaged
            and passed over, then variables.
        fallbacks: the same checkpoints in words.
        bytes: that were read into arrays.
        files: paths of the user's own files, by name; those on a bucket are fetched when asked for.

    >>> import numpy as np, cairn
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     handle = m.save(40, {"w": np.ones(2), "old": 1}, files={"words.txt": b"a b c"})
    ...     r = m.restore({"w": np.zeros(2)}, strict=False)
    >>> r.step, r.state, r.skipped[0][0], open(r.files["words.txt"]).read()
    (40, {'w': array([1., 1.])}, 'old', 'a b c')
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


class Restore:
    """One restore: asks the native module for tensors when the stored tree is known."""

    def __init__(
        self,
        state: Any,
        strict: bool,
        rename: Dict[str, str],
        skip: Set[str],
        may_grow: Optional[Tuple[str, ...]] = None,
    ) -> None:
        self._may_grow = may_grow
        self._state = state
        self._strict = strict
        self._rename = rename
        self._skip = skip
        self.alike: Optional[_native.MatchedState] = None
        self.plan: Optional[_plan.Plan] = None
        self.flat: Optional[_FlatPlan] = None

    def prepare(self, info: Dict[str, Any], state_files: Dict[str, bytes]) -> Dict[str, Any]:
        where = str(info["path"])
        text = state_files.get(STATE_FILE, b"")
        self.alike = self.plan = self.flat = None
        if self._state is not None and not self._rename and not self._skip:
            self.alike = _native.match_state(text, self._state, *_arrays.torch_tensors())
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
                may_grow=self._may_grow,
            )
        return _asking(self.plan.into, self.plan.allocate)

    def finish(self, result: Dict[str, Any]) -> Restored:
        info = CheckpointInfo(**result["info"])
        skipped: List[Tuple[str, str]] = []
        if self.alike is not None:
            if result["count"] != self.alike.count:
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
        if self.alike is not None or self.plan is not None:
            skipped = skipped + [(str(name), str(why)) for name, why in result["skipped_tables"]]
        fallbacks = [str(line) for line in result["fallbacks"]]
        return Restored(
            step=info.step,
            state=state,
            metrics=info.metrics,
            metadata=info.metadata,
            info=info,
            skipped=[_passed_over(line) for line in fallbacks] + skipped,
            fallbacks=fallbacks,
            bytes=int(result["bytes"]),
            files=_files_of(info.path),
        )


def _passed_over(line: str) -> Tuple[str, str]:
    """'checkpoint_000004 (step 4): why' → (directory, why)."""
    head, _, reason = line.partition(": ")
    return head.partition(" ")[0], reason


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
        if target.meaning == "complex64":  # also fits pairs of floats
            target = target._replace(stored="C64", shape=target.shape[:-1])
        whole = offset = None
        if shard is not None:
            tail = target.shape[len(shard.offset) :]
            whole, offset = shard.global_shape + tail, shard.offset + (0,) * len(tail)
        self.into.append(_tree.to_fill(path or "value", target, whole, offset))
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
    try:
        paths = {str(p.relative_to(root)): p for p in sorted(root.rglob("*")) if p.is_file()}
    except FileNotFoundError:  # removed by the writer's retention since it was read
        return {}
    return {
        shown_name(name): str(p.parent if shown_name(name).endswith("/") else p)
        for name, p in paths.items()
    }
