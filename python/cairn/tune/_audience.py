"""What callbacks are told of an experiment while it runs, and the trials as they know them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from ._log_book import LogBook
from .callback import Callback
from .checkpoint import Checkpoint
from .result_keys import fill_result
from .trial import Trial, name_trial

# What a callback has that does not want to be told.
_UNTOLD = Callback.on_trial_result


class Audience:
    """All callbacks of an experiment; they are told one after the other, in the tuner's thread.

    Attributes:
        callbacks: to be set before anything is told.
        name_creator: that of TuneConfig; likewise.
        trials: by their ids.
        told: how many news there were.
    """

    def __init__(self) -> None:
        self.callbacks: List[Any] = []
        self.name_creator: Optional[Callable[[Trial], str]] = None
        self.trials: Dict[str, Trial] = {}
        self.told = 0
        self._directory = ""
        self._listed: List[Trial] = []
        self._restoring: Set[str] = set()  # trials whose next start is from a checkpoint
        self._failed: Set[str] = set()  # … is after a failure

    def call(self, method: str, *arguments: Any, **named: Any) -> None:
        for callback in self.callbacks:
            function = getattr(callback, method, None)
            if function is not None:
                function(*arguments, **named)

    def meet(self, native: Any, directory: str, stop: Any, num_samples: int) -> None:
        """The trials that are there when it begins, with all that they reported."""
        self._directory = directory
        self.trials, self._listed = {}, []
        self._restoring = set()
        self._failed = set()
        for callback in self.callbacks:
            if isinstance(callback, LogBook):
                callback.reports = native.results
        known = []
        for item in native.trials(False):
            trial = self._trial(str(item["trial"]))
            trial.config = dict(item["config"])
            trial.status = str(item["status"])
            trial.error = item["error"] or None
            trial.last_result = dict(item["last_result"] or {})
            name_trial(trial, self.name_creator)
            known.append((trial, _Reports(native, trial.trial_id)))
        self.call("setup", stop=stop, num_samples=num_samples)
        self.call("on_restore", known)

    def _trial(self, id: str) -> Trial:
        if id not in self.trials:
            self.trials[id] = Trial(id, {}, f"{self._directory}/{id}")
        return self.trials[id]

    def everyone(self) -> List[Trial]:
        """All trials; one list for many news, there may be thousands."""
        if len(self._listed) != len(self.trials):
            self._listed = list(self.trials.values())
        return self._listed

    def tell(self, item: Dict[str, Any]) -> None:
        """One of the tuner's news."""
        trial = self._trial(str(item["trial"]))
        what = item["what"]
        if what == "added":
            trial.config = dict(item["config"])
            name_trial(trial, self.name_creator)
            return
        self.told += 1
        common = {"iteration": self.told, "trials": self.everyone(), "trial": trial}
        if what == "run":
            if trial.trial_id in self._failed:
                self._failed.discard(trial.trial_id)
                self.call("on_trial_recover", **common)
            iteration = int(item["iteration"])
            if iteration > 0:
                self._restoring.add(trial.trial_id)
            self.call("on_trial_rewind", trial=trial, training_iteration=iteration)
        elif what == "exploit":
            trial.config = dict(item["config"])
            self._restoring.add(trial.trial_id)
        elif what == "started":
            trial.status = Trial.RUNNING
            self.call("on_trial_start", **common)
            if trial.trial_id in self._restoring:
                self._restoring.discard(trial.trial_id)
                self.call("on_trial_restore", **common)
        elif what == "result":
            self._tell_result(item["result"], trial, common)
        elif what == "checkpoint":
            name = str(item["checkpoint"]["path"]).rsplit("/", 1)[-1]
            trial.checkpoint = Checkpoint._told_of(f"{trial.path}/{name}")
            self.call("on_checkpoint", checkpoint=trial.checkpoint, **common)
            self.call("on_trial_save", **common)
        elif what == "failure":
            trial.error = str(item["error"])
            self._failed.add(trial.trial_id)
        elif what == "paused":
            trial.status = Trial.PAUSED
        elif what == "ended":
            trial.status = Trial.ERROR if item.get("failed") else Trial.TERMINATED
            failed = trial.status == Trial.ERROR
            self.call("on_trial_error" if failed else "on_trial_complete", **common)

    def _tell_result(self, report: Any, trial: Trial, common: Dict[str, Any]) -> None:
        """Of most experiments nobody in Python looks at each report."""
        config = trial.config
        trial._make_result = lambda: fill_result(report.result(), trial.trial_id, config)
        for callback in self.callbacks:
            if isinstance(callback, LogBook):
                callback.on_report(common["iteration"], trial, report)
                continue
            function = getattr(callback, "on_trial_result", None)
            if function is not None and getattr(function, "__func__", None) is not _UNTOLD:
                function(result=trial.last_result, **common)

    def flush(self) -> None:
        """What was told is in the files of the loggers, also where an error ends the experiment."""
        for callback in self.callbacks:
            if isinstance(callback, LogBook):
                callback.flush()

    def end(self) -> None:
        """Nothing more will come."""
        for callback in self.callbacks:
            if isinstance(callback, LogBook):
                callback.mend()
        self.call("on_experiment_end", trials=self.everyone())


class _Reports(Sequence[Dict[str, Any]]):
    """The reports of a trial, fetched when they are looked at: of thousands few are."""

    def __init__(self, native: Any, trial: str) -> None:
        self._native = native
        self._trial = trial

    @cached_property
    def _all(self) -> List[Dict[str, Any]]:
        return self._native.results(self._trial)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]
