"""The process that workers are forked from: `python -m cairn.tune.zygote`.

It imports what the trainable needs, once, and starts no threads. Descriptor 3 is a socket to the
tuner: a line of JSON for each message (docs/format/tune.md). Descriptor 4 is a pipe that nobody
writes to: when the tuner is gone, it ends, and with it every worker; a second pipe does the same for
workers whose zygote was killed.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import pickle
import select
import shutil
import signal
import sys
import traceback
from typing import Any, Dict, List, Optional

from .. import _native
from . import _output
from ._gpus import VISIBLE, GpuPlaces
from ._reused_workers import IDLE, REFUSED, Kept, ReusableWorkers

_CONTROL = 3
_OWNER = 4


class Zygote:
    def __init__(self) -> None:
        self._input = bytearray()
        self._ids: Dict[int, str] = {}  # pid → launch
        self._alive_read, self._alive_write = os.pipe()
        self._woken_read, woken_write = os.pipe()
        for fd in (self._woken_read, woken_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken_write, warn_on_full_buffer=False)
        self._trainable: Any = None
        self._settings: Dict[str, Any] = {}
        self._gpus: Optional[GpuPlaces] = None
        self._reused: Optional[ReusableWorkers] = None
        self._env: Dict[str, Dict[str, str]] = {}  # of the launches that live
        self._url = ""

    def main(self) -> int:
        try:
            self._learn()
        except BaseException:
            self._send({"op": "failed", "error": traceback.format_exc()})
            os.read(_OWNER, 1)  # until the tuner has heard
            return 1
        # From here on the loop looks: its workers are to end first.
        fcntl.fcntl(_OWNER, fcntl.F_SETFL, fcntl.fcntl(_OWNER, fcntl.F_GETFL) & ~os.O_ASYNC)
        self._send({"op": "ready"})
        gc.collect()
        gc.freeze()  # pages that workers share are not touched by their collector
        while True:
            while b"\n" in self._input:
                self._handle(json.loads(self._line()))
            lines = self._reused.lines() if self._reused is not None else []
            ready, _, _ = select.select([_CONTROL, _OWNER, self._woken_read, *lines], [], [])
            if self._woken_read in ready:
                try:
                    os.read(self._woken_read, 4096)
                except BlockingIOError:
                    pass
            self._reap()
            self._listen()
            if _OWNER in ready:
                return self._end()
            if _CONTROL in ready:
                data = os.read(_CONTROL, 1 << 16)
                if not data:
                    return self._end()
                self._input += data

    def _learn(self) -> None:
        while b"\n" not in self._input:
            self._more()
        size = int(json.loads(self._line())["bytes"])
        # Read into its place: it may be large, with data that is bound to the trainable.
        payload = bytearray(size)
        have = min(size, len(self._input))
        payload[:have] = self._input[:have]
        del self._input[:have]
        while have < size:
            got = os.readv(_CONTROL, [memoryview(payload)[have:]])
            if got == 0:
                os._exit(1)
            have += got
        given = pickle.loads(payload)
        del payload
        sys.path[:] = given["path"]
        sys.argv = given["argv"]
        self._settings = given["settings"]
        if self._settings["gpus"] is not None:
            self._gpus = GpuPlaces(self._settings["gpus"]["names"], self._settings["gpus"]["each"])
        if self._settings["reuse"]:
            self._reused = ReusableWorkers()
        self._trainable = pickle.loads(given["trainable"])
        from . import worker  # noqa: F401  (imported before the forks)

        if "numpy" in sys.modules:
            import numpy.random  # noqa: F401  (numpy itself loads it late: once in every worker)

    def _line(self) -> bytes:
        end = self._input.index(b"\n")
        line = bytes(self._input[:end])
        del self._input[: end + 1]
        return line

    def _more(self) -> None:
        data = os.read(_CONTROL, 1 << 20)
        if not data:
            os._exit(1)
        self._input += data

    def _send(self, message: Dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            try:
                data = data[os.write(_CONTROL, data) :]
            except (BrokenPipeError, ConnectionResetError):
                return  # the tuner is gone, which the pipe says

    def _handle(self, message: Dict[str, Any]) -> None:
        id = str(message["id"])
        if message["op"] == "start":
            self._start(id, {str(k): str(v) for k, v in message["env"].items()})
        elif message["op"] == "signal":
            for pid, of in self._ids.items():
                if of != id:
                    continue
                if message["signal"] == signal.SIGKILL:
                    _kill_group(pid)
                else:
                    os.kill(pid, message["signal"])  # not reaped, so it is that process

    def _start(self, id: str, env: Dict[str, str]) -> None:
        self._url = env.get("CAIRN_TRIAL_URL", "")
        if self._gpus is not None:
            env = {**env, VISIBLE: self._gpus.take(id)}
        self._env[id] = env
        pid = self._reused.take_up(env) if self._reused is not None else None
        if pid is None:
            pid = self._fork(env)
        self._ids[pid] = id
        self._send({"op": "started", "id": id, "pid": pid})

    def _fork(self, env: Dict[str, str]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = self._reused.line() if self._reused is not None else (None, None)
        pid = os.fork()
        if pid == 0:
            if self._reused is None or ours is None or theirs is None:
                self._become_worker(env, None)
            else:
                ours.close()
                self._reused.forget_all()
                self._become_worker(env, Kept(theirs))
        if self._reused is not None and ours is not None and theirs is not None:
            theirs.close()
            self._reused.add(pid, ours, env)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it did that itself, or is gone
        return pid

    def _become_worker(self, env: Dict[str, str], kept: Optional[Kept]) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(_CONTROL)
            os.close(self._alive_write)
            _native.end_with([_OWNER, self._alive_read])
            from . import worker

            if kept is None:
                code = worker.begin(self._trainable, self._settings, env)
            else:
                code = worker.begin_again_and_again(self._trainable, self._settings, env, kept)
            _output.flush()
        except BaseException:
            _output.tell(traceback.format_exc())
        finally:
            os._exit(code)

    def _listen(self) -> None:
        """To workers that may be reused."""
        if self._reused is None:
            return
        for pid, word in self._reused.with_news():
            if word == IDLE:
                self._reused.rest(pid)
                self._send({"op": "ended", "id": self._leave(pid), "code": 0, "stays": True})
            elif word == REFUSED:
                self._go_on_in_a_fork(pid)

    def _go_on_in_a_fork(self, refused: int) -> None:
        id = self._ids.pop(refused)
        pid = self._fork(self._env[id])
        self._ids[pid] = id
        self._send({"op": "started", "id": id, "pid": pid})

    def _leave(self, pid: int) -> Optional[str]:
        """The launch that a process had, which has ended."""
        id = self._ids.pop(pid, None)
        if id is not None:
            self._env.pop(id, None)
            if self._gpus is not None:
                self._gpus.give_back(id)
        return id

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            said = self._reused.said(pid) if self._reused is not None else b""
            waited = self._reused is not None and self._reused.remove(pid)
            if pid not in self._ids and not waited:
                continue  # something that the trainable's modules started, or one that had refused
            _kill_group(pid, itself=False)  # what it started and left behind
            if waited:
                continue
            if said == REFUSED:
                self._go_on_in_a_fork(pid)
                continue
            ended: Dict[str, Any] = {"op": "ended", "id": self._leave(pid)}
            if said == IDLE:  # and then it was killed
                ended["code"] = 0
            elif os.WIFSIGNALED(status):
                ended["signal"] = os.WTERMSIG(status)
            else:
                ended["code"] = os.WEXITSTATUS(status)
            self._send(ended)

    def _end(self) -> int:
        for pid in self._ids:
            _kill_group(pid)
        left: List[int] = list(self._ids)
        if self._reused is not None:
            waited = self._reused.end()
            for pid in waited:
                _kill_group(pid)
            left += waited
        for pid in left:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        # The tuner's socket, if it was killed. In good order it has removed that itself.
        socket = self._url[len("unix:") :] if self._url.startswith("unix:") else ""
        if os.path.basename(os.path.dirname(socket)).startswith("cairn-tune-"):
            shutil.rmtree(os.path.dirname(socket), ignore_errors=True)
        return 0


def _kill_group(pid: int, itself: bool = True) -> None:
    for kill in (os.killpg, os.kill) if itself else (os.killpg,):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def main() -> None:
    """Never returns."""
    os._exit(Zygote().main())


if __name__ == "__main__":
    main()
