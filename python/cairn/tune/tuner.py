"""Tuner: runs trials of a trainable, and goes on where it was after anything."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import os
import re
import time
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from .. import _location, _native
from .._wording import with_article
from ..errors import Corruption, NotFound
from . import _output, search_space, stoppers
from ._audience import Audience
from ._experiment_record import (
    NOT_RECORDED,
    describe,
    recorded_run,
    refuse_another,
    warn_of_changes,
)
from ._gpus import places, visible_gpus
from ._interrupts import Interrupts
from ._observers import observers
from ._policy_log import PolicyLog
from ._worker_starts import cluster_jobs, payload, zygote_command
from .config import CLUSTERS, CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from .master_reporter import check_master, reporter_for
from .result_grid import ResultGrid
from .search_policy import SearchPolicy
from .session import HURRY
from .trainable import can_be_reset, is_class_trainable, name_of, resources_of, saves_on_demand

__all__ = ["TuneError", "Tuner"]

_INTERRUPT_SECONDS = 30.0
_CLUSTER_TRIALS = 16  # jobs at a time, which wait in the cluster's own queue where they find no room


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
        if param_space is not None and not isinstance(param_space, Mapping):
            raise ValueError(f"param_space must be a dict of hyperparameters, not {param_space!r}")
        for given, kind in ((tune_config, TuneConfig), (run_config, RunConfig)):
            if given is not None and not isinstance(given, kind):
                name = "tune_config" if kind is TuneConfig else "run_config"
                raise ValueError(f"{name} must be {with_article(kind.__name__)}, not {given!r}")
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
        self._audience = Audience()
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
        where = _location.of_user(path)
        if os.path.isfile(where):
            return False
        try:
            return bool(_native.Tuner.exists(where))
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
        if run_config is None:
            run_config = recorded_run(known, new_stop)
        if tune_config is None:
            tune_config = TuneConfig(**(known.get("tune_config") or {}))
        if param_space is None:
            param_space = search_space.recorded_space(known.get("space") or {}, "param_space")
        parent, _, name = where.rpartition("/")
        tuner = cls(
            trainable,
            param_space=param_space,
            tune_config=tune_config,
            run_config=run_config,
        )
        tuner._parent, tuner._name, tuner._must_exist = parent, name, True
        tuner._new_scheduler = new_scheduler and tuner._tune.scheduler is not None
        tuner._refuse_another(known)
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
        """Of the last fit; of a tuner that restore or extend gave, also what is on record, before any.

        >>> from cairn import tune
        >>> run = tune.RunConfig(storage_path="runs", name="rates", verbose=0)
        >>> def train(config):
        ...     return {"loss": 0.5}
        >>> tuner = tune.Tuner(train, run_config=run)
        >>> results = tuner.fit()
        >>> tuner.get_results() is results
        True
        >>> tune.Tuner.restore("runs/rates", train).get_results()[0].metrics["loss"]
        0.5
        """
        if self._results is None and self._must_exist:
            native = _native.Tuner.open(self.directory, False)
            try:
                return self._make_results(native.trials(True))
            finally:
                native.close()
        if self._results is None:
            raise RuntimeError("there are no results before fit(); Tuner.restore has those of an earlier one")
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
            "reuse": bool(self._tune.reuse_actors) and can_be_reset(self._trainable),
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
        handed = payload(self._trainable, self._settings(), self._tune.trial_name_creator)
        cluster = cluster_jobs(self._run, directory, self._trainable) if self._on_cluster else None
        check_master(self._run.master)
        native = _native.Tuner.open(directory, not self._must_exist)
        try:
            known = native.description
            if known is None:
                _check_empty(directory, fresh)
            else:
                self._follow(known)
                self._refuse_another(known)
                warn_of_changes(known, directory, self._space)
            # The same in every experiment: what is drawn for a trial depends on its name.
            prefix = str(known["prefix"]) if known else fresh
            failures = self._run.failure_config
            checkpoints = self._run.checkpoint_config
            assert failures is not None and checkpoints is not None
            policy = self._make_policy(known)
            id = str((known or {}).get("id") or uuid.uuid4().hex)
            self._audience.name_creator = self._tune.trial_name_creator
            self._audience.callbacks = observers(
                self._run.callbacks,
                directory,
                self._run.verbose,
                self._run.progress_reporter,
                self._tune.metric,
                self._tune.mode,
            )
            reporter = reporter_for(
                self._run.master, str(self._name), id, directory, self._tune.metric, self._tune.mode
            )
            if reporter is not None:
                self._audience.callbacks.append(reporter)
            self._audience.meet(native, directory, self._run.stop, self._tune.num_samples)
            if self._extends and self._stop_is_new(known):
                self._flags["extend_ended"] = True
                self._flags["extend_except"] = self._already_stopped()
            description = describe(
                self._trainable, self._space, policy, self._tune, self._run, prefix
            )
            native.start(
                {
                    "description": {**description, "id": id},
                    "trial_prefix": prefix,
                    "max_concurrent": at_a_time,
                    "max_failures": (1 << 60) if failures.max_failures < 0 else failures.max_failures,
                    "fail_fast": bool(failures.fail_fast),
                    "retention": checkpoints.retention(),
                    "zygote": zygote_command(),
                    **({} if cluster is None else {"cluster": cluster}),
                    "stop_signal": HURRY,
                    **self._flags,
                },
                policy,
                handed if cluster is None else base64.b64encode(handed),
            )
            del handed  # it may be large, and the launcher has it
            log = PolicyLog(directory)
            log.start(native.take_log())  # of what is on record
            interrupted = self._loop(native, lambda: log.append(native.take_log()))
            log.finish()
            trials = native.trials(True)
            self._audience.end()
        finally:
            self._audience.flush()
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
        return recorded == NOT_RECORDED or recorded != stoppers.as_stopper(self._run.stop).describe()

    def _already_stopped(self) -> List[str]:
        """The trials that are where the bounds would stop them, where that can be told by a result."""
        if not isinstance(self._run.stop, Mapping) and (
            isinstance(self._run.stop, stoppers.Stopper) or not callable(self._run.stop)
        ):
            return []
        stop = stoppers.as_stopper(self._run.stop)
        return [
            trial.trial_id
            for trial in self._audience.trials.values()
            if trial.last_result and stop(trial.trial_id, trial.last_result)
        ]

    def _loop(self, native: Any, after_news: Callable[[], None]) -> bool:
        """Until all is done; True when Ctrl-C ended it."""
        audience = self._audience
        with Interrupts() as interrupts:
            deadline: Optional[float] = None
            while True:
                audience.call("on_step_begin", iteration=audience.told, trials=audience.everyone())
                finished, news = native.step(0.2)
                for item in news:
                    audience.tell(item)
                if news:
                    after_news()
                audience.call("on_step_end", iteration=audience.told, trials=audience.everyone())
                if finished:
                    return interrupts.count > 0
                if interrupts.count > 0 and deadline is None:
                    deadline = time.monotonic() + _INTERRUPT_SECONDS
                    native.interrupt()
                if deadline is not None and (
                    interrupts.count > 1 or time.monotonic() > deadline
                ):
                    return True

    def _follow(self, known: Mapping[str, Any]) -> None:
        """Takes from the record what was not given."""
        if not self._has_space:
            self._space = search_space.recorded_space(known.get("space") or {}, "param_space")
        self._space = search_space.in_order(self._space, known.get("order"))
        recorded = known.get("run_config") or {}
        given = self._run._given
        parts = (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig))
        missing = {n: kind(**recorded[n]) for n, kind in parts if n in recorded and n not in given}
        if missing:
            self._run = dataclasses.replace(self._run, **missing)
            self._run._given = given

    def _refuse_another(self, known: Mapping[str, Any]) -> None:
        refuse_another(
            known,
            self.directory,
            self._trainable,
            self._space,
            self._given,
            self._run,
            self._new_scheduler,
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

    def _make_results(self, trials: List[Dict[str, Any]]) -> ResultGrid:
        where = _location.absolute(self.directory)
        return ResultGrid.from_trials(trials, where, self._tune.metric, self._tune.mode)


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
