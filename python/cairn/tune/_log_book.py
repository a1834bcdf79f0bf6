"""The book of an experiment's loggers: which files are complete, which have to be made anew, and from what."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

from ._report_lines import UsualLines
from ._result_files import (
    CSVLoggerCallback,
    FileLogger,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
    error_text,
    params_text,
)
from ._trial_files import TROUBLE, StoredFiles, is_remote, write_whole
from .callback import Callback
from .result import read_reports
from .result_keys import fill_result
from .trial import Trial

# So often what reports say gets into files, where they come all the time.
FLUSH_SECONDS = 0.1


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
        self._stored = StoredFiles(directory) if is_remote(directory) else None
        self.reports = lambda trial: []
        self._complete: set[str] = set()
        self._listed: set[str] = set()  # as the file in a store has them
        self._known: set[str] = set()  # trials of an earlier life
        self._last: dict[str, int] = {}
        self._trials: dict[str, Trial] = {}
        self._behind: dict[str, Trial] = {}  # their files lack something
        self._warned = False
        self._flushed_at, self._flushed_when = -1, 0.0
        usual = [type(one) for one in self._ours] == [
            JsonLoggerCallback, CSVLoggerCallback, TBXLoggerCallback
        ]  # fmt: skip
        alone = len(self._ours) == len(self._loggers) and self._stored is None
        self._lines = UsualLines() if usual and alone else None

    def mend(self) -> None:
        """At the end: makes files anew that could not be written, and stores those of trials that have not
        ended."""
        self.flush()
        behind, self._behind = self._behind, {}
        if self._stored is not None:
            behind.update((id, one) for id, one in self._trials.items() if not one.is_finished())
        for trial in behind.values():
            try:
                if self._stored is not None:
                    self._store(trial)
                else:
                    self._write_again(trial)
            except TROUBLE as error:
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
    def _ours(self) -> list[FileLogger]:
        return [logger for logger in self._loggers if isinstance(logger, FileLogger)]

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
            self._stored.put(f"{trial.trial_id}/error.txt", error_text(trial).encode())
        elif trial.error or trial.trial_id in self._known:
            self._stored.delete(f"{trial.trial_id}/error.txt")  # of a life that it was resumed after

    def _store_params(self, trial: Trial) -> None:
        if self._stored is not None and any(isinstance(one, JsonLoggerCallback) for one in self._ours):
            self._stored.put(f"{trial.trial_id}/params.json", params_text(trial).encode())

    def _each(self, trial: Trial, method: str, *arguments: Any, **named: Any) -> None:
        for logger in self._loggers:
            call = getattr(logger, method)
            if not isinstance(logger, FileLogger):
                call(*arguments, **named)
            elif trial.trial_id not in self._behind:
                try:
                    call(*arguments, **named)
                except OSError as error:
                    self._fall_behind(trial, error)

    def _fall_behind(self, trial: Trial, error: Exception) -> None:
        self._behind[trial.trial_id] = trial
        if self._lines is not None:
            self._lines.forget(trial.trial_id)
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
        self.flush()
        if self._lines is not None:
            self._lines.forget(trial.trial_id)
        self._each(trial, "log_trial_again", trial, self._up_to(trial, training_iteration))

    def _up_to(self, trial: Trial, training_iteration: int) -> list[dict[str, Any]]:
        """The reports up to that iteration: of the trial's own file, which costs less, or of the record, when
        somebody removed or damaged the file."""
        if self._stored is None:
            with contextlib.suppress(ValueError, OSError):
                reports = read_reports(os.path.join(trial.local_path, "result.json"))
                if not all(isinstance(one, dict) for one in reports):
                    raise ValueError("a line is no report")
                kept = [one for one in reports if _iteration(one) <= training_iteration]
                if [_iteration(one) for one in kept] == list(range(1, training_iteration + 1)):
                    return kept
        return [one for one in self._results(trial) if _iteration(one) <= training_iteration]

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._trials[trial.trial_id] = trial
        self._reopen(trial)
        try:
            self._store_params(trial)
        except TROUBLE as error:
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

    def on_report(self, iteration: int, trial: Trial, report: Any) -> None:
        """A report, as the tuner tells of it: most of them become lines without being looked at here.

        Args:
            report: trial.last_result is what it says, made when it is asked for.
        """
        self._reach(trial, report.iteration)
        if self._lines is not None and self._lines.add(trial, report):
            return
        self._append_lines(trial.trial_id)
        self._each(trial, "log_trial_result", iteration, trial, trial.last_result)
        if self._lines is not None and trial.trial_id not in self._behind:
            columns = self._ours[1]._known_columns(trial)
            self._lines.begin(trial, trial.last_result, columns)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._reach(trial, _iteration(result))
        self._append_lines(trial.trial_id)
        self._each(trial, "log_trial_result", iteration, trial, result)

    def _reach(self, trial: Trial, at: int) -> None:
        if at <= self._last.get(trial.trial_id, 0):
            self.on_trial_rewind(trial, at - 1)
        self._last[trial.trial_id] = at
        self._trials[trial.trial_id] = trial

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._end(trial, False)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._end(trial, True)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        # Whoever reads along waits no longer for it than the tuner waits for news.
        now = time.monotonic()
        if iteration == self._flushed_at or now - self._flushed_when >= FLUSH_SECONDS:
            self.flush()
            self._flushed_when = now
        self._flushed_at = iteration
        self._tell("on_step_end", iteration=iteration, trials=trials, **info)

    # What loggers of the user's own are told as any other callback.

    def _tell(self, method: str, **named: Any) -> None:
        for logger in self._loggers:
            if not isinstance(logger, FileLogger):
                getattr(logger, method)(**named)

    def setup(self, **info: Any) -> None:
        self._tell("setup", **info)

    def on_trial_recover(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._tell("on_trial_recover", iteration=iteration, trials=trials, trial=trial, **info)

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Any, **info: Any
    ) -> None:
        self._tell(
            "on_checkpoint", iteration=iteration, trials=trials, trial=trial, checkpoint=checkpoint, **info
        )

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self.flush()
        for logger in self._loggers:
            logger.on_experiment_end(trials, **info)

    def _append_lines(self, id: str) -> None:
        """The lines of reports that are in no file yet."""
        if self._lines is None:
            return
        texts, trial = self._lines.take(id), self._trials.get(id)
        if texts is None or trial is None or id in self._behind:
            return
        try:
            for logger, data in zip(self._ours, texts):
                logger._file.append(trial, data)
        except OSError as error:
            self._fall_behind(trial, error)

    def flush(self) -> None:
        """What was told is in the files then."""
        if self._lines is not None:
            for id in self._lines.with_news():
                self._append_lines(id)
        for logger in self._ours:
            logger.on_step_end(0, [])
        self._take_failed()

    def _end(self, trial: Trial, failed: bool) -> None:
        self._append_lines(trial.trial_id)
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
        except TROUBLE as error:
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
            except TROUBLE:
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
        with contextlib.suppress(*TROUBLE):  # the next start stores their files again
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
            write_whole(path, "".join(f"{one}\n" for one in sorted(self._complete)))
        except OSError:
            os.remove(path)  # nobody may believe it: the next start looks at all files
            self._complete.clear()


def _iteration(result: dict[str, Any]) -> int:
    return int(result.get("training_iteration", 0))
