"""Lines of result.json, progress.csv and TensorBoard's events, made by the native module for reports that look
like the one before: what the loggers would write, byte for byte, without a dict for each."""

from __future__ import annotations

import json
from typing import Any, Optional

from .. import _native
from ._flat import flatten
from ._result_files import CSVLoggerCallback
from .trial import Trial

# What a result is filled with, after what was reported; the date is put in between.
_BEFORE, _AFTER = ("trial_id",), ("experiment_tag", "config")


class UsualLines:
    """Of all trials: lines that are in no file yet."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Any, dict[str, Any]]] = {}  # lines, and the config that they name
        self._news: dict[str, None] = {}

    def begin(self, trial: Trial, filled: dict[str, Any], columns: list[str]) -> None:
        """After a result that the loggers wrote: those to come may look like it.

        Args:
            columns: of the trial's progress.csv.
        """
        self.forget(trial.trial_id)
        if list(flatten(filled)) != columns:
            return
        own = {key: filled[key] for key in filled if key not in (*_BEFORE, "date", *_AFTER)}
        before = {key: filled[key] for key in _BEFORE}
        after = {key: filled[key] for key in _AFTER}
        # In any other order the lines would be others.
        if list(filled) != [*own, *before, "date", *after] or list(own) != sorted(own):
            return
        text, cells = json.dumps(before)[1:-1], json.dumps(after)[1:-1]
        lines = _native.TuneReportLines(
            list(flatten(own)),
            (f', {text}, "date": "', f'", {cells}}}\n'),
            (f",{_row(before)},", f",{_row(after)}\n"),
        )
        self._of[trial.trial_id] = lines, trial.config

    def add(self, trial: Trial, report: Any) -> bool:
        """False: it is for the loggers."""
        known = self._of.get(trial.trial_id)
        if known is None or known[1] is not trial.config or not known[0].add(report):
            return False
        self._news[trial.trial_id] = None
        return True

    def with_news(self) -> list[str]:
        return list(self._news)

    def take(self, id: str) -> Optional[tuple[bytes, bytes, bytes]]:
        """What the three files of a trial are to grow by, in the order of the loggers."""
        if id not in self._news:
            return None
        del self._news[id]
        texts: tuple[bytes, bytes, bytes] = self._of[id][0].take()
        return texts

    def forget(self, id: str) -> None:
        """The next report is for the loggers."""
        self._news.pop(id, None)
        self._of.pop(id, None)


def _row(values: dict[str, Any]) -> str:
    flat = flatten(values)
    return CSVLoggerCallback._row(list(flat), flat).decode()[:-1]
