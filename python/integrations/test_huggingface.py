"""Hugging Face Trainer with the callback: killed, resumed, equal to an undisturbed run."""

from pathlib import Path

import huggingface_run
import pytest
import torch
from processes import run_in_process

import cairn
from cairn.integrations.huggingface import CairnCallback, latest


def test_killed_and_resumed_it_ends_with_the_weights_of_an_undisturbed_run(tmp_path):
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert not run_in_process(huggingface_run.train, tmp_path / "a", straight, None)
    for kill_at in (5, 13):  # in the middle of the first and of the last epoch
        assert run_in_process(huggingface_run.train, tmp_path / "b", resumed, kill_at)
    assert not run_in_process(huggingface_run.train, tmp_path / "b", resumed, None)
    a, b = torch.load(straight), torch.load(resumed)
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different
    assert cairn.verify(tmp_path / "b").ok
    start = huggingface_run.model().state_dict()
    assert not torch.equal(a["transformer.wte.weight"], start["transformer.wte.weight"])


def test_save_events_of_the_trainer_are_saved(tmp_path):
    directory = tmp_path / "checkpoints"
    records = []
    callback = CairnCallback(directory, keep_last=None, on_saved=records.append)
    run = huggingface_run.trainer(
        tmp_path / "out", [callback], save_strategy="steps", save_steps=6, max_steps=12
    )
    run.train()
    assert [r.step for r in records] == [6, 12]
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert [i.step for i in m.list()] == [6, 12]
        state = m.restore().state
    assert set(state) == {"model", "optimizer", "scheduler", "scaler", "rng", "trainer"}
    # Tied weights are stored once.
    assert state["model"]["lm_head.weight"] is state["model"]["transformer.wte.weight"]
    path = Path(latest(directory))
    assert path.name == "checkpoint-12"
    assert sorted(p.name for p in path.iterdir()) == [
        "model.safetensors",
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "trainer_state.json",
    ]
    again = huggingface_run.trainer(tmp_path / "out", [], max_steps=12)
    again.train(resume_from_checkpoint=str(path))
    assert again.state.global_step == 12
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, run.model.state_dict()[name])


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    directory = tmp_path / "checkpoints"
    run = huggingface_run.trainer(
        tmp_path / "out", [CairnCallback(directory, save_steps=3)], max_steps=6
    )
    run.train()
    with cairn.CheckpointManager(directory, read_only=True) as m:
        newest = Path(m.latest().path)
    next(newest.rglob("*.safetensors")).unlink()
    assert Path(latest(directory)).name == "checkpoint-3"


def test_before_the_first_save_there_is_nothing_to_go_on_from(tmp_path):
    assert latest(tmp_path / "nothing") is None
    with cairn.CheckpointManager(tmp_path / "empty"):
        pass
    assert latest(tmp_path / "empty") is None


def test_mistakes_are_named(tmp_path):
    with pytest.raises(cairn.Invalid, match="save_steps"):
        CairnCallback(tmp_path, save_steps=0)
    cairn.save(tmp_path / "other", {"x": 1})
    with pytest.raises(cairn.Invalid, match="not saved by"):
        latest(tmp_path / "other")
