"""Whole states without a manager: save, load, verify, diff."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from . import _arrays, _native, _tree
from .errors import Corruption, Invalid, NotFound
from .manager import CheckpointInfo, CheckpointManager, PathLike, _Restore

__all__ = ["Difference", "Report", "diff", "load", "save", "verify"]

_WRITER = "cairn.save"
_MAX_HEADER = 100 << 20


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
    where = Path(os.fspath(path))
    if where.is_file():
        return {name: array for name, array in _open_safetensors(where, mmap)}
    if not where.is_dir():
        raise NotFound(f"there is no {os.fspath(path)!r}")
    if (where / "manifest.json").is_file():
        return _load_mapped(where) if mmap else _load_checkpoint(where)
    if (where / "cairn.json").is_file():
        with CheckpointManager(where, read_only=True) as manager:
            if not mmap:
                restored = manager.restore()
                if restored is None:
                    raise NotFound(f"{os.fspath(path)!r} has no checkpoint yet")
                return restored.state
            latest = manager.latest()
            if latest is None:
                raise NotFound(f"{os.fspath(path)!r} has no checkpoint yet")
            return _load_mapped(Path(latest.path))
    files = sorted(where.glob("*.safetensors"))
    if not files:
        raise NotFound(f"{os.fspath(path)!r} holds neither checkpoints nor safetensors files")
    return {name: array for file in files for name, array in _open_safetensors(file, mmap)}


def _load_checkpoint(path: Path) -> Any:
    plan = _Restore(None, True, {}, set())
    return plan.finish(_native.load(path=str(path), prepare=plan.prepare, atomic=False)).state


def _load_mapped(path: Path) -> Any:
    """A checkpoint's state with mapped arrays. Sizes are compared, checksums are not."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    participant = manifest["participants"][0]
    arrays: Dict[str, np.ndarray] = {}
    dtypes: Dict[str, Tuple[str, Tuple[int, ...]]] = {}
    for entry in manifest["files"]:
        name = entry["path"]
        if not name.startswith("__model__/") or not name.endswith(".safetensors"):
            continue
        if entry.get("ref"):
            raise Invalid(f"{path}: mmap works on local disks only")
        file = path / name
        if file.stat().st_size != entry["bytes"]:
            raise Corruption(f"{file}: {file.stat().st_size} bytes, the manifest says {entry['bytes']}")
        for tensor, dtype, shape, data in _map_tensors(file):
            arrays[tensor] = data
            dtypes[tensor] = (dtype, shape)
    state_file = path / participant / "state.json"
    text = state_file.read_bytes() if state_file.is_file() else b""
    if not _tree.Stored.is_one(text):
        return {n: _arrays.make("numpy", *dtypes[n], a, {}, n) for n, a in arrays.items()}
    made: Dict[str, Any] = {}

    def array(leaf: Dict[str, Any]) -> Any:
        name = str(leaf["name"])
        if name not in made:
            if name not in arrays:
                raise Invalid(f"{path}: {name} is stored in pieces; load it without mmap")
            shape = tuple(int(d) for d in leaf["shape"])
            made[name] = _arrays.make(
                str(leaf["kind"]), str(leaf["dtype"]), shape, arrays[name], leaf, name
            )
        return made[name]

    return _tree.build(_tree.Stored(text, str(path)).root, array)


def _header(file: Path) -> Tuple[Dict[str, Any], int]:
    with open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(_MAX_HEADER, size - 8):
            raise Corruption(f"{file}: not a safetensors file")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise Corruption(f"{file}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise Corruption(f"{file}: the header is no object")
    return header, 8 + length


def _map_tensors(file: Path) -> Iterator[Tuple[str, str, Tuple[int, ...], np.ndarray]]:
    header, data_start = _header(file)
    # While it is mapped nobody writes over the file, even when its checkpoint is removed: only files
    # that no process has open are recycled.
    whole = np.memmap(file, dtype=np.uint8, mode="c").view(np.ndarray)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= whole.size - data_start:
            raise Corruption(f"{file}: {name} lies outside of the file")
        yield name, entry["dtype"], tuple(entry["shape"]), whole[data_start + begin : data_start + end]


def _open_safetensors(file: Path, mmap: bool) -> Iterator[Tuple[str, np.ndarray]]:
    for name, dtype, shape, data in _map_tensors(file):
        array = _arrays.make("numpy", dtype, shape, data, {}, name)
        yield name, array if mmap else np.array(array)


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
    found = _native.verify(os.fspath(directory), bool(deep))
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


def diff(
    a: Union[PathLike, CheckpointInfo], b: Union[PathLike, CheckpointInfo]
) -> Difference:
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
    path = Path(os.fspath(value))
    if (path / "manifest.json").is_file() or not (path / "cairn.json").is_file():
        return str(path)
    with CheckpointManager(path, read_only=True) as manager:
        latest: Optional[CheckpointInfo] = manager.latest()
    if latest is None:
        raise NotFound(f"{str(path)!r} has no checkpoint yet")
    return latest.path
