"""A training session on parameter servers: who saves, and how it goes back with the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

import numpy as np

from . import ps
from ._arguments import PathLike
from ._server_run import from_plain, is_tensor, to_plain
from .errors import Invalid, Mismatch
from .scope import end_iteration_of

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
        try:
            addresses = ps.addresses_of(pservers, "pservers")
        except Invalid as error:
            raise Invalid(f"{error}; or give a cairn.ps.Client") from None
        self.client = ps.Client(addresses, directory=directory)
        self._own = True

    def begin(self, session: "MonitoredTrainingSession") -> None:
        """The servers' position becomes the session's."""
        if session._scaffold.saver.quantize and not self.client.quantizes:
            raise Invalid(
                "Saver(quantize=True): with pservers the servers save, and these store increments as "
                "they are; start them with --quantize, or cairn.ps.Server(quantize=True)"
            )
        self._first = to_plain(session.state, "state")
        self._begun = self.client.step
        self._take_position(session)

    def _take_position(self, session: "MonitoredTrainingSession") -> None:
        session.global_step = self.client.step
        stored = self.client.state
        if not isinstance(stored, dict) or "session" not in stored:
            stored = {"session": self._first}
        first = None
        if self.client.step <= self._begun:
            # Perhaps of an earlier program: what that had not keeps its first value.
            first = from_plain(self._first)
        session.state = _filled(session.state, from_plain(stored["session"]), "state", first)
        session._saved_call = stored.get("train_began")

    def _position(self, session: "MonitoredTrainingSession", step: int) -> Dict[str, Any]:
        position = {"session": to_plain(session.state, "state")}
        unfinished = None if session._call is None else session._call.unfinished(step)
        if unfinished is not None:
            position["train_began"] = unfinished
        session._saved_call = unfinished
        return position

    def run(self, session: "MonitoredTrainingSession", step_fn: Callable[..., Any]) -> Any:
        """One step, which the job has when this returns."""
        while True:
            try:
                for hook in session.hooks:
                    hook.before_run(session)
                result = step_fn(session.global_step)
                self.client.end_step(self._position(session, session.global_step + 1))
            except ps.RolledBack:
                # A process was lost, and all went back: this session too, with another step.
                end_iteration_of(session.state)
                self._take_position(session)
                continue
            session.global_step = self.client.step
            for hook in session.hooks:
                hook.after_run(session, result)
            end_iteration_of(session.state)
            return result

    def finish_call(self, session: "MonitoredTrainingSession") -> bool:
        """What the servers have says that the Estimator's call is done. False: the job went back."""
        if not session._call_is_told_wrongly() or self.client.step == 0:
            return True
        try:
            self.client.set_state(self._position(session, session.global_step))
        except ps.RolledBack:
            self._take_position(session)
            assert session._call is not None
            session._call.go_back(session.global_step)
            return False
        return True

    def increments(self) -> bool:
        """Whether the servers save some."""
        return self.client.increments

    def end(self, session: "MonitoredTrainingSession") -> None:
        for hook in session.hooks:
            hook.end(session)
        if self._own:
            self.client.close()


_NOTHING = object()


def _filled(target: Any, stored: Any, where: str, first: Any = _NOTHING) -> Any:
    """`stored`, with the arrays and tensors of `target` filled in place: others hold on to them. What
    is in `target` and not in `stored` goes, unless `first` has it."""
    if is_tensor(target):
        if not is_tensor(stored) or stored.shape != target.shape or stored.dtype != target.dtype:
            raise Mismatch(f"{where}: the servers have another one")
        target.data.copy_(stored)  # a parameter is no step of autograd here
        return target
    if isinstance(target, np.ndarray):
        if not isinstance(stored, np.ndarray) or stored.shape != target.shape:
            raise Mismatch(f"{where}: the servers have another one")
        target[...] = stored
        return target
    if isinstance(target, dict) and isinstance(stored, dict):
        kept = first if isinstance(first, dict) else {}
        for key in [key for key in target if key not in stored and key not in kept]:
            del target[key]
        for key, value in {**kept, **stored}.items():
            below = kept.get(key, _NOTHING)
            target[key] = (
                _filled(target[key], value, f"{where}/{key}", below) if key in target else value
            )
        return target
    if isinstance(target, list) and isinstance(stored, list) and len(target) == len(stored):
        target[:] = [
            _filled(old, new, f"{where}[{i}]") for i, (old, new) in enumerate(zip(target, stored))
        ]
        return target
    return stored
