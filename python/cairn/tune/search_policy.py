"""A searcher, a scheduler and stoppers as the tuner asks them: one thing that decides about trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .._wording import with_article
from . import schedulers, search, search_space
from ._changes import changed_part
from .schedulers import TrialScheduler
from .search import _MISSING, BasicVariantGenerator, Searcher, _find
from .stoppers import CombinedStopper, Stopper, TimeoutStopper, as_stopper
from .stoppers import check as check_stopper
from .trial import Trial

__all__ = ["SearchPolicy"]

# Of a searcher that does not wait for results, so many trials are made ahead of their places.
_AHEAD = 200


class SearchPolicy:
    """What decides about the trials of an experiment. The tuner calls it in the order of its record, and
    after a restart once more with what is on record. It is also the controller that schedulers of the
    user are given.

    Args:
        param_space: with domains and grids.
        metric, mode, num_samples, search_alg, scheduler, time_budget_s: as in TuneConfig.
        stop: as in RunConfig.
        seed: of the search, when search_alg is None, and of a scheduler that draws and has none.
        description: of describe(), for an experiment that goes on; what is given here counts before it.
    """

    def __init__(
        self,
        param_space: Optional[Mapping[str, Any]] = None,
        *,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        num_samples: int = 1,
        search_alg: Optional[Searcher] = None,
        scheduler: Optional[TrialScheduler] = None,
        stop: Any = None,
        time_budget_s: Optional[float] = None,
        seed: Optional[int] = None,
        description: Optional[Mapping[str, Any]] = None,
    ) -> None:
        if mode is not None and mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")
        self.metric = metric
        self.mode = mode
        self.num_samples = num_samples
        recorded = dict(description or {})
        # Of each: whether it was given, and whether its seed was.
        self._given = {
            "search_alg": (search_alg is not None or seed is not None, search_alg is None),
            "scheduler": (scheduler is not None, seed is not None),
        }
        self._searcher = _pick(search_alg, Searcher, recorded.get("searcher"), search, "search_alg")
        self._scheduler = _pick(
            scheduler, TrialScheduler, recorded.get("scheduler"), schedulers, "scheduler"
        )
        if self._searcher is None:
            self._searcher = BasicVariantGenerator(random_state=seed)
        if self._scheduler is None:
            self._scheduler = schedulers.FIFOScheduler()
        if seed is not None:
            self._scheduler._set_seed(seed)
        self._stopper: Stopper = as_stopper(stop)
        if time_budget_s is not None:
            self._stopper = CombinedStopper(self._stopper, TimeoutStopper(time_budget_s))
        space = dict(param_space or {})
        taken = self._searcher.set_search_properties(metric, mode, space, num_samples=num_samples)
        if not taken and _has_domains(space):
            raise ValueError(
                f"{type(self._searcher).__name__} does not take a param_space with domains: give it its space"
            )
        if not self._scheduler.set_search_properties(metric, mode) and (metric or mode):
            raise ValueError(
                "TuneConfig and the scheduler name different metrics or modes: name them in one place"
            )
        self._fixed = {} if taken else space
        self._waits_for_results = not isinstance(self._searcher, BasicVariantGenerator)
        self._suggested = 0
        self._trials: dict[str, Trial] = {}

    def describe(self) -> dict[str, Any]:
        """What is written down, so that the experiment can go on without being told again."""
        return {
            "searcher": _recorded(self._searcher.describe(), self._searcher),
            "scheduler": _recorded(self._scheduler.describe(), self._scheduler),
            "metric": self.metric,
            "mode": self.mode,
            "num_samples": self.num_samples,
        }

    def changes(self, recorded: Mapping[str, Any]) -> dict[str, str]:
        """How search_alg and scheduler, where they were given, differ from those that describe() told of."""
        found = {}
        mine = self.describe()
        for what, part in (("search_alg", "searcher"), ("scheduler", "scheduler")):
            given, seeded = self._given[what]
            if not given or not recorded.get(part):
                continue
            seeded = seeded or getattr(self, f"_{part}")._seeded
            change = changed_part(mine[part], recorded[part], seeded)
            if change:
                found[what] = change
        return found

    # What schedulers of the user may ask.

    def get_trials(self) -> list[Trial]:
        return list(self._trials.values())

    def get_live_trials(self) -> list[Trial]:
        return [trial for trial in self._trials.values() if not trial.is_finished()]

    # What the tuner asks.

    @property
    def pending_ahead(self) -> int:
        """So many trials are made before there are places for them."""
        return _AHEAD if self._scheduler.wants_all_trials and not self._waits_for_results else 0

    def suggest(self, trial: str) -> Any:
        """A config, "wait", or None when there will be no more."""
        if self._waits_for_results and 0 <= self.num_samples <= self._suggested:
            return None
        config = self._searcher.suggest(trial)
        if config is None:
            return "wait"
        if isinstance(config, str):
            return None
        if search_space.domain_paths(config):
            raise ValueError(
                f"{type(self._searcher).__name__}.suggest must return values, not {config!r}"
            )
        config = search_space.describe({**self._fixed, **config})[0]
        config = self._scheduler._complete_config(trial, config)
        self._suggested += 1
        self._add(trial, config)
        return config

    def on_trial_add(self, trial: str, config: dict[str, Any]) -> None:
        """A trial that was suggested in an earlier life of the experiment."""
        self._searcher.on_trial_replayed(trial, config)
        self._suggested += 1
        self._add(trial, config)

    def _add(self, trial: str, config: dict[str, Any]) -> None:
        self._trials[trial] = Trial(trial, config)
        self._scheduler.on_trial_add(self, self._trials[trial])

    def on_result(self, trial: str, result: dict[str, Any]) -> Optional[tuple[str, bool]]:
        """None to go on, or ("continue" | "stop" | "pause", whether a checkpoint is wanted).
        ValueError: the report is refused."""
        self._check_metric(result)
        # A report that anybody refuses counts for nobody.
        check_stopper(self._stopper, result)
        self._scheduler._check(result)
        one = self._trials[trial]
        one.status = Trial.RUNNING
        one.last_result = result
        stop = self._stopper(trial, result)
        self._searcher.on_trial_result(trial, result)
        if stop:
            return "stop", False
        action = self._scheduler.on_trial_result(self, one, result)
        checkpoint = self._scheduler._wants_checkpoint()
        if action == TrialScheduler.STOP:
            return "stop", checkpoint
        if action == TrialScheduler.PAUSE:
            one.status = Trial.PAUSED
            return "pause", checkpoint
        if action not in (TrialScheduler.CONTINUE, TrialScheduler.NOOP, None):
            raise ValueError(
                f"{type(self._scheduler).__name__}.on_trial_result returned {action!r}"
            )
        return ("continue", True) if checkpoint else None

    def _check_metric(self, result: Mapping[str, Any]) -> None:
        if self.metric is None:
            return
        value = _find(result, self.metric)
        if value is _MISSING:
            raise ValueError(
                f"the result of iteration {result.get('training_iteration')} has no metric {self.metric!r}, "
                f"which TuneConfig names; it has {sorted(map(str, result))}"
            )
        if not isinstance(value, (bool, int, float)):
            raise ValueError(
                f"metric {self.metric!r} is {value!r}: it must be a number to be compared"
            )

    def on_end(self, trial: str, result: Optional[dict[str, Any]], error: bool) -> None:
        """The trial will not run again."""
        one = self._trials[trial]
        started = one.status != Trial.PENDING
        one.status = Trial.ERROR if error else Trial.TERMINATED
        self._searcher.on_trial_complete(trial, result, error)
        if error:
            self._scheduler.on_trial_error(self, one)
        elif started:
            self._scheduler.on_trial_complete(self, one, result)
        else:
            self._scheduler.on_trial_remove(self, one)

    def on_restart(self, trial: str) -> None:
        """A trial that had failed begins anew."""
        one = self._trials[trial]
        one.status = Trial.RUNNING
        one.last_result = {}
        getattr(self._stopper, "on_restart", lambda _: None)(trial)
        self._scheduler._on_restart(one)

    def choose(self, pending: list[str], paused: list[str], more: bool) -> Optional[dict[str, Any]]:
        """What to do with a free place: None, or {"kind": "run" | "stop", "trial", "donor", "config"}."""
        for name in paused:
            if self._trials[name].status == Trial.RUNNING:  # interrupted by the end of the tuner
                self._trials[name].status = Trial.PAUSED
        choice = self._scheduler._choose(self, pending, paused, more)
        if choice is not None:
            one = self._trials[choice["trial"]]
            one.status = Trial.RUNNING if choice["kind"] == "run" else one.status
            if choice.get("donor"):
                one.config = choice["config"]
        return choice

    def set_config(self, trial: str, config: dict[str, Any]) -> None:
        """The trial's hyperparameters are others than the scheduler thinks."""
        self._trials[trial].config = config
        self._scheduler._set_config(trial, config)

    def stop_all(self) -> bool:
        return self._stopper.stop_all()

    def on_elapsed(self, seconds: float) -> None:
        """How long the experiment was at work in earlier lives."""
        # One that was written for Ray may derive from another class.
        getattr(self._stopper, "on_elapsed", lambda _: None)(seconds)

    def native_description(self) -> Optional[dict[str, Any]]:
        """All of it, when no part is code of the user's: the tuner then decides without Python."""
        searcher = self._searcher
        if type(searcher) is not BasicVariantGenerator or searcher._functions:
            return None
        scheduler, stop = self._scheduler.describe(), self._stopper.describe()
        if scheduler is None or stop is None:
            return None
        if "metric" in scheduler and not (scheduler["metric"] and scheduler["mode"]):
            return None  # which Python says well
        return {
            "space": searcher._space,
            "num_samples": self.num_samples,
            "seed": searcher.seed,
            "points_to_evaluate": searcher.describe()["points_to_evaluate"],
            "constant_grid_search": searcher.constant_grid_search,
            "max_concurrent": searcher.max_concurrent,
            "scheduler": scheduler,
            "stop": stop,
            "metric": self.metric or "",
            "pending_ahead": self.pending_ahead,
        }

    def take_log(self) -> list[dict[str, Any]]:
        """What the scheduler decided since the last call and is worth a line (PBT: who copied whom)."""
        return self._scheduler._take_log()


def _pick(given: Any, kind: type, recorded: Any, module: Any, what: str) -> Any:
    if given is not None:
        if isinstance(given, str) and kind is TrialScheduler:
            return schedulers.create_scheduler(given)
        if not isinstance(given, kind):
            raise ValueError(f"{what} must be {with_article(kind.__name__)}, not {given!r}")
        return given
    if recorded is None:
        return None
    if "class" in recorded:
        raise ValueError(
            f"the experiment was made with {with_article(recorded['class'])}, which is not on record: give {what} again"
        )
    return module.from_description(recorded)


def _recorded(description: Optional[dict[str, Any]], of: Any) -> dict[str, Any]:
    return {"class": type(of).__name__} if description is None else description


def _has_domains(space: Any) -> bool:
    from .search_space import Domain

    if isinstance(space, Domain):
        return True
    if isinstance(space, Mapping):
        return "grid_search" in space or any(map(_has_domains, space.values()))
    return isinstance(space, (list, tuple)) and any(map(_has_domains, space))
