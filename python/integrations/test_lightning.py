"""PyTorch Lightning on a repository: killed, resumed, equal to an undisturbed run."""

import json

import lightning.pytorch as pl
import lightning_run
import pytest
import torch

import cairn
from cairn.integrations.lightning import CairnCallback, CairnCheckpointIO


def equal(a, b):
    a, b = torch.load(a), torch.load(b)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def test_killed_and_resumed_it_ends_with_the_weights_of_an_undisturbed_run(tmp_path, in_process):
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert not in_process(lightning_run.train, tmp_path / "a", straight, None, 3)
    # In the middle of the first epoch, at an epoch's first step, in the middle of the last.
    for kill_at in (4, 10, 17):
        assert in_process(lightning_run.train, tmp_path / "b", resumed, kill_at, 3)
        assert not resumed.exists()
    assert not in_process(lightning_run.train, tmp_path / "b", resumed, None, 3)
    assert equal(straight, resumed)
    assert cairn.verify(tmp_path / "b").ok
    with cairn.CheckpointManager(tmp_path / "b", read_only=True) as m:
        assert m.latest().step == lightning_run.STEPS
        assert len(m.list()) == 3


def test_another_seed_would_be_seen(tmp_path, in_process):
    """The comparison above can fail: a run that starts anew in the middle ends elsewhere."""
    straight, other = tmp_path / "straight.pt", tmp_path / "other.pt"
    assert not in_process(lightning_run.train, tmp_path / "a", straight, None, 3)
    assert in_process(lightning_run.train, tmp_path / "b", other, 7, 100)  # nothing was saved yet
    torch.save({k: v + 0 for k, v in torch.load(straight).items()}, other)
    weights = torch.load(other)
    weights["net.0.weight"][0, 0] += 1e-7
    torch.save(weights, other)
    assert not equal(straight, other)


def test_model_checkpoint_saves_and_removes_through_the_plugin(tmp_path, in_process):
    arguments = (tmp_path / "b", tmp_path / "lightning")
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert not in_process(
        lightning_run.train_with_plugin, tmp_path / "a", tmp_path / "other", straight, None
    )
    assert in_process(lightning_run.train_with_plugin, *arguments, resumed, 12)
    with cairn.CheckpointManager(tmp_path / "b", read_only=True) as m:
        assert [i.step for i in m.list()] == [5, 10]
    assert not in_process(lightning_run.train_with_plugin, *arguments, resumed, None)
    assert equal(straight, resumed)
    # save_top_k=2, and one at the end of training.
    pointers = sorted(p.name for p in (tmp_path / "lightning").iterdir())
    assert pointers == ["epoch=2-step=15.ckpt", "epoch=3-step=20.ckpt"]
    with cairn.CheckpointManager(tmp_path / "b", read_only=True) as m:
        kept = {i.id: i.step for i in m.list()}
    for name, step in zip(pointers, (15, 20)):
        found = json.loads((tmp_path / "lightning" / name).read_text())
        assert kept[found["cairn_checkpoint"]] == step


@pytest.fixture
def fitted(directory):
    lightning_run.quiet()
    io = CairnCheckpointIO(directory)
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, plugins=[io],
    )
    model = lightning_run.Model()
    trainer.fit(model, lightning_run.loader())
    yield trainer, model, io
    io.teardown()


def test_a_saved_path_can_be_loaded(fitted, tmp_path):
    trainer, model, io = fitted
    path = tmp_path / "here" / "mine.ckpt"
    trainer.save_checkpoint(path)
    io.teardown()
    found = io.load_checkpoint(path)
    assert torch.equal(found["state_dict"]["net.0.weight"], model.net[0].weight)
    assert found["hyper_parameters"] == {"width": 8} and found["global_step"] == 3
    assert io.load_checkpoint(io.latest())["global_step"] == 3


def test_a_checkpoints_directory_can_be_loaded(fitted, tmp_path):
    trainer, model, io = fitted
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    io.teardown()
    with cairn.CheckpointManager(io.directory, read_only=True) as m:
        path = m.latest().path
    assert io.load_checkpoint(path)["global_step"] == 3


def test_a_damaged_newest_checkpoint_is_passed_over(fitted, tmp_path):
    trainer, model, io = fitted
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    with torch.no_grad():
        model.net[0].weight += 1
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    io.teardown()
    with cairn.CheckpointManager(io.directory, read_only=True) as m:
        newest = m.latest().path
    file = next(p for p in (io_path := __import__("pathlib").Path(newest)).rglob("*.safetensors"))
    assert io_path in file.parents
    file.unlink()
    found = io.load_checkpoint(io.latest())
    assert torch.equal(found["state_dict"]["net.0.weight"] + 1, model.net[0].weight)


def test_removed_checkpoints_are_gone(fitted, tmp_path):
    trainer, model, io = fitted
    paths = [tmp_path / f"{i}.ckpt" for i in range(2)]
    for path in paths:
        trainer.save_checkpoint(path)
    io.remove_checkpoint(paths[0])
    assert not paths[0].exists() and paths[1].exists()
    io.remove_checkpoint(paths[0])  # a second time is no error
    io.teardown()
    with cairn.CheckpointManager(io.directory, read_only=True) as m:
        assert len(m.list()) == 1
    with pytest.raises(cairn.NotFound, match="no checkpoint"):
        io.load_checkpoint(paths[0])


def test_before_the_first_save_there_is_nothing_to_go_on_from(directory):
    assert CairnCheckpointIO(directory).latest() is None
    assert CairnCallback(directory).latest() is None


def test_mistakes_are_named(directory):
    with pytest.raises(cairn.Invalid, match="every_n_steps"):
        CairnCallback(directory, every_n_steps=0)
    trainer = lightning_run.trainer(callbacks=[CairnCallback()], enable_checkpointing=False)
    with pytest.raises(cairn.Invalid, match="CairnCheckpointIO"):
        trainer.fit(lightning_run.Model(), lightning_run.loader())
