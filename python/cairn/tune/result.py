"""Result: what became of one trial."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Optional, Union

from .. import _native
from .._location import is_remote, of_user
from ..manager import CheckpointManager
from ._flat import flatten
from .checkpoint import Checkpoint
from .result_keys import (  # noqa: F401  (also under these names)
    AUTO_RESULT_KEYS,
    DEFAULT_METRIC,
    DONE,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    TIMESTAMP,
    TRAINING_ITERATION,
    TRIAL_ID,
    fill_result,
)
from .search import _MISSING, _find

__all__ = ["Result", "TrialError"]


class TrialError(RuntimeError):
    """A trial failed; the text is the traceback of its process.

    >>> from cairn import tune
    >>> def train(config):
    ...     raise RuntimeError("the reason")
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> isinstance(result.error, tune.TrialError), str(result.error).splitlines()[-1]
    (True, 'RuntimeError: the reason')
    """


class Result:
    """What became of a trial. Nothing is read before it is asked for.

    Attributes:
        metrics: the last report, with trial_id, config and the like; only these when there was none.
        config: the hyperparameters.
        error: a TrialError, None for a trial that ended well.
        checkpoint: the latest, None without any.
        best_checkpoints: those that were kept, oldest first, with the metrics of their reports.
        path: the trial's directory.
        metrics_dataframe: all reports (pandas).

    >>> from cairn import tune
    >>> def train(config):
    ...     for step, loss in enumerate([1.0, 0.25, 0.5]):
    ...         tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
    >>> run = tune.RunConfig(storage_path="runs", name="rates", verbose=0)
    >>> [result] = tune.Tuner(train, param_space={"lr": 0.1}, run_config=run).fit()
    >>> result.config, result.metrics["loss"], result.error
    ({'lr': 0.1}, 0.5, None)
    >>> [report["loss"] for report in result.results], result.metrics_dataframe["loss"].min()
    ([1.0, 0.25, 0.5], np.float64(0.25))
    >>> result.checkpoint.to_dict(), result.get_best_checkpoint("loss", "min").to_dict()
    ({'step': 2}, {'step': 1})
    >>> [metrics["loss"] for checkpoint, metrics in result.best_checkpoints], len(result.checkpoints)
    ([1.0, 0.25, 0.5], 3)
    >>> later = tune.Result.from_path("runs/rates/train_00000")        # wherever it was moved to
    >>> later.metrics["loss"], later.log_dir == result.path
    (0.5, True)
    """

    def __init__(
        self,
        trial_id: str,
        path: str,
        config: dict[str, Any],
        reports: Sequence[dict[str, Any]],
        error: Optional[str] = None,
        status: str = "TERMINATED",
        checkpoints: Optional[Sequence[Mapping[str, Any]]] = None,
    ) -> None:
        self.trial_id = trial_id
        self.path = path
        self.config = config
        self.status = status
        self.error = TrialError(error) if error else None
        self._reports = list(reports)
        self._listed = checkpoints

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The last report, with what goes without saying; that alone of a trial that never reported."""
        last = self._reports[-1] if self._reports else {}
        if TRIAL_ID not in last:
            last = fill_result(last, self.trial_id, self.config)
        # Of a directory alone nobody knows whether its trial still runs.
        ended = self.status == "TERMINATED" and self._listed is not None
        return {**last, DONE: True} if ended else last

    @classmethod
    def from_path(cls, path: Union[str, "os.PathLike[str]"]) -> "Result":
        """Of a trial's directory, wherever it was moved to: its logs and its checkpoints."""
        path = of_user(path)
        if not is_remote(path) and not os.path.isdir(path):
            raise ValueError(f"{path} is not the directory of a trial: it does not exist")
        text = _texts_of(path)
        params, reports, error = map(text, ("params.json", "result.json", "error.txt"))
        if params is None and reports is None and not _has_checkpoints(path):
            raise ValueError(
                f"{path} is not the directory of a trial: it has neither result.json nor checkpoints"
            )
        return cls(
            os.path.basename(path),
            path,
            json.loads(params or "{}"),
            _parse_reports(reports or "", f"{path}/result.json"),
            error,
            "ERROR" if error else "TERMINATED",
        )

    @property
    def log_dir(self) -> str:
        """The trial's directory, under its name of before."""
        return self.path

    @property
    def results(self) -> list[dict[str, Any]]:
        """All reports, oldest first."""
        return list(self._reports)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Those that were kept, oldest first."""
        return [checkpoint for checkpoint, _ in self.best_checkpoints]

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """(checkpoint, metrics) of those that were kept, oldest first."""
        if self._listed is not None:
            found = []
            for one in self._listed:
                name = str(one["path"]).rsplit("/", 1)[-1]  # some records have all of the path
                try:
                    found.append((Checkpoint(f"{self.path}/{name}"), dict(one["metrics"])))
                except ValueError:  # somebody removed it
                    continue
            return found
        if not _has_checkpoints(self.path):
            return []
        with CheckpointManager(self.path, read_only=True) as reader:
            return [(Checkpoint._of(info), dict(info.metrics or {})) for info in reader.list()]

    @property
    def checkpoint(self) -> Optional[Checkpoint]:
        """The latest of them, or None."""
        return self.best_checkpoints[-1][0] if self.best_checkpoints else None

    def get_best_checkpoint(self, metric: str, mode: str) -> Optional[Checkpoint]:
        """Of those that were kept, the one whose report had the best metric; of equal ones the later."""
        check_mode(mode)
        best: Optional[tuple[Any, Checkpoint]] = None
        for checkpoint, metrics in self.best_checkpoints:
            value = _find(metrics, metric)
            if is_number(value) and (best is None or not is_better(best[0], value, mode)):
                best = (value, checkpoint)
        if best is None and self.best_checkpoints:
            raise ValueError(
                f"no checkpoint of {self.trial_id} has a number {metric!r} in its metrics"
            )
        return None if best is None else best[1]

    @property
    def metrics_dataframe(self) -> Any:
        """A row for each report (pandas)."""
        import pandas

        return pandas.DataFrame([flatten(report) for report in self._reports])

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.metrics.items() if k not in AUTO_RESULT_KEYS}
        return f"Result(trial_id={self.trial_id!r}, metrics={shown}, path={self.path!r}, error={self.error!r})"


def check_mode(mode: Any) -> None:
    if mode not in ("min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")


def is_number(value: Any) -> bool:
    """A number that can be compared: not NaN."""
    return value is not _MISSING and isinstance(value, (bool, int, float)) and value == value


def is_better(a: Any, b: Any, mode: str) -> bool:
    """Python compares ints and floats of any size exactly."""
    return a > b if mode == "max" else a < b


def read_reports(path: str) -> list[dict[str, Any]]:
    """The lines of a result.json. One that a killed tuner left half-written at the end is passed over."""
    return _parse_reports(_text(path) or "", path)


def _parse_reports(text: str, path: str) -> list[dict[str, Any]]:
    # Not splitlines(): other characters that end a line may stand within JSON's texts.
    lines = text.removesuffix("\n").split("\n") if text else []
    reports = []
    for number, line in enumerate(lines):
        try:
            reports.append(json.loads(line))
        except ValueError:
            if number + 1 < len(lines):
                raise ValueError(f"{path}: line {number + 1} is not JSON") from None
    return reports


def _texts_of(directory: str) -> Callable[[str], Optional[str]]:
    """The files there by name, wherever it is; None for one that is not there."""
    if not is_remote(directory):
        return lambda name: _text(os.path.join(directory, name))
    store = _native.StoreFiles.open(directory)

    def text(name: str) -> Optional[str]:
        found = store.get(name)
        return None if found is None else found.decode()

    return text


def _has_checkpoints(directory: str) -> bool:
    name = "cairn.json"
    if is_remote(directory):
        return _native.StoreFiles.open(directory).get(name) is not None
    return os.path.exists(os.path.join(directory, name))


def _text(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
