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
    """The directory, checkpoint or file does not exist."""


class Corruption(Error):
    """Bytes are not the ones that were written."""


class Mismatch(Error):
    """What is stored and what was asked for differ; nothing was changed.

    Attributes:
        missing: names asked for that are not in the checkpoint.
        unexpected: names in the checkpoint that were not asked for.
        mismatched: lines such as ``"w: stored F32 [2,3], wanted F32 [3,2]"``.
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
    """The directory belongs to another job, which the message names."""


class Fenced(Error):
    """Another writer took over; this one may no longer write."""


class Timeout(Error, TimeoutError):
    """Something did not happen in time; the message says what was waited for."""


class Invalid(Error, ValueError):
    """An argument is wrong; nothing was done."""


class Unavailable(Error):
    """The directory is in use by another writer, or cannot be reached now."""


class NoSpace(Error):
    """The disk (or memory) is full; nothing was lost."""


class PermissionDenied(Error, PermissionError):
    """The operating system forbids it."""


class Cancelled(Error):
    """The save was skipped because the one before it was still being written."""


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
