"""Workers that take up another run when theirs has ended: TuneConfig(reuse_actors=True).

A worker whose run ended in good order keeps its object of the trainable's class, tells the zygote over a
socket of their own, and waits for the next run, which `reset_config` prepares it for. One that failed,
that was left in the middle of a step, or whose reset_config returns False ends, and the run has a fork
of the zygote's as without all of this.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._gpus import VISIBLE

# What a worker says: its run has ended with code 0, and it waits; or it cannot take up the one that it
# was given, has done nothing for it, and ends.
IDLE = b"i"
REFUSED = b"r"

# For all cleanup() together, when the tuner ends.
_PATIENCE = 3.0


class Kept:
    """In a worker: the object that goes from one run to the next, and the line to the zygote."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._read = bytearray()
        self.trainable: Any = None

    def take(self) -> Any:
        """The object, which is the caller's from now on; None: there is none."""
        taken, self.trainable = self.trainable, None
        return taken

    def next_run(self) -> Optional[Dict[str, str]]:
        """Says that the run has ended; waits for the environment of the next. None: there is none."""
        try:
            self._line.sendall(IDLE)
            while b"\n" not in self._read:
                data = self._line.recv(1 << 16)
                if not data:
                    return None
                self._read += data
        except OSError:  # the trainable closed it, with all that it found open
            return None
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read[:] = rest
        return {str(k): str(v) for k, v in json.loads(line).items()}

    def refuse(self) -> None:
        """The run that was given last is to have a process of its own."""
        self._line.sendall(REFUSED)


class ReusableWorkers:
    """In the zygote: the lines to all workers, and who waits for a run."""

    def __init__(self) -> None:
        self._lines: Dict[int, socket.socket] = {}  # by pid
        self._gpus: Dict[int, Optional[str]] = {}
        self._idle: List[int] = []

    @staticmethod
    def line() -> Tuple[socket.socket, socket.socket]:
        """The zygote's end and the worker's, to be made before the fork."""
        return socket.socketpair()

    def add(self, pid: int, line: socket.socket, env: Mapping[str, str]) -> None:
        line.setblocking(False)
        self._lines[pid] = line
        self._gpus[pid] = env.get(VISIBLE)

    def forget_all(self) -> None:
        """In a fork: a line ends when its two owners have closed it, and nobody else has it."""
        for line in self._lines.values():
            line.close()

    def lines(self) -> List[socket.socket]:
        return list(self._lines.values())

    def remove(self, pid: int) -> bool:
        """Its process is gone. True: it was one that waited."""
        line = self._lines.pop(pid, None)
        if line is not None:
            line.close()
        self._gpus.pop(pid, None)
        if pid not in self._idle:
            return False
        self._idle.remove(pid)
        return True

    def said(self, pid: int) -> bytes:
        """What a worker said since it was last asked: IDLE, REFUSED, or nothing."""
        line = self._lines.get(pid)
        try:
            return line.recv(1) if line is not None else b""
        except OSError:  # nothing yet, or it is gone
            return b""

    def with_news(self) -> List[Tuple[int, bytes]]:
        """Who said something since it was last asked."""
        ready, _, _ = select.select(self.lines(), [], [], 0) if self._lines else ([], [], [])
        heard = [(pid, self.said(pid)) for pid, line in list(self._lines.items()) if line in ready]
        for pid, word in heard:
            if not word:  # it has closed its end: it is about to go, which its status will say
                self._lines.pop(pid).close()
        return [(pid, word) for pid, word in heard if word]

    def rest(self, pid: int) -> None:
        """Its run has ended: it waits for another."""
        self._idle.append(pid)

    def take_up(self, env: Mapping[str, str]) -> Optional[int]:
        """Gives the run to one that waits and has the same GPUs; None: there is no such one."""
        for pid in list(self._idle):
            if self._gpus.get(pid) != env.get(VISIBLE):
                continue
            self._idle.remove(pid)
            try:
                self._lines[pid].sendall(json.dumps(dict(env)).encode() + b"\n")
                return pid
            except (KeyError, OSError):
                continue  # it was killed while it waited
        return None

    def end(self) -> List[int]:
        """No more runs: those that wait clean up and end. They are returned, not reaped, those that have
        ended or those whose time was over."""
        for pid in self._idle:
            line = self._lines.pop(pid, None)
            if line is not None:
                line.close()
        until = time.monotonic() + _PATIENCE
        while any(map(_lives, self._idle)) and time.monotonic() < until:
            time.sleep(0.002)
        return self._idle


def _lives(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
