"""Hugging Face Trainer with the callback: killed, resumed, equal to an undisturbed run."""

import os
import subprocess
import sys
from pathlib import Path

import huggingface_run
import pytest
import torch
from processes import run_in_process

import cairn
from cairn.integrations import huggingface
from cairn.integrations.huggingface import CairnCallback, latest


def differences(saved, other):
    """Names of weights that are not equal, bit for bit."""
    a = torch.load(saved)
    b = other if isinstance(other, dict) else torch.load(other)
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def test_killed_and_resumed_it_ends_with_the_weights_of_an_undisturbed_run(tmp_path):
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert not run_in_process(huggingface_run.train, tmp_path / "a", straight, None)
    for kill_at in (5, 13):  # in the middle of the first and of the last epoch
        assert run_in_process(huggingface_run.train, tmp_path / "b", resumed, kill_at)
    assert not run_in_process(huggingface_run.train, tmp_path / "b", resumed, None)
    assert not differences(straight, resumed)
    assert cairn.verify(tmp_path / "b").ok
    assert "transformer.wte.weight" in differences(straight, huggingface_run.model().state_dict())


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
        ".cairn-resume",
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


def test_where_the_files_are_put_nothing_else_is_removed(tmp_path):
    directory, out = tmp_path / "checkpoints", tmp_path / "out"
    huggingface_run.trainer(out, [CairnCallback(directory, save_steps=3)], max_steps=3).train()
    for name in ("notes.txt", "checkpoint-2/mine", "checkpoint-5/trainer_state.json"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    assert latest(directory, into=out) == str(out / "checkpoint-3")
    run = huggingface_run.trainer(out, [CairnCallback(directory, save_steps=6)], max_steps=6)
    run.train(resume_from_checkpoint=latest(directory, into=out))
    assert latest(directory, into=out) == str(out / "checkpoint-6")
    left = ["checkpoint-2", "checkpoint-5", "checkpoint-6", "notes.txt"]
    assert sorted(path.name for path in out.iterdir()) == left
    assert (out / "checkpoint-2/mine").read_text() == "checkpoint-2/mine"

    (out / "checkpoint-6/.cairn-resume").unlink()  # somebody else's, then
    with pytest.raises(cairn.Invalid, match="checkpoint-6 is there.*another place"):
        latest(directory, into=out)
    assert (out / "checkpoint-6/trainer_state.json").exists()


class Killed(BaseException):
    pass


def made_by_latest(path):
    (path / "nested").mkdir(parents=True)
    for name in (huggingface._MARK, "nested/x", *map(str, range(20))):
        (path / name).write_text(name)


def test_a_removal_that_is_cut_off_anywhere_is_finished_by_the_next(tmp_path, monkeypatch):
    left = [0]

    def until_none_is_left(remove):
        def call(*arguments, **options):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return remove(*arguments, **options)

        return call

    cut_off = 0
    while cut_off < 100:
        made_by_latest(tmp_path / "checkpoint-3")
        left[0] = cut_off
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", until_none_is_left(os.unlink))
            patch.setattr(os, "rmdir", until_none_is_left(os.rmdir))
            try:
                huggingface._remove_earlier(tmp_path)
                break
            except Killed:
                cut_off += 1
        huggingface._remove_earlier(tmp_path)
        assert not list(tmp_path.iterdir()), f"cut off after {cut_off - 1} removals"
    assert cut_off == 24  # one for each file and directory


@pytest.mark.parametrize("into", ["file", "file/below", None])
def test_a_file_where_a_directory_is_needed_is_named(tmp_path, into):
    name = into or "run.resume"
    (tmp_path / name.split("/")[0]).write_text("mine")
    metadata = {"huggingface": {}}
    with cairn.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"x": 1}, metadata=metadata, blocking=True)
    with pytest.raises(cairn.Invalid, match=f"{name}: .*is a file.*into="):
        latest(tmp_path / "run", into=tmp_path / into if into else None)
    assert (tmp_path / name.split("/")[0]).read_text() == "mine"


def torchrun(directory, out, *kill):
    """Trains with DDP in two processes; gives torchrun's exit status and where each start so far began."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", "--nproc-per-node=2", huggingface_run.__file__]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, *map(str, (directory, out, *kill))], env=environment)
    try:
        status = process.wait(300)
    finally:
        process.terminate()  # were it to hang: it ends its processes
        process.wait(60)
    return status, [int(line) for line in Path(f"{out}.starts").read_text().split()]


def test_ddp_killed_and_resumed_ends_with_the_weights_of_an_undisturbed_run(tmp_path):
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    assert torchrun(tmp_path / "a", straight) == (0, [0])
    with cairn.CheckpointManager(tmp_path / "a", read_only=True) as m:
        state = m.restore().state
    assert not differences(straight, dict(state["model"]))
    first, second = (rng["torch"] for rng in state["rng"])
    assert not torch.equal(first, second), "each process has random numbers of its own"

    directory = tmp_path / "b"
    for step, rank, starts in ((5, 1, [0]), (13, 0, [0, 4])):
        status, began = torchrun(directory, resumed, step, rank)
        assert status != 0 and began == starts and not resumed.exists()
    with cairn.CheckpointManager(directory, read_only=True) as m:
        newest = m.latest()
    assert newest.step == 12
    next(Path(newest.path).rglob("*.safetensors")).unlink()  # both pass it over
    assert torchrun(directory, resumed) == (0, [0, 4, 8])
    assert not differences(straight, resumed)
    assert cairn.verify(directory).ok


# Rank 1 comes first, and looks for the files as soon as it is told; rank 0 only when it has done so.
RANK = """
import os, sys, time, torch
from pathlib import Path
from cairn.integrations import huggingface
directory, out, how = sys.argv[1:]
rank = int(os.environ["RANK"])
if how == "group":
    torch.distributed.init_process_group("gloo")
if rank == 0:
    publish = huggingface._publish
    def late(where, target):
        deadline = time.monotonic() + 100
        while not Path(out, "waiting").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return publish(where, target)
    huggingface._publish = late
else:
    Path(out, "waiting").touch()
for number in range(2):
    try:
        found = huggingface.latest(directory)
        said = f"{found} {found and os.path.exists(found + '/trainer_state.json')}"
    except Exception as error:
        said = f"{type(error).__name__} {error}"
    Path(out, f"{rank}-{number}").write_text(said)
"""


def ranks(directory, tmp_path, how, environment):
    out = tmp_path / f"out-{how}"
    out.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(directory), str(out), how],
            env={**os.environ, **environment, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in (1, 0)
    ]
    try:
        assert [process.wait(120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [(out / f"{rank}-{number}").read_text() for number in (0, 1) for rank in (0, 1)]


def around():
    """A store as torchrun's agent has it, and the variables that it gives its workers."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return store, environment


@pytest.mark.parametrize("how", ["group", "store"])
def test_other_ranks_wait_for_what_rank_0_published(tmp_path, how):
    directory = tmp_path / "checkpoints"
    huggingface_run.trainer(
        tmp_path / "out", [CairnCallback(directory, save_steps=3)], max_steps=6
    ).train()
    with cairn.CheckpointManager(directory, read_only=True) as m:
        newest = Path(m.latest().path)
    next(newest.rglob("*.safetensors")).unlink()  # rank 0 passes it over
    store, environment = around()
    path = f"{directory}.resume/checkpoint-3 True"
    assert ranks(directory, tmp_path, how, environment) == [path] * 4
    del store


def test_other_ranks_are_told_what_went_wrong_and_that_there_is_none(tmp_path):
    store, environment = around()
    assert ranks(tmp_path / "nothing", tmp_path, "store", environment) == ["None None"] * 4
    cairn.save(tmp_path / "other", {"x": 1})
    environment["TORCHELASTIC_RESTART_COUNT"] = "1"
    (tmp_path / "again").mkdir()
    first, second, *_ = ranks(tmp_path / "other", tmp_path / "again", "store", environment)
    assert first.startswith("Invalid") and "not saved by" in first
    assert second.startswith("Error latest: rank 0 failed: Invalid") and "not saved by" in second
    del store


def test_ranks_that_cannot_tell_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(cairn.Invalid, match="make the TrainingArguments first"):
        latest(tmp_path / "nothing")


def test_mistakes_are_named(tmp_path):
    with pytest.raises(cairn.Invalid, match="save_steps"):
        CairnCallback(tmp_path, save_steps=0)
    cairn.save(tmp_path / "other", {"x": 1})
    with pytest.raises(cairn.Invalid, match="not saved by"):
        latest(tmp_path / "other")
