"""Checkpoint: what a trial hands over to be kept, and gets back."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from .._location import is_remote
from .._user_files import place
from ..core._files import check, fetch, files_in, remove_tree
from ..errors import Invalid
from ..manager import CheckpointInfo, CheckpointManager

__all__ = ["Checkpoint"]

PathLike = Union[str, "os.PathLike[str]"]

# What the manifest's metadata says about a checkpoint of a trial.
KEY = "tune"


def open_repository(info: CheckpointInfo) -> str:
    """The directory of the repository that a checkpoint lies in."""
    return info.path.rstrip("/").rsplit("/", 1)[0]


class Checkpoint:
    """A dict, or a directory of files, with metadata.

    One that was reported is kept as it is; the object that get_checkpoint or a Result gives reads it
    back. Dicts hold arrays, tensors, numbers, strings, bytes, and nested dicts and lists of them.

    >>> c = Checkpoint.from_dict({"step": 3})
    >>> c.to_dict()
    {'step': 3}
    """

    def __init__(self, path: Optional[PathLike] = None) -> None:
        self._data: Optional[Dict[str, Any]] = None
        self._directory: Optional[str] = None
        self._info: Optional[CheckpointInfo] = None
        self._counters: Optional[tuple[int, float]] = None  # of a trainable that was saved by hand
        self._metadata: Dict[str, Any] = {}
        if path is None:
            return
        text = os.fspath(path)
        if not is_remote(text) and not os.path.isdir(text):
            raise ValueError(f"{text} is not a directory")
        info = _committed(text)
        if info is not None:
            self._set_info(info)
        else:
            self._directory = text

    @classmethod
    def from_directory(cls, path: PathLike) -> "Checkpoint":
        """Of a directory: of the user's own files, or of a committed checkpoint."""
        return cls(path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Checkpoint":
        if not isinstance(data, Mapping):
            raise ValueError(f"a dict is wanted, not {type(data).__name__}")
        made = cls()
        made._data = dict(data)
        return made

    @classmethod
    def _of(cls, info: CheckpointInfo) -> "Checkpoint":
        made = cls()
        made._set_info(info)
        return made

    def _set_info(self, info: CheckpointInfo) -> None:
        self._info = info
        self._metadata = dict((info.metadata.get(KEY) or {}).get("metadata") or {})

    @property
    def _kind(self) -> str:
        if self._info is not None:
            kind = (self._info.metadata.get(KEY) or {}).get("kind")
            return str(kind) if kind else "directory"
        return "dict" if self._data is not None else "directory"

    @property
    def path(self) -> str:
        """A directory with the files: of one that is kept, the checkpoint's own, below the trial's
        directory, compared with its checksums (a copy where that is on a bucket). Do not change what
        is in it. Of a dict that is kept, where that is."""
        if self._kind == "dict" and self._info is not None:
            return self._info.path
        if self._directory is None:
            assert self._info is not None
            inside = os.path.join(self._info.path, "files")
            if not is_remote(self._info.path) and os.path.isdir(inside):
                check(self._info.path)
                self._directory = inside
            else:
                self._directory = self.to_directory()
        return self._directory

    def to_dict(self) -> Dict[str, Any]:
        """The dict; of a directory, {name: bytes} is not made up: it is refused."""
        if self._data is None:
            if self._info is None or self._kind != "dict":
                raise ValueError("this checkpoint is a directory, not a dict; use to_directory()")
            with CheckpointManager(open_repository(self._info), read_only=True) as reader:
                restored = reader.restore(path=self._info.path)
            assert restored is not None
            self._data = dict(restored.state["data"])
        return dict(self._data)

    def to_directory(self, path: Optional[PathLike] = None) -> str:
        """Copies the files into a directory: `path`, or a new one of the system's temporary ones."""
        if self._kind == "dict":
            raise ValueError("this checkpoint is a dict, not a directory; use to_dict()")
        target = tempfile.mkdtemp(prefix="cairn-checkpoint-") if path is None else os.fspath(path)
        os.makedirs(target, exist_ok=True)
        if self._directory is not None:
            for name, source in files_in(self._directory).items():
                at, is_file = place(target, name)
                if is_file:
                    shutil.copyfile(source, at)
        else:
            assert self._info is not None
            fetch(self._info.path, target)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """A directory with the files, for the body of a with statement."""
        if self._directory is not None:
            yield self._directory
            return
        path = self.to_directory()
        try:
            yield path
        finally:
            remove_tree(path)

    def get_metadata(self) -> Dict[str, Any]:
        return dict(self._metadata)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Of one that was not reported yet: afterwards it does not change."""
        if self._info is not None:
            raise Invalid("a checkpoint that is kept does not change: set metadata before the report")
        self._metadata = dict(metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.set_metadata({**self._metadata, **metadata})

    @property
    def id(self) -> Optional[str]:
        """Of one that is kept."""
        return None if self._info is None else self._info.id

    def __repr__(self) -> str:
        where = self._info.path if self._info is not None else self._directory
        return f"Checkpoint({where!r})" if where else "Checkpoint(dict)"


def _committed(path: str) -> Optional[CheckpointInfo]:
    """The checkpoint whose directory this is, or None."""
    if not is_remote(path) and not os.path.isfile(os.path.join(path, "manifest.json")):
        return None
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        with CheckpointManager(parent or ".", read_only=True) as reader:
            for info in reader.list():
                if info.path.rstrip("/").rsplit("/", 1)[-1] == name:
                    return info
    except Exception:
        return None
    return None
