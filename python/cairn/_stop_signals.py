"""Signals that end a training after the step under way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from typing import Any, Dict, Optional

__all__ = ["StopSignals"]


class StopSignals:
    """While training runs, SIGTERM and Ctrl-C end it after the step, with a save. A second Ctrl-C
    ends it at once. Only on the main thread, as Python has it.

    Processes that are forked meanwhile (by a reader, say) have nothing to save: SIGTERM ends them as
    it would have without us. A terminal sends them Ctrl-C too, which is for the training: it needs
    them for the step that is under way, and they let the first one pass."""

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._before: Dict[int, Any] = {}
        self._pid = os.getpid()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks for
                    self._before[number] = signal.signal(number, self._handle)
            _installed.add(self)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            if os.getpid() == self._pid:
                print("cairn: saving after this step; Ctrl-C again ends at once", file=sys.stderr)
        self.received = number

    def __exit__(self, *_: Any) -> None:
        _installed.discard(self)
        for number in list(self._before):
            self._put_back(number)

    def _put_back(self, number: int) -> None:
        handler = self._before.pop(number)
        # None: it was not set by Python, which cannot set it again.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def deliver(self) -> None:
        """What the signal would have done without us; with the handlers put back."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            os.kill(os.getpid(), self.received)


_installed: "weakref.WeakSet[StopSignals]" = weakref.WeakSet()


def _in_fork() -> None:
    for each in list(_installed):
        if signal.getsignal(signal.SIGTERM) == each._handle:
            each._put_back(signal.SIGTERM)


os.register_at_fork(after_in_child=_in_fork)
