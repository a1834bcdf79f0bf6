"""PyTorch Lightning on a repository: killed, resumed, equal to an undisturbed run."""

import concurrent.futures
import json
import socket
from pathlib import Path

import lightning.pytorch as pl
import lightning_run
import pytest
import torch
from processes import run_in_process

import cairn
from cairn.integrations.lightning import CairnCallback, CairnCheckpointIO


def equal(a, b):
    a, b = torch.load(a), torch.load(b)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The weights of an undisturbed run."""
    root = tmp_path_factory.mktemp("straight")
    assert not run_in_process(lightning_run.train, root / "run", root / "weights.pt", None, 100)
    return root / "weights.pt"


# An epoch has 5 steps: kills and saves in the middle of one, at its last step and at its first.
@pytest.mark.parametrize("every", [1, 3, 5])
@pytest.mark.parametrize("settled", [True, False])
def test_killed_and_resumed_it_ends_with_the_weights_of_an_undisturbed_run(
    tmp_path, straight, every, settled
):
    resumed = tmp_path / "resumed.pt"
    for kill_at in (4, 5, 7, 10, 17):
        arguments = (tmp_path / "run", resumed, kill_at, every, settled)
        assert run_in_process(lightning_run.train, *arguments)
        assert not resumed.exists()
    assert not run_in_process(lightning_run.train, tmp_path / "run", resumed, None, every)
    assert equal(straight, resumed)
    assert cairn.verify(tmp_path / "run").ok
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        assert m.latest().step == lightning_run.STEPS


@pytest.mark.parametrize("every", [1, 2])
def test_batches_that_are_gathered_for_a_step_are_not_lost(tmp_path, every):
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert not run_in_process(
        lightning_run.train_accumulating, tmp_path / "a", straight, None, 100
    )
    for kill_at in (2, 4, 5):  # between the two batches of a step and behind them
        assert run_in_process(
            lightning_run.train_accumulating, tmp_path / "b", resumed, kill_at, every
        )
    assert not run_in_process(
        lightning_run.train_accumulating, tmp_path / "b", resumed, None, every
    )
    assert equal(straight, resumed)


def test_a_resume_goes_on_from_the_newest_save(tmp_path, straight):
    """The comparison above would also pass if every start began anew."""
    out = tmp_path / "out.pt"
    assert run_in_process(lightning_run.train, tmp_path / "run", out, 12, 5)
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        assert [i.step for i in m.list()] == [5, 10]
    # A kill at a step before that is never reached again.
    assert not run_in_process(lightning_run.train, tmp_path / "run", out, 9, 5)
    assert equal(straight, out)


def test_each_of_several_processes_goes_on_with_its_own_random_numbers(tmp_path):
    def run(directory, out, kill_at):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        with concurrent.futures.ThreadPoolExecutor() as both:
            killed = both.map(
                lambda rank: run_in_process(
                    lightning_run.train_together, directory, out, kill_at, rank, port
                ),
                range(2),
            )
            return set(killed)

    assert run(tmp_path / "whole", tmp_path / "straight.pt", None) == {False}
    assert run(tmp_path / "run", tmp_path / "resumed.pt", 8) == {True}
    assert run(tmp_path / "run", tmp_path / "resumed.pt", None) == {False}
    assert equal(tmp_path / "straight.pt", tmp_path / "resumed.pt")


def test_model_checkpoint_saves_and_removes_through_the_plugin(tmp_path, straight):
    arguments = (tmp_path / "b", tmp_path / "lightning")
    resumed = tmp_path / "resumed.pt"
    assert run_in_process(lightning_run.train_with_plugin, *arguments, resumed, 12)
    with cairn.CheckpointManager(tmp_path / "b", read_only=True) as m:
        assert [i.step for i in m.list()] == [5, 10]
    assert not run_in_process(lightning_run.train_with_plugin, *arguments, resumed, None)
    assert equal(straight, resumed)
    # save_top_k=2, and one at the end of training.
    pointers = sorted(p.name for p in (tmp_path / "lightning").glob("*.ckpt"))
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
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        plugins=[io],
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


def test_a_path_whose_file_was_never_written_is_known(fitted, tmp_path):
    trainer, model, io = fitted
    paths = [tmp_path / "one.ckpt", tmp_path / "two.ckpt"]
    for path in paths:
        trainer.save_checkpoint(path)
    io.teardown()
    paths[0].unlink()  # as if the process had been killed in between
    assert io.load_checkpoint(paths[0])["global_step"] == 3
    io.remove_checkpoint(paths[0])
    io.teardown()
    with cairn.CheckpointManager(io.directory, read_only=True) as m:
        assert [i.metadata["lightning"]["path"] for i in m.list()] == [str(paths[1])]


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
    next(Path(newest).rglob("*.safetensors")).unlink()
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


def test_a_save_to_the_same_path_takes_the_place_of_the_one_before(fitted, tmp_path):
    trainer, model, io = fitted
    path, other, link = (tmp_path / f"{name}.ckpt" for name in ("last", "other", "link"))
    trainer.save_checkpoint(other)
    io._manager.wait()
    link.symlink_to(other)  # as ModelCheckpoint(save_last="link") names the newest
    for number in range(3):
        with torch.no_grad():
            model.net[0].bias.fill_(number)
        trainer.save_checkpoint(path)
    trainer.save_checkpoint(link)
    io.teardown()
    with cairn.CheckpointManager(io.directory, read_only=True) as m:
        paths = sorted(info.metadata["lightning"]["path"] for info in m.list())
    assert paths == sorted(map(str, (path, other, link))), "what the link named is still other's"
    assert io.load_checkpoint(path)["state_dict"]["net.0.bias"].unique().tolist() == [2]
    assert io.load_checkpoint(other)["global_step"] == 3


def test_a_file_that_names_what_is_gone_is_no_reason_to_fail(fitted, tmp_path):
    """Killed after the older checkpoint was removed, and before the disk had the new file."""
    trainer, _, io = fitted
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    io._manager.wait()
    before = path.read_text()
    trainer.save_checkpoint(path)
    io.teardown()
    path.write_text(before)
    assert io.load_checkpoint(path)["global_step"] == 3


def test_before_the_first_save_there_is_nothing_to_go_on_from(directory):
    assert CairnCheckpointIO(directory).latest() is None
    assert CairnCallback(directory).latest() is None


def test_mistakes_are_named(directory):
    with pytest.raises(cairn.Invalid, match="every_n_steps"):
        CairnCallback(directory, every_n_steps=0)
    trainer = lightning_run.trainer(callbacks=[CairnCallback()], enable_checkpointing=False)
    with pytest.raises(cairn.Invalid, match="CairnCheckpointIO"):
        trainer.fit(lightning_run.Model(), lightning_run.loader())
