"""Between repositories and other formats: torch, safetensors, torch.distributed.checkpoint.

Nothing that is read is executed: pickles are read with torch's weights_only, and the metadata of
distributed checkpoints by an unpickler that knows nothing but its classes.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import io as _io
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Optional, Tuple

import numpy as np

from . import _arrays, _location, _safetensors, _tree, io, oneshot
from ._arguments import PathLike, whole
from .errors import Corruption, Error, Invalid, NoSpace, NotFound, PermissionDenied
from .manager import CheckpointInfo, CheckpointManager

__all__ = ["FORMATS", "Converted", "convert", "read"]

FORMATS = ("cairn", "torch", "safetensors", "dcp")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_WEIGHTS = _TORCH_SUFFIXES + (
    ".safetensors",
    ".index.json",
    ".h5",
    ".msgpack",
    ".distcp",
    ".metadata",
)
_MAX_SIDE_FILE = 64 << 20


@dataclasses.dataclass(frozen=True)
class Converted:
    """What convert did.

    Attributes:
        source, target: the formats.
        path: what was written: a file, a folder, or the directory of the new checkpoint.
        arrays, bytes: that were converted.
        left_out: names of values, and tables with their rows, that the target's format cannot hold.

    >>> import numpy as np, cairn, cairn.convert
    >>> info = cairn.save("run", {"w": np.ones(2), "epoch": 3})
    >>> done = cairn.convert.convert("run", "w.safetensors")
    >>> done.arrays, done.bytes, done.left_out       # safetensors have no place for numbers
    (1, 16, ['epoch'])
    """

    source: str
    target: str
    path: str
    arrays: int
    bytes: int
    left_out: List[str]


def format_of(path: PathLike) -> str:
    """The format of what is stored at a path or URL."""
    if _location.is_remote(path):
        return _remote_format(_location.text_of(path))
    where = Path(_location.local_path(path))
    if where.is_file():
        if where.suffix == ".safetensors":
            return "safetensors"
        if where.suffix in _TORCH_SUFFIXES:
            return "torch"
        raise Invalid(
            f"{where}: neither *.safetensors nor a torch file ({', '.join(_TORCH_SUFFIXES)})"
        )
    if not where.is_dir():
        raise NotFound(f"there is no {str(where)!r}")
    if (where / "cairn.json").is_file() or (where / "manifest.json").is_file():
        return "cairn"
    if (where / ".metadata").is_file():
        return "dcp"
    if any(where.glob("*.safetensors")):
        return "safetensors"
    if any(where.glob("*.bin")) or any(where.glob("*.pt")):
        return "torch"
    raise Invalid(
        f"{where} holds no checkpoints (cairn.json), no *.safetensors, no torch files and no "
        ".metadata "
        "of torch.distributed.checkpoint"
    )


def _remote_format(where: str) -> str:
    if where.endswith((*_TORCH_SUFFIXES, ".distcp", ".metadata")):
        raise Invalid(f"{where!r}: torch files are read from this machine; copy it here first")
    return "cairn" if oneshot.holds_checkpoints(where) else "safetensors"


def read(path: PathLike, step: Optional[int] = None) -> Any:
    """The state stored at a path, in any of the formats.

    Args:
        path: a repository or a checkpoint, a torch file or folder (weights_only), a safetensors
            file or folder (with or without index), a folder of torch.distributed.checkpoint. By URL:
            a repository, a checkpoint, safetensors.
        step: of a repository: a certain checkpoint instead of the latest.

    >>> import numpy as np, cairn.convert
    >>> info = cairn.save("model", {"w": np.ones(2)})
    >>> cairn.convert.read("model")
    {'w': array([1., 1.])}
    """
    kind = format_of(path)
    place = _location.text_of(path)
    if kind != "cairn" and step is not None:
        raise Invalid(f"step chooses a checkpoint of a repository; {place} is none")
    if kind == "cairn":
        return _read_cairn(place, step)[0]
    if _location.is_remote(path):
        return io.read(place, format=kind)
    where = Path(_location.local_path(path))
    if kind == "torch":
        return _read_torch(where)
    if kind == "dcp":
        return _read_dcp(where)
    return _read_safetensors(where)


def convert(
    source: PathLike,
    target: PathLike,
    *,
    to: Optional[str] = None,
    step: Optional[int] = None,
    only: Optional[str] = None,
    force: bool = False,
) -> Converted:
    """Converts what is stored at `source` and writes it to `target`.

    Args:
        source: see read.
        target: a repository, by path or URL (a checkpoint is added), or a file or folder that is
            made.
        to: one of FORMATS; None goes by the target's name, and is a repository otherwise.
        step: of the new checkpoint (default 0); from a repository: of the checkpoint to read.
        only: a part of the state, such as "model".
        force: replace a file or folder that exists.

    >>> import numpy as np, cairn, cairn.convert
    >>> info = cairn.save("run", {"model": {"w": np.ones(2)}, "epoch": 3})
    >>> done = cairn.convert.convert("run", "w.safetensors", only="model")
    >>> done.arrays, cairn.load("w.safetensors")
    (1, {'w': array([1., 1.])})
    """
    try:
        return _convert(source, target, to, step, only, force)
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise _of_the_system(error) from error


def _of_the_system(error: OSError) -> Error:
    """What went wrong with a file, as an error of this package."""
    kinds = {errno.EACCES: PermissionDenied, errno.EPERM: PermissionDenied, errno.ENOSPC: NoSpace}
    kinds.update({errno.EDQUOT: NoSpace, errno.ENOENT: NotFound})
    kind = kinds.get(error.errno or 0, Invalid)
    place = error.filename2 or error.filename
    return kind(f"{os.fspath(place)}: {error.strerror}" if place else str(error))


def _convert(
    source: PathLike,
    target: PathLike,
    to: Optional[str],
    step: Optional[int],
    only: Optional[str],
    force: bool,
) -> Converted:
    kind = format_of(source)
    goal = _goal(kind, Path(_location.text_of(target)), to)
    if goal != "cairn" and _location.is_remote(target):
        raise Invalid(
            f"{_location.text_of(target)!r} is not on this machine, where {goal} is written; "
            "`cairn checkpoint export` writes safetensors to a URL"
        )
    if goal == "cairn" and kind == "cairn":
        raise Invalid("both are repositories: `cairn checkpoint copy` copies checkpoints")
    if step is not None and whole(step, "step") < 0:
        raise Invalid(f"step must not be negative: {step}")
    left_out: List[str] = []
    if kind == "cairn":
        state, tables = _read_cairn(_location.text_of(source), step)
        left_out = [f"{t['name']} (a table of {t['rows']} rows)" for t in tables]
    else:
        state = read(source)
    if only is not None:
        state = _part(state, only)
    if goal == "cairn":
        path = _write_cairn(source, kind, state, target, step or 0).path
    else:
        where = Path(_location.local_path(target))
        if where.exists() and not force:
            raise Invalid(f"{where} exists; --force (force=True) replaces it")
        _check_replaceable(where, goal)
        where.parent.mkdir(parents=True, exist_ok=True)
        if goal == "safetensors":
            state = _write_safetensors(state, where, left_out)
        else:
            none = any(value is None for _, value in _leaves(state, ""))
            state = _for_torch(state, "", left_out, goal)
            if goal == "dcp":
                left_out += _empty_dicts(state)
            if state is _OUT or (left_out and not none and _only_none(state)):
                raise Invalid(f"{_location.text_of(source)}: it holds nothing that {goal} can")
            if goal == "torch":
                _write_torch(state, where)
            else:
                _write_dcp(state, where, force)
        path = str(where)
    sizes = [_nbytes(value) for _, value in _leaves(state, "") if _arrays.is_array(value)]
    return Converted(kind, goal, path, len(sizes), sum(sizes), left_out)


def _only_none(state: Any) -> bool:
    """True for a state of nothing but containers, and None for what was left out of lists."""
    return all(value is None for _, value in _leaves(state, ""))


def _nbytes(array: Any) -> int:
    """Of any array: of sparse tensors, those of the dense one."""
    if _arrays.is_torch(array):
        return int(array.numel()) * int(array.element_size())
    return int(_typed(array).nbytes)


def _check_replaceable(where: Path, goal: str) -> None:
    """Neither is a file put in a folder's place nor a folder in a file's."""
    file = goal == "torch" or (goal == "safetensors" and where.suffix == ".safetensors")
    if file and where.is_dir():
        raise Invalid(f"{where} is a folder, and a file is not put in its place; remove it first")
    if not file and where.exists() and not where.is_dir():
        raise Invalid(f"{where} is a file, and a folder is not put in its place; remove it first")


def _goal(kind: str, target: Path, to: Optional[str]) -> str:
    if to is not None:
        if to not in FORMATS:
            raise Invalid(f"to must be one of {', '.join(FORMATS)}, not {to!r}")
        return to
    if target.suffix == ".safetensors":
        return "safetensors"
    if target.suffix in _TORCH_SUFFIXES:
        return "torch"
    if kind == "cairn":
        raise Invalid(
            f"what should {target} become? Name it *.safetensors or *.pt, or give --to (to=): "
            "torch, safetensors or dcp"
        )
    return "cairn"


def _part(state: Any, name: str) -> Any:
    """A subtree, by its keys joined with /."""
    here = state
    rest = name
    while rest:
        if not isinstance(here, dict):
            break
        if rest in here:
            return here[rest]
        keys = [k for k in here if isinstance(k, str) and rest.startswith(k + "/")]
        if not keys:
            break
        key = max(keys, key=len)
        here, rest = here[key], rest[len(key) + 1 :]
    known = ", ".join(str(k) for k in state)[:300] if isinstance(state, dict) else "no names"
    raise NotFound(f"the state has no {name!r}; it has {known}")


def _leaves(value: Any, path: str) -> Iterator[Tuple[str, Any]]:
    """(name, leaf) with keys joined with /."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, _tree.join(path, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, _tree.join(path, i))
    else:
        yield path, value


# Repositories ----------


def _read_cairn(where: str, step: Optional[int]) -> Tuple[Any, List[Dict[str, Any]]]:
    """The state, and what the checkpoint says of its tables, whose rows are no part of the state."""
    try:
        manager = CheckpointManager(where, read_only=True)
    except NotFound:
        if step is not None:
            raise Invalid(
                f"{where} is one checkpoint; step chooses among those of a repository"
            ) from None
        local = where if _location.is_remote(where) else _location.local_path(where)
        return oneshot.load(where), oneshot.read_info(str(local)).tables
    with manager:
        restored = manager.restore(step=step)
    if restored is None:
        raise NotFound(f"{where} has no checkpoint yet")
    return restored.state, restored.info.tables


def _write_cairn(
    source: PathLike, kind: str, state: Any, target: PathLike, step: int
) -> CheckpointInfo:
    remote = _location.is_remote(source)
    name = Path(_location.text_of(source) if remote else _location.local_path(source)).name
    # keep_last=None: an import never removes a checkpoint that is there.
    with CheckpointManager(target, keep_last=None) as manager:
        return manager.save(
            step,
            state,
            metadata={"converted_from": {"format": kind, "name": name}},
            files=None if remote else _side_files(Path(_location.local_path(source))),
            blocking=True,
        ).wait()


def _side_files(source: Path) -> Optional[Dict[str, PathLike]]:
    """Configurations and vocabularies that stand beside the weights are kept with them."""
    if not source.is_dir():
        return None
    found: Dict[str, PathLike] = {}
    for file in sorted(source.iterdir()):
        weights = file.name.endswith(_WEIGHTS) or file.name == ".metadata"
        if file.is_file() and not weights and file.stat().st_size <= _MAX_SIDE_FILE:
            found[file.name] = file
    return found or None


# torch ----------


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise Invalid("torch files need torch: pip install torch") from None
    return torch


def _read_torch(where: Path) -> Any:
    if where.is_file():
        return _load_torch(where)
    index = next(iter(sorted(where.glob("*.bin.index.json"))), None)
    if index is not None:
        return _by_index(where, index, _load_torch)
    files = sorted(where.glob("*.bin")) or sorted(where.glob("*.pt"))
    if len(files) > 1:
        names = ", ".join(f.name for f in files[:5])
        raise Invalid(
            f"{where} holds several torch files and no index: {names}; convert one of them"
        )
    return _load_torch(files[0])


def _load_torch(file: Path) -> Any:
    with open(file, "rb") as stream:
        start = stream.read(4)
    # torch's own reader would take anything else for a pickle, and warn of the code in it.
    if start != b"PK\x03\x04" and start[:1] != b"\x80":
        raise Corruption(
            f"{file} is no torch file: it begins neither as a zip archive (torch.save since 1.6) nor "
            "as a pickle (before). Taken are files of torch.save, *.safetensors, folders of "
            "torch.distributed.checkpoint and repositories (cairn.json)"
        )
    torch = _torch()
    options = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            return torch.load(file, mmap=True, **options)
        except RuntimeError as error:
            if "mmap" not in str(error):
                raise
            return torch.load(file, **options)  # files of torch before 1.6
    except pickle.UnpicklingError as error:
        if not _names_a_global(str(error)):
            raise Corruption(f"{file} is no whole torch file: {_first_line(error)}") from None
        reason = str(error).split("\n")[0][:300]
        raise Invalid(
            f"{file} holds Python objects besides tensors and plain values, and loading them would "
            f"run code from the file. If you trust it, load it with torch.load(..., "
            f"weights_only=False) and give what you need to cairn.save. torch says: {reason}"
        ) from None
    except (RuntimeError, EOFError, ValueError, IndexError, struct.error) as error:
        raise Corruption(f"{file} is no whole torch file: {_first_line(error)}") from None


def _names_a_global(said: str) -> bool:
    """Whether torch refused something that the file wants to have called."""
    return any(word in said for word in ("GLOBAL", "Unsupported", "REDUCE", "not an allowed"))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:300]


def _write_torch(state: Any, target: Path) -> None:
    torch = _torch()
    with _replacing(target) as part:
        torch.save(state, part)


_OUT = object()


def _for_torch(value: Any, name: str, left_out: List[str], goal: str) -> Any:
    """A state as torch.load(weights_only=True) gives it back: arrays as tensors, NumPy's numbers as
    Python's. What it would refuse is left out; in lists and tuples None stands for it."""
    if type(value) in (dict, collections.OrderedDict):
        made = []
        for key, item in value.items():
            place = _tree.join(name, key)
            if _weights_only_takes(key):
                made.append((key, _for_torch(item, place, left_out, goal)))
            else:
                left_out.append(place)
        return type(value)((key, item) for key, item in made if item is not _OUT)
    if type(value) in (list, tuple):
        items = [_for_torch(v, _tree.join(name, i), left_out, goal) for i, v in enumerate(value)]
        return type(value)(None if item is _OUT else item for item in items)
    if type(value) is not bytearray and _arrays.is_array(value):
        if _arrays.is_torch(value):  # of any layout in a file; folders hold plain memory
            if goal == "torch" or _stands_for(value) != _NOT_PLAIN:
                return value
        elif _stands_for(value) in (None, "complex64", "complex128"):
            return _tensor(value, name)
    else:
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            value = value.item()
        if _weights_only_takes(value):
            return value
    left_out.append(name or "the state")
    return _OUT


_NOT_PLAIN = "not plain memory"


def _stands_for(value: Any) -> Optional[str]:
    """What the elements of an array stand for, when other programs would not know it."""
    try:
        return _arrays.meaning(_arrays.source(_typed(value), "").note)
    except Invalid:  # sparse and quantized tensors, which torch files hold
        return _NOT_PLAIN


_INT_BITS = 2000  # torch reads integers back that need less than 256 bytes


def _weights_only_takes(value: Any) -> bool:
    if value is None or type(value) in (bool, float, str):
        return True
    if type(value) is int and value.bit_length() <= _INT_BITS:
        return True
    torch, data = _torch(), _io.BytesIO()
    try:
        torch.save(value, data)
        data.seek(0)
        torch.load(data, weights_only=True)
    except Exception:  # of any kind: it holds what only Python's own unpickler would make
        return False
    return True


def _typed(value: Any) -> Any:
    """array.array and bytearray as arrays of NumPy."""
    return value if isinstance(value, np.ndarray) or _arrays.is_torch(value) else np.asarray(value)


def _tensor(value: Any, name: str) -> Any:
    """Any array as a torch tensor over the same memory where that is possible."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        return value.detach()
    source = _arrays.source(_typed(value), name)  # whose memory has this machine's byte order
    data = np.ascontiguousarray(source.keep)
    data = data.view(np.uint8).reshape(-1) if data.nbytes else data
    return _arrays.make("torch", source.stored, source.shape, np.array(data), source.note, name)


# safetensors ----------


def _read_safetensors(where: Path) -> Dict[str, Any]:
    if where.is_file():
        return _open_safetensors(where)
    index = next(iter(sorted(where.glob("*.safetensors.index.json"))), None)
    if index is not None:
        return _by_index(where, index, _open_safetensors)
    state: Dict[str, Any] = {}
    for file in sorted(where.glob("*.safetensors")):
        for name, array in _open_safetensors(file).items():
            if name in state:
                raise Invalid(f"{where}: two files hold a tensor {name!r}, and there is no index")
            state[name] = array
    return state


def _open_safetensors(file: Path) -> Dict[str, Any]:
    """Mapped, not read: a model larger than memory can be converted."""
    kind = "numpy"
    try:
        _torch()
        kind = "torch"  # knows all dtypes
    except Invalid:
        pass
    return {
        name: _arrays.make(kind, dtype, shape, data, {}, name)
        for name, dtype, shape, data in _safetensors.map_tensors(file)
    }


def _by_index(where: Path, index: Path, load: Any) -> Dict[str, Any]:
    """A folder of files with Hugging Face's index: exactly what it names, from where it says."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        files = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corruption(f"{index}: not an index of weights: {error!r}") from None
    loaded: Dict[str, Dict[str, Any]] = {}
    for name in files:
        if os.path.basename(name) != name:
            raise Corruption(f"{index} names the file {name!r}, which is not in its folder")
        if not (where / name).is_file():
            raise NotFound(f"{where / name} is missing; {index.name} names it")
        loaded[name] = load(where / name)
    missing = [tensor for tensor, name in weight_map.items() if tensor not in loaded[name]]
    if missing:
        raise Corruption(
            f"{where}: {', '.join(missing[:10])}: not in the files that the index names"
        )
    return {tensor: loaded[name][tensor] for tensor, name in weight_map.items()}


def _write_safetensors(state: Any, target: Path, left_out: List[str]) -> Dict[str, Any]:
    """Gives what it wrote, and adds the names of what safetensors cannot hold."""
    arrays: Dict[str, Any] = {}
    for name, value in _leaves(state, ""):
        # The one kind that needs a word beside it and is known to the format.
        if _arrays.is_array(value) and _stands_for(value) in (None, "complex64"):
            arrays[_another(name or "value", arrays)] = _typed(value)
        else:
            left_out.append(name or "the state")
    if not arrays:
        raise Invalid(
            "there is no array in the state that safetensors can hold, and they hold nothing else"
        )
    try:
        import safetensors.numpy
    except ImportError:
        raise Invalid("safetensors files need safetensors: pip install safetensors") from None
    if target.suffix != ".safetensors":
        target.mkdir(parents=True, exist_ok=True)
        target = target / "model.safetensors"
    with _replacing(target) as part:
        if any(_arrays.is_torch(value) for value in arrays.values()):
            import safetensors.torch

            tensors = {name: _tensor(value, name) for name, value in arrays.items()}
            safetensors.torch.save_file(_apart(tensors), part, metadata={"format": "pt"})
        else:
            plain = {name: np.asarray(value, order="C") for name, value in arrays.items()}
            safetensors.numpy.save_file(plain, part)
    return arrays


def _another(name: str, names: Collection[str]) -> str:
    """A name that is not taken, as a save makes it: keys may hold what joins them."""
    made, number = name, 1
    while made in names:
        number += 1
        made = f"{name}~{number}"
    return made


def _apart(tensors: Dict[str, Any]) -> Dict[str, Any]:
    """safetensors takes no two tensors of one memory: tied weights are written twice."""
    seen = set()
    out: Dict[str, Any] = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        tensor = tensor.clone() if memory in seen else tensor
        seen.add(memory)
        out[name] = tensor.contiguous()
    return out


# torch.distributed.checkpoint ----------


def _read_dcp(where: Path) -> Any:
    _torch()
    from ._dcp_folder import read_folder

    return read_folder(where)


def _empty_dicts(state: Any) -> List[str]:
    """Names of the empty dicts, which leave no trace where torch's folders take dicts apart."""
    _torch()
    from ._dcp_folder import paths_of

    if not isinstance(state, dict):
        return []
    kept = paths_of(state)
    found: List[str] = []

    def look(value: Any, name: str, path: Tuple[Any, ...]) -> None:
        if path in kept:  # stored as a whole
            return
        if isinstance(value, dict):
            if not value and path:
                found.append(name)
            for key, item in value.items():
                look(item, _tree.join(name, key), (*path, str(key)))
        elif isinstance(value, list):
            for i, item in enumerate(value):
                look(item, _tree.join(name, i), (*path, i))

    look(state, "", ())
    return found


def _write_dcp(state: Any, target: Path, force: bool) -> None:
    _torch()
    from ._dcp_folder import write_folder

    if not isinstance(state, dict):
        raise Invalid("torch.distributed.checkpoint holds dicts; the state is none")
    if force and (target / ".metadata").exists():
        (target / ".metadata").unlink()  # with the old one new files would look complete
    write_folder(state, target)


class _replacing:
    """A file that takes its name when it is whole."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._part = target.with_name(f"{target.name}.part")

    def __enter__(self) -> str:
        return str(self._part)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._part.unlink(missing_ok=True)
            return
        with open(self._part, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(self._part, self._target)
        parent = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
