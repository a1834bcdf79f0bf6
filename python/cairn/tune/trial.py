"""Trials as schedulers, searchers and callbacks see them."""

from __future__ import annotations

from collections.abc import Callable
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
        custom_trial_name: by TuneConfig(trial_name_creator=…), and then what str() gives.

    >>> trial = Trial("train_00003", {"lr": 0.1}, "/runs/rates/train_00003")
    >>> trial.trainable_name, trial.path, trial.status, trial.is_finished()
    ('train', '/runs/rates/train_00003', 'PENDING', False)
    >>> trial.logdir == trial.path, trial.checkpoint, trial.last_result
    (True, None, {})
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
        self._last_result: dict[str, Any] = {}
        self._make_result: Optional[Callable[[], dict[str, Any]]] = None
        self.error: Optional[str] = None
        self.checkpoint: Optional[Checkpoint] = None
        self.custom_trial_name: Optional[str] = None

    @property
    def last_result(self) -> dict[str, Any]:
        """Its newest report, empty before the first. Of thousands few are looked at: it is made then."""
        if self._make_result is not None:
            self._last_result, self._make_result = self._make_result(), None
        return self._last_result

    @last_result.setter
    def last_result(self, result: dict[str, Any]) -> None:
        self._last_result, self._make_result = result, None

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, and of what is pickled: with the report itself."""
        return {**self.__dict__, "_last_result": self.last_result, "_make_result": None}

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
        return self.custom_trial_name or self.trial_id

    __str__ = __repr__


def name_trial(trial: Trial, creator: Optional[Callable[[Trial], str]]) -> None:
    """Gives it its name for people; ValueError for what is none."""
    if creator is None:
        return
    name = creator(trial)
    if not isinstance(name, str) or not name:
        raise ValueError(f"trial_name_creator must give {trial.trial_id} a text for its name, not {name!r}")
    trial.custom_trial_name = name
