"""Being asked to stop: by a master, or by signals when there is none."""

from __future__ import annotations

import enum
import logging
import signal
import threading
from typing import Any, Optional

from .._signal_handlers import SignalHandlers
from ..errors import Invalid
from ._distributed import DistributedContext

log = logging.getLogger("cairn.core")

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class PreemptMode(enum.Enum):
    """Who asks whether the trial is to stop.

    WorkersAskChief: every rank calls should_preempt at the same points; all get the chief's answer.
    ChiefOnly: only the chief calls it, and tells the others in its own way.
    WorkersAskMaster: each rank asks for itself; answers of different ranks may differ for a moment.

    >>> import cairn
    >>> with cairn.core.init(storage="runs/a", preempt_mode=cairn.core.PreemptMode.ChiefOnly) as ctx:
    ...     stop = ctx.distributed.is_chief and ctx.preempt.should_preempt()
    >>> stop
    False
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class SignalFlag:
    """SIGTERM, SIGUSR1 and Ctrl-C set a flag and nothing else, while this is installed. A second
    Ctrl-C is what it always was."""

    def __init__(self) -> None:
        self.raised = False
        self._handlers = SignalHandlers(self._on_signal)

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            log.warning("core.init outside of the main thread: SIGTERM and Ctrl-C are not watched")
            return
        self._handlers.install(_SIGNALS)

    def remove(self) -> None:
        self._handlers.remove()

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and self.raised:
            raise KeyboardInterrupt
        self.raised = True


class PreemptContext:
    """Tells when to save and leave.

    >>> import os, signal, cairn
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     print(ctx.preempt.should_preempt())
    ...     os.kill(os.getpid(), signal.SIGUSR1)      # or a master asks
    ...     if ctx.preempt.should_preempt(auto_ack=False):
    ...         handle = ctx.checkpoint.save({"x": 1}, {"steps_completed": 1}, blocking=True)
    ...         ctx.preempt.acknowledge_preemption_signal()
    ...     print(len(ctx.checkpoint.list()), ctx.preempt.acknowledged)   # no master, nobody to tell
    False
    1 False
    """

    def __init__(
        self,
        distributed: DistributedContext,
        mode: PreemptMode,
        signals: SignalFlag,
        client: Optional[Any],
    ) -> None:
        self._distributed = distributed
        self._mode = mode
        self._signals = signals
        self._client = client
        self._asked = False  # by the master, not by a signal alone
        self._acknowledged = False
        self._alone = distributed.size == 1
        self._may_ask = mode is not PreemptMode.ChiefOnly or distributed.is_chief

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """True when the trial is to save a checkpoint and exit.

        Costs nothing where no rank has to ask another one: a flag is read that the background sets.

        Args:
            auto_ack: a True answer also tells the master that this process will save and exit with
                0. Otherwise call acknowledge_preemption_signal.
        """
        if not self._may_ask:
            raise Invalid(
                f"rank {self._distributed.rank} asks, and in PreemptMode.ChiefOnly only rank 0 does"
            )
        client = self._client
        self._asked = client is not None and client.preempt
        told = self._signals.raised or self._asked
        if not self._alone and self._mode is PreemptMode.WorkersAskChief:
            told, self._asked = self._distributed.broadcast((told, self._asked))
        if told and auto_ack and not self._acknowledged:
            self.acknowledge_preemption_signal()
        return told

    def acknowledge_preemption_signal(self) -> None:
        """Tells the master that this process was told, will save, and exit with 0. Without a master:
        nothing."""
        if self._client is None or not (self._asked or self._client.preempt):
            return  # told by a signal alone: the master has asked for nothing
        if self._distributed.is_chief:
            self._client.acknowledge_preemption()
        self._acknowledged = True

    @property
    def acknowledged(self) -> bool:
        """True when the master was told that this trial saves and exits with 0."""
        return self._acknowledged
