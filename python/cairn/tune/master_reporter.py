"""MasterReporter: shows an experiment's trials on the page of a master, while the tuner runs them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .. import _native
from ..errors import Error, Fenced
from .callback import Callback
from .result_keys import TRAINING_ITERATION
from .trial import Trial

__all__ = ["MasterReporter", "reporter_for"]

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
    """

    def __init__(self, url: str, token: str, experiment: str, id: str) -> None:
        self._url = url
        self._token = token
        self._experiment = experiment
        self._id = id
        self._mu = threading.Condition()
        self._trials: dict[str, _Shown] = {}
        self._ending: Optional[float] = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="cairn-tune-master", daemon=True)

    # What the tuner tells.

    def on_restore(self, known: Sequence[tuple[Trial, Sequence[dict[str, Any]]]]) -> None:
        """Trials that had ended were told of then; the others are told of once more, from the start."""
        for trial, reports in known:
            if trial.is_finished():
                continue
            shown = self._of(trial)
            for result in reports:
                self._add(shown, result)
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
        self._ended(trial, 0, "")

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._ended(trial, 1, (trial.error or "it failed").strip().splitlines()[-1])

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        with self._mu:
            self._ending = time.monotonic() + _PATIENCE
            self._mu.notify()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE + 1)

    def _of(self, trial: Trial) -> _Shown:
        if trial.trial_id not in self._trials:
            self._trials[trial.trial_id] = _Shown(trial.trial_id)
        shown = self._trials[trial.trial_id]
        shown.config = trial.config
        return shown

    def _add(self, shown: _Shown, result: Mapping[str, Any]) -> None:
        values = {k: v for k, v in result.items() if k not in ("config", "trial_id")}
        shown.reports.append((int(result.get(TRAINING_ITERATION, len(shown.reports) + 1)), values))

    def _ended(self, trial: Trial, code: int, message: str) -> None:
        with self._mu:
            self._of(trial).exit = (code, message)
            self._mu.notify()

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
            shown.client.report("training", steps, values)
            shown.sent += 1
        if over is not None:
            shown.client.exit(*over)
            self._forget(shown)
            shown.done = True
            shown.reports = []

    def _forget(self, shown: _Shown) -> None:
        if shown.client is not None:
            shown.client.close()
            shown.client = None
        shown.sent = 0

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            print(f"cairn.tune: the master is not told for now: {error}", file=sys.stderr, flush=True)
        self._warned = True


def reporter_for(url: Optional[str], experiment: str, id: str) -> Optional[MasterReporter]:
    """The reporter that RunConfig(master=url) asks for, or the environment (CAIRN_MASTER with a token);
    None without either."""
    token = os.environ.get("CAIRN_TOKEN", "")
    where = url or os.environ.get("CAIRN_MASTER", "")
    if not where or (url is None and not token):
        return None
    if not token:
        raise ValueError(
            f"RunConfig(master={url!r}) needs a token of a user of that master: set CAIRN_TOKEN"
        )
    return MasterReporter(where, token, experiment, id)
