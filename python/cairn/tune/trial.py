"""Trials as schedulers, searchers and callbacks see them."""

from __future__ import annotations

from typing import Any, Optional

from .checkpoint import Checkpoint

__all__ = ["Trial"]


class Trial:
    """One set of hyperparameters, and what became of it.

    Attributes:
        trial_id: its name, which is also its directory within the experiment.
        config: the hyperparameters.
        status: PENDING, RUNNING, PAUSED, TERMINATED or ERROR.
        last_result: its newest report, empty before the first.
        error: the traceback of a trial that failed for good.
        checkpoint: the newest that the tuner has seen; None before the first.

    >>> trial = Trial("train_00003", {"lr": 0.1}, "/runs/rates/train_00003")
    >>> trial.trainable_name, trial.path, trial.status, trial.is_finished()
    ('train', '/runs/rates/train_00003', 'PENDING', False)
    >>> trial.logdir == trial.path, trial.checkpoint
    (True, None)
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    def __init__(
        self, trial_id: str, config: Optional[dict[str, Any]] = None, local_path: str = ""
    ) -> None:
        self.trial_id = trial_id
        self.config: dict[str, Any] = {} if config is None else config
        self.local_path = local_path
        self.status = Trial.PENDING
        self.last_result: dict[str, Any] = {}
        self.error: Optional[str] = None
        self.checkpoint: Optional[Checkpoint] = None

    @property
    def trainable_name(self) -> str:
        """Of the function or class."""
        return self.trial_id.rsplit("_", 2)[0]

    @property
    def path(self) -> str:
        """Its directory."""
        return self.local_path

    @property
    def logdir(self) -> str:
        """The same, under its name of before."""
        return self.local_path

    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in (Trial.TERMINATED, Trial.ERROR)

    def __repr__(self) -> str:
        return self.trial_id

    __str__ = __repr__
