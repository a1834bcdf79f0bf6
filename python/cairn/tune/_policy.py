"""What decides about trials, put together: a searcher, a scheduler, stoppers, the check of metrics."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List, Optional, Tuple

from .session import find_metric


class Policy:
    """Called by the tuner, one call at a time, and after a restart with the same calls again."""

    def __init__(
        self,
        searcher: Any,
        scheduler: Any,
        stopper: Any,
        metric: Optional[str],
        time_budget_s: Optional[float],
    ) -> None:
        self._searcher = searcher
        self._scheduler = scheduler
        self._stopper = stopper
        self._metric = metric
        self._budget = time_budget_s
        self._began = time.monotonic()

    def suggest(self, trial: str) -> Any:
        """A config, "wait", or None when there will be no more."""
        answer = self._searcher.suggest(trial)
        if isinstance(answer, dict):
            self._scheduler.on_trial_add(trial, answer)
        return answer

    def on_trial_add(self, trial: str, config: Dict[str, Any]) -> None:
        self._scheduler.on_trial_add(trial, config)

    def on_result(self, trial: str, result: Dict[str, Any]) -> Optional[Tuple[str, bool]]:
        if self._metric is not None:
            found, value = find_metric(result, self._metric)
            if not found:
                raise ValueError(
                    f"the result of iteration {result.get('training_iteration')} has no metric "
                    f"{self._metric!r}, which TuneConfig names; it has "
                    f"{sorted(k for k in result if isinstance(k, str))}"
                )
            if not isinstance(value, (bool, int, float)):
                raise ValueError(
                    f"metric {self._metric!r} is {value!r}: it must be a number to be compared"
                )
        stops = self._stopper is not None and bool(self._stopper(trial, result))
        self._searcher.on_result(trial, result)
        action, checkpoint = self._scheduler.on_result(trial, result)
        if stops:
            action = "stop"
        return None if action == "continue" and not checkpoint else (action, bool(checkpoint))

    def on_end(self, trial: str, result: Optional[Dict[str, Any]], error: bool) -> None:
        self._searcher.on_complete(trial, result, error)
        if error:
            self._scheduler.on_error(trial)
        else:
            self._scheduler.on_complete(trial, result)

    def choose(self, pending: List[str], paused: List[str], more: bool) -> Optional[Dict[str, Any]]:
        return self._scheduler.choose(pending, paused, more)

    def set_config(self, trial: str, config: Dict[str, Any]) -> None:
        self._scheduler.set_config(trial, config)

    def stop_all(self) -> bool:
        if self._budget is not None and time.monotonic() - self._began >= self._budget:
            return True
        ends = getattr(self._stopper, "stop_all", None)
        return bool(ends()) if ends is not None else False


class Listed:
    """Configs one after the other."""

    def __init__(self, configs: List[Dict[str, Any]]) -> None:
        self._configs = configs
        self._next = 0

    def suggest(self, trial: str) -> Any:
        if self._next >= len(self._configs):
            return None
        self._next += 1
        return self._configs[self._next - 1]

    def on_result(self, trial: str, result: Dict[str, Any]) -> None:
        pass

    def on_complete(self, trial: str, result: Optional[Dict[str, Any]], error: bool) -> None:
        pass


class InOrder:
    """All trials run to their end."""

    def on_trial_add(self, trial: str, config: Dict[str, Any]) -> None:
        pass

    def on_result(self, trial: str, result: Dict[str, Any]) -> Tuple[str, bool]:
        return "continue", False

    def on_complete(self, trial: str, result: Optional[Dict[str, Any]]) -> None:
        pass

    def on_error(self, trial: str) -> None:
        pass

    def set_config(self, trial: str, config: Dict[str, Any]) -> None:
        pass

    def choose(self, pending: List[str], paused: List[str], more: bool) -> Optional[Dict[str, Any]]:
        ready = pending or paused
        return {"kind": "run", "trial": ready[0]} if ready else None


def bounds_stopper(bounds: Dict[str, Any]) -> Any:
    """Stops a trial when a metric has reached its bound."""
    for key, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or math.isnan(bound):
            raise ValueError(f"stop[{key!r}] must be a number, not {bound!r}")

    def stop(trial: str, result: Dict[str, Any]) -> bool:
        for key, bound in bounds.items():
            found, value = find_metric(result, key)
            if not found:
                raise ValueError(f"stop names the metric {key!r}, which the result does not have")
            if value >= bound:
                return True
        return False

    return stop
