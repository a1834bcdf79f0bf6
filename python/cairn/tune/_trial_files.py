"""Files of trials: in their directories, where they grow, or whole in a store."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable
from typing import Any, Optional

from .. import _location, _native
from ..errors import Error
from .trial import Trial

# Asked for every report of every trial.
is_remote = functools.lru_cache(maxsize=4096)(_location.is_remote)

# Of all trials together: descriptors are few.
_OPEN_FILES = 128

# What went wrong with a file, in a directory or in a store.
TROUBLE = (OSError, Error)


class Appended:
    """One file in each trial's directory that grows; the newest ones stay open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: dict[str, Any] = {}
        self._written: set[str] = set()  # since the last flush
        self._failed: dict[str, Exception] = {}

    def path(self, trial: Trial) -> str:
        return os.path.join(trial.local_path, self.name)

    def append(self, trial: Trial, data: bytes) -> None:
        file = self._open.pop(trial.trial_id, None)
        if file is None:
            file = open_to_write(self.path(trial), "ab")
        self._open[trial.trial_id] = file  # the last one that is closed
        self._written.add(trial.trial_id)
        file.write(data)
        if len(self._open) > _OPEN_FILES:
            oldest = next(iter(self._open))
            try:
                self._open.pop(oldest).close()
            except OSError as error:
                self._failed[oldest] = error

    def empty(self, trial: Trial) -> bool:
        """Whether nothing was ever written."""
        if trial.trial_id in self._open:
            return False
        with contextlib.suppress(FileNotFoundError):
            return os.path.getsize(self.path(trial)) == 0
        return True

    def replace(self, trial: Trial, pieces: Iterable[bytes]) -> None:
        """The file as a whole, at once: nobody sees half of it."""
        self.close(trial)
        temporary = f"{self.path(trial)}.new"
        with open_to_write(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, self.path(trial))

    def close(self, trial: Trial) -> None:
        file = self._open.pop(trial.trial_id, None)
        if file is not None:
            file.close()

    def drop(self, trial: Trial) -> None:
        """Closes a file that cannot be written."""
        with contextlib.suppress(OSError):
            self.close(trial)

    def flush(self) -> None:
        for trial in self._written:
            if trial in self._open:
                try:
                    self._open[trial].flush()
                except OSError as error:
                    self._failed[trial] = error
        self._written.clear()

    def take_failed(self) -> dict[str, Exception]:
        """The trials whose files were not written, although it had looked so before."""
        failed, self._failed = self._failed, {}
        return failed

    def close_all(self) -> None:
        for trial, file in self._open.items():
            try:
                file.close()
            except OSError as error:
                self._failed[trial] = error
        self._open.clear()


class StoredFiles:
    """The files of trials of an experiment that is not on this machine, stored whole."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @functools.cached_property
    def _store(self) -> Any:
        return _native.StoreFiles.open(self._directory)

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def get(self, name: str) -> Optional[bytes]:
        return self._store.get(name)

    def delete(self, name: str) -> None:
        self._store.delete(name)


def open_to_write(path: str, mode: str) -> Any:
    """Makes the directory when it is not there: once for each trial."""
    try:
        return open(path, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, mode)


def write_whole(path: str, text: str) -> None:
    temporary = f"{path}.new"
    with open_to_write(temporary, "wb") as file:
        file.write(text.encode())
    os.replace(temporary, path)
