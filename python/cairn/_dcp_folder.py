"""Folders as torch.distributed.checkpoint itself writes them, and nothing in them is run."""

from __future__ import annotations

import enum
import pickle
import warnings
from pathlib import Path
from typing import Any, Dict, Set, Tuple, Type

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

from .errors import Corruption, Error, Invalid

_METADATA = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    (_METADATA, name)
    for name in (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
    ("collections", "OrderedDict"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
}


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of a checkpoint's metadata and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # what the members of an enum are pickled with
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint's metadata")
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise pickle.UnpicklingError(f"{kind}.{name} has no place in a checkpoint's metadata")
    return kind[name]


def _read_metadata(file: Path) -> Metadata:
    with open(file, "rb") as stream:
        try:
            metadata = _MetadataUnpickler(stream).load()
        except pickle.UnpicklingError as error:
            raise Invalid(f"{file} is not read: {error}") from None
        except Exception as error:
            raise Corruption(f"{file} is no metadata of a checkpoint: {error}") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise Corruption(f"{file} is no metadata of a checkpoint")
    for info in metadata.storage_data.values():
        name = str(info.relative_path)
        if Path(name).name != name:
            raise Corruption(f"{file} names the file {name!r}, which is not in its folder")
    return metadata


class _Reader(FileSystemReader):
    """A reader whose metadata was read already."""

    def __init__(self, where: Path, metadata: Metadata) -> None:
        super().__init__(where)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _Planner(_EmptyStateDictLoadPlanner):
    """Makes the whole state anew; values are read with weights_only."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        name = read_item.dest_index.fqn
        try:
            made = torch.load(value, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Invalid(
                f"{name} is a Python object, and loading it would run code from the file. torch "
                "says: "
                f"{str(error).splitlines()[0][:300]}"
            ) from None
        path = (self.metadata.planner_data or {}).get(name, (name,))
        here: Any = self.original_state_dict
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = made


def read_folder(where: Path) -> Dict[str, Any]:
    """The whole state of a folder, nested as it was saved."""
    state: Dict[str, Any] = {}
    reader = _Reader(where, _read_metadata(where / ".metadata"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load_state_dict(state, storage_reader=reader, planner=_Planner(), no_dist=True)
    except CheckpointException as error:
        raise _said_by(error, Corruption, f"{where} cannot be read") from None
    return state


def paths_of(state: Dict[str, Any]) -> Set[Tuple[Any, ...]]:
    """Keys and indices (keys as text) of each value that a folder would hold."""
    try:
        return set(flatten_state_dict(state)[1].values())
    except ValueError:
        return set()  # two have one name: write_folder says so


def write_folder(state: Dict[str, Any], where: Path) -> None:
    """Writes a folder; its .metadata, which makes it one, comes last."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _save_state_dict(state, FileSystemWriter(where), no_dist=True)
    except CheckpointException as error:
        raise _said_by(error, Invalid, f"{where} cannot be written") from None


def _said_by(error: CheckpointException, kind: Type[Error], what: str) -> BaseException:
    """Why, of torch's exception, which is by rank, no Exception, and made of interrupts too."""
    cause = next(iter(error.failures.values()))[0]
    if not isinstance(cause, Exception) or isinstance(cause, (Error, OSError, MemoryError)):
        return cause
    reason = str(cause) or type(cause).__name__
    return kind(f"{what}: torch.distributed.checkpoint says: {reason}")
