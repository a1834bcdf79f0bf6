"""Whole states without a manager: save, load, verify, diff."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from . import _arrays, _location, _native, _plan, _safetensors, _tree, io
from ._arguments import PathLike
from ._restore import CheckpointInfo, Restore
from .errors import Corruption, Invalid, NotFound, PermissionDenied
from .manager import CheckpointManager

__all__ = ["Difference", "Report", "diff", "load", "save", "verify"]

_WRITER = "cairn.save"


def save(path: PathLike, state: Any) -> CheckpointInfo:
    """Saves a state, durably, as the one content of a directory.

    An earlier state there is replaced only when the new one is durable: killed at any moment, the
    directory holds one of the two, whole.

    >>> import numpy as np, cairn
    >>> info = cairn.save("model", {"w": np.ones(2), "name": "first"})
    >>> cairn.load("model")
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
        path: where it is; a path or URL.
        mmap: map the arrays instead of reading them: at once, and without comparing checksums.
            Changes to mapped arrays stay in memory.

    >>> import numpy as np, cairn
    >>> info = cairn.save("model", {"w": np.arange(3)})
    >>> cairn.load("model", mmap=True)["w"].tolist()
    [0, 1, 2]
    """
    if _location.is_remote(path):
        return _load_remote(_location.text_of(path), mmap)
    where = Path(_location.local_path(path))
    with _errors_of_files():
        return _load(where, mmap)


@contextlib.contextmanager
def _errors_of_files() -> Iterator[None]:
    """What Python says of files and directories, as Cairn says it."""
    try:
        yield
    except PermissionError as error:
        raise PermissionDenied(str(error)) from None
    except FileNotFoundError as error:
        raise NotFound(str(error)) from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise Invalid(f"{os.fspath(error.filename)[:60]!r}… is too long for a path") from None


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
        return _load_from_place(where)
    except Invalid:
        if not where.endswith(".safetensors"):
            raise
        return io.read(where, format="safetensors")  # a file, where directories are not files
    if found is None:
        raise NotFound(f"{where!r} has no checkpoint yet")
    return found.state


def holds_checkpoints(where: str) -> bool:
    """Whether a place elsewhere is a repository or a checkpoint."""
    try:
        with CheckpointManager(where, read_only=True):
            return True
    except NotFound:
        pass
    except Invalid:
        if not where.endswith(".safetensors"):
            raise
        return False
    try:
        _read_records(where)
        return True
    except NotFound:
        return False


def _load_from_place(where: str) -> Any:
    """What is no repository: one checkpoint, or plain safetensors."""
    try:
        return _load_checkpoint(where)
    except NotFound:
        pass
    return io.read(where, format="safetensors")


def _load_latest(where: Path, mmap: bool) -> Any:
    with CheckpointManager(where, read_only=True) as manager:
        if mmap:
            return _map_latest(manager, where)
        found = manager.restore()
    if found is None:
        raise NotFound(f"{str(where)!r} has no checkpoint yet")
    return found.state


def _map_latest(manager: CheckpointManager, where: Path) -> Any:
    """The latest, or the one after it: a writer removes old ones at any moment."""
    tried = None
    while True:
        latest: Optional[CheckpointInfo] = manager.latest()
        if latest is None:
            raise NotFound(f"{str(where)!r} has no checkpoint yet")
        try:
            return _load_mapped(Path(latest.path))
        except (NotFound, FileNotFoundError, Corruption):
            if latest.id == tried:
                raise
            tried = latest.id


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


def read_state(path: str) -> Any:
    """The state of one checkpoint, wherever its directory is."""
    return _load_checkpoint(path)


def read_info(path: str) -> CheckpointInfo:
    """What the manifest of one checkpoint says, wherever its directory is. NotFound: there is none."""
    return CheckpointInfo(**_look(path)[0])


def _read_records(path: Union[Path, str]) -> bytes:
    """Compares manifest and state files with their checksums and reads no tensor. Gives state.json."""
    return _look(path)[1].get("state.json", b"")


def _look(path: Union[Path, str]) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    found: Dict[str, bytes] = {}

    def take_nothing(info: Dict[str, Any], state_files: Dict[str, bytes]) -> Dict[str, Any]:
        found.update(state_files)
        return {
            "into": [], "allocate": False, "allocate_names": [], "strict": False, "rename": {},
            "skip": [],
        }  # fmt: skip

    looked = _native.load(path=str(path), prepare=take_nothing, atomic=False, tensors=False)
    return looked["info"], found


def _load_mapped(path: Path) -> Any:
    """A checkpoint's state with mapped arrays, whose checksums are not compared."""
    text = _read_records(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    own = f"{_first_participant(manifest)}/state.safetensors"  # what is not common to all ranks
    made: List[Tuple[str, str, str, Tuple[int, ...], np.ndarray]] = []
    for entry in manifest["files"]:
        name = entry["path"]
        model = name.startswith("__model__/") and name.endswith(".safetensors")
        if not model and name != own:
            continue
        if entry.get("ref"):
            raise Invalid(f"{path}: mmap works on local disks only")
        for t in _safetensors.map_tensors(path / name):
            made.append(("model" if model else "state", t.name, t.dtype, t.shape, t.data))
    if not _tree.Stored.is_one(text):
        return {
            name: _arrays.make("numpy", dtype, shape, data, {}, name)
            for group, name, dtype, shape, data in made
            if group == "model"
        }
    plan = _plan.Plan(
        _tree.Stored(text, str(path)), None, anything=True, strict=True, rename={}, skip=set()
    )
    pieces = sorted(plan.allocate - {name for _, name, _, _, _ in made})
    if pieces:
        raise Invalid(f"{path}: {pieces[0]!r} is stored in pieces; load it without mmap")
    return plan.finish(made)


def _first_participant(manifest: Dict[str, Any]) -> str:
    """Whose state.json is the state of the checkpoint."""
    names = [p if isinstance(p, str) else str(p.get("name")) for p in manifest["participants"]]
    return names[0] if names else ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What verify found.

    Attributes:
        checkpoints: all that were looked at.
        problems: (checkpoint, what is wrong with it).
        files, bytes: that were compared.

    >>> import os, cairn
    >>> info = cairn.save("model", {"x": 1})
    >>> report = cairn.verify("model")
    >>> report.ok, len(report.checkpoints), report.problems
    (True, 1, [])
    >>> os.truncate(os.path.join(info.path, "manifest.json"), 10)
    >>> cairn.verify("model").ok
    False
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

    >>> import cairn
    >>> info = cairn.save("model", {"x": 1})
    >>> cairn.verify("model").ok
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
        values: names of values beside the tensors (numbers, strings, …) that differ, or that only
            one of them has.

    >>> import numpy as np, cairn
    >>> before = cairn.save("a", {"w": np.zeros(3), "old": np.zeros(1), "epoch": 1})
    >>> after = cairn.save("b", {"w": np.full(3, 0.5), "new": np.zeros(1), "epoch": 2})
    >>> found = cairn.diff(before, after)
    >>> found.same, found.added, found.removed, found.changed, found.values
    (False, ['new'], ['old'], {'w': 0.5}, ['epoch'])
    """

    added: List[str]
    removed: List[str]
    changed: Dict[str, float]
    reshaped: List[str]
    values: List[str] = dataclasses.field(default_factory=list)

    @property
    def same(self) -> bool:
        """True when there is no difference."""
        return not (self.added or self.removed or self.changed or self.reshaped or self.values)


def diff(a: Union[PathLike, CheckpointInfo], b: Union[PathLike, CheckpointInfo]) -> Difference:
    """Compares two checkpoints (directories, infos, or repositories: their latest): the tensors of
    all ranks, and the values beside them of rank 0.

    >>> import numpy as np, cairn
    >>> first = cairn.save("a", {"w": np.zeros(3), "lr": 0.1, "epoch": 1})
    >>> second = cairn.save("b", {"w": np.ones(3), "lr": 0.2, "epoch": 1})
    >>> found = cairn.diff(first, second)
    >>> found.changed, found.values
    ({'w': 1.0}, ['lr'])
    """
    one, two = _checkpoint_path(a), _checkpoint_path(b)
    found = _native.diff(one, two)
    kinds: Dict[str, List[str]] = {"added": [], "removed": [], "shape": [], "dtype": []}
    changed: Dict[str, float] = {}
    for name, what, max_abs, _ in found:
        if what == "changed":
            changed[str(name)] = float(max_abs)
        else:
            kinds[str(what)].append(str(name))
    reshaped = kinds["shape"] + kinds["dtype"]
    mine, theirs = _values_of(one), _values_of(two)
    names = mine.keys() | theirs.keys()
    values = sorted(n or "the state" for n in names if mine.get(n) != theirs.get(n))
    return Difference(kinds["added"], kinds["removed"], changed, reshaped, values)


def _values_of(checkpoint: str) -> Dict[str, str]:
    """The values beside the tensors by name, as they are stored; none of other programs' states."""
    text = _read_records(checkpoint)
    values: Dict[str, str] = {}
    if not _tree.Stored.is_one(text):
        return values
    nodes = [("", _tree.Stored(text, checkpoint).root)]
    for name, node in nodes:
        if isinstance(node, dict) and "tensor" in node:
            continue
        below: List[Tuple[str, Any]] = []
        if isinstance(node, dict) and "rng" in node:
            node, state = node["rng"]
            below = [(_tree.join(name, "state"), state)]
            values[name] = values.get(name, "") + json.dumps(node)
        elif not _tree.is_leaf(node):
            below = [(_tree.join(name, key), child) for key, child in _tree.children(node)]
        if not below:  # names may collide: what they have in common is all of it
            values[name] = values.get(name, "") + json.dumps(node)
        nodes += below
    return values


def _checkpoint_path(value: Union[PathLike, CheckpointInfo]) -> str:
    if isinstance(value, CheckpointInfo):
        return value.path
    if _location.is_remote(value):
        return _remote_checkpoint_path(_location.text_of(value))
    path = Path(_location.local_path(value))
    with _errors_of_files():
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
