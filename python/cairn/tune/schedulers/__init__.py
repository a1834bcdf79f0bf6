"""Who goes on, who stops, who waits.

Example:
    >>> scheduler = ASHAScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3)
    >>> scheduler.describe()["name"]
    'asha'
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from cairn import _native

from .. import search_space
from ..trial import Trial

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "TrialScheduler",
    "create_scheduler",
]


class TrialScheduler:
    """Subclass it to schedule trials in a way of your own.

    The controller that the methods are given has ``get_trials()`` and ``get_live_trials()``; trials
    have ``trial_id``, ``config``, ``status`` and ``last_result``. After a restart of the tuner the
    same methods are called again with what is on record, in the same order, so that a scheduler
    needs no state on disk.

    >>> from cairn import tune
    >>> class StopsWhatGrows(tune.schedulers.TrialScheduler):
    ...     def on_trial_add(self, controller, trial):
    ...         trial.best = float("inf")
    ...     def on_trial_result(self, controller, trial, result):
    ...         grows, trial.best = result[self.metric] > trial.best, result[self.metric]
    ...         return self.STOP if grows else self.CONTINUE
    ...     def debug_string(self):
    ...         return "stops what grows"
    >>> def train(config):
    ...     for loss in [1.0, 0.5, 0.75, 0.25]:
    ...         tune.report({"loss": loss})
    >>> [result] = tune.Tuner(
    ...     train,
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=StopsWhatGrows()),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0),
    ... ).fit()
    >>> result.metrics["loss"]
    0.75
    """

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    STOP = "STOP"
    NOOP = "NOOP"

    metric: Optional[str] = None
    mode: Optional[str] = None
    #: A population is compared as a whole: its trials are made before there are places for all.
    wants_all_trials = False
    _seeded = True  # whether the seed was given, and not made up

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], **spec: Any
    ) -> bool:
        """Takes what TuneConfig names; False when the scheduler has something else already.

        >>> scheduler = ASHAScheduler(metric="loss")
        >>> scheduler.set_search_properties("loss", "min"), scheduler.mode
        (True, 'min')
        >>> scheduler.set_search_properties("accuracy", "max")
        False
        """
        if (self.metric and metric and self.metric != metric) or (
            self.mode and mode and self.mode != mode
        ):
            return False
        self.metric = metric or self.metric
        self.mode = mode or self.mode
        return True

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Before its first run."""

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """CONTINUE, PAUSE or STOP."""
        return TrialScheduler.CONTINUE

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Optional[dict[str, Any]]
    ) -> None:
        """It has ended, well.

        >>> class Counts(TrialScheduler):
        ...     ended = 0
        ...     def on_trial_complete(self, controller, trial, result):
        ...         self.ended += 1
        >>> scheduler = Counts()
        >>> scheduler.on_trial_complete(None, Trial("a"), {"loss": 0.5})     # as the tuner does
        >>> scheduler.ended
        1
        """

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """It has failed for good.

        >>> class Counts(TrialScheduler):
        ...     failed = 0
        ...     def on_trial_error(self, controller, trial):
        ...         self.failed += 1
        >>> scheduler = Counts()
        >>> scheduler.on_trial_error(None, Trial("a"))                       # as the tuner does
        >>> scheduler.failed
        1
        """

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """It was ended before its first run.

        >>> class Counts(TrialScheduler):
        ...     never_run = 0
        ...     def on_trial_remove(self, controller, trial):
        ...         self.never_run += 1
        >>> scheduler = Counts()
        >>> scheduler.on_trial_remove(None, Trial("a"))                      # as the tuner does
        >>> scheduler.never_run
        1
        """

    def choose_trial_to_run(self, tune_controller: Any) -> Optional[Trial]:
        """One that is PENDING or PAUSED, for a free place; None: none of them now.

        >>> class LastFirst(TrialScheduler):
        ...     def choose_trial_to_run(self, controller):
        ...         waiting = [t for t in controller.get_trials() if t.status in (Trial.PENDING, Trial.PAUSED)]
        ...         return waiting[-1] if waiting else None
        >>> class Controller:
        ...     def get_trials(self):
        ...         return [Trial("a"), Trial("b")]
        >>> LastFirst().choose_trial_to_run(Controller()), TrialScheduler().choose_trial_to_run(Controller())
        (b, a)
        """
        for status in (Trial.PENDING, Trial.PAUSED):
            for trial in tune_controller.get_trials():
                if trial.status == status:
                    return trial
        return None

    def debug_string(self) -> str:
        """A line for the progress table."""
        return type(self).__name__

    def describe(self) -> Optional[dict[str, Any]]:
        """What it is, as the record of an experiment has it; None: it has to be given again.

        >>> FIFOScheduler().describe(), ASHAScheduler(max_t=9).describe()["max_t"]
        ({'name': 'fifo'}, 9)
        """
        return None

    # What the tuner asks; the built-in ones answer with more than Ray's methods can say.

    def _set_seed(self, seed: int) -> None:
        """Of the experiment: for what is drawn by one that was given no seed of its own."""

    def _check(self, result: dict[str, Any]) -> None:
        """ValueError when the result lacks what is decided by, before anybody counts it."""

    def _on_restart(self, trial: Trial) -> None:
        """A trial that had failed begins anew: what it reported before is another life's."""

    def _complete_config(self, trial: str, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def _wants_checkpoint(self) -> bool:
        return False

    def _choose(
        self, controller: Any, pending: list[str], paused: list[str], more: bool
    ) -> Optional[dict[str, Any]]:
        trial = self.choose_trial_to_run(controller)
        return None if trial is None else {"kind": "run", "trial": trial.trial_id}

    def _set_config(self, trial: str, config: dict[str, Any]) -> None:
        pass

    def _take_log(self) -> list[dict[str, Any]]:
        return []


class _NativeScheduler(TrialScheduler):
    def __init__(
        self, name: str, metric: Optional[str], mode: Optional[str], **options: Any
    ) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")
        self.metric = metric
        self.mode = mode
        self._name = name
        self._options = options
        self._made: Any = None
        self._checkpoint = False
        # Says what is wrong with the options when they are given.
        _native.TuneScheduler(
            {**self._description(), "metric": metric or "metric", "mode": mode or "max"}
        )

    def _description(self) -> dict[str, Any]:
        return {"name": self._name, "metric": self.metric, "mode": self.mode, **self._options}

    @property
    def _native(self) -> Any:
        if self._made is None:
            if not self.metric or not self.mode:
                raise ValueError(
                    f"{type(self).__name__} decides by a metric: name metric and mode, here or in TuneConfig"
                )
            self._made = _native.TuneScheduler(self._description())
        return self._made

    def describe(self) -> Optional[dict[str, Any]]:
        # A subclass may decide otherwise; what it is cannot be written down.
        return self._description() if type(self).__module__ == __name__ else None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._native.add(trial.trial_id, trial.config)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        action, self._checkpoint = self._native.result(trial.trial_id, result)
        return action

    def on_trial_complete(
        self, tune_controller: Any, trial: Trial, result: Optional[dict[str, Any]]
    ) -> None:
        self._native.complete(trial.trial_id, result)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._native.error(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._native.complete(trial.trial_id, None)

    def _check(self, result: dict[str, Any]) -> None:
        self._native.check(result)

    def _on_restart(self, trial: Trial) -> None:
        self._native.restart(trial.trial_id)

    def _complete_config(self, trial: str, config: dict[str, Any]) -> dict[str, Any]:
        return self._native.complete_config(trial, config)

    def _wants_checkpoint(self) -> bool:
        wanted, self._checkpoint = self._checkpoint, False
        return wanted

    def _choose(
        self, controller: Any, pending: list[str], paused: list[str], more: bool
    ) -> Optional[dict[str, Any]]:
        chosen = self._native.choose(pending, paused, more)
        if chosen is None:
            return None
        action, trial, donor, config = chosen
        choice = {"kind": action.lower(), "trial": trial}
        return (
            {**choice, "donor": donor, "config": self._explored(trial, config)} if donor else choice
        )

    def _explored(self, trial: str, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def _set_config(self, trial: str, config: dict[str, Any]) -> None:
        self._native.set_config(trial, config)

    def _take_log(self) -> list[dict[str, Any]]:
        return self._native.take_log()


class FIFOScheduler(TrialScheduler):
    """All trials run to their end, in order.

    >>> from cairn import tune
    >>> tune.TuneConfig(scheduler=FIFOScheduler()).scheduler.debug_string()
    'FIFOScheduler'
    """

    def describe(self) -> Optional[dict[str, Any]]:
        return {"name": "fifo"} if type(self) is FIFOScheduler else None

    def _choose(
        self, controller: Any, pending: list[str], paused: list[str], more: bool
    ) -> Optional[dict[str, Any]]:
        if type(self) is not FIFOScheduler:
            return super()._choose(controller, pending, paused, more)
        ready = pending or paused
        return {"kind": "run", "trial": ready[0]} if ready else None


class AsyncHyperBandScheduler(_NativeScheduler):
    """ASHA, asynchronous successive halving.

    Rungs are at grace_period · reduction_factor^k of time_attr, up to max_t. A trial goes on at a rung
    when it is among the best 1/reduction_factor.

    Args:
        time_attr: what counts the time of a trial.
        metric, mode: what is best; None: TuneConfig's.
        max_t: trials are stopped there (stop_last_trials).
        grace_period: no trial is stopped before.
        reduction_factor: how many of a rung's trials come to one that goes on.
        brackets: further ones leave out the first rungs.
        type: "stopping": compared with those that came before, a trial is stopped at the rung or never.
            "promotion": trials pause at rungs, with a checkpoint, and the best go on when there are
            enough of them to tell.
        seed: of the trials' brackets.

    >>> from cairn import tune
    >>> def train(config):
    ...     while True:
    ...         tune.report({"loss": config["x"]})
    >>> results = tune.Tuner(
    ...     train,
    ...     param_space={"x": tune.grid_search([1, 2, 3, 4])},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1,
    ...                                 scheduler=tune.schedulers.ASHAScheduler(max_t=8, reduction_factor=2)),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0),
    ... ).fit()
    >>> [result.metrics["training_iteration"] for result in results]
    [8, 1, 1, 1]
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        type: str = "stopping",
        seed: int = 0,
    ) -> None:
        if type not in ("stopping", "promotion"):
            raise ValueError(f"type must be 'stopping' or 'promotion', not {type!r}")
        super().__init__(
            "asha",
            metric,
            mode,
            time_attr=time_attr,
            max_t=max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
            promote=type == "promotion",
            seed=seed,
        )


ASHAScheduler = AsyncHyperBandScheduler


class MedianStoppingRule(_NativeScheduler):
    """Stops a trial whose best result is worse than the median of the others' means up to its time.

    Args:
        time_attr, metric, mode: as for ASHA.
        grace_period: of time_attr, during which nothing is compared.
        min_samples_required: so many other trials have come as far.
        min_time_slice: before there are so many, a trial pauses after that time for those that wait;
            0: never.
        hard_stop: False pauses such a trial until no other waits.

    >>> from cairn import tune
    >>> def train(config):
    ...     for _ in range(8):
    ...         tune.report({"loss": config["x"]})
    >>> rule = tune.schedulers.MedianStoppingRule(time_attr="training_iteration", grace_period=3)
    >>> results = tune.Tuner(
    ...     train,
    ...     param_space={"x": tune.grid_search([1, 2, 3, 4])},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1, scheduler=rule),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0),
    ... ).fit()
    >>> [result.metrics["training_iteration"] for result in results]
    [8, 8, 8, 3]
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(
            "median",
            metric,
            mode,
            time_attr=time_attr,
            grace_period=grace_period,
            min_samples_required=min_samples_required,
            min_time_slice=min_time_slice,
            hard_stop=hard_stop,
        )


class PopulationBasedTraining(_NativeScheduler):
    """PBT: every perturbation_interval of its time one of the worst trials goes on from a checkpoint of
    one of the best, with hyperparameters near its.

    Args:
        time_attr, metric, mode: as for ASHA.
        perturbation_interval, burn_in_period: of time_attr.
        hyperparam_mutations: for each hyperparameter a list (neighbours are near), a domain or a
            function without arguments (near is 0.8 or 1.2 times), nested as the config is.
        quantile_fraction: how many are the worst and the best, at most 0.5.
        resample_probability: drawn anew instead of near.
        perturbation_factors: what near is for numbers.
        custom_explore_fn: takes the new config and returns the one to use.
        require_attrs: a result without the metric is an error.
        synch: all wait for each other, so that their speed does not matter.
        seed: of what is drawn; None: that of TuneConfig, or another one for each experiment.

    >>> from cairn import tune
    >>> def train(config):
    ...     start = tune.get_checkpoint()
    ...     score = start.to_dict()["score"] if start else 0.0
    ...     for _ in range(20):
    ...         score += config["rate"]
    ...         tune.report({"score": score}, checkpoint=tune.Checkpoint.from_dict({"score": score}))
    >>> pbt = tune.schedulers.PopulationBasedTraining(
    ...     time_attr="training_iteration", perturbation_interval=5,
    ...     hyperparam_mutations={"rate": [0.001, 1.0]}, quantile_fraction=0.5, synch=True, seed=1)
    >>> results = tune.Tuner(
    ...     train,
    ...     param_space={"rate": tune.grid_search([0.001, 1.0])},
    ...     tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=pbt),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0, stop={"training_iteration": 20}),
    ... ).fit()
    >>> min(result.metrics["score"] for result in results) > 1    # 0.02 with its own rate alone
    True
    """

    wants_all_trials = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Optional[Mapping[str, Any]] = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Optional[Callable[[dict[str, Any]], dict[str, Any]]] = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: Optional[int] = None,
    ) -> None:
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ValueError(
                "PopulationBasedTraining needs hyperparam_mutations or custom_explore_fn"
            )
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise ValueError(f"custom_explore_fn must be a function, not {custom_explore_fn!r}")
        mutations, self._functions = search_space.describe(
            _functions_as_domains(hyperparam_mutations or {})
        )
        self._custom_explore = custom_explore_fn
        self._explored_count = 0
        self._seeded = seed is not None
        self.log_config = log_config
        super().__init__(
            "pbt",
            metric,
            mode,
            time_attr=time_attr,
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            hyperparam_mutations=mutations,
            quantile_fraction=quantile_fraction,
            resample_probability=resample_probability,
            perturbation_factors=list(perturbation_factors),
            require_metrics=require_attrs,
            synch=synch,
            seed=random.SystemRandom().getrandbits(62) if seed is None else seed,
        )

    def _set_seed(self, seed: int) -> None:
        if not self._seeded:
            self._options["seed"] = seed

    def describe(self) -> Optional[dict[str, Any]]:
        return None if self._functions or self._custom_explore else super().describe()

    def _resolved(self, config: dict[str, Any]) -> dict[str, Any]:
        self._explored_count += 1
        return search_space.resolve(
            config, self._functions, self._options["seed"], self._explored_count
        )

    def _complete_config(self, trial: str, config: dict[str, Any]) -> dict[str, Any]:
        return self._resolved(super()._complete_config(trial, config))

    def _explored(self, trial: str, config: dict[str, Any]) -> dict[str, Any]:
        if not self._functions and self._custom_explore is None:
            return config
        config = self._resolved(config)
        if self._custom_explore is not None:
            explored = self._custom_explore(config)
            if not isinstance(explored, Mapping):
                raise ValueError(f"custom_explore_fn must return a config, not {explored!r}")
            config, functions = search_space.describe(dict(explored))
            if functions:
                raise ValueError("custom_explore_fn must return values, not sample_from")
        self._native.set_config(trial, config)
        return config


def _functions_as_domains(mutations: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(mutations, Mapping):
        raise ValueError(f"hyperparam_mutations must be a dict, not {mutations!r}")
    out = {}
    for key, value in mutations.items():
        if isinstance(value, Mapping) and "grid_search" in value:
            raise ValueError(
                f"hyperparam_mutations: {key!r}: give the list itself instead of a grid_search"
            )
        if isinstance(value, Mapping):
            value = _functions_as_domains(value)
        elif callable(value) and not isinstance(value, search_space.Domain):
            value = search_space.sample_from(value)
        out[key] = value
    return out


class HyperBandScheduler(TrialScheduler):
    """Not offered: it makes all trials of a bracket wait for the slowest.

    >>> try:
    ...     HyperBandScheduler()
    ... except ValueError as error:
    ...     print(error)
    HyperBandScheduler is not offered: use ASHAScheduler(…, brackets=n), which stops ...
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "HyperBandScheduler is not offered: use ASHAScheduler(…, brackets=n), which stops the same trials "
            "without waiting, or ASHAScheduler(…, type='promotion'), which pauses them"
        )


_BY_NAME = {
    "fifo": FIFOScheduler,
    "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler,
    "asha": AsyncHyperBandScheduler,
    "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule,
    "pbt": PopulationBasedTraining,
    "hyperband": HyperBandScheduler,
}


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """A scheduler by name: fifo, asha, median_stopping_rule, pbt.

    >>> create_scheduler("asha", metric="loss", mode="min", max_t=9).describe()["max_t"]
    9
    """
    made = _BY_NAME.get(scheduler.lower())
    if made is None:
        raise ValueError(
            f"no scheduler is called {scheduler!r}; there are {', '.join(sorted(_BY_NAME))}"
        )
    return made(**kwargs)


def from_description(description: Mapping[str, Any]) -> TrialScheduler:
    """The scheduler that describe() told of."""
    options = dict(description)
    name = options.pop("name")
    if name == "fifo":
        return FIFOScheduler()
    if name == "asha":
        return AsyncHyperBandScheduler(
            type="promotion" if options.pop("promote") else "stopping", **options
        )
    if name == "median":
        return MedianStoppingRule(**options)
    made = PopulationBasedTraining.__new__(PopulationBasedTraining)
    made._functions, made._custom_explore, made._explored_count, made.log_config = [], None, 0, True
    _NativeScheduler.__init__(made, name, options.pop("metric"), options.pop("mode"), **options)
    return made
