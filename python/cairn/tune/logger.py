"""Files in each trial's directory that other tools read: result.json, progress.csv, params.json,
error.txt and TensorBoard's events.

They follow from the experiment's record. After a restart, and when a trial goes back to a checkpoint,
they are written again up to where it goes on, so that no iteration is in them twice and none is missing.

Of experiments in a bucket or on HDFS, where nothing can be appended to, they are stored whole: params.json
when a trial starts, error.txt when it failed, the others when it ends and when the experiment does.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

from .. import _location, _native
from ..errors import Error
from ._flat import flatten
from .callback import Callback
from .result import read_reports
from .result_keys import fill_result
from .trial import Trial

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    "TensorBoardLoggerCallback",
]

# Asked for every report of every trial.
is_remote = functools.lru_cache(maxsize=4096)(_location.is_remote)

# Of all trials together: descriptors are few.
_OPEN_FILES = 128

# What went wrong with a file, in a directory or in a store.
_TROUBLE = (OSError, Error)


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


class _Appended:
    """One file in each trial's directory that grows; the newest ones stay open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: dict[str, Any] = {}
        self._written: set[str] = set()  # since the last flush
        self._failed: dict[str, Exception] = {}

    def path(self, trial: Trial) -> str:
        return os.path.join(trial.local_path, self.name)

    def append(self, trial: Trial, data: bytes) -> None:
        file = self._open.pop(trial.trial_id, None)
        if file is None:
            file = _open(self.path(trial), "ab")
        self._open[trial.trial_id] = file  # the last one that is closed
        self._written.add(trial.trial_id)
        file.write(data)
        if len(self._open) > _OPEN_FILES:
            oldest = next(iter(self._open))
            try:
                self._open.pop(oldest).close()
            except OSError as error:
                self._failed[oldest] = error

    def empty(self, trial: Trial) -> bool:
        """Whether nothing was ever written."""
        if trial.trial_id in self._open:
            return False
        with contextlib.suppress(FileNotFoundError):
            return os.path.getsize(self.path(trial)) == 0
        return True

    def replace(self, trial: Trial, pieces: Iterable[bytes]) -> None:
        """The file as a whole, at once: nobody sees half of it."""
        self.close(trial)
        temporary = f"{self.path(trial)}.new"
        with _open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, self.path(trial))

    def close(self, trial: Trial) -> None:
        file = self._open.pop(trial.trial_id, None)
        if file is not None:
            file.close()

    def drop(self, trial: Trial) -> None:
        """Closes a file that cannot be written."""
        with contextlib.suppress(OSError):
            self.close(trial)

    def flush(self) -> None:
        for trial in self._written:
            if trial in self._open:
                try:
                    self._open[trial].flush()
                except OSError as error:
                    self._failed[trial] = error
        self._written.clear()

    def take_failed(self) -> dict[str, Exception]:
        """The trials whose files were not written, although it had looked so before."""
        failed, self._failed = self._failed, {}
        return failed

    def close_all(self) -> None:
        for trial, file in self._open.items():
            try:
                file.close()
            except OSError as error:
                self._failed[trial] = error
        self._open.clear()


class _FileLogger(LoggerCallback):
    """A logger with one file per trial. Of experiments in a bucket the LogBook stores what `_whole` gives."""

    def __init__(self, name: str) -> None:
        self._file = _Appended(name)

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


class JsonLoggerCallback(_FileLogger):
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
        _write_whole(os.path.join(trial.local_path, "params.json"), _params(trial))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        super().log_trial_end(trial, failed)
        if is_remote(trial.local_path):
            return
        path = os.path.join(trial.local_path, "error.txt")
        if failed:
            _write_whole(path, _error(trial))
        else:
            with contextlib.suppress(FileNotFoundError):  # of a life that it was resumed after
                os.remove(path)


class CSVLoggerCallback(_FileLogger):
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
        self._same: dict[str, Any] = {}  # the keys of the last row

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
                with open(self._file.path(trial), encoding="utf-8", newline="") as file:
                    self._columns[trial.trial_id] = next(csv.reader(file))
        return self._columns[trial.trial_id]

    def _rows(self, trial: Trial) -> list[dict[str, Any]]:
        self._file.close(trial)
        with open(self._file.path(trial), encoding="utf-8", newline="") as file:
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
        csv.writer(text, lineterminator="\n").writerow([row.get(name, "") for name in columns])
        return text.getvalue().encode()


class TBXLoggerCallback(_FileLogger):
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


class _Stored:
    """The files of trials of an experiment that is not on this machine, stored whole."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @functools.cached_property
    def _store(self) -> Any:
        return _native.StoreFiles.open(self._directory)

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def get(self, name: str) -> Optional[bytes]:
        return self._store.get(name)

    def delete(self, name: str) -> None:
        self._store.delete(name)


class LogBook(Callback):
    """All loggers of an experiment, and what must hold for their files: each iteration once. Files that
    cannot be written (a full disk) hold up nothing: they follow from the record, and are made from it again
    when the experiment ends or goes on.

    Attributes:
        reports: gives the reports of a trial that are on record; to be set before anything is told.

    Args:
        directory: of the experiment.
        loggers: None: result.json, progress.csv and TensorBoard's events.
    """

    # Names the trials whose files are complete, so that a restart need not look at thousands of them.
    COMPLETE = ".logged"
    # In a store that list is written again when it has grown by so many.
    COMPLETE_AT_ONCE = 64

    reports: Callable[[str], Sequence[dict[str, Any]]]

    def __init__(self, directory: str, loggers: Optional[list[LoggerCallback]] = None) -> None:
        self._directory = directory
        self._loggers = (
            [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
            if loggers is None
            else loggers
        )
        self._stored = _Stored(directory) if is_remote(directory) else None
        self.reports = lambda trial: []
        self._complete: set[str] = set()
        self._listed: set[str] = set()  # as the file in a store has them
        self._known: set[str] = set()  # trials of an earlier life
        self._last: dict[str, int] = {}
        self._trials: dict[str, Trial] = {}
        self._behind: dict[str, Trial] = {}  # their files lack something
        self._warned = False

    def mend(self) -> None:
        """At the end: makes files anew that could not be written, and stores those of trials that have not
        ended."""
        self._flush()
        behind, self._behind = self._behind, {}
        if self._stored is not None:
            behind.update((id, one) for id, one in self._trials.items() if not one.is_finished())
        for trial in behind.values():
            try:
                if self._stored is not None:
                    self._store(trial)
                else:
                    self._write_again(trial)
            except _TROUBLE as error:
                self._fall_behind(trial, error)
            else:
                if self._stored is not None and trial.is_finished():
                    self._complete.add(trial.trial_id)
        if self._stored is not None:
            self._list_complete()
        if self._behind:
            print(
                f"cairn.tune: the files of {', '.join(sorted(self._behind))} are not complete; what they lack is "
                "in the record, and Tuner.restore writes it",
                file=sys.stderr,
                flush=True,
            )

    @property
    def _ours(self) -> list[_FileLogger]:
        return [logger for logger in self._loggers if isinstance(logger, _FileLogger)]

    def _results(self, trial: Trial) -> list[dict[str, Any]]:
        return [
            fill_result(one, trial.trial_id, trial.config) for one in self.reports(trial.trial_id)
        ]

    def _write_again(self, trial: Trial) -> None:
        results = self._results(trial)
        for logger in self._ours:
            logger.log_trial_start(trial)
            logger.log_trial_again(trial, results)
            if trial.is_finished():
                logger.log_trial_end(trial, failed=trial.status == Trial.ERROR)

    def _store(self, trial: Trial) -> None:
        """All files of a trial in a store, from the record."""
        assert self._stored is not None
        results = self._results(trial)
        self._store_params(trial)
        for logger in self._ours:
            self._stored.put(
                f"{trial.trial_id}/{logger._file.name}", b"".join(logger._whole(trial, results))
            )
        if trial.status == Trial.ERROR:
            self._stored.put(f"{trial.trial_id}/error.txt", _error(trial).encode())
        elif trial.error or trial.trial_id in self._known:
            self._stored.delete(f"{trial.trial_id}/error.txt")  # of a life that it was resumed after

    def _store_params(self, trial: Trial) -> None:
        if self._stored is not None and any(isinstance(one, JsonLoggerCallback) for one in self._ours):
            self._stored.put(f"{trial.trial_id}/params.json", _params(trial).encode())

    def _each(self, trial: Trial, method: str, *arguments: Any, **named: Any) -> None:
        for logger in self._loggers:
            call = getattr(logger, method)
            if not isinstance(logger, _FileLogger):
                call(*arguments, **named)
            elif trial.trial_id not in self._behind:
                try:
                    call(*arguments, **named)
                except OSError as error:
                    self._fall_behind(trial, error)

    def _fall_behind(self, trial: Trial, error: Exception) -> None:
        self._behind[trial.trial_id] = trial
        for logger in self._ours:
            logger._file.drop(trial)
        if not self._warned:
            print(
                f"cairn.tune: files of trial {trial.trial_id} cannot be written ({error}); the experiment goes on, "
                "and they are made anew from its record",
                file=sys.stderr,
                flush=True,
            )
        self._warned = True

    def _take_failed(self) -> None:
        for logger in self._ours:
            for id, error in logger._file.take_failed().items():
                self._fall_behind(self._trials[id], error)

    def on_restore(self, known: Sequence[tuple[Trial, Sequence[dict[str, Any]]]]) -> None:
        if not known:
            return
        self._complete = self._read_complete()
        self._listed = set(self._complete)
        for trial, results in known:
            self._known.add(trial.trial_id)
            if trial.trial_id in self._complete and trial.is_finished():
                # Should it go on all the same (resume_errored), its files tell where it was.
                self._last[trial.trial_id] = sys.maxsize
                continue
            self._last[trial.trial_id] = _iteration(results[-1]) if results else 0
            begun = trial.is_finished() if self._stored else os.path.isdir(trial.local_path)
            if not results and not begun:
                continue
            results = [fill_result(one, trial.trial_id, trial.config) for one in results]
            self._trials[trial.trial_id] = trial
            self._each(trial, "log_trial_start", trial)
            self._each(trial, "log_trial_again", trial, results)
            if trial.is_finished():
                self._end(trial, trial.status == Trial.ERROR)

    def on_trial_rewind(self, trial: Trial, training_iteration: int) -> None:
        last = self._last.get(trial.trial_id)
        if last is None or last <= training_iteration:
            return
        self._last[trial.trial_id] = training_iteration
        self._flush()
        if self._stored is None:
            reports = read_reports(os.path.join(trial.local_path, "result.json"))
        else:
            reports = self._results(trial)
        kept = [report for report in reports if _iteration(report) <= training_iteration]
        self._each(trial, "log_trial_again", trial, kept)

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._trials[trial.trial_id] = trial
        self._reopen(trial)
        try:
            self._store_params(trial)
        except _TROUBLE as error:
            self._fall_behind(trial, error)
        self._each(trial, "log_trial_start", trial)

    def on_trial_save(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._each(trial, "on_trial_save", iteration, trials, trial, **info)

    def on_trial_restore(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._each(trial, "on_trial_restore", iteration, trials, trial, **info)

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for logger in self._loggers:
            logger.on_step_begin(iteration, trials, **info)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        at = _iteration(result)
        if at <= self._last.get(trial.trial_id, 0):
            self.on_trial_rewind(trial, at - 1)
        self._last[trial.trial_id] = at
        self._trials[trial.trial_id] = trial
        self._each(trial, "log_trial_result", iteration, trial, result)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._end(trial, False)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._end(trial, True)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self._flush()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        for logger in self._loggers:
            logger.on_experiment_end(trials, **info)

    def _flush(self) -> None:
        for logger in self._loggers:
            logger.on_step_end(0, [])
        self._take_failed()

    def _end(self, trial: Trial, failed: bool) -> None:
        self._each(trial, "log_trial_end", trial, failed=failed)
        self._take_failed()
        if self._stored is not None:
            return self._end_stored(trial)
        if trial.trial_id in self._behind or not os.path.isdir(self._directory):
            return
        try:
            with open(os.path.join(self._directory, self.COMPLETE), "a", encoding="utf-8") as file:
                file.write(trial.trial_id + "\n")
        except OSError:
            return  # the next start looks at its files
        self._complete.add(trial.trial_id)

    def _end_stored(self, trial: Trial) -> None:
        try:
            self._store(trial)
        except _TROUBLE as error:
            self._fall_behind(trial, error)
            return
        self._behind.pop(trial.trial_id, None)
        self._complete.add(trial.trial_id)
        if len(self._complete) >= len(self._listed) + self.COMPLETE_AT_ONCE:
            self._list_complete()

    def _read_complete(self) -> set[str]:
        if self._stored is not None:
            try:
                found = (self._stored.get(self.COMPLETE) or b"").decode()
            except _TROUBLE:
                return set()  # all are stored again
        else:
            try:
                with open(os.path.join(self._directory, self.COMPLETE), encoding="utf-8") as file:
                    found = file.read()
            except FileNotFoundError:
                return set()
        return set(found.split("\n")[:-1])

    def _list_complete(self) -> None:
        """In a store, where nothing can be appended to."""
        assert self._stored is not None
        if self._complete == self._listed:
            return
        text = "".join(f"{one}\n" for one in sorted(self._complete))
        with contextlib.suppress(*_TROUBLE):  # the next start stores their files again
            self._stored.put(self.COMPLETE, text.encode())
            self._listed = set(self._complete)

    def _reopen(self, trial: Trial) -> None:
        """A trial that had ended goes on: its files are not complete any more."""
        if trial.trial_id not in self._complete:
            return
        self._complete.discard(trial.trial_id)
        if self._stored is not None:
            # Its files follow when it ends; killed before, whoever comes next must not believe the list.
            return self._list_complete()
        path = os.path.join(self._directory, self.COMPLETE)
        try:
            _write_whole(path, "".join(f"{one}\n" for one in sorted(self._complete)))
        except OSError:
            os.remove(path)  # nobody may believe it: the next start looks at all files
            self._complete.clear()


class PolicyLog:
    """What a scheduler decided, for people: pbt_global.txt and pbt_policy_<trial>.txt, a line of JSON for
    each copy (trial, donor, their times, old and new config). It is made anew from the record at each
    start, when `replayed` are the lines of what was before. In a store it is written by start and finish.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._stored = _Stored(directory) if is_remote(directory) else None
        self._entries: list[dict[str, Any]] = []  # all, in a store

    def start(self, replayed: list[dict[str, Any]]) -> None:
        if self._stored is not None:
            self._entries = list(replayed)
            self.finish()
        if self._stored is not None or not replayed:
            return
        with contextlib.suppress(OSError):  # of a full disk; the next start makes it anew
            for name, lines in self._files(replayed):
                _write_whole(os.path.join(self._directory, name), "".join(lines))

    def finish(self) -> None:
        """Nothing more will be decided."""
        if self._stored is None:
            return
        with contextlib.suppress(*_TROUBLE):
            for name, lines in self._files(self._entries):
                self._stored.put(name, "".join(lines).encode())

    def append(self, entries: list[dict[str, Any]]) -> None:
        if self._stored is not None:
            self._entries += entries
            return
        if not entries:
            return
        with contextlib.suppress(OSError):
            for name, lines in self._files(entries):
                with open(os.path.join(self._directory, name), "a", encoding="utf-8") as file:
                    file.write("".join(lines))

    @staticmethod
    def _files(entries: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
        files: dict[str, list[str]] = {}
        for entry in entries:
            line = json.dumps(entry) + "\n"
            files.setdefault("pbt_global.txt", []).append(line)
            files.setdefault(f"pbt_policy_{entry['trial']}.txt", []).append(line)
        yield from files.items()


def _params(trial: Trial) -> str:
    return json.dumps(trial.config, indent=2) + "\n"


def _error(trial: Trial) -> str:
    return (trial.error or "the trial failed") + "\n"


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _iteration(result: dict[str, Any]) -> int:
    return int(result.get("training_iteration", 0))


def _open(path: str, mode: str) -> Any:
    """Makes the directory when it is not there: once for each trial."""
    try:
        return open(path, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, mode)


def _write_whole(path: str, text: str) -> None:
    temporary = f"{path}.new"
    with _open(temporary, "wb") as file:
        file.write(text.encode())
    os.replace(temporary, path)
