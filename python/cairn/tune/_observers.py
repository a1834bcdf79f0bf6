"""Those that are told of an experiment: the user's callbacks, the loggers, the progress table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ._log_book import LogBook
from ._result_files import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
)
from .callback import Callback
from .progress import ProgressReporter, default_reporter


def observers(
    callbacks: Optional[Sequence[Any]],
    directory: str,
    verbose: int = 1,
    reporter: Optional[ProgressReporter] = None,
    metric: Optional[str] = None,
    mode: Optional[str] = None,
) -> list[Any]:
    """All callbacks of an experiment, in the order in which they are told. Loggers of the user's own
    kind come beside the three that are always there, or instead of the one they derive from."""
    given = list(callbacks or [])
    for callback in given:
        if isinstance(callback, type):
            raise ValueError(
                f"callbacks are objects: {callback.__name__}() instead of {callback.__name__}"
            )
    loggers = [one for one in given if isinstance(one, LoggerCallback)]
    usual: list[LoggerCallback] = []
    for kind in (JsonLoggerCallback, CSVLoggerCallback, TBXLoggerCallback):
        if not any(isinstance(one, kind) for one in loggers):
            usual.append(kind())
    out: list[Any] = [LogBook(directory, usual + loggers)]
    out += [one for one in given if not isinstance(one, LoggerCallback)]
    if verbose > 0 or reporter is not None:
        shown = default_reporter() if reporter is None else reporter
        if not isinstance(shown, Callback):
            raise ValueError(f"progress_reporter must be a ProgressReporter, not {reporter!r}")
        if isinstance(shown, ProgressReporter):
            shown.set_search_properties(metric, mode)
        out.append(shown)
    return out
