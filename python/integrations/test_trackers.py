"""MLflow and W&B, offline: what is logged is what the saves were."""

import mlflow
import numpy as np
import pytest
import wandb

import cairn
from cairn.integrations.mlflow import MLflowCallback
from cairn.integrations.wandb import WandbCallback

NAMES = ("bytes", "stall_seconds", "durable_seconds", "bytes_written", "bytes_shared")


def save_two(directory, callback):
    """The records of two saves, as a callback of our own sees them."""
    records = []
    with cairn.CheckpointManager(directory, on_saved=callback) as m:
        m.add_callback(records.append)
        for step in (10, 20):
            m.save(step, {"w": np.full(20_000, float(step)), "same": np.ones(5000)})
    return records


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as active:
        yield active.info.run_id


def test_mlflow_has_the_figures_of_each_save(directory, run):
    records = save_two(directory, MLflowCallback())
    client = mlflow.MlflowClient()
    assert len(records) == 2
    for name in NAMES:
        history = client.get_metric_history(run, f"checkpoint/{name}")
        assert [(m.step, m.value) for m in history] == [
            (r.step, float(getattr(r, name))) for r in records
        ]
    tags = client.get_run(run).data.tags
    assert tags["checkpoint.id"] == records[-1].id
    assert (tags["checkpoint.step"], tags["checkpoint.path"]) == ("20", records[-1].path)


def test_mlflow_takes_a_trainers_saves(directory, run):
    def step(model, batch):
        model["w"] += batch

    config = cairn.CheckpointConfig(directory, step_interval=2)
    trainer = cairn.Trainer(
        {"w": np.zeros(3)}, step, checkpoint_config=config, callbacks=[MLflowCallback(run_id=run)]
    )
    trainer.train(1, [1.0] * 4)
    history = mlflow.MlflowClient().get_metric_history(run, "checkpoint/stall_seconds")
    assert [m.step for m in history] == [1, 3, 4]


def test_failed_saves_are_tags(run):
    record = cairn.SaveRecord(3, "", "", 0, 0.1, 0.0, 5, 0, error=cairn.NoSpace("the disk is full"))
    MLflowCallback()(record)
    client = mlflow.MlflowClient()
    assert client.get_run(run).data.tags["checkpoint.error"] == "step 3: the disk is full"
    assert "checkpoint/bytes" not in client.get_run(run).data.metrics


def test_without_a_run_the_callbacks_are_refused():
    assert mlflow.active_run() is None and wandb.run is None
    with pytest.raises(cairn.Invalid, match="start_run"):
        MLflowCallback()
    with pytest.raises(cairn.Invalid, match="wandb.init"):
        WandbCallback()


class _Recorded:
    """A run's log beside the real one: offline files are binary."""

    def __init__(self, run):
        self._run = run
        self.logged = []
        self.summary = run.summary

    def define_metric(self, *arguments, **options):
        return self._run.define_metric(*arguments, **options)

    def log(self, values):
        self.logged.append(values)
        self._run.log(values)


def test_wandb_has_the_figures_of_each_save(directory, tmp_path):
    run = wandb.init(
        mode="offline", dir=str(tmp_path), project="cairn-test", settings={"silent": True}
    )
    try:
        recorded = _Recorded(run)
        records = save_two(directory, WandbCallback(recorded))
        assert recorded.logged == [
            {"checkpoint/step": r.step, **{f"checkpoint/{n}": getattr(r, n) for n in NAMES}}
            for r in records
        ]
        assert run.summary["checkpoint/id"] == records[-1].id
        assert run.summary["checkpoint/path"] == records[-1].path
        assert run.summary["checkpoint/bytes"] == records[-1].bytes
        WandbCallback(run)(
            cairn.SaveRecord(3, "", "", 0, 0.1, 0.0, 5, 0, error=cairn.NoSpace("the disk is full"))
        )
        assert run.summary["checkpoint/error"] == "step 3: the disk is full"
    finally:
        run.finish()
    assert list((tmp_path / "wandb").rglob("*.wandb"))
