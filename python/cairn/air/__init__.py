"""The names of Ray AIR 2.3, for programs that use them: air.session.report, air.RunConfig,
air.Checkpoint.from_dict. All of it is cairn.tune.

>>> from cairn import air
>>> air.CheckpointConfig(num_to_keep=2).num_to_keep
2
"""

from __future__ import annotations

from ..tune import Checkpoint, CheckpointConfig, FailureConfig, Result, ResultGrid, RunConfig
from . import session

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "Result",
    "ResultGrid",
    "RunConfig",
    "session",
]
