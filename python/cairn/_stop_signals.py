"""Signals that end a training after the step under way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Dict, Optional

__all__ = ["StopSignals"]


class StopSignals:
    """While training runs, SIGTERM and Ctrl-C end it after the step, with a save. A second Ctrl-C
    ends it at once. Only on the main thread, as Python has it."""

    def __init__(self) -> None:
        self.received: Optional[int] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks for
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            print("cairn: saving after this step; Ctrl-C again ends at once", file=sys.stderr)
        self.received = number

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def deliver(self) -> None:
        """What the signal would have done without us; with the handlers put back."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            os.kill(os.getpid(), self.received)
