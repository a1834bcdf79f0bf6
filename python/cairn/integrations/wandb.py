"""Weights & Biases: log what each checkpoint cost, and which one a run has."""

from __future__ import annotations

from typing import Any, Optional

try:
    import wandb
except ImportError as error:
    raise ImportError(
        f"cairn.integrations.wandb needs wandb: pip install wandb ({error})"
    ) from error

from ..errors import Invalid
from ..observe import SaveRecord

__all__ = ["WandbCallback"]


class WandbCallback:
    """Logs every save to a W&B run: ``CheckpointManager(directory, on_saved=WandbCallback())``.

    Logged: checkpoint/step, bytes, stall_seconds, durable_seconds, bytes_written, bytes_shared;
    they are drawn over checkpoint/step, because saves end later than the step they were made at.
    Summary: checkpoint/id, checkpoint/path of the newest one, checkpoint/error of a failed one.

    Args:
        run: None takes the run that is active when this is made.
        prefix: of the names.

    >>> import wandb, cairn
    >>> from cairn.integrations.wandb import WandbCallback
    >>> with wandb.init(mode="offline", settings=wandb.Settings(silent=True)) as run:
    ...     with cairn.CheckpointManager("runs/a", on_saved=WandbCallback()) as m:
    ...         handle = m.save(40, {"x": 1})
    ...     run.summary["checkpoint/step"]
    40
    """

    def __init__(self, run: Optional[Any] = None, prefix: str = "checkpoint") -> None:
        run = run if run is not None else wandb.run
        if run is None:
            raise Invalid("WandbCallback: no run is active; call wandb.init() or give run")
        self._run = run
        self._prefix = prefix
        self._run.define_metric(f"{prefix}/step", hidden=True)
        self._run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")

    def __call__(self, record: SaveRecord) -> None:
        if not record.ok:
            self._run.summary[f"{self._prefix}/error"] = f"step {record.step}: {record.error}"
            return
        values = {f"{self._prefix}/{name}": value for name, value in record.metrics().items()}
        self._run.log({f"{self._prefix}/step": record.step, **values})
        self._run.summary[f"{self._prefix}/id"] = record.id
        self._run.summary[f"{self._prefix}/path"] = record.path
