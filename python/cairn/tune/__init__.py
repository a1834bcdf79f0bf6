"""Tuning: trials of a function or a class, with checkpoints, that survive anything.

from cairn import tune

def train(config):
    checkpoint = tune.get_checkpoint()
    ...
    tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict(state))

results = tune.Tuner(train, param_space={"lr": tune.grid_search([0.1, 0.01])}).fit()
"""

from __future__ import annotations

from . import logger, result, schedulers, search, session, stoppers, utils
from .callback import Callback
from .checkpoint import Checkpoint
from .config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig
from .progress import CLIReporter, JupyterNotebookReporter, ProgressReporter
from .result import Result, TrialError
from .result_grid import ResultGrid
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
    "TuneError",
    "Tuner",
    "choice",
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
