"""Tuning: trials of a function or a class, with checkpoints, that survive anything.

from cairn import tune

def train(config):
    checkpoint = tune.get_checkpoint()
    ...
    tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict(state))

results = tune.Tuner(train, param_space={"lr": tune.grid_search([0.1, 0.01])}).fit()
"""

from __future__ import annotations

from typing import Any

from . import logger, result, schedulers, search, session, stoppers, utils
from .callback import Callback
from .checkpoint import Checkpoint
from .config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig
from .progress import CLIReporter, JupyterNotebookReporter, ProgressReporter
from .result import Result, TrialError
from .result_grid import ResultGrid
from .schedulers import create_scheduler
from .search_space import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from .session import (
    TuneContext,
    get_checkpoint,
    get_context,
    get_experiment_name,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    report,
    should_checkpoint,
)
from .stoppers import Stopper
from .trainable import Trainable, with_parameters, with_resources
from .trial import Trial
from .tuner import TuneError, Tuner

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "JupyterNotebookReporter",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "Trial",
    "TrialError",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "get_checkpoint",
    "get_context",
    "get_experiment_name",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "grid_search",
    "logger",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "report",
    "result",
    "sample_from",
    "schedulers",
    "search",
    "session",
    "should_checkpoint",
    "stoppers",
    "uniform",
    "utils",
    "with_parameters",
    "with_resources",
]

# Names of Ray Tune that are not here, and what to write instead.
_INSTEAD = {
    "run": "tune.Tuner(trainable, param_space=config, tune_config=…, run_config=…).fit()",
    "run_experiments": "a tune.Tuner for each",
    "ExperimentAnalysis": "tune.Tuner.restore(path, trainable).get_results(), or tune.Result.from_path(trial)",
    "PlacementGroupFactory": 'tune.with_resources(trainable, {"cpu": 2}): a trial is one process',
    "ResumeConfig": "the flags of tune.Tuner.restore: resume_unfinished, resume_errored, restart_errored",
    "register_trainable": "the function or class itself, which Tuner takes",
    "register_env": "the function or class itself, which Tuner takes",
    "create_searcher": "an object of tune.search, such as tune.search.OptunaSearch()",
    "checkpoint_dir": "tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(path))",
}


def __getattr__(name: str) -> Any:
    hint = f": use {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"cairn.tune has no {name}{hint}")
