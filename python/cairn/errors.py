"""The exceptions of Cairn. All derive from :class:`Error`."""

from __future__ import annotations

from typing import Sequence

__all__ = [
    "Cancelled",
    "Corruption",
    "Error",
    "Fenced",
    "Invalid",
    "Mismatch",
    "NoSpace",
    "NotFound",
    "OwnedByAnotherJob",
    "PermissionDenied",
    "Timeout",
    "Unavailable",
]


class Error(Exception):
    """Something that Cairn was asked for did not happen; the message says what to do.

    >>> import cairn
    >>> try:
    ...     cairn.CheckpointManager("/nowhere", read_only=True)
    ... except cairn.Error as error:
    ...     print(type(error).__name__)
    NotFound
    """


class NotFound(Error):
    """The directory, checkpoint or file does not exist.

    >>> import cairn
    >>> cairn.load("runs/a")
    Traceback (most recent call last):
    cairn.errors.NotFound: there is no 'runs/a'
    """


class Corruption(Error):
    """Bytes are not the ones that were written.

    >>> import pathlib, numpy as np, cairn
    >>> info = cairn.save("model", {"w": np.ones(1000)})
    >>> [file] = pathlib.Path(info.path).glob("__model__/*.safetensors")
    >>> data = bytearray(file.read_bytes())
    >>> data[-1] ^= 1
    >>> size = file.write_bytes(data)
    >>> try:
    ...     cairn.load("model")
    ... except cairn.Corruption:
    ...     print("one bit is not what was written")
    one bit is not what was written
    """


class Mismatch(Error):
    """What is stored and what was asked for differ; nothing was changed.

    Attributes:
        missing: names asked for that are not in the checkpoint.
        unexpected: names in the checkpoint that were not asked for.
        mismatched: lines such as ``"w: stored F32 [2,3], wanted F32 [3,2]"``.

    >>> import numpy as np, cairn
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     handle = m.save(1, {"w": np.zeros((2, 3)), "b": np.zeros(3)})
    ...     try:
    ...         m.restore({"w": np.zeros((3, 2)), "c": np.zeros(3)})
    ...     except cairn.Mismatch as error:
    ...         print(error.missing, error.unexpected, error.mismatched)
    ['c'] ['b'] ['w: stored F64 [2,3], wanted F64 [3,2]']
    """

    def __init__(
        self,
        message: str,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = list(missing)
        self.unexpected = list(unexpected)
        self.mismatched = list(mismatched)


class OwnedByAnotherJob(Error):
    """The directory belongs to another job, which the message names.

    >>> import cairn
    >>> cairn.CheckpointManager("runs/a", job="nightly").close()
    >>> try:
    ...     cairn.CheckpointManager("runs/a", job="weekly")
    ... except cairn.OwnedByAnotherJob as error:
    ...     print("nightly" in str(error))
    True
    """


class Fenced(Error):
    """Another writer took over; this one may no longer write.

    >>> import cairn
    >>> first = cairn.CheckpointManager("runs/a")
    >>> second = cairn.CheckpointManager("runs/a", takeover=True)
    >>> try:
    ...     first.save(1, {"x": 1}, blocking=True)
    ... except cairn.Fenced:
    ...     print("somebody else writes here now")
    somebody else writes here now
    >>> second.close()
    """


class Timeout(Error, TimeoutError):
    """Something did not happen in time; the message says what was waited for.

    >>> import cairn
    >>> try:
    ...     with cairn.train.MonitoredTrainingSession("runs/a", is_chief=False, max_wait_secs=0.1):
    ...         pass
    ... except cairn.Timeout:
    ...     print("the chief has saved nothing yet")
    the chief has saved nothing yet
    """


class Invalid(Error, ValueError):
    """An argument is wrong; nothing was done.

    >>> import cairn
    >>> try:
    ...     cairn.CheckpointManager("runs/a", keep_last=0)
    ... except ValueError as error:
    ...     print(type(error).__name__, error)
    Invalid keep_last must be at least 1 (or None), not 0
    """


class Unavailable(Error):
    """The directory is in use by another writer, or cannot be reached now.

    >>> import cairn
    >>> def open_or_wait_for_the_next_try(directory):
    ...     try:
    ...         return cairn.CheckpointManager(directory)
    ...     except cairn.Unavailable as error:
    ...         print("try again later:", error)
    >>> open_or_wait_for_the_next_try("runs/a").close()
    """


class NoSpace(Error):
    """The disk (or memory) is full; nothing was lost.

    >>> import cairn
    >>> def save_if_there_is_room(manager, step, state):
    ...     try:
    ...         return manager.save(step, state, blocking=True).wait()
    ...     except cairn.NoSpace as error:
    ...         print("trains on without this checkpoint:", error)
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     save_if_there_is_room(m, 1, {"x": 1}).step
    1
    """


class PermissionDenied(Error, PermissionError):
    """The operating system forbids it.

    >>> import cairn
    >>> issubclass(cairn.PermissionDenied, cairn.Error), issubclass(cairn.PermissionDenied, PermissionError)
    (True, True)
    """


class Cancelled(Error):
    """The save was skipped because the one before it was still being written.

    >>> import cairn
    >>> with cairn.CheckpointManager("runs/a", on_busy="skip") as m:
    ...     saved = []
    ...     for handle in [m.save(step, {"x": step}) for step in range(3)]:
    ...         try:
    ...             saved.append(handle.wait().step)
    ...         except cairn.Cancelled:
    ...             pass                          # the one before was not written yet
    >>> saved[0]
    0
    """


_BY_KIND = {
    "NotFound": NotFound,
    "AlreadyExists": Invalid,
    "Corruption": Corruption,
    "InvalidArgument": Invalid,
    "FailedPrecondition": Error,
    "OwnedByAnotherJob": OwnedByAnotherJob,
    "Unavailable": Unavailable,
    "DeadlineExceeded": Timeout,
    "Aborted": Fenced,
    "ResourceExhausted": NoSpace,
    "PermissionDenied": PermissionDenied,
    "Cancelled": Cancelled,
}


def from_status(
    kind: str,
    message: str,
    missing: Sequence[str],
    unexpected: Sequence[str],
    mismatched: Sequence[str],
) -> Error:
    """The exception for a status of the engine; called by the native module alone."""
    if kind == "Mismatch":
        return Mismatch(message, missing, unexpected, mismatched)
    return _BY_KIND.get(kind, Error)(message)
