"""Whole states without a manager: save, load, verify, diff."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np

from . import _arrays, _location, _native, _plan, _safetensors, _tree
from ._arguments import PathLike
from ._restore import CheckpointInfo, Restore
from .errors import Invalid, NotFound, PermissionDenied
from .manager import CheckpointManager

__all__ = ["Difference", "Report", "diff", "load", "save", "verify"]

_WRITER = "cairn.save"


def save(path: PathLike, state: Any) -> CheckpointInfo:
    """Saves a state, durably, as the one content of a directory.

    An earlier state there is replaced only when the new one is durable: killed at any moment, the
    directory holds one of the two, whole.

    >>> import numpy as np, tempfile, cairn
    >>> path = tempfile.mkdtemp() + "/model"
    >>> info = cairn.save(path, {"w": np.ones(2), "name": "first"})
    >>> cairn.load(path)
    {'w': array([1., 1.]), 'name': 'first'}
    """
    with CheckpointManager(path, keep_last=1) as manager:
        for info in manager.list():
            if info.metadata.get("writer") != _WRITER:
                raise Invalid(
                    f"{os.fspath(path)!r} holds the checkpoints of a job (step {info.step}); "
                    "cairn.save would replace them. Use another directory, or CheckpointManager"
                )
        latest = manager.latest()
        step = 0 if latest is None else latest.step + 1
        return manager.save(step, state, metadata={"writer": _WRITER}, blocking=True).wait()


def load(path: PathLike, mmap: bool = False) -> Any:
    """Loads a state: from a directory of checkpoints (the latest), from one checkpoint's directory,
    or from plain safetensors (a file, or a directory of them).

    Args:
        path: where it is.
        mmap: map the arrays instead of reading them: at once, and without comparing checksums.
            Changes to mapped arrays stay in memory.

    >>> import numpy as np, tempfile, cairn
    >>> path = tempfile.mkdtemp() + "/model"
    >>> info = cairn.save(path, {"w": np.arange(3)})
    >>> cairn.load(path, mmap=True)["w"].tolist()
    [0, 1, 2]
    """
    if _location.is_remote(path):
        return _load_remote(_location.text_of(path), mmap)
    where = Path(os.fspath(path))
    try:
        return _load(where, mmap)
    except PermissionError as error:
        raise PermissionDenied(str(error)) from None
    except FileNotFoundError as error:
        raise NotFound(str(error)) from None


def _load(where: Path, mmap: bool) -> Any:
    if where.is_file():
        return _load_safetensors([where], mmap)
    if not where.is_dir():
        raise NotFound(f"there is no {str(where)!r}")
    if (where / "manifest.json").is_file():
        return _load_mapped(where) if mmap else _load_checkpoint(where)
    if (where / "cairn.json").is_file():
        return _load_latest(where, mmap)
    files = sorted(where.glob("*.safetensors"))
    if not files:
        raise NotFound(f"{str(where)!r} holds neither checkpoints nor safetensors files")
    return _load_safetensors(files, mmap)


def _load_remote(where: str, mmap: bool) -> Any:
    if mmap:
        raise Invalid(f"{where!r} is on a bucket: it can be read, not mapped (mmap=False)")
    try:
        with CheckpointManager(where, read_only=True) as manager:
            found = manager.restore()
    except NotFound:
        return _load_checkpoint(where)
    if found is None:
        raise NotFound(f"{where!r} has no checkpoint yet")
    return found.state


def _load_latest(where: Path, mmap: bool) -> Any:
    with CheckpointManager(where, read_only=True) as manager:
        found = manager.latest() if mmap else manager.restore()
    if found is None:
        raise NotFound(f"{str(where)!r} has no checkpoint yet")
    return _load_mapped(Path(found.path)) if isinstance(found, CheckpointInfo) else found.state


def _load_safetensors(files: List[Path], mmap: bool) -> Dict[str, np.ndarray]:
    made: Dict[str, np.ndarray] = {}
    for file in files:
        for name, dtype, shape, data in _safetensors.map_tensors(file):
            if name in made:
                raise Invalid(f"{file}: {name!r} is in another file of the directory too")
            array = _arrays.make("numpy", dtype, shape, data, {}, name)
            made[name] = array if mmap else np.array(array)
    return made


def _load_checkpoint(path: Union[Path, str]) -> Any:
    plan = Restore(None, True, {}, set())
    return plan.finish(_native.load(path=str(path), prepare=plan.prepare, atomic=False)).state


def _read_records(path: Path) -> bytes:
    """Compares manifest and state files with their checksums and reads no tensor. Gives state.json."""
    found: Dict[str, bytes] = {}

    def take_nothing(info: Dict[str, Any], state_files: Dict[str, bytes]) -> Dict[str, Any]:
        found.update(state_files)
        return {
            "into": [], "allocate": False, "allocate_names": [], "strict": False, "rename": {},
            "skip": [],
        }  # fmt: skip

    _native.load(path=str(path), prepare=take_nothing, atomic=False)
    return found.get("state.json", b"")


def _load_mapped(path: Path) -> Any:
    """A checkpoint's state with mapped arrays, whose checksums are not compared."""
    text = _read_records(path)
    tensors: Dict[str, _safetensors.Mapped] = {}
    for entry in json.loads((path / "manifest.json").read_bytes())["files"]:
        name = entry["path"]
        if not name.startswith("__model__/") or not name.endswith(".safetensors"):
            continue
        if entry.get("ref"):
            raise Invalid(f"{path}: mmap works on local disks only")
        for tensor in _safetensors.map_tensors(path / name):
            tensors[tensor.name] = tensor
    if not _tree.Stored.is_one(text):
        return {
            n: _arrays.make("numpy", t.dtype, t.shape, t.data, {}, n) for n, t in tensors.items()
        }
    made = [("model", t.name, t.dtype, t.shape, t.data) for t in tensors.values()]
    plan = _plan.Plan(
        _tree.Stored(text, str(path)), None, anything=True, strict=True, rename={}, skip=set()
    )
    pieces = sorted(plan.allocate - tensors.keys())
    if pieces:
        raise Invalid(f"{path}: {pieces[0]!r} is stored in pieces; load it without mmap")
    return plan.finish(made)


@dataclasses.dataclass(frozen=True)
class Report:
    """What verify found.

    Attributes:
        checkpoints: all that were looked at.
        problems: (checkpoint, what is wrong with it).
        files, bytes: that were compared.
    """

    checkpoints: List[CheckpointInfo]
    problems: List[Tuple[str, str]]
    files: int
    bytes: int

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


def verify(directory: PathLike, deep: bool = True) -> Report:
    """Compares a directory of checkpoints with what its records say.

    Args:
        directory: of checkpoints.
        deep: read every byte and compare its checksum; else sizes and records only.

    >>> import tempfile, cairn
    >>> path = tempfile.mkdtemp() + "/model"
    >>> info = cairn.save(path, {"x": 1})
    >>> cairn.verify(path).ok
    True
    """
    found = _native.verify(_location.text_of(directory), bool(deep))
    return Report(
        checkpoints=[CheckpointInfo(**info) for info in found["checkpoints"]],
        problems=[(str(a), str(b)) for a, b in found["problems"]],
        files=int(found["files"]),
        bytes=int(found["bytes"]),
    )


@dataclasses.dataclass(frozen=True)
class Difference:
    """How two checkpoints differ: b against a.

    Attributes:
        added, removed: names of tensors that only b, only a has.
        changed: name → greatest absolute difference (nan where numbers cannot be subtracted).
        reshaped: names whose dtype or shape differs.
    """

    added: List[str]
    removed: List[str]
    changed: Dict[str, float]
    reshaped: List[str]

    @property
    def same(self) -> bool:
        """True when there is no difference."""
        return not (self.added or self.removed or self.changed or self.reshaped)


def diff(a: Union[PathLike, CheckpointInfo], b: Union[PathLike, CheckpointInfo]) -> Difference:
    """Compares the tensors of two checkpoints (directories, infos, or repositories: their latest).

    >>> import numpy as np, tempfile, cairn
    >>> one, two = tempfile.mkdtemp() + "/a", tempfile.mkdtemp() + "/b"
    >>> infos = [cairn.save(one, {"w": np.zeros(3)}), cairn.save(two, {"w": np.ones(3)})]
    >>> cairn.diff(*infos).changed
    {'w': 1.0}
    """
    found = _native.diff(_checkpoint_path(a), _checkpoint_path(b))
    kinds: Dict[str, List[str]] = {"added": [], "removed": [], "shape": [], "dtype": []}
    changed: Dict[str, float] = {}
    for name, what, max_abs, _ in found:
        if what == "changed":
            changed[str(name)] = float(max_abs)
        else:
            kinds[str(what)].append(str(name))
    return Difference(kinds["added"], kinds["removed"], changed, kinds["shape"] + kinds["dtype"])


def _checkpoint_path(value: Union[PathLike, CheckpointInfo]) -> str:
    if isinstance(value, CheckpointInfo):
        return value.path
    if _location.is_remote(value):
        return _remote_checkpoint_path(_location.text_of(value))
    path = Path(os.fspath(value))
    if (path / "manifest.json").is_file() or not (path / "cairn.json").is_file():
        return str(path)
    with CheckpointManager(path, read_only=True) as manager:
        latest: Optional[CheckpointInfo] = manager.latest()
    if latest is None:
        raise NotFound(f"{str(path)!r} has no checkpoint yet")
    return latest.path


def _remote_checkpoint_path(where: str) -> str:
    try:
        with CheckpointManager(where, read_only=True) as manager:
            latest: Optional[CheckpointInfo] = manager.latest()
    except NotFound:  # no repository: a checkpoint's own place
        return where
    if latest is None:
        raise NotFound(f"{where!r} has no checkpoint yet")
    return latest.path
