"""The loggers of each trial's results: result.json, params.json and error.txt, progress.csv, TensorBoard's
events."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from .. import _native
from ._flat import flatten
from ._trial_files import Appended, is_remote, write_whole
from .callback import Callback
from .trial import Trial


class LoggerCallback(Callback):
    """Writes files of trials. Derive from it: ``log_trial_result`` for each report, ``log_trial_again``
    when what was written has to be made anew from the reports that count.

    >>> from cairn import tune
    >>> class Losses(tune.logger.LoggerCallback):
    ...     def __init__(self):
    ...         self.of = {}
    ...     def log_trial_start(self, trial):
    ...         self.of.setdefault(trial.trial_id, [])
    ...     def log_trial_result(self, iteration, trial, result):
    ...         self.of[trial.trial_id].append(result["loss"])
    ...     def log_trial_again(self, trial, results):
    ...         self.of[trial.trial_id] = [result["loss"] for result in results]
    ...     def log_trial_save(self, trial):
    ...         pass                              # a checkpoint is committed
    ...     def log_trial_restore(self, trial):
    ...         pass                              # it goes on from one
    ...     def log_trial_end(self, trial, failed=False):
    ...         print(trial, self.of[trial.trial_id])
    >>> def train(config):
    ...     for loss in (1.0, 0.5):
    ...         tune.report({"loss": loss})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0, callbacks=[Losses()])
    >>> results = tune.Tuner(train, run_config=run).fit()
    train_00000 [1.0, 0.5]
    """

    def log_trial_start(self, trial: Trial) -> None:
        """The trial is at work for the first time, or again."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """A report."""

    def log_trial_again(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        """These are all reports of the trial that count."""

    def log_trial_save(self, trial: Trial) -> None:
        """A checkpoint of the trial is committed."""

    def log_trial_restore(self, trial: Trial) -> None:
        """The trial goes on from a checkpoint."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """The trial will not run again."""

    def on_trial_save(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.log_trial_save(trial)

    def on_trial_restore(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.log_trial_restore(trial)

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.log_trial_start(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self.log_trial_end(trial, failed=True)


class FileLogger(LoggerCallback):
    """A logger with one file per trial. Of experiments in a bucket the LogBook stores what `_whole` gives."""

    def __init__(self, name: str) -> None:
        self._file = Appended(name)

    def _encode(self, trial: Trial, result: dict[str, Any]) -> bytes:
        raise NotImplementedError

    def _begin(self, trial: Trial) -> bytes:
        return b""

    def _whole(self, trial: Trial, results: list[dict[str, Any]]) -> Iterator[bytes]:
        """The file that these reports make."""
        yield self._begin(trial)
        yield from (self._encode(trial, one) for one in results)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        if is_remote(trial.local_path):
            return
        begin = self._begin(trial) if self._file.empty(trial) else b""
        self._file.append(trial, begin + self._encode(trial, result))

    def log_trial_again(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        if is_remote(trial.local_path):
            return
        self._file.replace(trial, self._whole(trial, results))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._file.close(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._file.flush()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self._file.close_all()


class JsonLoggerCallback(FileLogger):
    """result.json, a line for each report; params.json; error.txt.

    >>> import json, os
    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"loss": config["lr"] * 2})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)          # it is there by itself
    >>> [result] = tune.Tuner(train, param_space={"lr": 0.5}, run_config=run).fit()
    >>> [report] = [json.loads(line) for line in open(os.path.join(result.path, "result.json"))]
    >>> report["loss"], json.load(open(os.path.join(result.path, "params.json")))
    (1.0, {'lr': 0.5})
    """

    def __init__(self) -> None:
        super().__init__("result.json")

    def _encode(self, trial: Trial, result: dict[str, Any]) -> bytes:
        return (json.dumps(result) + "\n").encode()

    def log_trial_start(self, trial: Trial) -> None:
        if is_remote(trial.local_path):
            return
        write_whole(os.path.join(trial.local_path, "params.json"), params_text(trial))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        super().log_trial_end(trial, failed)
        if is_remote(trial.local_path):
            return
        path = os.path.join(trial.local_path, "error.txt")
        if failed:
            write_whole(path, error_text(trial))
        else:
            with contextlib.suppress(FileNotFoundError):  # of a life that it was resumed after
                os.remove(path)


class CSVLoggerCallback(FileLogger):
    """progress.csv. A metric that comes late gets a column then; rows before it have nothing there.

    >>> import csv, os
    >>> from cairn import tune
    >>> def train(config):
    ...     for loss in (1.0, 0.5):
    ...         tune.report({"loss": loss})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)          # it is there by itself
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> [row["loss"] for row in csv.DictReader(open(os.path.join(result.path, "progress.csv")))]
    ['1.0', '0.5']
    """

    def __init__(self) -> None:
        super().__init__("progress.csv")
        self._columns: dict[str, list[str]] = {}
        self._same: dict[str, Any] = {}  # the keys of the last row, all of which have columns

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        if is_remote(trial.local_path):
            return
        row = _flat(result)
        columns = self._known_columns(trial)
        new = [] if row.keys() == self._same.get(trial.trial_id) else [
            name for name in row if name not in columns
        ]
        self._same[trial.trial_id] = row.keys()
        if columns and not new:
            self._file.append(trial, self._row(columns, row))
            return
        if not columns and self._file.empty(trial):
            self._columns[trial.trial_id] = new
            self._file.append(trial, self._header(trial) + self._row(new, row))
            return
        rows = self._rows(trial) if columns else []
        self._columns[trial.trial_id] = columns + new
        self._rewrite(trial, [*rows, row])

    def log_trial_again(self, trial: Trial, results: list[dict[str, Any]]) -> None:
        if is_remote(trial.local_path):
            return
        rows = [flatten(result) for result in results]
        self._columns[trial.trial_id] = _columns(rows)
        self._same.pop(trial.trial_id, None)
        self._rewrite(trial, rows)

    def _whole(self, trial: Trial, results: list[dict[str, Any]]) -> Iterator[bytes]:
        rows = [flatten(result) for result in results]
        columns = _columns(rows)
        if columns:
            yield self._row(columns, {name: name for name in columns})
        yield from (self._row(columns, row) for row in rows)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        super().log_trial_end(trial, failed)
        self._columns.pop(trial.trial_id, None)
        self._same.pop(trial.trial_id, None)

    def _known_columns(self, trial: Trial) -> list[str]:
        if trial.trial_id not in self._columns:
            self._columns[trial.trial_id] = []
            with contextlib.suppress(FileNotFoundError, StopIteration):
                with open(self._file.path(trial), encoding="utf-8", newline="") as file, _any_size():
                    self._columns[trial.trial_id] = next(csv.reader(file))
        return self._columns[trial.trial_id]

    def _rows(self, trial: Trial) -> list[dict[str, Any]]:
        self._file.close(trial)
        with open(self._file.path(trial), encoding="utf-8", newline="") as file, _any_size():
            return list(csv.DictReader(file))

    def _rewrite(self, trial: Trial, rows: list[dict[str, Any]]) -> None:
        columns = self._columns[trial.trial_id]
        self._file.replace(
            trial, [self._header(trial), *(self._row(columns, row) for row in rows)]
        )

    def _header(self, trial: Trial) -> bytes:
        columns = self._columns[trial.trial_id]
        return self._row(columns, {name: name for name in columns}) if columns else b""

    @staticmethod
    def _row(columns: list[str], row: dict[str, Any]) -> bytes:
        text = io.StringIO()
        # Both characters get quotes, which readers want: csv gives them to those of its line's end alone.
        csv.writer(text, lineterminator="\r\n").writerow([row.get(name, "") for name in columns])
        return text.getvalue()[:-2].encode() + b"\n"


class TBXLoggerCallback(FileLogger):
    """Events for TensorBoard, which need not be installed to write them: numbers by training iteration.

    >>> import glob, os
    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"loss": 0.5})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)          # it is there by itself
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> len(glob.glob(os.path.join(result.path, "events.out.tfevents.*")))  # tensorboard --logdir runs
    1
    """

    def __init__(self) -> None:
        super().__init__("events.out.tfevents.cairn")

    def _begin(self, trial: Trial) -> bytes:
        return _native.tensorboard_header(time.time())

    def _encode(self, trial: Trial, result: dict[str, Any]) -> bytes:
        scalars = [
            (name, value)
            for name, value in _flat(result).items()
            if type(value) in _NUMBERS and name.partition("/")[0] not in _NOT_PLOTTED
        ]
        when = result.get("timestamp")
        wall = float(when) if isinstance(when, (int, float)) else time.time()
        return _native.tensorboard_scalars(wall, int(result.get("training_iteration", 0)), scalars)


TensorBoardLoggerCallback = TBXLoggerCallback

_NUMBERS = (int, float)
_NOT_PLOTTED = frozenset(
    (
        "config",
        "trial_id",
        "timestamp",
        "date",
        "pid",
        "hostname",
        "node_ip",
        "training_iteration",
    )
)

# The result that was flattened last: several loggers are told the same one after the other.
_last_flat: tuple[Any, dict[str, Any]] = (None, {})


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    global _last_flat
    if _last_flat[0] is not result:
        _last_flat = (result, flatten(result))
    return _last_flat[1]


@contextlib.contextmanager
def _any_size() -> Iterator[None]:
    """What was written is read again, however long: by itself csv refuses more than 128 KiB."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def params_text(trial: Trial) -> str:
    return json.dumps(trial.config, indent=2) + "\n"


def error_text(trial: Trial) -> str:
    return (trial.error or "the trial failed") + "\n"


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))
