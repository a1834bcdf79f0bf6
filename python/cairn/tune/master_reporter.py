"""MasterReporter: shows an experiment's trials on the page of a master, while the tuner runs them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .. import _location, _native
from ..errors import Error, Fenced, Invalid
from .callback import Callback
from .result_keys import TRAINING_ITERATION
from .trial import Trial

__all__ = ["MasterReporter", "reporter_for"]

# The file of the ends that were told.
_TOLD = "master_told"
# What the tuner adds for itself: a curve of process ids beside that of the loss helps nobody. The
# iteration is the step of each report.
_NOT_SHOWN = {
    "config", "date", "done", "experiment_tag", "hostname", "iterations_since_restore", "node_ip", "pid",
    "time_since_restore", "timestamp", "training_iteration", "trial_id",
}  # fmt: skip
# What the page calls the reports.
_GROUP = "training"
# How long the end of an experiment waits for a master that does not answer.
_PATIENCE = 10.0
_RETRY = 5.0
_LAST_RETRY = 0.5  # when the experiment has ended
# Of requests before one is given up and the trial joins again later.
_ATTEMPTS = 3


class _Shown:
    """A trial as the master is to know it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: dict[str, Any] = {}
        self.reports: list[tuple[int, dict[str, Any]]] = []
        self.exit: Optional[tuple[int, str]] = None
        self.end = ""
        self.done = False
        # Of the thread that sends.
        self.client: Any = None
        self.sent = 0
        self.joins_again = False  # what was sent is void


class MasterReporter(Callback):
    """Each trial joins the master as a process that was started by hand would, under its own name, and
    its reports are sent there. The experiment does not depend on it: a master that is away is told
    everything when it is back, and the record is the experiment's own.

    Args:
        url: of the master.
        token: of a user who may create experiments.
        experiment: its name, and
        id: what tells it from others of the same name.
        metric, mode: what the page shows as the best of each trial; none without a metric.
        directory: of the experiment. A file there says of which ends the master knows, so that the next
            life of the experiment tells of the others. Without one, and on a bucket, all are taken to be
            known.
    """

    def __init__(
        self,
        url: str,
        token: str,
        experiment: str,
        id: str,
        directory: Optional[str] = None,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
    ) -> None:
        local = directory is not None and not _location.is_remote(directory)
        self._told = os.path.join(_location.local_path(directory), _TOLD) if local else None
        self._url = url
        self._token = token
        self._experiment = experiment
        self._id = id
        self._compared: dict[str, Any] = {}
        if metric:
            self._compared = {
                "metric": metric,
                "metric_group": _GROUP,
                "smaller_is_better": mode != "max",
            }
        self._mu = threading.Condition()
        self._trials: dict[str, _Shown] = {}
        self._ending: Optional[float] = None
        self._warned = False
        self._said: set[str] = set()
        self._earlier: dict[str, Sequence[dict[str, Any]]] = {}
        self._thread = threading.Thread(target=self._run, name="cairn-tune-master", daemon=True)

    # What the tuner tells.

    def on_restore(self, known: Sequence[tuple[Trial, Sequence[dict[str, Any]]]]) -> None:
        """Ends that the master knows of are left out; the other trials are told of from the start."""
        told = self._read_told()
        for trial, reports in known:
            if trial.is_finished() and (self._told is None or self._end_of(trial) in told):
                self._earlier[trial.trial_id] = reports  # for one that goes on
                continue
            shown = self._of(trial)
            for result in reports:
                self._add(shown, result)
            if trial.is_finished():
                self._set_end(shown, trial)
        self._thread.start()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        with self._mu:
            self._of(trial)
            self._mu.notify()

    def on_trial_rewind(self, trial: Trial, training_iteration: int) -> None:
        with self._mu:
            shown = self._of(trial)
            kept = [one for one in shown.reports if one[0] <= training_iteration]
            if len(kept) < len(shown.reports):
                shown.reports = kept
                shown.joins_again = True

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        with self._mu:
            self._add(self._of(trial), result)
            self._mu.notify()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._ended(trial)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._ended(trial)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        with self._mu:
            self._ending = time.monotonic() + _PATIENCE
            self._mu.notify()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE + 1)

    def _of(self, trial: Trial) -> _Shown:
        if trial.trial_id not in self._trials:
            shown = self._trials[trial.trial_id] = _Shown(trial.trial_id)
            for result in self._earlier.pop(trial.trial_id, ()):
                self._add(shown, result)
        shown = self._trials[trial.trial_id]
        shown.config = trial.config
        return shown

    def _add(self, shown: _Shown, result: Mapping[str, Any]) -> None:
        values = {k: v for k, v in result.items() if k not in _NOT_SHOWN}
        shown.reports.append((int(result.get(TRAINING_ITERATION, len(shown.reports) + 1)), values))

    def _ended(self, trial: Trial) -> None:
        with self._mu:
            self._set_end(self._of(trial), trial)
            self._mu.notify()

    def _set_end(self, shown: _Shown, trial: Trial) -> None:
        failed = trial.status == Trial.ERROR
        said = (trial.error or "it failed").strip().splitlines()[-1] if failed else ""
        shown.exit = (int(failed), said.replace("\0", ""))
        shown.end = self._end_of(trial)

    def _end_of(self, trial: Trial) -> str:
        """As the file has it. A trial that went on afterwards has another end."""
        at = trial.last_result.get(TRAINING_ITERATION, 0)
        return f"{self._url} {trial.trial_id} {at} {trial.status}"

    def _read_told(self) -> set[str]:
        if self._told is None or not os.path.exists(self._told):
            return set()
        with open(self._told) as file:
            return set(file.read().splitlines())

    def _note_told(self, shown: _Shown) -> None:
        if self._told is None:
            return
        try:
            with open(self._told, "a") as file:
                file.write(shown.end + "\n")
        except OSError as error:  # it is told once more
            print(f"cairn.tune: {self._told}: {error}", file=sys.stderr, flush=True)

    # What the thread does.

    def _run(self) -> None:
        while True:
            with self._mu:
                while self._ending is None and not self._unsent():
                    self._mu.wait()
                names = self._unsent()
                if self._ending is not None and (not names or time.monotonic() > self._ending):
                    break
            failed = False
            for name in names:
                try:
                    self._send(self._trials[name])
                except Fenced:
                    self._trials[name].done = True  # somebody ended it there: it is not shown on
                except Invalid as error:  # and would be so again
                    self._forget(self._trials[name])
                    self._trials[name].done = True
                    self._refused(f"trial {name} is not shown: {error}")
                except Error as error:
                    self._forget(self._trials[name])
                    self._warn(error)
                    failed = True
                    break
            if failed:
                with self._mu:
                    self._mu.wait_for(lambda: self._ending is not None, _RETRY)
                    if self._ending is not None and time.monotonic() < self._ending:
                        self._mu.wait(_LAST_RETRY)
        for shown in self._trials.values():
            self._forget(shown)

    def _unsent(self) -> list[str]:
        return [
            name
            for name, shown in self._trials.items()
            if not shown.done
            and (
                shown.client is None
                or shown.joins_again
                or shown.sent < len(shown.reports)
                or shown.exit is not None
            )
        ]

    def _send(self, shown: _Shown) -> None:
        with self._mu:
            again, shown.joins_again = shown.joins_again, False
        if again:
            self._forget(shown)
        if shown.client is None:
            # A new run of the trial; what earlier ones said is put aside there.
            shown.client = _native.TrialClient.join(
                {
                    "url": self._url,
                    "ca": os.environ.get("CAIRN_MASTER_CA", ""),
                    "token": self._token,
                    "external_id": f"{self._id}:{shown.name}",
                    "experiment": f"{self._experiment}/{shown.name}",
                    "hparams": shown.config,
                    "attempts": _ATTEMPTS,
                    **self._compared,
                }
            )
            shown.sent = 0
            shown.client.ready(0, os.getpid(), os.uname().nodename)
        while True:
            with self._mu:
                if shown.joins_again or shown.sent >= len(shown.reports):
                    over = None if shown.joins_again else shown.exit
                    break
                steps, values = shown.reports[shown.sent]
            try:
                shown.client.report(_GROUP, steps, values)
            except Invalid as error:
                self._refused(f"report {steps} of trial {shown.name} is not shown: {error}")
            shown.sent += 1
        if over is not None:
            shown.client.exit(*over)
            self._forget(shown)
            shown.done = True
            shown.reports = []
            self._note_told(shown)

    def _forget(self, shown: _Shown) -> None:
        if shown.client is not None:
            shown.client.close()
            shown.client = None
        shown.sent = 0

    def _refused(self, what: str) -> None:
        """Once: a trial that joins again sends the same again."""
        if what not in self._said:
            print(f"cairn.tune: {what}", file=sys.stderr, flush=True)
        self._said.add(what)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            print(f"cairn.tune: the master is not told for now: {error}", file=sys.stderr, flush=True)
        self._warned = True


def check_master(url: Optional[str]) -> None:
    """Refuses a RunConfig(master=url) that nothing can be said to."""
    if url and not os.environ.get("CAIRN_TOKEN"):
        raise ValueError(
            f"RunConfig(master={url!r}) needs a token of a user of that master: set CAIRN_TOKEN"
        )


def reporter_for(
    url: Optional[str],
    experiment: str,
    id: str,
    directory: Optional[str] = None,
    metric: Optional[str] = None,
    mode: Optional[str] = None,
) -> Optional[MasterReporter]:
    """The reporter that RunConfig(master=url) asks for, or the environment (CAIRN_MASTER with a token);
    None without either."""
    check_master(url)
    token = os.environ.get("CAIRN_TOKEN", "")
    where = url or os.environ.get("CAIRN_MASTER", "")
    if not where or not token:
        return None
    return MasterReporter(where, token, experiment, id, directory, metric, mode)
