"""Watching saves: what each one cost, told to callbacks and shown on a terminal.

A manager with callbacks or a terminal has one thread that waits for the saves in the order they
were made. It never holds the manager's lock while it calls anybody.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, TextIO

from ._wording import a_type
from .errors import Error, Invalid

__all__ = ["SaveRecord"]

log = logging.getLogger("cairn")

_FIRST_LINE_AFTER = 0.2  # seconds; shorter saves show nothing
_BETWEEN_LINES = 0.1


@dataclasses.dataclass(frozen=True)
class SaveRecord:
    """What one save came to; given to callbacks when it is durable or has failed.

    Attributes:
        step: of the save.
        id, path, bytes: of the checkpoint; "", "" and 0 when the save failed.
        stall_seconds: how long the caller of save (and guard) was held up.
        durable_seconds: from the call of save until it was durable; 0 when it failed.
        bytes_written: by this rank.
        bytes_shared: of files that did not change and were linked instead of written.
        error: what went wrong, or None. A Cancelled one was skipped (on_busy="skip").

    >>> import cairn
    >>> records = []
    >>> with cairn.CheckpointManager("runs/a", on_saved=records.append) as m:
    ...     handle = m.save(7, {"x": 1})
    >>> records[0].step, records[0].ok, sorted(records[0].metrics())
    (7, True, ['bytes', 'bytes_shared', 'bytes_written', 'durable_seconds', 'stall_seconds'])
    """

    step: int
    id: str
    path: str
    bytes: int
    stall_seconds: float
    durable_seconds: float
    bytes_written: int
    bytes_shared: int
    error: Optional[Error] = None

    @property
    def ok(self) -> bool:
        """True when the checkpoint is durable."""
        return self.error is None

    def metrics(self) -> Dict[str, float]:
        """The numbers, for loggers."""
        names = ("bytes", "stall_seconds", "durable_seconds", "bytes_written", "bytes_shared")
        return {name: getattr(self, name) for name in names}


SavedCallback = Callable[[SaveRecord], Any]


class SaveWatcher:
    """Waits for the saves of one manager and tells who asked.

    watch and drain may be called from any thread; callbacks run on the watcher's own, one at a
    time, in the order of the saves. What they raise is logged.
    """

    def __init__(self, progress: Optional[bool], rank: int) -> None:
        self._callbacks: List[SavedCallback] = []
        self._line = _make_line(progress, rank)
        self._saves: "queue.Queue[Any]" = queue.Queue()
        self._thread: Optional[threading.Thread] = None
        self._pid = os.getpid()

    def add(self, callback: SavedCallback) -> None:
        if not callable(callback):
            raise Invalid(f"a callback must be callable, not {a_type(callback)}")
        self._callbacks.append(callback)

    def watch(self, handle: Any, nbytes: int) -> None:
        """A save was handed over; `nbytes` is about what it will write."""
        if not self._callbacks and self._line is None:
            return
        if self._thread is None or not self._thread.is_alive():
            # Not waited for when the interpreter ends: the managers' atexit does it, by drain.
            self._thread = threading.Thread(target=self._run, name="cairn-saves", daemon=True)
            self._thread.start()
        self._saves.put((handle, nbytes))

    def drain(self) -> None:
        """Returns when all saves so far are done and everybody was told."""
        if os.getpid() != self._pid or self._thread is None:
            return
        if threading.current_thread() is self._thread:
            return  # a callback that closes its manager must not wait for itself
        reached = threading.Event()
        self._saves.put(reached)
        while not reached.wait(0.05) and self._thread.is_alive():
            pass  # Python runs its signal handlers here

    def close(self) -> None:
        """As drain; the thread ends."""
        self.drain()
        self.forget()

    def forget(self) -> None:
        """Ends the thread when its work is done, without waiting for it."""
        if os.getpid() == self._pid:
            self._saves.put(None)

    def _run(self) -> None:
        while True:
            item = self._saves.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
                continue
            handle, nbytes = item
            self._wait(handle, nbytes)
            self._tell(handle)

    def _wait(self, handle: Any, nbytes: int) -> None:
        native = handle._native
        if self._line is None:
            while not native.wait_for(60):
                pass
            return
        if native.wait_for(_FIRST_LINE_AFTER):
            return
        try:
            while True:
                done = handle.bytes_written + handle.bytes_shared
                self._line.show(f"saving step {handle.step}: {_amount(done, nbytes)}")
                if native.wait_for(_BETWEEN_LINES):
                    return
        finally:
            self._line.clear()

    def _tell(self, handle: Any) -> None:
        if not self._callbacks:
            return
        info, error = handle._outcome()
        record = SaveRecord(
            step=handle.step,
            id="" if info is None else str(info["id"]),
            path="" if info is None else str(info["path"]),
            bytes=0 if info is None else int(info["bytes"]),
            stall_seconds=handle.stall_seconds,
            durable_seconds=handle.durable_seconds if error is None else 0.0,
            bytes_written=handle.bytes_written,
            bytes_shared=handle.bytes_shared,
            error=error,
        )
        for callback in list(self._callbacks):
            try:
                callback(record)
            except Exception:
                log.exception("a callback failed after the save of step %d", record.step)


class _Line:
    """One line of a terminal, written over in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        self._write(f"\r{text}\x1b[K")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the save is not


def _make_line(progress: Optional[bool], rank: int) -> Optional[_Line]:
    if progress is not None and not isinstance(progress, bool):
        raise Invalid(f"progress must be True, False or None, not {progress!r}")
    stream = sys.stderr
    if stream is None or progress is False:
        return None
    if progress is None and (rank != 0 or not stream.isatty()):
        return None
    return _Line(stream)


def _amount(done: int, total: int) -> str:
    """Such as "1.2/2.0 GB"."""
    total = max(total, done)
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if total >= size:
            return f"{done / size:.1f}/{total / size:.1f} {unit}"
    return f"{done}/{total} B"
