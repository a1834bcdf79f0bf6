"""Checkpoint: what a trial hands over to be kept, and gets back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, Mapping, Optional, Union

from .._location import is_remote, local_path, of_this_machine, text_of
from .._user_files import place
from ..core._files import check, fetch, files_in, remove_tree
from ..errors import Corruption, Invalid, NotFound
from ..manager import CheckpointInfo
from ..oneshot import read_info, read_state

__all__ = ["Checkpoint"]

PathLike = Union[str, "os.PathLike[str]"]

# What the manifest's metadata says about a checkpoint of a trial.
KEY = "tune"


class Checkpoint:
    """A dict, or a directory of files, with metadata.

    One that was reported is kept as it is; the object that get_checkpoint or a Result gives reads it
    back. Dicts hold arrays, tensors, numbers, strings, bytes, and nested dicts and lists of them.

    >>> import os
    >>> from cairn import tune
    >>> def train(config):
    ...     os.makedirs("made")
    ...     with open("made/model.txt", "w") as file:
    ...         file.write("weights")
    ...     checkpoint = tune.Checkpoint.from_directory("made")
    ...     checkpoint.set_metadata({"framework": "numpy"})
    ...     checkpoint.update_metadata({"epoch": 3})
    ...     tune.report({"loss": 0.5}, checkpoint=checkpoint)
    ...     tune.report({"loss": 0.4}, checkpoint=tune.Checkpoint.from_dict({"step": 3}))
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> files, values = tune.Tuner(train, run_config=run).fit()[0].checkpoints
    >>> values.to_dict(), files.get_metadata()
    ({'step': 3}, {'epoch': 3, 'framework': 'numpy'})
    >>> with files.as_directory() as path:
    ...     os.listdir(path)
    ['model.txt']
    >>> os.listdir(files.to_directory("copy")), os.listdir(files.path), files.id != values.id
    (['model.txt'], ['model.txt'], True)
    """

    def __init__(self, path: Optional[PathLike] = None) -> None:
        self._data: Optional[Dict[str, Any]] = None
        self._directory: Optional[str] = None
        self._told: Optional[str] = None  # where one is that was not looked at yet
        self._known: Optional[CheckpointInfo] = None
        self._counters: Optional[tuple[int, float]] = None  # of a trainable that was saved by hand
        self._metadata: Dict[str, Any] = {}
        if path is None:
            return
        text = text_of(path) if is_remote(path) else local_path(path)
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
        """Of values: arrays, numbers, texts, and nested dicts and lists of them."""
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

    @classmethod
    def _told_of(cls, path: str) -> "Checkpoint":
        """Of one that is looked at when it is used: it may have been removed by then."""
        made = cls()
        made._told = path
        return made

    @property
    def _info(self) -> Optional[CheckpointInfo]:
        if self._told is not None:
            self._set_info(read_info(self._told))
        return self._known

    def _set_info(self, info: CheckpointInfo) -> None:
        self._told = None
        self._known = info

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
            self._data = dict(read_state(self._info.path)["data"])
        return dict(self._data)

    def to_directory(self, path: Optional[PathLike] = None) -> str:
        """Copies the files into a directory: `path`, or a new one of the system's temporary ones."""
        if self._kind == "dict":
            raise ValueError("this checkpoint is a dict, not a directory; use to_dict()")
        if path is None:
            target = tempfile.mkdtemp(prefix="cairn-checkpoint-")
        else:
            target = of_this_machine(path, "to_directory")
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
        """What was set before the report."""
        if self._info is None:
            return dict(self._metadata)
        return dict((self._info.metadata.get(KEY) or {}).get("metadata") or {})

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Of one that was not reported yet: afterwards it does not change."""
        if self._info is not None:
            raise Invalid("a checkpoint that is kept does not change: set metadata before the report")
        self._metadata = dict(metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Adds to it, as set_metadata sets it."""
        self.set_metadata({**self._metadata, **metadata})

    @property
    def id(self) -> Optional[str]:
        """Of one that is kept."""
        return None if self._info is None else self._info.id

    def __repr__(self) -> str:
        where = self._told or (self._info.path if self._info is not None else self._directory)
        return f"Checkpoint({where!r})" if where else "Checkpoint(dict)"


def _committed(path: str) -> Optional[CheckpointInfo]:
    """The checkpoint whose directory this is, wherever it was copied to; None for a directory of other
    files. Corruption when its manifest is there and cannot be read: it is not "some directory" then."""
    manifest = os.path.join(path, "manifest.json")
    if not is_remote(path) and not os.path.isfile(manifest):
        return None
    try:
        return read_info(path)
    except NotFound:
        return None
    except Corruption:
        if not is_remote(path) and _is_of_somebody_else(manifest):
            return None
        raise


def _is_of_somebody_else(manifest: str) -> bool:
    """Other programs have files of that name too."""
    try:
        with open(manifest, "rb") as file:
            said = json.load(file)
    except (OSError, ValueError):
        return False
    return not isinstance(said, dict) or said.keys().isdisjoint(("cairn", "features", "attempt"))
