"""Callback: be told what happens to trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from .trial import Trial

__all__ = ["Callback"]


class Callback:
    """Derive from it, override what you want to be told, and give it to ``RunConfig(callbacks=[…])``.

    What a callback is told is durable: reports and checkpoints are on record before. `iteration` counts
    what was told; `trials` are all trials. After a restart of the tuner a callback is told of what
    happens from then on; ``on_restore`` has what was before.
    """

    def setup(
        self,
        stop: Optional[Any] = None,
        num_samples: Optional[int] = None,
        total_num_samples: Optional[int] = None,
        **info: Any,
    ) -> None:
        """Before anything else."""

    def on_restore(self, known: Sequence[tuple[Trial, Sequence[dict[str, Any]]]]) -> None:
        """Before the first start of a process: the trials that are on record with what they reported."""

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A process of the trial is at work."""

    def on_trial_rewind(self, trial: Trial, training_iteration: int) -> None:
        """The trial goes on after this iteration: what it reported later is void."""

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A report."""

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Any, **info: Any
    ) -> None:
        """A checkpoint is committed."""

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """The trial has ended, well."""

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """The trial has failed for good."""

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """All that has happened until now was told."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """After everything else."""
