"""A master whose database is lost: a backup has all of it, and the checkpoints are the truth."""

import json
import pathlib
import time

import numpy as np
import pytest
from master_process import EXAMPLES, Refused, postgresql, running_master

import cairn


def test_a_backup_beside_a_living_master_brings_everything_back(tmp_path):
    with running_master(tmp_path) as master:
        script = "entrypoint=python3 2_checkpoints.py 0.001"
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", script]
        experiment = str(master.cli_json(*create)["id"])
        assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
        trial = master.trial_of(experiment)["id"]
        reports = master.reports(trial)
        master.wait(f"/api/v1/trials/{trial}/logs", lambda page: len(page["lines"]) >= 10)
        data = tmp_path / "data"
        made = master.cli_json("master", "backup", "--data-dir", data, tmp_path / "backup.db")
        assert made["bytes"] == (tmp_path / "backup.db").stat().st_size > 0
        again = master.cli("master", "backup", "--data-dir", data, tmp_path / "backup.db", check=False)
        assert again.returncode == 1 and "exists" in again.stderr
        lost = str(master.cli_json(*create, "--paused")["id"])
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        (tmp_path / "backup.db").rename(data / "cairn.db")
        master.start()
        assert [e["id"] for e in master.get("/api/v1/experiments")["experiments"]] == [experiment], f"{lost} came after it"
        assert master.reports(trial) == reports and len(reports) == 10
        assert len(master.get(f"/api/v1/trials/{trial}/logs")["lines"]) >= 10
        new = master.cli_json("e", "continue", experiment, "--new")["id"]
        assert master.cli("e", "wait", new).stdout.split() == [new, "COMPLETED"]


def test_a_backup_of_postgresql_is_its_own_tools_business(tmp_path):
    with postgresql() as server, running_master(tmp_path, database=server.url) as master:
        refused = master.cli("master", "backup", "--data-dir", tmp_path / "data", "--db", server.url, tmp_path / "b.db", check=False)
        assert refused.returncode == 1 and "pg_dump" in refused.stderr


def test_a_lost_database_is_made_anew_from_the_checkpoints(tmp_path):
    with running_master(tmp_path) as master:
        script = "entrypoint=python3 2_checkpoints.py 0.001"
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", script]
        experiment = str(master.cli_json(*create)["id"])
        assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
        data = tmp_path / "data"
        before = {c["id"] for c in master.cli_json("e", "checkpoints", experiment)["checkpoints"]}
        assert before
        refused = master.cli("master", "reindex", "--data-dir", data, check=False)
        assert refused.returncode == 1 and "another master" in refused.stderr
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        found = master.cli_json("master", "reindex", "--data-dir", data)
        assert found["trials_added"] == 1 and found["checkpoints_added"] == len(before)
        again = master.cli_json("master", "reindex", "--data-dir", data)
        assert again["trials_added"] == again["checkpoints_added"] == 0, "twice changes nothing"
        master.start()
        after = master.cli_json("e", "checkpoints", experiment)["checkpoints"]
        assert {c["id"] for c in after} == before


def test_what_reindex_found_can_be_continued_canceled_and_deleted(tmp_path):
    with running_master(tmp_path) as master:
        script = "entrypoint=python3 2_checkpoints.py 0.001"
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", script]
        first, second = (master.cli_json(*create)["id"] for _ in range(2))
        for experiment in (first, second):
            master.wait_state(experiment, "COMPLETED")
        data = tmp_path / "data"
        repository = data / "checkpoints" / second / "2"
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        assert master.cli_json("master", "reindex", "--data-dir", data)["trials_added"] == 2
        master.start()
        assert master.get(f"/api/v1/experiments/{first}")["storage"] == str(data / "checkpoints")
        # Nobody knows the command; whoever does says it.
        for refused in (["continue", first], ["activate", first], ["continue", first, "--new"]):
            said = master.cli("e", *refused, check=False)
            assert said.returncode == 1 and "--config entrypoint=" in said.stderr, said
        new = master.cli_json("e", "continue", first, "--new", "--config", f"entrypoint=python3 {EXAMPLES}/2_checkpoints.py 0.001")["id"]
        master.wait_state(new, "COMPLETED")
        assert master.reports(master.trial_of(new)["id"])[-1] == (100, 200)
        # Rules, an end, and the end of all that it left.
        policy = {"keep_last": 1}
        assert len(master.post(f"/api/v1/experiments/{second}/policy/preview", policy)["removals"]) == 9
        master.ask("PUT", f"/api/v1/experiments/{second}/policy", policy)
        master.wait(f"/api/v1/experiments/{second}", lambda e: e["checkpoints"] == 1)
        assert master.cli("e", "cancel", second).returncode == 0
        master.wait_state(second, "CANCELED")
        master.cli("e", "delete", second, "--yes")
        master.wait("/api/v1/experiments", lambda _: not repository.exists())


def test_increments_that_reindex_found_keep_what_they_build_on(tmp_path):
    data = tmp_path / "data"
    repository = data / "checkpoints" / "7" / "7"
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0), initializer=cairn.initializers.Constant(0.0))
    with cairn.train.MonitoredTrainingSession(
        str(repository), tables=[table], state={}, save_checkpoint_secs=None, save_checkpoint_steps=4, save_incremental_checkpoint_steps=1
    ) as session:
        for step in range(6):
            session.run(lambda _, step=step: table.assign([step], np.ones((1, 2), np.float32)))
    with cairn.CheckpointManager(str(repository), read_only=True) as manager:
        listed = [json.loads((pathlib.Path(one.path) / "manifest.json").read_text()) for one in manager.list()]
    before = {one["id"]: (one["kind"], one.get("base") or "") for one in listed}
    newest_full = [id for id, (kind, _) in before.items() if kind == "full"][-1]
    assert any(base == newest_full for _, base in before.values())
    began = time.time()
    with running_master(tmp_path) as master:
        master.stop()
        master.cli("master", "reindex", "--data-dir", data)
        master.start()
        found = master.get("/api/v1/experiments/7/checkpoints?limit=1000")["checkpoints"]
        assert {one["id"]: (one["kind"], one["base"] or "") for one in found} == before
        assert all(one["time"] < began for one in found), "as old as they are, and not as the record"
        with pytest.raises(Refused, match="an increment builds on it"):
            master.ask("DELETE", f"/api/v1/checkpoints/{newest_full}")
        going = {one["id"] for one in master.post("/api/v1/experiments/7/policy/preview", {"keep_last": 1})["removals"]}
        assert going and newest_full not in going
    assert cairn.verify(str(repository)).ok


def test_a_lost_database_is_told_before_anything_is_thrown_away(tmp_path):
    with running_master(tmp_path) as master:
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", "entrypoint=python3 2_checkpoints.py 0.001"]
        experiment = str(master.cli_json(*create)["id"])
        master.wait_state(experiment, "COMPLETED")
        data = tmp_path / "data"
        master.kill()
        log = (data / "cairn.db-wal").read_bytes()
        (data / "cairn.db").rename(data / "elsewhere")
        master.said.clear()
        master.start(patient=False)
        assert master.process.wait(60) == 1
        master._reader.join()
        assert "cairn.db" in master.said[-1] and "is missing or empty" in master.said[-1]
        assert (data / "cairn.db-wal").read_bytes() == log
        (data / "elsewhere").rename(data / "cairn.db")
        master.start()
        assert [e["id"] for e in master.get("/api/v1/experiments")["experiments"]] == [experiment]
        master.stop()
        for file in data.glob("cairn.db*"):
            file.unlink()
        master.said.clear()
        master.start()
        assert "reindex" in master.line("the database is new")
