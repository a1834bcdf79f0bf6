"""Signals that end a training after the step under way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Optional

from ._signal_handlers import SignalHandlers

__all__ = ["StopSignals"]


class StopSignals:
    """While training runs, SIGTERM and Ctrl-C end it after the step, with a save. A second Ctrl-C
    ends it at once. Only on the main thread, as Python has it."""

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._handlers = SignalHandlers(self._handle)
        self._pid = os.getpid()

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            both = (signal.SIGTERM, signal.SIGINT)
            # Ignored, as nohup asks for, they stay so.
            self._handlers.install(n for n in both if signal.getsignal(n) != signal.SIG_IGN)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            if os.getpid() == self._pid:
                print("cairn: saving after this step; Ctrl-C again ends at once", file=sys.stderr)
        self.received = number

    def __exit__(self, *_: Any) -> None:
        self._handlers.remove()

    def deliver(self) -> None:
        """What the signal would have done without us; with the handlers put back."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            os.kill(os.getpid(), self.received)
