"""What a worker prints, in files of its trial: RunConfig(log_to_file=…)."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, Optional, Tuple

_WANTED = (
    "log_to_file must be False, True (stdout and stderr), a name of a file in the trial's directory, or "
    "two names, of one for stdout and one for stderr"
)
# What trials keep in their directories beside it.
_TAKEN = (
    "cairn.json",
    "error.txt",
    "generations",
    "params.json",
    "progress.csv",
    "result.json",
)
_TAKEN_BEGINNINGS = ("checkpoint_", "increment_", "events.out.tfevents", ".")


def tell(text: str) -> None:
    """Writes to stderr, if there is one that takes it: trials may close it, and what they say of
    themselves to the tuner must not depend on that."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()


def flush() -> None:
    """Of both streams, if they are there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def file_names(log_to_file: Any) -> Optional[Tuple[str, str]]:
    """The files for stdout and for stderr, relative to the trial's directory; ValueError for what
    cannot be meant.

    >>> file_names(True), file_names("all.txt"), file_names(False)
    (('stdout', 'stderr'), ('all.txt', 'all.txt'), None)
    """
    if isinstance(log_to_file, bool):
        return ("stdout", "stderr") if log_to_file else None
    names = (log_to_file, log_to_file) if isinstance(log_to_file, str) else log_to_file
    if not isinstance(names, (list, tuple)) or len(names) != 2:
        raise ValueError(f"{_WANTED}; not {log_to_file!r}")
    for name in names:
        _check_name(name)
    return names[0], names[1]


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{_WANTED}; {name!r} is no name")
    parts = name.split("/")
    if ".." in parts or not all(parts):  # absolute ones begin with an empty part
        raise ValueError(f"{_WANTED}; {name!r} is not inside of it")
    if parts[0] in _TAKEN or parts[0].startswith(_TAKEN_BEGINNINGS):
        raise ValueError(f"log_to_file: {name!r} is a file of the trial itself: choose another name")


class _Both(io.RawIOBase):
    """Writes to a descriptor and, as far as that can be written to, where it led before."""

    def __init__(self, descriptor: int, before: int) -> None:
        self._descriptor = descriptor
        self._before = before

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        written = os.write(self._descriptor, data)
        try:
            os.write(self._before, data[:written])
        except OSError:
            pass  # nobody looks any more: a pipe whose reader is gone
        return written


def send_to_files(directory: str, names: Tuple[str, str]) -> None:
    """Descriptors 1 and 2 of this process lead to files from now on, so that libraries and programs that
    it starts write there too, and what it wrote is there when it is killed. What Python prints also goes
    where it went before."""
    for stream, descriptor, name in (("stdout", 1, names[0]), ("stderr", 2, names[1])):
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        python = getattr(sys, stream)
        if python is not None:
            python.flush()
        if isinstance(python, io.TextIOWrapper) and _leads_to_both(python):
            os.dup2(file, descriptor)  # of the next trial in this process
            os.close(file)
            continue
        before = os.dup(descriptor)
        os.dup2(file, descriptor)
        os.close(file)
        text = io.TextIOWrapper(
            io.BufferedWriter(_Both(descriptor, before)),
            encoding=getattr(python, "encoding", None) or "utf-8",
            errors=getattr(python, "errors", None),
            line_buffering=True,
        )
        setattr(sys, stream, text)


def _leads_to_both(stream: io.TextIOWrapper) -> bool:
    return isinstance(getattr(stream.buffer, "raw", None), _Both)
