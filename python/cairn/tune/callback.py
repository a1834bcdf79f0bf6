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

    >>> from cairn import tune
    >>> class Told(tune.Callback):
    ...     def setup(self, **info):
    ...         print("before anything else")
    ...     def on_restore(self, known):
    ...         print(len(known), "trials were there")
    ...     def on_step_begin(self, iteration, trials, **info):
    ...         pass                              # several times a second, as on_step_end
    ...     def on_trial_start(self, iteration, trials, trial, **info):
    ...         print(trial, "starts")
    ...     def on_trial_restore(self, iteration, trials, trial, **info):
    ...         print(trial, "starts from a checkpoint")
    ...     def on_trial_recover(self, iteration, trials, trial, **info):
    ...         print(trial, "failed and is tried again")
    ...     def on_trial_rewind(self, trial, training_iteration):
    ...         print(trial, "goes on after iteration", training_iteration)
    ...     def on_trial_result(self, iteration, trials, trial, result, **info):
    ...         print(trial, "reports", result["loss"])
    ...     def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
    ...         print(trial, "saved", checkpoint.to_dict())
    ...     def on_trial_save(self, iteration, trials, trial, **info):
    ...         pass                              # the same moment, without the checkpoint
    ...     def on_trial_complete(self, iteration, trials, trial, **info):
    ...         print(trial, "ends")
    ...     def on_trial_error(self, iteration, trials, trial, **info):
    ...         print(trial, "failed:", trial.error)
    ...     def on_step_end(self, iteration, trials, **info):
    ...         pass                              # several times a second
    ...     def on_experiment_end(self, trials, **info):
    ...         print(len(trials), "trials in all")
    >>> def train(config):
    ...     tune.report({"loss": 0.5}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
    >>> run = tune.RunConfig(storage_path="runs", verbose=0, callbacks=[Told()])
    >>> results = tune.Tuner(train, run_config=run).fit()
    before anything else
    0 trials were there
    train_00000 goes on after iteration 0
    train_00000 starts
    train_00000 saved {'step': 1}
    train_00000 reports 0.5
    train_00000 ends
    1 trials in all
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

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """What happens next is waited for."""

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A process of the trial is at work."""

    def on_trial_restore(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """After on_trial_start: it begins from a checkpoint, its own or another trial's."""

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """It failed, and is tried again."""

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

    def on_trial_save(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """After on_checkpoint, for programs that know it by this name."""

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
