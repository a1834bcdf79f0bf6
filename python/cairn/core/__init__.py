"""The Core API: what a training script needs to be run, watched, paused and resumed.

with cairn.core.init() as ctx:
    start = 0
    if ctx.latest_checkpoint is not None:
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
            start = load(path)
    for step in range(start, steps):
        ...
        ctx.train.report_training_metrics(steps_completed=step + 1, metrics={"loss": loss})
        with ctx.checkpoint.store_path({"steps_completed": step + 1}) as (path, id):
            save(path)
        if ctx.preempt.should_preempt():
            break
"""

from __future__ import annotations

from ._checkpoint import CheckpointContext, CheckpointHandle, DownloadMode
from ._context import Context, init
from ._distributed import DistributedContext
from ._info import ClusterInfo, TrialInfo, get_cluster_info
from ._preempt import PreemptContext, PreemptMode
from ._train import TrainContext

__all__ = [
    "CheckpointContext",
    "CheckpointHandle",
    "ClusterInfo",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "PreemptContext",
    "PreemptMode",
    "TrainContext",
    "TrialInfo",
    "get_cluster_info",
    "init",
]
