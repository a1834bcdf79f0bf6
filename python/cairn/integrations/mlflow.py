"""MLflow: log what each checkpoint cost, and which one a run has."""

from __future__ import annotations

from typing import Any, Optional

try:
    import mlflow
except ImportError as error:
    raise ImportError(
        f"cairn.integrations.mlflow needs MLflow: pip install mlflow ({error})"
    ) from error

from ..errors import Invalid
from ..observe import SaveRecord

__all__ = ["MLflowCallback"]


class MLflowCallback:
    """Logs every save to a run: ``CheckpointManager(directory, on_saved=MLflowCallback())``.

    Metrics, at the step of the checkpoint: checkpoint/bytes, stall_seconds, durable_seconds,
    bytes_written, bytes_shared. Tags: checkpoint.id, checkpoint.step and checkpoint.path of the
    newest one, checkpoint.error of a failed one.

    Args:
        run_id: None takes the run that is active when this is made.
        prefix: of the metrics' names.
        client: an mlflow.MlflowClient; None makes one.

    >>> import mlflow, cairn
    >>> from cairn.integrations.mlflow import MLflowCallback
    >>> with mlflow.start_run() as run:
    ...     with cairn.CheckpointManager("runs/a", on_saved=MLflowCallback()) as m:
    ...         handle = m.save(40, {"x": 1})
    >>> mlflow.get_run(run.info.run_id).data.tags["checkpoint.step"]
    '40'
    """

    def __init__(
        self, run_id: Optional[str] = None, prefix: str = "checkpoint", client: Any = None
    ) -> None:
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise Invalid(
                    "MLflowCallback: no run is active; call mlflow.start_run() or give run_id"
                )
            run_id = active.info.run_id
        self.run_id = run_id
        self._prefix = prefix
        # Callbacks run on a thread of their own, where no run is active: everything goes by id.
        self._client = client if client is not None else mlflow.MlflowClient()

    def __call__(self, record: SaveRecord) -> None:
        if not record.ok:
            text = f"step {record.step}: {record.error}"
            self._client.set_tag(self.run_id, f"{self._prefix}.error", text[:500])
            return
        for name, value in record.metrics().items():
            self._client.log_metric(
                self.run_id, f"{self._prefix}/{name}", float(value), step=record.step
            )
        tags = {"id": record.id, "step": str(record.step), "path": record.path}
        for name, text in tags.items():
            self._client.set_tag(self.run_id, f"{self._prefix}.{name}", text)
