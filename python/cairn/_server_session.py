"""A training session on parameter servers: who saves, and how it goes back with the job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from . import ps
from ._arguments import PathLike
from ._server_run import from_plain, to_plain
from .errors import Invalid, Mismatch

if TYPE_CHECKING:
    from ._training_session import MonitoredTrainingSession

__all__ = ["ServerSession"]


class ServerSession:
    """What a MonitoredTrainingSession does differently when its tables are on servers: they save,
    at the intervals that they were started with, and its state goes with the end of each step."""

    def __init__(self, pservers: Any, directory: Optional[PathLike]) -> None:
        if isinstance(pservers, ps.Client):
            self.client, self._own = pservers, False
            return
        if isinstance(pservers, str) or not all(isinstance(each, str) for each in pservers):
            raise Invalid('pservers: a list of "host:port", or a cairn.ps.Client')
        self.client = ps.Client(
            list(pservers), directory=None if directory is None else os.fspath(directory)
        )
        self._own = True

    def begin(self, session: "MonitoredTrainingSession") -> None:
        """The servers' position becomes the session's."""
        self._first = to_plain(session.state, "state")
        self._take_position(session)

    def _take_position(self, session: "MonitoredTrainingSession") -> None:
        session.global_step = self.client.step
        stored = self.client.state
        if stored is None or "session" not in stored:
            stored = {"session": self._first}
        session.state = _filled(session.state, from_plain(stored["session"]), "state")

    def run(self, session: "MonitoredTrainingSession", step_fn: Callable[..., Any]) -> Any:
        """One step, which the job has when this returns."""
        while True:
            try:
                for hook in session.hooks:
                    hook.before_run(session)
                result = step_fn(session.global_step)
                self.client.end_step({"session": to_plain(session.state, "state")})
            except ps.RolledBack:
                # A process was lost, and all went back: this session too, with another step.
                self._take_position(session)
                continue
            session.global_step = self.client.step
            for hook in session.hooks:
                hook.after_run(session, result)
            return result

    def increments(self) -> bool:
        """Whether the servers save some."""
        return self.client.increments

    def end(self, session: "MonitoredTrainingSession") -> None:
        for hook in session.hooks:
            hook.end(session)
        if self._own:
            self.client.close()


def _filled(target: Any, stored: Any, where: str) -> Any:
    """`stored`, with the arrays of `target` filled in place: others hold on to them."""
    if isinstance(target, np.ndarray):
        if not isinstance(stored, np.ndarray) or stored.shape != target.shape:
            raise Mismatch(f"{where}: the servers have another one")
        target[...] = stored
        return target
    if isinstance(target, dict) and isinstance(stored, dict):
        for key, value in stored.items():
            target[key] = _filled(target[key], value, f"{where}/{key}") if key in target else value
        return target
    if isinstance(target, list) and isinstance(stored, list) and len(target) == len(stored):
        target[:] = [
            _filled(old, new, f"{where}[{i}]") for i, (old, new) in enumerate(zip(target, stored))
        ]
        return target
    return stored
