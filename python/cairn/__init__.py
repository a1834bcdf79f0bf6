"""Cairn keeps training alive: checkpoints that survive anything, exact resume.

import cairn

m = cairn.CheckpointManager("runs/a")
restored = m.restore(state)              # None the first time
for step in range(start, steps):
    ...
    m.save(step, state)                  # returns after a copy at memory speed
m.close()
"""

from __future__ import annotations

import importlib
from typing import Any

from . import core, initializers, io, optimizers, serving, table, train
from .core import get_cluster_info
from .errors import (
    Cancelled,
    Corruption,
    Error,
    Fenced,
    Invalid,
    Mismatch,
    NoSpace,
    NotFound,
    OwnedByAnotherJob,
    PermissionDenied,
    Timeout,
    Unavailable,
)
from .manager import CheckpointInfo, CheckpointManager, Restored, SaveHandle
from .observe import SaveRecord
from .oneshot import Difference, Report, diff, load, save, verify
from .row_tracked import RowTracked
from .scope import Scope, Variable, default_scope
from .shard import Replicated, Shard
from .table import (
    CounterFilter,
    EmbeddingTable,
    GlobalStepEvict,
    L2WeightEvict,
    tables,
)
from .trainer import (
    BeginEpochEvent,
    BeginStepEvent,
    CheckpointConfig,
    EndEpochEvent,
    EndStepEvent,
    Trainer,
    TrainSummary,
)

__version__ = "0.1.0"

# For logging.basicConfig(format=…), as scripts for Determined's Core API have it.
LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "Cancelled",
    "CheckpointConfig",
    "CheckpointInfo",
    "CheckpointManager",
    "Corruption",
    "CounterFilter",
    "Difference",
    "EmbeddingTable",
    "EndEpochEvent",
    "EndStepEvent",
    "Error",
    "Fenced",
    "GlobalStepEvict",
    "Invalid",
    "L2WeightEvict",
    "LOG_FORMAT",
    "Mismatch",
    "NoSpace",
    "NotFound",
    "OwnedByAnotherJob",
    "PermissionDenied",
    "Replicated",
    "Report",
    "Restored",
    "RowTracked",
    "SaveHandle",
    "SaveRecord",
    "Scope",
    "Shard",
    "Timeout",
    "TrainSummary",
    "Trainer",
    "Unavailable",
    "Variable",
    "core",
    "default_scope",
    "diff",
    "get_cluster_info",
    "initializers",
    "io",
    "load",
    "optimizers",
    "save",
    "serving",
    "table",
    "tables",
    "train",
    "verify",
]

# Loaded when first used: they bring in gRPC and torch.
_LATER = ("air", "ps", "testing", "torch", "tune")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
