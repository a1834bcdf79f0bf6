"""Tuner: runs trials of a trainable, and goes on where it was after anything."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from functools import cached_property
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Union

from .. import _location, _native
from ..errors import Corruption, NotFound
from . import _output, search_space, stoppers
from ._changes import changed_keys
from ._gpus import places, visible_gpus
from ._observers import observers
from .config import CLUSTERS, CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from .logger import LogBook, PolicyLog
from .master_reporter import check_master, reporter_for
from .result_grid import ResultGrid
from .result_keys import fill_result
from .search_policy import SearchPolicy
from .session import HURRY
from .trainable import is_class_trainable, name_of, resources_of, saves_on_demand
from .trial import Trial

__all__ = ["TuneError", "Tuner"]

_INTERRUPT_SECONDS = 30.0
_CLUSTER_TRIALS = 16  # jobs at a time, which wait in the cluster's own queue where they find no room
_NOT_RECORDED = "a function"


class TuneError(RuntimeError):
    """A trial failed, and fail_fast="raise" wants to know.

    >>> from cairn import tune
    >>> def train(config):
    ...     raise RuntimeError("the reason")
    >>> run = tune.RunConfig(storage_path="runs", verbose=0,
    ...                      failure_config=tune.FailureConfig(fail_fast="raise"))
    >>> try:
    ...     tune.Tuner(train, run_config=run).fit()
    ... except tune.TuneError as error:
    ...     print(str(error).splitlines()[-1])
    RuntimeError: the reason
    """


def flat_keys(space: Mapping[str, Any], prefix: str = "") -> List[str]:
    """The keys of a search space, nested ones with "/"."""
    keys: List[str] = []
    for key, value in space.items():
        if isinstance(value, Mapping) and "grid_search" not in value and "__domain__" not in value:
            keys += flat_keys(value, f"{prefix}{key}/") or [f"{prefix}{key}"]
        else:
            keys.append(f"{prefix}{key}")
    return sorted(keys)


def check_trainable(trainable: Any, run_config: RunConfig) -> None:
    """The table of what a function and a class may be asked for."""
    if not callable(trainable):
        raise ValueError(
            f"trainable must be a function or a Trainable class, not {type(trainable).__name__}"
        )
    if isinstance(trainable, type) and not is_class_trainable(trainable):
        raise ValueError(f"{trainable.__name__} does not derive from tune.Trainable")
    checkpoints = run_config.checkpoint_config
    assert checkpoints is not None
    if is_class_trainable(trainable):
        wanted = checkpoints.checkpoint_frequency > 0 or checkpoints.checkpoint_at_end
        if wanted and not saves_on_demand(trainable):
            raise ValueError(
                f"checkpoint_frequency and checkpoint_at_end want {trainable.__name__} to have "
                "save_checkpoint and load_checkpoint"
            )
        return
    hint = (
        "a function makes its checkpoints itself: tune.report(metrics, checkpoint=…), "
        "tune.should_checkpoint() says when"
    )
    if checkpoints.checkpoint_frequency > 0:
        raise ValueError(f"checkpoint_frequency does not work with a function; {hint}")
    if checkpoints.checkpoint_at_end:
        raise ValueError(f"checkpoint_at_end=True does not work with a function; {hint}")


class Tuner:
    """Runs an experiment.

    The experiment's directory holds everything: start the same command with the same name again, or
    use Tuner.restore, after whatever was killed, and it goes on.

    Args:
        trainable: a function of config, or a class derived from Trainable.
        param_space: the hyperparameters, with tune.grid_search, tune.uniform, … in it.
        tune_config, run_config: as their classes say.

    >>> from cairn import tune
    >>> def square(config):
    ...     tune.report({"y": config["x"] ** 2})
    >>> tuner = Tuner(square, param_space={"x": tune.grid_search([1, 2, 3])},
    ...               run_config=tune.RunConfig(storage_path="runs", verbose=0))
    >>> sorted(result.metrics["y"] for result in tuner.fit())
    [1, 4, 9]
    """

    def __init__(
        self,
        trainable: Any,
        *,
        param_space: Optional[Mapping[str, Any]] = None,
        tune_config: Optional[TuneConfig] = None,
        run_config: Optional[RunConfig] = None,
    ) -> None:
        self._trainable = trainable
        self._space: Dict[str, Any] = dict(param_space or {})
        self._has_space = param_space is not None
        self._tune = tune_config or TuneConfig()
        self._run = run_config or RunConfig()
        self._name = self._run.name
        self._parent = self._run.directory
        self._flags: Dict[str, Any] = {}
        self._extends = False
        self._new_scheduler = False  # what is given counts before what is on record
        self._must_exist = False
        self._results: Any = None
        self._callbacks: List[Any] = []
        self._trials: Dict[str, Trial] = {}
        self._listed: List[Trial] = []
        self._restoring: Set[str] = set()  # trials whose next start is from a checkpoint
        self._told = 0
        check_trainable(trainable, self._run)
        self._given = self._make_policy(None)  # says what is wrong with it, here and now

    # Restoring.

    @staticmethod
    def can_restore(path: Union[str, "os.PathLike[str]"]) -> bool:
        """Whether an experiment lies there.

        >>> from cairn import tune
        >>> run = tune.RunConfig(storage_path="runs", name="rates", verbose=0)
        >>> tune.Tuner.can_restore("runs/rates")
        False
        >>> results = tune.Tuner(lambda config: {"loss": 0.5}, run_config=run).fit()
        >>> tune.Tuner.can_restore("runs/rates")
        True
        """
        try:
            return bool(_native.Tuner.exists(_location.of_user(path)))
        except NotFound:
            return False

    @classmethod
    def restore(
        cls,
        path: Union[str, "os.PathLike[str]"],
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        *,
        param_space: Optional[Mapping[str, Any]] = None,
        tune_config: Optional[TuneConfig] = None,
        run_config: Optional[RunConfig] = None,
    ) -> "Tuner":
        """A tuner that goes on with an experiment.

        Args:
            path: the experiment's directory, wherever it was moved to.
            trainable: as before.
            resume_unfinished: go on with trials that had not ended; otherwise they stay as they are.
            resume_errored: failed trials go on from their checkpoints.
            restart_errored: failed trials begin anew.
            param_space, tune_config, run_config: as recorded, if None. What cannot be recorded
                (functions, objects of your own classes) must be given again.

        >>> from cairn import tune
        >>> def train(config):
        ...     if config["x"] == 2 and broken:
        ...         raise RuntimeError("not yet")
        ...     tune.report({"loss": config["x"]})
        >>> broken = True
        >>> run = tune.RunConfig(storage_path="runs", name="rates", verbose=0)
        >>> space = {"x": tune.grid_search([1, 2])}
        >>> tune.Tuner(train, param_space=space, run_config=run).fit().num_errors
        1
        >>> broken = False
        >>> results = tune.Tuner.restore("runs/rates", train, restart_errored=True).fit()
        >>> [result.metrics["loss"] for result in results]
        [1, 2]
        """
        if resume_errored and restart_errored:
            raise ValueError("resume_errored and restart_errored exclude each other")
        where = _location.of_user(path)
        known = dict(_native.Tuner.read_description(where))
        tuner = cls._again(known, where, trainable, param_space, tune_config, run_config)
        tuner._flags = {
            "resume_unfinished": resume_unfinished,
            "resume_errored": resume_errored,
            "restart_errored": restart_errored,
        }
        return tuner

    @classmethod
    def extend(
        cls,
        path: Union[str, "os.PathLike[str]"],
        trainable: Any,
        *,
        num_samples: Optional[int] = None,
        stop: Any = None,
        param_space: Optional[Mapping[str, Any]] = None,
        tune_config: Optional[TuneConfig] = None,
    ) -> "Tuner":
        """A tuner that adds to an experiment: more samples, or more iterations of its trials.

        Args:
            num_samples: in all, with those that were there.
            stop: the new bounds; trials that had ended go on from their checkpoints, but not those that
                are there already: the same command again, after a kill or not, adds nothing. (Of a
                Stopper of your own that cannot be told, and they go on.)
            param_space, tune_config: as in restore; but a scheduler counts from now on (an ASHA with a
                greater max_t, where the old one would stop what goes on). What it had decided stays.

        >>> from cairn import tune
        >>> def train(config):
        ...     tune.report({"loss": config["x"]})
        >>> run = tune.RunConfig(storage_path="runs", name="rates", verbose=0)
        >>> space = {"x": tune.uniform(0, 1)}
        >>> len(tune.Tuner(train, param_space=space, run_config=run).fit())
        1
        >>> len(tune.Tuner.extend("runs/rates", train, num_samples=3).fit())
        3
        """
        where = _location.of_user(path)
        known = dict(_native.Tuner.read_description(where))
        there = int((known.get("tune_config") or {}).get("num_samples", 1))
        tuner = cls._again(known, where, trainable, param_space, tune_config, None, stop, True)
        if num_samples is not None:
            tuner._tune = dataclasses.replace(tuner._tune, num_samples=num_samples)
            if 0 <= num_samples < there or there < 0 <= num_samples:
                raise ValueError(
                    f"num_samples is {num_samples}, and the experiment has {there} already: it counts all "
                    "samples, those that were there too"
                )
        tuner._extends = stop is not None
        return tuner

    @classmethod
    def _again(
        cls,
        known: Mapping[str, Any],
        where: str,
        trainable: Any,
        param_space: Optional[Mapping[str, Any]],
        tune_config: Optional[TuneConfig],
        run_config: Optional[RunConfig],
        new_stop: Any = None,
        new_scheduler: bool = False,
    ) -> "Tuner":
        recorded = dict(known.get("run_config") or {})
        if run_config is None:
            stop = recorded.get("stop")
            if new_stop is not None:
                stop = None
            elif stop == _NOT_RECORDED:
                raise ValueError(
                    "the experiment's stop is a function of yours, which is not on record: give it again, "
                    "as run_config=RunConfig(stop=…) to restore, as stop=… to extend"
                )
            run_config = RunConfig(
                stop=new_stop if stop is None else stoppers.from_description(stop),
                failure_config=FailureConfig(**recorded.get("failure_config", {})),
                checkpoint_config=CheckpointConfig(**recorded.get("checkpoint_config", {})),
                verbose=int(recorded.get("verbose", 1)),
                log_to_file=recorded.get("log_to_file", False),
                launcher=recorded.get("launcher"),
                resources=recorded.get("resources"),
                launch_dir=recorded.get("launch_dir"),
                host=recorded.get("host"),
                master=recorded.get("master"),
            )
        if tune_config is None:
            tune_config = TuneConfig(**(known.get("tune_config") or {}))
        if param_space is None:
            param_space = _recorded_space(known.get("space") or {}, "param_space")
        parent, _, name = where.rpartition("/")
        tuner = cls(
            trainable,
            param_space=param_space,
            tune_config=tune_config,
            run_config=run_config,
        )
        tuner._parent, tuner._name, tuner._must_exist = parent, name, True
        tuner._new_scheduler = new_scheduler and tuner._tune.scheduler is not None
        tuner._check_same(known)
        return tuner

    @property
    def directory(self) -> str:
        """The experiment's directory.

        >>> import os
        >>> from cairn import tune
        >>> run = tune.RunConfig(storage_path="runs", name="rates")
        >>> os.path.relpath(tune.Tuner(lambda config: None, run_config=run).directory)
        'runs/rates'
        """
        if self._name is None:
            stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            self._name = f"{_safe(name_of(self._trainable))}_{stamp}_{uuid.uuid4().hex[:5]}"
        return f"{self._parent}/{self._name}"

    def get_results(self) -> ResultGrid:
        """Of the last fit.

        >>> from cairn import tune
        >>> run = tune.RunConfig(storage_path="runs", verbose=0)
        >>> tuner = tune.Tuner(lambda config: {"loss": 0.5}, run_config=run)
        >>> results = tuner.fit()
        >>> tuner.get_results() is results
        True
        """
        if self._results is None:
            raise RuntimeError("there are no results before fit()")
        return self._results

    # Running.

    def _concurrency(self) -> int:
        """How many trials run at a time: as many as the user allows and as find room."""
        given = self._tune.max_concurrent_trials or None
        if self._on_cluster:
            return given or _CLUSTER_TRIALS
        bounds = [] if given is None else [given]
        wanted = resources_of(self._trainable)
        if given is None or "CPU" in wanted:
            each = max(wanted.get("CPU", 1.0), 0.01)
            bounds.append(max(1, int(len(os.sched_getaffinity(0)) / each)))
        if wanted.get("GPU", 0.0) > 0:
            gpus = visible_gpus()
            if places(len(gpus), wanted["GPU"]) == 0:
                raise ValueError(
                    f"each trial wants {wanted['GPU']:g} GPUs (tune.with_resources), and this machine has "
                    f"{len(gpus)}: ask for fewer, or name those that are there in CUDA_VISIBLE_DEVICES"
                )
            bounds.append(places(len(gpus), wanted["GPU"]))
        return min(bounds)

    def _gpus(self) -> Optional[Dict[str, Any]]:
        """What the zygote hands out; None where trials did not say, and see what there is."""
        each = resources_of(self._trainable).get("GPU")
        if each is None or self._on_cluster:
            return None
        return {"names": visible_gpus() if each > 0 else [], "each": each}

    def _describe(self, prefix: str, policy: SearchPolicy) -> Dict[str, Any]:
        failures = self._run.failure_config
        checkpoints = self._run.checkpoint_config
        assert failures is not None and checkpoints is not None
        stop = None if self._run.stop is None else stoppers.as_stopper(self._run.stop).describe()
        return {
            "format": 1,
            "trainable": name_of(self._trainable),
            "kind": _kind_of(self._trainable),
            "keys": flat_keys(self._space),
            "prefix": prefix,
            "space": search_space.describe(self._space)[0],
            "policy": policy.describe(),
            "tune_config": {
                name: getattr(self._tune, name)
                for name in ("metric", "mode", "num_samples", "max_concurrent_trials", "time_budget_s")
            }
            | ({"chdir_to_trial_dir": True} if self._tune.chdir_to_trial_dir else {}),
            "run_config": {
                "stop": _NOT_RECORDED if stop is None and self._run.stop is not None else stop,
                "failure_config": dataclasses.asdict(failures),
                "checkpoint_config": dataclasses.asdict(checkpoints),
                "verbose": self._run.verbose,
                "log_to_file": self._run.log_to_file,
                "launcher": self._run.launcher,
                "resources": {k: _word(v) for k, v in (self._run.resources or {}).items()} or None,
                "launch_dir": None if self._run.launch_dir is None else os.fspath(self._run.launch_dir),
                "host": self._run.host,
                "master": self._run.master,
            },
        }

    def _settings(self) -> Dict[str, Any]:
        checkpoints = self._run.checkpoint_config
        assert checkpoints is not None
        return {
            "directory": _location.absolute(self.directory),
            "score_attribute": checkpoints.checkpoint_score_attribute,
            "checkpoint_frequency": checkpoints.checkpoint_frequency,
            "checkpoint_at_end": bool(checkpoints.checkpoint_at_end),
            "saves": saves_on_demand(self._trainable),
            "resources": resources_of(self._trainable),
            "gpus": self._gpus(),
            "chdir": bool(self._tune.chdir_to_trial_dir),
            "log_files": _output.file_names(self._run.log_to_file),
        }

    def fit(self) -> ResultGrid:
        """Runs all trials to their end and returns their results."""
        directory = self.directory
        if self._run.log_to_file and _location.is_remote(directory):
            raise ValueError(
                f"log_to_file appends to files, which there are none of in {directory}: leave it out, or "
                "keep the experiment in a directory"
            )
        if self._tune.chdir_to_trial_dir and _location.is_remote(directory):
            raise ValueError(
                f"chdir_to_trial_dir: trials in {directory} have no directory on this machine; leave it out"
            )
        fresh = _safe(name_of(self._trainable))[:50]
        if not self.can_restore(directory):
            _check_empty(directory, fresh)
        # What can be wrong with what was given shows before anything is made.
        at_a_time = self._concurrency()
        payload = self._payload()
        cluster = self._cluster() if self._on_cluster else None
        check_master(self._run.master)
        native = _native.Tuner.open(directory, not self._must_exist)
        try:
            known = native.description
            if known is None:
                _check_empty(directory, fresh)
            else:
                self._follow(known)
                self._check_same(known)
                self._warn_of_changes(known)
            # The same in every experiment: what is drawn for a trial depends on its name.
            prefix = str(known["prefix"]) if known else fresh
            failures = self._run.failure_config
            checkpoints = self._run.checkpoint_config
            assert failures is not None and checkpoints is not None
            policy = self._make_policy(known)
            id = str((known or {}).get("id") or uuid.uuid4().hex)
            self._callbacks = observers(
                self._run.callbacks,
                directory,
                self._run.verbose,
                self._run.progress_reporter,
                self._tune.metric,
                self._tune.mode,
            )
            reporter = reporter_for(self._run.master, str(self._name), id, directory)
            if reporter is not None:
                self._callbacks.append(reporter)
            self._meet(native)
            if self._extends and self._stop_is_new(known):
                self._flags["extend_ended"] = True
                self._flags["extend_except"] = self._already_stopped()
            native.start(
                {
                    "description": {**self._describe(prefix, policy), "id": id},
                    "trial_prefix": prefix,
                    "max_concurrent": at_a_time,
                    "max_failures": (1 << 60) if failures.max_failures < 0 else failures.max_failures,
                    "fail_fast": bool(failures.fail_fast),
                    "retention": checkpoints.retention(),
                    "zygote": _zygote_command(),
                    **({} if cluster is None else {"cluster": cluster}),
                    "stop_signal": HURRY,
                    **self._flags,
                },
                policy,
                payload if cluster is None else base64.b64encode(payload),
            )
            del payload  # it may be large, and the launcher has it
            log = PolicyLog(directory)
            log.start(native.take_log())  # of what is on record
            interrupted = self._loop(native, lambda: log.append(native.take_log()))
            log.finish()
            trials = native.trials(True)
            for callback in self._callbacks:
                if isinstance(callback, LogBook):
                    callback.mend()
            self._call("on_experiment_end", trials=self._everyone())
        finally:
            native.close()
        self._results = self._make_results(trials)
        if interrupted:
            raise KeyboardInterrupt
        if failures.fail_fast == "raise":
            for trial in trials:
                if trial["status"] == "ERROR":
                    raise TuneError(f"trial {trial['trial']} failed:\n{trial['error']}")
        return self._results

    def _stop_is_new(self, known: Mapping[str, Any]) -> bool:
        """Whether trials can have ended by other bounds than these. What is not on record may be new."""
        recorded = (known.get("run_config") or {}).get("stop")
        return recorded == _NOT_RECORDED or recorded != stoppers.as_stopper(self._run.stop).describe()

    def _already_stopped(self) -> List[str]:
        """The trials that are where the bounds would stop them, where that can be told by a result."""
        if not isinstance(self._run.stop, Mapping) and (
            isinstance(self._run.stop, stoppers.Stopper) or not callable(self._run.stop)
        ):
            return []
        stop = stoppers.as_stopper(self._run.stop)
        return [
            trial.trial_id
            for trial in self._trials.values()
            if trial.last_result and stop(trial.trial_id, trial.last_result)
        ]

    def _loop(self, native: Any, after_news: Callable[[], None]) -> bool:
        """Until all is done; True when Ctrl-C ended it."""
        with _Interrupts() as interrupts:
            deadline: Optional[float] = None
            while True:
                self._call("on_step_begin", iteration=self._told, trials=self._everyone())
                finished, news = native.step(0.2)
                for item in news:
                    self._tell(item)
                if news:
                    after_news()
                self._call("on_step_end", iteration=self._told, trials=self._everyone())
                if finished:
                    return interrupts.count > 0
                if interrupts.count > 0 and deadline is None:
                    deadline = time.monotonic() + _INTERRUPT_SECONDS
                    native.interrupt()
                if deadline is not None and (
                    interrupts.count > 1 or time.monotonic() > deadline
                ):
                    return True

    # What callbacks are told.

    def _call(self, method: str, *arguments: Any, **named: Any) -> None:
        for callback in self._callbacks:
            function = getattr(callback, method, None)
            if function is not None:
                function(*arguments, **named)

    def _meet(self, native: Any) -> None:
        """The trials that are there when it begins, with all that they reported."""
        self._trials, self._listed = {}, []
        self._restoring = set()
        for callback in self._callbacks:
            if isinstance(callback, LogBook):
                callback.reports = native.results
        known = []
        for item in native.trials(False):
            trial = self._trial(str(item["trial"]))
            trial.config = dict(item["config"])
            trial.status = str(item["status"])
            trial.error = item["error"] or None
            trial.last_result = dict(item["last_result"] or {})
            known.append((trial, _Reports(native, trial.trial_id)))
        self._call("setup", stop=self._run.stop, num_samples=self._tune.num_samples)
        self._call("on_restore", known)

    def _trial(self, id: str) -> Trial:
        if id not in self._trials:
            self._trials[id] = Trial(id, {}, f"{self.directory}/{id}")
        return self._trials[id]

    def _everyone(self) -> List[Trial]:
        """All trials; one list for many news, there may be thousands."""
        if len(self._listed) != len(self._trials):
            self._listed = list(self._trials.values())
        return self._listed

    def _tell(self, item: Dict[str, Any]) -> None:
        trial = self._trial(str(item["trial"]))
        what = item["what"]
        if what == "added":
            trial.config = dict(item["config"])
            return
        self._told += 1
        common = {"iteration": self._told, "trials": self._everyone(), "trial": trial}
        if what == "run":
            iteration = int(item["iteration"])
            if iteration > 0:
                self._restoring.add(trial.trial_id)
            self._call("on_trial_rewind", trial=trial, training_iteration=iteration)
        elif what == "exploit":
            trial.config = dict(item["config"])
            self._restoring.add(trial.trial_id)
        elif what == "started":
            trial.status = Trial.RUNNING
            self._call("on_trial_start", **common)
            if trial.trial_id in self._restoring:
                self._restoring.discard(trial.trial_id)
                self._call("on_trial_restore", **common)
        elif what == "result":
            trial.last_result = fill_result(item["result"], trial.trial_id, trial.config)
            self._call("on_trial_result", result=trial.last_result, **common)
        elif what == "checkpoint":
            self._call("on_checkpoint", checkpoint=item["checkpoint"], **common)
            self._call("on_trial_save", **common)
        elif what == "failure":
            trial.error = str(item["error"])
        elif what == "paused":
            trial.status = Trial.PAUSED
        elif what == "ended":
            trial.status = Trial.ERROR if item.get("failed") else Trial.TERMINATED
            failed = trial.status == Trial.ERROR
            self._call("on_trial_error" if failed else "on_trial_complete", **common)

    def _follow(self, known: Mapping[str, Any]) -> None:
        """Takes from the record what was not given."""
        if not self._has_space:
            self._space = _recorded_space(known.get("space") or {}, "param_space")
        recorded = known.get("run_config") or {}
        given = self._run._given
        parts = (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig))
        missing = {n: kind(**recorded[n]) for n, kind in parts if n in recorded and n not in given}
        if missing:
            self._run = dataclasses.replace(self._run, **missing)
            self._run._given = given

    def _check_same(self, known: Mapping[str, Any]) -> None:
        name = name_of(self._trainable)
        if known["trainable"] != name:
            raise ValueError(
                f"the experiment in {self.directory} was made with the trainable "
                f"{known['trainable']!r}, not {name!r}"
            )
        kind = _kind_of(self._trainable)
        if known.get("kind", kind) != kind:
            raise ValueError(
                f"the experiment in {self.directory} was made with a {known['kind']} that is called {name!r}, "
                f"and this is a {kind}: give the experiment another name"
            )
        failures = (known.get("run_config") or {}).get("failure_config") or {}
        allowed = self._run.failure_config.max_failures
        if "failure_config" in self._run._given and failures.get("max_failures", allowed) != allowed:
            raise ValueError(
                f"failure_config has max_failures={allowed}, and the experiment in {self.directory} was made "
                f"with {failures['max_failures']}, which its trials began with: leave failure_config out to go on "
                "with that, or give the experiment another name"
            )
        launcher = (known.get("run_config") or {}).get("launcher")
        if (launcher if launcher in CLUSTERS else None) != (self._run.launcher if self._on_cluster else None):
            raise ValueError(
                f"the experiment in {self.directory} was begun with launcher={launcher!r}: go on with that"
            )
        keys = flat_keys(self._space)
        if list(known["keys"]) != keys:
            raise ValueError(
                f"the experiment in {self.directory} has the hyperparameters {list(known['keys'])}, "
                f"and param_space has {keys}: they must be the same; leave param_space out to go on with what is "
                "on record"
            )
        for what, change in self._given.changes(known.get("policy") or {}).items():
            if what == "scheduler" and self._new_scheduler:
                continue
            raise ValueError(
                f"{what} is another one than the experiment in {self.directory} was made with ({change}): what "
                f"was decided so far follows from that; leave {what} out to go on with it, or give the "
                "experiment another name"
            )

    def _warn_of_changes(self, known: Mapping[str, Any]) -> None:
        """The trials that are there stay what they are: whoever edited the program has to know."""
        changed = changed_keys(search_space.describe(self._space)[0], known.get("space") or {})
        if changed:
            warnings.warn(
                f"param_space has other values of {', '.join(map(repr, changed))} than the experiment in "
                f"{self.directory} was made with: its trials keep what they have, and only trials that are "
                "still to come are drawn from it; give another name to begin anew",
                stacklevel=3,
            )

    def _make_policy(self, known: Optional[Mapping[str, Any]]) -> SearchPolicy:
        """What is on record counts before what is given: it goes on where it was."""
        recorded = dict((known or {}).get("policy") or {})
        if self._new_scheduler:
            recorded.pop("scheduler", None)
        of = self._tune
        return SearchPolicy(
            self._space,
            metric=of.metric,
            mode=of.mode,
            num_samples=of.num_samples,
            search_alg=None if "name" in (recorded.get("searcher") or {}) else of.search_alg,
            scheduler=None if "name" in (recorded.get("scheduler") or {}) else of.scheduler,
            stop=self._run.stop,
            time_budget_s=of.time_budget_s,
            seed=of.seed,
            description=recorded,
        )

    @property
    def _on_cluster(self) -> bool:
        return self._run.launcher in CLUSTERS

    def _cluster(self) -> Dict[str, Any]:
        """How workers are started as jobs of Slurm or Ray, and find this process."""
        where = self._run.launch_dir
        if where is None:
            if _location.is_remote(self.directory):
                raise ValueError(
                    "launch_dir must name a directory that the nodes share: the experiment is in "
                    f"{self.directory}"
                )
            where = os.path.join(_location.absolute(self.directory), "launches")
        return {
            "launcher": self._run.launcher,
            "worker": _worker_command(),
            "directory": os.fspath(where),
            "host": self._run.host or socket.gethostname(),
            "resources": {
                **_asked_for(str(self._run.launcher), resources_of(self._trainable)),
                **{str(k): _word(v) for k, v in (self._run.resources or {}).items()},
            },
        }

    def _payload(self) -> bytes:
        try:
            import cloudpickle
        except ImportError:
            raise ImportError(
                "cairn.tune hands trainables to its workers with cloudpickle: pip install cloudpickle"
            ) from None

        try:
            trainable = cloudpickle.dumps(self._trainable)
        except Exception as error:  # whatever an object's own way to be pickled raises
            raise TypeError(
                f"{name_of(self._trainable)!r} cannot be handed to workers, because of something that it "
                f"refers to ({type(error).__name__}: {error}): make that inside of the trainable"
            ) from error
        return pickle.dumps(
            {
                "path": list(sys.path),
                "argv": list(sys.argv),
                "settings": self._settings(),
                "trainable": trainable,
            }
        )

    def _make_results(self, trials: List[Dict[str, Any]]) -> ResultGrid:
        where = _location.absolute(self.directory)
        return ResultGrid.from_trials(trials, where, self._tune.metric, self._tune.mode)


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


class _Interrupts:
    """Counts Ctrl-C instead of raising it in the middle of something."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "_Interrupts":
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def _on_signal(self, *_: Any) -> None:
        self.count += 1
        if self.count == 1:
            print("cairn.tune: trials save and pause; once more ends them at once", file=sys.stderr)

    def __exit__(self, *_: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)


def _kind_of(trainable: Any) -> str:
    return "class" if is_class_trainable(trainable) else "function"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name).lstrip("._-") or "trainable"


def _check_empty(directory: str, prefix: str) -> None:
    """Trials without a record of them are not taken for new ones."""
    if _location.is_remote(directory) or not os.path.isdir(directory):
        return
    left = [name for name in os.listdir(directory) if re.fullmatch(rf"{prefix}_\d{{5}}", name)]
    if left:
        raise Corruption(
            f"{directory} has directories of trials ({', '.join(sorted(left)[:3])}…) and no record of "
            "the experiment they belong to: give the experiment another name, or put \"events\" back"
        )


def _recorded_space(value: Any, where: str) -> Any:
    """The search space that search_space.describe told of."""
    if isinstance(value, Mapping):
        if "__domain__" in value:
            options = {k: _recorded_space(v, where) for k, v in value.items() if k != "__domain__"}
            if value["__domain__"] == "sample_from":
                raise ValueError(
                    f"{where} is a sample_from function of yours, which is not on record: give "
                    "param_space again"
                )
            return search_space.Domain(value["__domain__"], **options)
        return {k: _recorded_space(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list):
        return [_recorded_space(v, where) for v in value]
    return value


def _asked_for(launcher: str, wanted: Mapping[str, float]) -> Dict[str, str]:
    """What tune.with_resources says, in the words of the launcher."""
    cpus, gpus = wanted.get("CPU"), wanted.get("GPU", 0.0)
    asked: Dict[str, str] = {}
    if launcher == "ray":
        if cpus is not None:
            asked["num_cpus"] = f"{cpus:g}"
        if gpus > 0:
            asked["num_gpus"] = f"{gpus:g}"
        return asked
    if cpus is not None:
        asked["cpus_per_task"] = str(max(1, math.ceil(cpus)))
    if gpus > 0:
        if gpus < 1:
            raise ValueError(f"each trial wants {gpus:g} of a GPU, and Slurm gives whole ones: ask for 1")
        asked["gres"] = f"gpu:{gpus:g}"
    return asked


def _word(value: Any) -> str:
    """A resource as sbatch takes it; a list is one word a line, a dict one name=value."""
    if isinstance(value, dict):
        value = [f"{name}={amount}" for name, amount in value.items()]
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _worker_command() -> List[str]:
    return _python("from cairn.tune.remote_worker import main; main()")


def _zygote_command() -> List[str]:
    return _python("from cairn.tune.zygote import main; main()")


def _python(command: str) -> List[str]:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # Without the working directory, whose files may be called as Python's own: the tuner's path follows.
    code = f"import sys; sys.path[:] = [{package!r}, *filter(None, sys.path)]; {command}"
    return [sys.executable, "-c", code]
