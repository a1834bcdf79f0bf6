"""When trials, or the whole experiment, end.

Example:
    >>> stopper = CombinedStopper(MaximumIterationStopper(max_iter=2), TimeoutStopper(timeout=3600))
    >>> [stopper("trial", {"loss": 1.0}) for _ in range(2)]
    [False, True]
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

from cairn import _native

from .._arguments import json_values

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
]


class Stopper:
    """Subclass it: ``__call__`` says whether a trial ends, ``stop_all`` whether everything does.

    >>> from cairn import tune
    >>> class LossIsLow(tune.Stopper):
    ...     low = False
    ...     def __call__(self, trial_id, result):
    ...         self.low = self.low or result["loss"] < 0.1
    ...         return False
    ...     def stop_all(self):
    ...         return self.low
    ...     def on_elapsed(self, seconds):
    ...         print("was at work for", seconds)
    ...     def on_restart(self, trial_id):
    ...         print(trial_id, "begins anew")    # after Tuner.restore(restart_errored=True)
    ...     def describe(self):
    ...         return None                       # Tuner.restore has to be given it again
    >>> def train(config):
    ...     tune.report({"loss": config["loss"]})
    >>> results = tune.Tuner(
    ...     train,
    ...     param_space={"loss": tune.grid_search([0.5, 0.05, 0.01])},
    ...     tune_config=tune.TuneConfig(max_concurrent_trials=1),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0, stop=LossIsLow()),
    ... ).fit()
    was at work for 0.0
    >>> [result.metrics["loss"] for result in results if result.metrics]
    [0.5, 0.05]
    """

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether all trials end; asked after each result."""
        return False

    def on_elapsed(self, seconds: float) -> None:
        """How long the experiment was at work before this process; told once."""

    def on_restart(self, trial_id: str) -> None:
        """A trial that had failed begins anew: what it reported before is another life's."""

    def describe(self) -> Optional[dict[str, Any]]:
        """What it is, as the record of an experiment has it; None: it has to be given again."""
        return None


class _NativeStopper(Stopper):
    def __init__(self, name: str, **options: Any) -> None:
        self._description = {"name": name, **options}
        self._native = _native.TuneStopper(self._description)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._native.should_stop(trial_id, result)

    def stop_all(self) -> bool:
        return self._native.stop_all()

    def on_elapsed(self, seconds: float) -> None:
        self._native.on_elapsed(seconds)

    def on_restart(self, trial_id: str) -> None:
        self._native.on_restart(trial_id)

    def _check(self, result: dict[str, Any]) -> None:
        self._native.check(result)

    def describe(self) -> Optional[dict[str, Any]]:
        # A subclass may decide otherwise; what it is cannot be written down.
        return self._description if type(self).__module__ == __name__ else None


def check(stopper: Any, result: dict[str, Any]) -> None:
    """ValueError when the result lacks what is decided by; nobody has counted it then."""
    getattr(stopper, "_check", lambda _: None)(result)


class NoopStopper(Stopper):
    """Never.

    >>> NoopStopper()("trial", {"training_iteration": 10**9})
    False
    """

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def describe(self) -> Optional[dict[str, Any]]:
        return {"name": "combined", "stoppers": []} if type(self) is NoopStopper else None


class BoundsStopper(_NativeStopper):
    """What ``RunConfig(stop={"training_iteration": 10, "acc": 0.9})`` means: a trial ends when any of
    the metrics is at its bound or above."""

    def __init__(self, bounds: Mapping[str, Any]) -> None:
        super().__init__("bounds", bounds=json_values(dict(bounds), "stop"))


class MaximumIterationStopper(_NativeStopper):
    """After so many results of a trial.

    >>> stopper = MaximumIterationStopper(max_iter=2)
    >>> stopper("a", {"loss": 1.0}), stopper("b", {"loss": 1.0}), stopper("a", {"loss": 1.0})
    (False, False, True)
    """

    def __init__(self, max_iter: int) -> None:
        super().__init__("iterations", max_iter=max_iter)


class TrialPlateauStopper(_NativeStopper):
    """When the last num_results values of a metric have a standard deviation of at most `std`, not
    before grace_period results; with metric_threshold (and mode) only when it is at least that good.

    >>> stopper = TrialPlateauStopper("loss", std=0.01, num_results=3, grace_period=3)
    >>> [stopper("a", {"loss": loss}) for loss in [1.0, 0.5, 0.3, 0.301, 0.299]]
    [False, False, False, False, True]
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: Optional[float] = None,
        mode: Optional[str] = None,
    ) -> None:
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ValueError(f"metric_threshold needs mode='min' or 'max', not {mode!r}")
        super().__init__(
            "trial_plateau",
            metric=metric,
            std=std,
            num_results=num_results,
            grace_period=grace_period,
            metric_threshold=metric_threshold,
            mode=mode,
        )


class ExperimentPlateauStopper(_NativeStopper):
    """Everything ends when the best `top` values of all trials have a standard deviation of at most
    `std` for more than `patience` results.

    >>> stopper = ExperimentPlateauStopper("loss", std=0.01, top=3, mode="min", patience=1)
    >>> for loss in [0.5, 0.3, 0.301, 0.299, 0.3]:
    ...     ended = stopper("a", {"loss": loss})
    ...     print(stopper.stop_all())
    False
    False
    False
    False
    True
    """

    def __init__(
        self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0
    ) -> None:
        super().__init__(
            "experiment_plateau", metric=metric, std=std, top=top, mode=mode, patience=patience
        )


class TimeoutStopper(_NativeStopper):
    """Everything ends after so many seconds (or a timedelta) of work, those of earlier processes
    included; time in which no tuner ran does not count.

    >>> import datetime
    >>> stopper = TimeoutStopper(datetime.timedelta(hours=8))
    >>> stopper.stop_all()
    False
    >>> stopper.on_elapsed(9 * 3600)               # in processes before this one
    >>> stopper.stop_all()
    True
    """

    def __init__(self, timeout: Union[float, datetime.timedelta]) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        super().__init__("timeout", timeout=seconds)


class FunctionStopper(Stopper):
    """What a function of (trial_id, result) says.

    >>> stopper = FunctionStopper(lambda trial_id, result: result["loss"] < 0.1)
    >>> stopper("a", {"loss": 0.5}), stopper("a", {"loss": 0.05})
    (False, True)
    >>> FunctionStopper.is_valid_function(lambda result: True)
    Traceback (most recent call last):
    ValueError: a stopper is a function of two arguments: trial_id and result
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        self.is_valid_function(function)
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))

    @classmethod
    def is_valid_function(cls, function: Any) -> bool:
        """ValueError for what is no function of two arguments."""
        if not callable(function):
            raise ValueError(f"a stopper is a function of (trial_id, result), not {function!r}")
        try:
            inspect.signature(function).bind("trial", {})
        except TypeError:
            raise ValueError(
                "a stopper is a function of two arguments: trial_id and result"
            ) from None
        return True


class CombinedStopper(Stopper):
    """When any of them says so. All are asked each time, and none when a result lacks a metric that one
    of them goes by.

    >>> plateau = TrialPlateauStopper("loss", num_results=2, grace_period=2)
    >>> stopper = CombinedStopper(MaximumIterationStopper(100), plateau)
    >>> [stopper("a", {"loss": loss}) for loss in [0.5, 0.3, 0.3]]
    [False, False, True]
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise ValueError(f"not a Stopper: {stopper!r}")
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._check(result)
        return any([stopper(trial_id, result) for stopper in self._stoppers])

    def _check(self, result: dict[str, Any]) -> None:
        for stopper in self._stoppers:
            check(stopper, result)

    def on_restart(self, trial_id: str) -> None:
        for stopper in self._stoppers:
            # One that was written for Ray may derive from another class.
            getattr(stopper, "on_restart", lambda _: None)(trial_id)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self._stoppers)

    def on_elapsed(self, seconds: float) -> None:
        for stopper in self._stoppers:
            stopper.on_elapsed(seconds)

    def describe(self) -> Optional[dict[str, Any]]:
        parts = [stopper.describe() for stopper in self._stoppers]
        if type(self) is not CombinedStopper:
            return None
        return None if None in parts else {"name": "combined", "stoppers": parts}


def as_stopper(stop: Any) -> Stopper:
    """What ``RunConfig(stop=…)`` takes: None, a dict of bounds, a function, a Stopper, a list of these."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return BoundsStopper(stop)
    if isinstance(stop, (list, tuple)):
        return CombinedStopper(*map(as_stopper, stop))
    if callable(stop):
        return FunctionStopper(stop)
    raise ValueError(
        f"stop must be a dict, a function, a Stopper or a list of Stoppers, not {stop!r}"
    )


def from_description(description: Mapping[str, Any]) -> Stopper:
    """The stopper that describe() told of."""
    options = dict(description)
    return _NativeStopper(options.pop("name"), **options)
