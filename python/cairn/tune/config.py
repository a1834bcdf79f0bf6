"""How an experiment is run: where it is kept, when it saves, what it does about failures."""

from __future__ import annotations

import datetime
import numbers
import operator
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

from .. import _location
from .._wording import with_article
from . import _output

CLUSTERS = ("slurm", "ray")  # launchers whose runs are jobs elsewhere

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig", "SyncConfig", "TuneConfig"]


def _whole(value: Any, name: str) -> int:
    """Also one of NumPy's, as Python's."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{name} must have at most 64 bits, but is {number}")
    return number


@dataclass
class CheckpointConfig:
    """Which checkpoints are made, and which stay.

    Attributes:
        num_to_keep: how many stay of each trial; None keeps all. The latest always stays too.
        checkpoint_score_attribute: a metric by which the best are kept ("a/b" reaches into nested
            ones); None keeps the newest.
        checkpoint_score_order: "max" or "min" is best.
        checkpoint_frequency: of class trainables: every so many iterations; 0 is never.
        checkpoint_at_end: of class trainables: also when a trial ends.
        experiment_num_to_keep: how many stay of all trials together, by the score, besides the latest
            of each.
        max_bytes: that the checkpoints of a trial may take together; the oldest that are not among
            the best go first.
        experiment_max_bytes: that the checkpoints of all trials may take together, in the same way.

    >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc").checkpoint_score_order
    'max'
    """

    num_to_keep: Optional[int] = None
    checkpoint_score_attribute: Optional[str] = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: Optional[bool] = None
    experiment_num_to_keep: Optional[int] = None
    max_bytes: Optional[int] = None
    experiment_max_bytes: Optional[int] = None

    def __post_init__(self) -> None:
        for name in ("num_to_keep", "experiment_num_to_keep", "max_bytes", "experiment_max_bytes"):
            value = getattr(self, name)
            if value is None:
                continue
            setattr(self, name, _whole(value, name))
            if value <= 0:
                raise ValueError(
                    f"{name} must be positive, not {value}; None keeps every checkpoint"
                )
        score = self.checkpoint_score_attribute
        if score is not None and (not isinstance(score, str) or not score):
            raise ValueError(
                f"checkpoint_score_attribute must be the name of a metric, not {score!r}"
            )
        # Workers are told it before they know the types of the user's.
        self.checkpoint_score_attribute = None if score is None else str.__str__(score)
        self.checkpoint_frequency = _whole(self.checkpoint_frequency, "checkpoint_frequency")
        if self.checkpoint_frequency < 0:
            raise ValueError(
                f"checkpoint_frequency must not be negative, but is {self.checkpoint_frequency}"
            )
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(
                f"checkpoint_score_order must be 'max' or 'min', not {self.checkpoint_score_order!r}"
            )
        if self.experiment_num_to_keep is not None and self.checkpoint_score_attribute is None:
            raise ValueError("experiment_num_to_keep needs a checkpoint_score_attribute")

    def retention(self) -> Dict[str, Any]:
        """As the trial engine wants it.

        >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss",
        ...                  checkpoint_score_order="min").retention()
        {'maximize': False, 'score': 'loss', 'keep_best': 2}
        """
        rules: Dict[str, Any] = {"maximize": self.checkpoint_score_order == "max"}
        if self.checkpoint_score_attribute is not None:
            rules["score"] = self.checkpoint_score_attribute
        if self.num_to_keep is not None:
            best = self.checkpoint_score_attribute is not None
            rules["keep_best" if best else "keep_last"] = self.num_to_keep
        if self.experiment_num_to_keep is not None:
            rules["experiment_best"] = self.experiment_num_to_keep
        if self.max_bytes is not None:
            rules["max_bytes"] = self.max_bytes
        if self.experiment_max_bytes is not None:
            rules["experiment_bytes"] = self.experiment_max_bytes
        return rules


@dataclass
class FailureConfig:
    """What is done about trials that fail.

    Attributes:
        max_failures: how often a trial is tried again, from its newest valid checkpoint; -1 is
            endlessly.
        fail_fast: True ends the experiment at the first trial that failed for good; the others can be
            resumed. "raise" also raises its error from fit().

    >>> from cairn import tune
    >>> def train(config):
    ...     if tune.get_checkpoint() is None:
    ...         tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint.from_dict({"step": 1}))
    ...         raise RuntimeError("the first time")
    ...     tune.report({"loss": 0.5})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0,
    ...                      failure_config=tune.FailureConfig(max_failures=3))
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> result.error, result.metrics["loss"]
    (None, 0.5)
    """

    max_failures: int = 0
    fail_fast: Union[bool, str] = False

    def __post_init__(self) -> None:
        self.max_failures = _whole(self.max_failures, "max_failures")
        if self.max_failures < -1:
            raise ValueError(
                f"max_failures must be -1 (endlessly) or more, not {self.max_failures}"
            )
        if self.fail_fast not in (True, False, "raise"):
            raise ValueError(f"fail_fast must be True, False or 'raise', not {self.fail_fast!r}")
        if self.fail_fast and self.max_failures != 0:
            raise ValueError("fail_fast and max_failures exclude each other: set one of them")


@dataclass
class SyncConfig:
    """For programs that have one. Nothing is synced here: experiments are written where they are kept, and
    what a report returned from is there.

    Attributes:
        upload_dir: where the experiment's directory is, as RunConfig.storage_path.
        syncer: "auto" or None; one of your own would have nothing to do, and is refused.
        sync_period, sync_timeout, sync_on_checkpoint, sync_artifacts, sync_artifacts_on_checkpoint: taken and
            not needed.

    >>> from cairn import tune
    >>> tune.RunConfig(sync_config=tune.SyncConfig(upload_dir="s3://bucket/runs")).directory
    's3://bucket/runs'
    """

    upload_dir: Optional[Union[str, "os.PathLike[str]"]] = None
    syncer: Any = "auto"
    sync_period: float = 300
    sync_timeout: float = 1800
    sync_on_checkpoint: bool = True
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        if self.syncer not in (None, "auto"):
            raise ValueError(
                f"syncer must be 'auto' or None, not {self.syncer!r}: nothing is synced, experiments are "
                "written to RunConfig(storage_path=…) directly"
            )


@dataclass
class RunConfig:
    """How an experiment is run.

    Attributes:
        name: of the experiment and of its directory; made up from the trainable and the time when
            None. The same name again goes on with the experiment.
        storage_path, local_dir: where the experiment's directory is (two names of one thing); a path,
            s3://… or hdfs://…; ~/cairn_results when None.
        stop: when a trial ends: {metric: bound}, a function (trial_id, result) -> bool, or a Stopper.
        callbacks: objects with the methods of tune.Callback.
        failure_config, checkpoint_config: as their classes say.
        verbose: 0 prints nothing; 1 the table of trials.
        master: URL of a master whose page shows the trials (token: CAIRN_TOKEN); None: CAIRN_MASTER, if
            there is a token too.
        log_to_file: what trials print: False leaves it to the tuner's own output (of a job of a cluster, to
            the job's), which gets it in the other cases too. True keeps it in the files stdout and
            stderr of the trial's directory as well, a name keeps both in that file, and two names each
            in its own. Runs of a trial append to them. Programs that a trial starts, and libraries
            below Python, then write to the files alone.
        launcher: "slurm" or "ray" makes each run of a trial a job of that; None starts it on this machine.
        resources: what Slurm is asked for, of each trial: partition, account, qos, time, gres, mem,
            cpus_per_task, constraint, reservation, warning, extra; or Ray: num_cpus, num_gpus, memory, custom, and
            where Ray is, if its own variables do not say it: address, token_file.
        launch_dir: where the records of jobs are, shared by the nodes; "launches" in the experiment's
            directory when None.
        host: the name or address by which nodes reach this machine; its own name when None.
        sync_config: for programs that have a SyncConfig: its upload_dir is the storage_path.

    >>> import os
    >>> from cairn import tune
    >>> run = tune.RunConfig(
    ...     name="rates",
    ...     storage_path="runs",
    ...     stop={"training_iteration": 2},
    ...     checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
    ...     failure_config=tune.FailureConfig(max_failures=3),
    ...     log_to_file=True,
    ...     verbose=0,
    ... )
    >>> def train(config):
    ...     while True:
    ...         print("loss 0.5")
    ...         tune.report({"loss": 0.5})
    >>> [result] = tune.Tuner(train, run_config=run).fit()
    >>> open(os.path.join(result.path, "stdout")).read().splitlines()
    ['loss 0.5', 'loss 0.5']
    >>> run.directory == os.path.abspath("runs")
    True
    """

    name: Optional[str] = None
    storage_path: Optional[Union[str, "os.PathLike[str]"]] = None
    local_dir: Optional[Union[str, "os.PathLike[str]"]] = None
    stop: Union[None, Mapping[str, Any], Callable[[str, Dict[str, Any]], bool], Any] = None
    callbacks: Optional[Sequence[Any]] = None
    failure_config: Optional[FailureConfig] = None
    checkpoint_config: Optional[CheckpointConfig] = None
    progress_reporter: Any = None
    verbose: int = 1
    log_to_file: Union[bool, str, Sequence[str]] = False
    launcher: Optional[str] = None
    resources: Optional[Mapping[str, Any]] = None
    launch_dir: Optional[Union[str, "os.PathLike[str]"]] = None
    host: Optional[str] = None
    master: Optional[str] = None
    sync_config: Optional[SyncConfig] = None

    def __post_init__(self) -> None:
        if self.sync_config is not None and not isinstance(self.sync_config, SyncConfig):
            raise ValueError(f"sync_config must be a SyncConfig, not {self.sync_config!r}")
        if self.storage_path is not None and self._upload_dir is not None:
            raise ValueError(
                "storage_path and the upload_dir of sync_config are two names of one thing: give one"
            )
        if self.launcher not in (None, "local", *CLUSTERS):
            raise ValueError(f"launcher must be 'local', 'slurm' or 'ray', not {self.launcher!r}")
        if self.launcher not in CLUSTERS and self.resources:
            raise ValueError("resources are for launcher='slurm' or 'ray'")
        _output.file_names(self.log_to_file)
        if self.storage_path is not None and self.local_dir is not None:
            raise ValueError("storage_path and local_dir are two names of one thing: give one")
        if self.name is not None and (
            not isinstance(self.name, str)
            or not self.name
            or self.name[0] == "."
            or not {"/", "\0"}.isdisjoint(self.name)
        ):
            raise ValueError(f"name must be the name of a directory, not {self.name!r}")
        if self.callbacks is not None and not isinstance(self.callbacks, (list, tuple)):
            raise ValueError(f"callbacks must be a list of callbacks, not {self.callbacks!r}")
        # Of an experiment that goes on, what was not given is as it is on record.
        self._given = set()
        for attribute, kind in (
            ("failure_config", FailureConfig),
            ("checkpoint_config", CheckpointConfig),
        ):
            value = getattr(self, attribute)
            if value is not None:
                self._given.add(attribute)
            if value is None:
                setattr(self, attribute, kind())
            elif not isinstance(value, kind):
                raise ValueError(f"{attribute} must be {with_article(kind.__name__)}, not {value!r}")

    @property
    def _upload_dir(self) -> Any:
        return None if self.sync_config is None else self.sync_config.upload_dir

    @property
    def directory(self) -> str:
        """Where experiments are."""
        where = self.storage_path if self._upload_dir is None else self._upload_dir
        where = self.local_dir if where is None else where
        return _location.of_user(os.path.join("~", "cairn_results") if where is None else where)


@dataclass
class TuneConfig:
    """What is searched and how.

    Attributes:
        metric, mode: what is best: a metric, which every result must then have, and "min" or "max".
        num_samples: how often the space is sampled (grids are run so often).
        max_concurrent_trials: at a time; None: as many as there are CPUs, or 16 in Slurm and Ray. What
            with_resources asks for bounds it too.
        time_budget_s: seconds after which all trials are ended.
        search_alg, scheduler: as tune.search and tune.schedulers have them.
        reuse_actors: True: a class whose reset_config returns True keeps its object, and its process, for the
            next trial; cleanup is called when it is not needed any more. What reset_config does not set
            back is found by that trial. Otherwise each run is a fork of its own, as for functions and on
            Slurm and Ray always.
        seed: of the search, when search_alg is None, and of a PBT that has none: with it everything that
            the tuner draws is the same again.
        chdir_to_trial_dir: trials work in their own directories; otherwise in the one that fit() was called
            in.
        trial_name_creator: a function that gives a tune.Trial its name, for people: the table of trials,
            str(trial) and get_trial_name() have it. Its id and its directory stay as they are: after the
            trainable and a number. It is not on record: give it to restore, too.
        trial_dirname_creator: refused: a restart knows the directories by their names.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"loss": (config["x"] - 3) ** 2})
    >>> results = tune.Tuner(
    ...     train,
    ...     param_space={"x": tune.uniform(0, 10)},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4, seed=1),
    ...     run_config=tune.RunConfig(storage_path="runs", verbose=0),
    ... ).fit()
    >>> len(results), results.get_best_result().metrics["loss"] < 25
    (4, True)
    """

    metric: Optional[str] = None
    mode: Optional[str] = None
    num_samples: int = 1
    max_concurrent_trials: Optional[int] = None
    time_budget_s: Optional[float] = None
    search_alg: Any = None
    scheduler: Any = None
    reuse_actors: Optional[bool] = None
    seed: Optional[int] = None
    chdir_to_trial_dir: Optional[bool] = None
    trial_name_creator: Optional[Callable[[Any], str]] = None
    trial_dirname_creator: Any = None

    def __post_init__(self) -> None:
        if self.trial_dirname_creator is not None:
            raise ValueError(
                "trial_dirname_creator: the directories of trials are called <trainable>_<number>, by which "
                "a restart knows them again; leave it out, and give trials names with trial_name_creator"
            )
        if self.trial_name_creator is not None and not callable(self.trial_name_creator):
            raise ValueError(
                f"trial_name_creator must be a function of a trial, not {self.trial_name_creator!r}"
            )
        if self.mode is not None and self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', not {self.mode!r}")
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric):
            raise ValueError(f"metric must be the name of a metric, not {self.metric!r}")
        if self.reuse_actors not in (None, True, False):
            raise ValueError(f"reuse_actors must be True, False or None, not {self.reuse_actors!r}")
        self.num_samples = _whole(self.num_samples, "num_samples")
        if self.num_samples < 1 and self.num_samples != -1:
            raise ValueError(f"num_samples must be positive, or -1 for ever: {self.num_samples}")
        if self.max_concurrent_trials is not None:
            self.max_concurrent_trials = _whole(
                self.max_concurrent_trials, "max_concurrent_trials"
            )
            if self.max_concurrent_trials < 0:
                raise ValueError("max_concurrent_trials must not be negative")
        if self.time_budget_s is not None:
            given = self.time_budget_s
            seconds = given.total_seconds() if isinstance(given, datetime.timedelta) else given
            if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
                raise ValueError(f"time_budget_s must be a number of seconds, not {given!r}")
            self.time_budget_s = float(seconds)
            if not self.time_budget_s > 0:
                raise ValueError(f"time_budget_s must be positive, not {given!r}")
