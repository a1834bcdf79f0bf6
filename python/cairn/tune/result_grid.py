"""ResultGrid: what became of all trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from ._flat import flatten
from .result import Result, TrialError, check_mode, is_better
from .search import _MISSING, _find

__all__ = ["ResultGrid"]

_SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")


class ResultGrid:
    """The results of an experiment, in the order of its trials.

    >>> grid = ResultGrid([Result("a", "/x/a", {"lr": 1}, [{"loss": 3.0}, {"loss": 2.0}]),
    ...                    Result("b", "/x/b", {"lr": 2}, [{"loss": 1.0}, {"loss": 9.0}], "failed", "ERROR")],
    ...                   "/x")
    >>> grid.get_best_result("loss", "min").config, grid.get_best_result("loss", "min", scope="all").config
    ({'lr': 1}, {'lr': 2})
    >>> grid.experiment_path, grid.num_terminated, grid.num_errors, grid.errors
    ('/x', 1, 1, [TrialError('failed')])
    >>> grid.get_dataframe()[["loss", "config/lr"]].values.tolist()
    [[2.0, 1.0], [9.0, 2.0]]
    """

    def __init__(
        self,
        results: Sequence[Result],
        experiment_path: str = "",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
    ) -> None:
        self._results = list(results)
        self._path = experiment_path
        self._metric = metric
        self._mode = mode

    @classmethod
    def from_trials(
        cls,
        trials: Sequence[Mapping[str, Any]],
        experiment_path: str,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
    ) -> "ResultGrid":
        """Of what the tuner has on record.

        >>> trial = {"trial": "a", "config": {"lr": 1}, "results": [{"loss": 2.0}], "error": "",
        ...          "status": "TERMINATED", "checkpoints": []}
        >>> ResultGrid.from_trials([trial], "/x")[0].path
        '/x/a'
        """
        results = [
            Result(
                trial["trial"],
                f"{experiment_path}/{trial['trial']}",
                trial["config"],
                trial["results"],
                (trial["error"] or "the trial failed") if trial["status"] == "ERROR" else None,
                trial["status"],
                trial["checkpoints"],
            )
            for trial in trials
        ]
        return cls(results, experiment_path, metric, mode)

    @property
    def experiment_path(self) -> str:
        """The experiment's directory."""
        return self._path

    @property
    def errors(self) -> list[TrialError]:
        """Of the trials that failed."""
        return [result.error for result in self._results if result.error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return len(self.errors)

    @property
    def num_terminated(self) -> int:
        """Of those that ended well."""
        return sum(result.status == "TERMINATED" for result in self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: int) -> Result:
        return self._results[index]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def get_best_result(
        self,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The trial whose metric is best.

        Args:
            metric, mode: None: TuneConfig's; the only trial needs none. "a/b" reaches into nested results.
            scope: what counts of a trial: its "last" report, the best of "all", the mean of all ("avg"),
                of the last five ("last-5-avg") or ten ("last-10-avg").
            filter_nan_and_inf: leaves such values out. False: NaN is worse than any number.

        Raises:
            ValueError: no metric is named; scope or mode is wrong.
            RuntimeError: no trial has a value of the metric.
        """
        if scope not in _SCOPES:
            raise ValueError(f"scope must be one of {', '.join(_SCOPES)}, not {scope!r}")
        if len(self._results) == 1 and not (metric or mode or self._metric or self._mode):
            return self._results[0]
        metric, mode = self._named(metric, mode)
        best: Optional[tuple[Any, Result]] = None
        for result in self._results:
            value = _score(result, metric, mode, scope, filter_nan_and_inf)
            if value is None:
                continue
            if best is None or _beats(value, best[0], mode):
                best = (value, result)
        if best is None:
            raise RuntimeError(
                f"no trial has a value of {metric!r} to compare"
                + (
                    " (NaN and infinities were left out: filter_nan_and_inf=False)"
                    if filter_nan_and_inf
                    else ""
                )
                + ("; see the errors of this ResultGrid" if self.errors else "")
            )
        return best[1]

    def get_dataframe(
        self, filter_metric: Optional[str] = None, filter_mode: Optional[str] = None
    ) -> Any:
        """A row for each trial (pandas): its last report, or the one with the best filter_metric, with
        the hyperparameters as config/… columns."""
        import pandas

        if (filter_metric is None) != (filter_mode is None):
            raise ValueError("filter_metric and filter_mode go together")
        rows = []
        for result in self._results:
            report = result._reports[-1] if result._reports else {}
            if filter_metric is not None:
                check_mode(filter_mode)
                for one in result._reports:
                    value, old = _find(one, filter_metric), _find(report, filter_metric)
                    if _number(value) and (
                        not _number(old) or is_better(value, old, str(filter_mode))
                    ):
                        report = one
            rows.append(
                {
                    **flatten({k: v for k, v in report.items() if k != "config"}),
                    "trial_id": result.trial_id,
                    **flatten({"config": result.config}),
                    "logdir": result.path,
                }
            )
        return pandas.DataFrame(rows)

    def _named(self, metric: Optional[str], mode: Optional[str]) -> tuple[str, str]:
        metric = metric or self._metric
        mode = mode or self._mode
        if not metric or not mode:
            raise ValueError("name a metric and a mode, here or in TuneConfig")
        check_mode(mode)
        return metric, mode

    def __repr__(self) -> str:
        return f"ResultGrid<[{', '.join(map(repr, self._results))}]>"


def _number(value: Any) -> bool:
    return value is not _MISSING and isinstance(value, (bool, int, float)) and not _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _beats(value: Any, other: Any, mode: str) -> bool:
    if _is_nan(other):
        return not _is_nan(value)
    return not _is_nan(value) and is_better(value, other, mode)


def _score(result: Result, metric: str, mode: str, scope: str, finite: bool) -> Optional[Any]:
    """What is compared of a trial; None: it has nothing to compare."""
    values = [_find(report, metric) for report in result._reports]
    if scope == "last":
        values = values[-1:]
    values = [v for v in values if v is not _MISSING and isinstance(v, (bool, int, float))]
    if finite:
        values = [v for v in values if math.isfinite(v)]
    if not values:
        return None
    if scope in ("last", "all"):
        numbers = [v for v in values if not _is_nan(v)]
        return (max if mode == "max" else min)(numbers) if numbers else math.nan
    recent = {"avg": len(values), "last-5-avg": 5, "last-10-avg": 10}[scope]
    recent_values = values[-recent:]
    return math.fsum(recent_values) / len(recent_values)
