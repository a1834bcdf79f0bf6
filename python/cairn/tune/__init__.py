"""Tuning: trials of a function or a class, with checkpoints, that survive anything.

from cairn import tune

def train(config):
    checkpoint = tune.get_checkpoint()
    ...
    tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict(state))

results = tune.Tuner(train, param_space={"lr": tune.grid_search([0.1, 0.01])}).fit()
"""

from __future__ import annotations

from .checkpoint import Checkpoint
from .config import CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from .session import (
    get_checkpoint,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    report,
    should_checkpoint,
)
from .trainable import Trainable, with_parameters, with_resources
from .tuner import TuneError, Tuner


def grid_search(values):
    return {"grid_search": list(values)}
