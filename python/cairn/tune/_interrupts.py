"""Ctrl-C while trials run."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any


class Interrupts:
    """Counts Ctrl-C instead of raising it in the middle of something."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupts":
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def _on_signal(self, *_: Any) -> None:
        self.count += 1
        if self.count == 1:
            print("cairn.tune: trials save and pause; once more ends them at once", file=sys.stderr)

    def __exit__(self, *_: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
