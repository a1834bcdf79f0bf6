"""Where a master keeps things, when others keep theirs there too, and when it was moved or put back from a backup."""

import contextlib
import pathlib
import shutil

import pytest
from master_process import EXAMPLES, Master

WHOLE = [(step, step) for step in range(10, 101, 10)]


@contextlib.contextmanager
def started(directory, *flags):
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    master = Master(directory, slots=1)
    master.start(*flags)
    try:
        yield master
    finally:
        if master.process.poll() is None:
            master.end_runs()
        master.stop()


def create(master, *flags, entrypoint="python3 2_checkpoints.py 0.001"):
    config = ["--config", f"entrypoint={entrypoint}"]
    return master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, *config, *flags)["id"]


def trained(master, experiment):
    """The reports of an experiment, once it is through."""
    master.wait_state(experiment, "COMPLETED")
    return master.reports(master.trial_of(experiment)["id"])


def manifests(directory):
    return sorted(str(path.relative_to(directory)) for path in pathlib.Path(directory).rglob("manifest.json"))


def checkpoints(master, experiment):
    return {one["id"] for one in master.get(f"/api/v1/experiments/{experiment}/checkpoints")["checkpoints"]}


def test_two_masters_share_a_storage_and_nothing_in_it(tmp_path):
    storage = tmp_path / "shared"
    storage.mkdir()
    with started(tmp_path / "first", "--storage", storage) as first, started(tmp_path / "second", "--storage", storage) as second:
        one = create(first)
        assert trained(first, one) == WHOLE
        before = manifests(storage)
        other = create(second)
        assert other == one  # each counts for itself
        assert trained(second, other) == WHOLE
        run = second.get(f"/api/v1/trials/{second.trial_of(other)['id']}/runs")["runs"][0]
        assert (run["resume_mode"], run["from"]) == ("fresh", None)
        assert not checkpoints(first, one) & checkpoints(second, other)
        place = pathlib.Path(second.trial_of(other)["repository"])
        assert place.parent.parent == storage and place.parent.name.startswith(f"{other}-")
        # What one takes away is its own.
        second.cli("e", "delete", other, "--yes")
        second.wait("/api/v1/experiments", lambda _: not place.parent.exists())
        assert manifests(storage) == before
        assert trained(first, first.cli_json("e", "continue", one, "--new")["id"])[-1] == (100, 200)


def test_what_came_after_a_backup_is_not_taken_for_new_experiments(tmp_path):
    storage = tmp_path / "storage"
    data = tmp_path / "data"
    with started(tmp_path, "--storage", storage) as master:
        assert trained(master, create(master)) == WHOLE
        master.cli("master", "backup", "--data-dir", data, tmp_path / "backup.db")
        # Another program under the number that comes again.
        later = create(master, entrypoint="python3 2_checkpoints.py 0.002")
        assert trained(master, later) == WHOLE
        written = manifests(storage)
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        shutil.copy(tmp_path / "backup.db", data / "cairn.db")
        master.start("--storage", storage)
        again = create(master)
        assert again == later
        assert trained(master, again) == WHOLE
        assert set(written) < set(manifests(storage))
        # What was known before the backup is as it was.
        assert trained(master, master.cli_json("e", "continue", "1", "--new")["id"])[-1] == (100, 200)
        master.cli("e", "delete", again, "--yes")
        place = pathlib.Path(storage / str(again))
        assert manifests(place), "the storage of a record that was lost stays"


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_data_directory_is_moved_or_copied_with_all_that_is_in_it(tmp_path, how):
    gate = tmp_path / "gate"
    with started(tmp_path / "old") as master:
        done = create(master)
        assert trained(master, done) == WHOLE
        held = create(master, entrypoint=f"python3 {waiting_script(tmp_path)} {gate}")
        trial = master.wait(f"/api/v1/experiments/{held}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
        master.wait(f"/api/v1/trials/{trial}/metrics", lambda page: len(page["metrics"]) >= 2)
        master.cli("e", "pause", held)
        master.wait_state(held, "PAUSED")
    old, new = tmp_path / "old" / "data", tmp_path / "new" / "data"
    new.parent.mkdir()
    if how == "moved":
        old.rename(new)
    else:
        shutil.copytree(old, new, symlinks=True, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
        before = manifests(old)
    gate.touch()
    with started(tmp_path / "new") as master:
        master.cli("e", "activate", held)
        assert trained(master, held) == [(step, step) for step in range(1, 6)]
        trial = master.trial_of(held)
        assert trial["repository"].startswith(str(new))
        assert all(run["resume_mode"] == "resume" for run in master.get(f"/api/v1/trials/{trial['id']}/runs")["runs"][1:])
        listed = master.get(f"/api/v1/experiments/{done}/checkpoints")["checkpoints"]
        assert listed and all(pathlib.Path(one["path"]).is_dir() for one in listed)
        assert master.get(f"/api/v1/experiments/{done}")["storage"] == str(new / "checkpoints")
        # A new experiment finds the weights of the old one.
        assert trained(master, master.cli_json("e", "continue", done, "--new")["id"])[-1] == (100, 200)
    if how == "copied":
        assert manifests(old) == before, "the copy wrote into the original"


def waiting_script(directory):
    """Five steps with a checkpoint each; the third waits for a file, or for a pause."""
    script = directory / "held.py"
    script.write_text(
        """
import os, sys, time
import cairn
with cairn.core.init() as ctx:
    x = 0
    if ctx.latest_checkpoint is not None:
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
            x = int((path / "x").read_text())
    while x < 5:
        x += 1
        ctx.train.report_training_metrics(steps_completed=x, metrics={"x": x})
        with ctx.checkpoint.store_path({"steps_completed": x}) as (path, _):
            (path / "x").write_text(str(x))
        while x == 3 and not os.path.exists(sys.argv[1]) and not ctx.preempt.should_preempt():
            time.sleep(0.01)
        if ctx.preempt.should_preempt():
            break
"""
    )
    return script


def test_who_waits_for_storage_is_told_why(tmp_path):
    storage = tmp_path / "disk"
    with started(tmp_path, "--storage", storage) as master:
        experiment = create(master)
        assert trained(master, experiment) == WHOLE
        storage.rename(tmp_path / "unmounted")
        master.cli("e", "continue", experiment)
        message = master.wait(f"/api/v1/experiments/{experiment}", lambda e: e["message"])["message"]
        assert message.startswith("waits for its storage: ") and f"{storage}/{experiment}/1 is gone" in message
        assert master.trial_of(experiment)["message"] == message
        assert message in master.cli("e", "show", experiment).stdout
        (tmp_path / "unmounted").rename(storage)
        master.wait(f"/api/v1/experiments/{experiment}", lambda e: e["state"] == "COMPLETED" and not e["message"])
