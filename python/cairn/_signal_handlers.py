"""Handlers of signals that are ours for a while."""

from __future__ import annotations

import os
import signal
import weakref
from typing import Any, Callable, Dict, Iterable

__all__ = ["SignalHandlers"]


class SignalHandlers:
    """Handlers that one function is for a while. Only on the main thread, as Python has it.

    Processes that are forked meanwhile (by a reader, a pool) have nothing to save, and whoever started
    them ends them by signals: there the handlers from before are back. Only Ctrl-C stays with the
    function, since a terminal sends it to them too, and what they do is needed to the end."""

    def __init__(self, handle: Callable[[int, Any], None]) -> None:
        self._handle = handle
        self._before: Dict[int, Any] = {}

    def install(self, numbers: Iterable[int]) -> None:
        """From now on; also a second time."""
        for number in numbers:
            self._before.setdefault(number, signal.signal(number, self._handle))
        _installed.add(self)

    def remove(self) -> None:
        """The handlers from before are back."""
        _installed.discard(self)
        for number in list(self._before):
            self._put_back(number)

    def _put_back(self, number: int) -> None:
        before = self._before.pop(number)
        # None: it was not set by Python, which cannot set it again.
        signal.signal(number, signal.SIG_DFL if before is None else before)

    def _in_fork(self) -> None:
        for number in list(self._before):
            if number != signal.SIGINT and signal.getsignal(number) == self._handle:
                self._put_back(number)


_installed: "weakref.WeakSet[SignalHandlers]" = weakref.WeakSet()


def _in_fork() -> None:
    for each in list(_installed):
        each._in_fork()


os.register_at_fork(after_in_child=_in_fork)
