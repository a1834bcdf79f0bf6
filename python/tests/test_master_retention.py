"""Rules and users that take checkpoints away, through a real master: by REST, by the command line, and while a trial runs."""

import contextlib
import pathlib
import sqlite3
import time

import pytest
from master_process import EXAMPLES, Refused, held, running_master, wait_until_held

import cairn

SCRIPT = """
import cairn, numpy

with cairn.core.init() as ctx:
    scale = cairn.get_cluster_info().trial.hparams["scale"]
    for step in (1, 2, 3, 4):
        ctx.train.report_validation_metrics(steps_completed=step, metrics={"x": 10 * scale + step})
        ctx.checkpoint.save({"w": numpy.full(1000, step + scale)}, {"steps_completed": step}, blocking=True)
"""
CONFIG = """
name: rules
entrypoint: python3 train.py
hyperparameters: {scale: {type: categorical, vals: [1, 2]}}
searcher: {name: grid, metric: x, smaller_is_better: false}
max_restarts: 0
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as master:
        yield master


def test_rules_take_away_what_they_say(master, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    experiment = master.cli_json("e", "create", tmp_path / "config.yaml", tmp_path)["id"]
    assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
    trials = master.get(f"/api/v1/experiments/{experiment}/trials")["trials"]
    first, second = sorted((trial["id"] for trial in trials), key=int)
    path = f"/api/v1/experiments/{experiment}/checkpoints?limit=100&state="

    def there(answer):
        steps = {first: set(), second: set()}
        for one in answer["checkpoints"]:
            steps[one["trial"]].add(one["steps_completed"])
        return [steps[first], steps[second]]

    def reasons():
        return {(one["trial"], one["steps_completed"]): one["reason"] for one in master.get(path + "DELETED")["checkpoints"]}

    whole = master.get(path + "COMPLETED")
    assert there(whole) == [{1, 2, 3, 4}] * 2
    most = max(one["bytes"] for one in whole["checkpoints"])

    # The best of all, and of each the last two: by REST, as the preview said.
    rules = {"keep_last": 2, "experiment_best": 3, "score": "x", "order": "max"}
    would = master.post(f"/api/v1/experiments/{experiment}/policy/preview", rules)
    assert {(one["trial"], one["steps_completed"]) for one in would["removals"]} == {(first, 1), (first, 2), (second, 1)}
    assert there(master.get(path + "COMPLETED")) == [{1, 2, 3, 4}] * 2, "a preview takes nothing away"
    master.ask("PUT", f"/api/v1/experiments/{experiment}/policy", rules)
    master.wait(path + "COMPLETED", lambda answer: there(answer) == [{3, 4}, {2, 3, 4}])
    assert reasons()[second, 1] == "beyond keep_last 2, experiment_best 3 (by x)"

    # Bytes of each trial, of all of them together, and age: by the command line.
    set_policy = ["e", "set-policy", experiment]
    master.cli(*set_policy, "--keep-last", "none", "--experiment-best", "none", "--max-bytes", 2 * most)
    master.wait(path + "COMPLETED", lambda answer: there(answer) == [{3, 4}, {3, 4}])
    assert reasons()[second, 2] == f"over {2 * most} bytes in all"
    master.cli(*set_policy, "--max-bytes", "none", "--experiment-bytes", 3 * most)
    assert master.get(f"/api/v1/experiments/{experiment}/policy")["experiment_bytes"] == 3 * most
    master.wait(path + "COMPLETED", lambda answer: sorted(map(len, there(answer))) == [1, 2])
    master.cli(*set_policy, "--experiment-bytes", "none", "--max-age", "0.001s")
    master.wait(path + "COMPLETED", lambda answer: there(answer) == [{4}, {4}])
    assert "older than 0.001 s" in reasons().values()


def test_what_a_user_deletes_of_a_running_trial_its_run_removes(master, tmp_path):
    gate = tmp_path / "go-on"
    how = ["--config", f"entrypoint={held('2_checkpoints', 45, gate)}"]
    experiment = master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, *how)["id"]
    wait_until_held(gate)
    trial = master.trial_of(experiment)["id"]
    saved = {one["steps_completed"]: one["id"] for one in master.get(f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]}
    assert set(saved) == {10, 20, 30, 40}
    with pytest.raises(Refused, match="its trial goes on from it"):
        master.ask("DELETE", f"/api/v1/checkpoints/{saved[40]}")
    master.ask("DELETE", f"/api/v1/checkpoints/{saved[10]}")
    said = master.cli("t", "rm", trial, saved[20], "--yes").stdout
    assert said == f"asked for {saved[20]}: its trial runs, and removes it with its next checkpoint\n"
    answer = master.post("/api/v1/checkpoints/rm", {"ids": [saved[30]]})
    assert (answer["removed"], answer["left_to_run"], answer["kept"]) == ([], [saved[30]], [])
    master.ask("PATCH", f"/api/v1/checkpoints/{saved[30]}", {"pinned": True})  # and thought better of it
    states = {step: master.get(f"/api/v1/checkpoints/{id}")["state"] for step, id in saved.items()}
    assert set(states.values()) == {"COMPLETED"}, "while it does not save, nothing goes"
    # What was taken over survives the master.
    master.kill()
    master.start()
    gate.touch()
    assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
    found = {step: master.get(f"/api/v1/checkpoints/{id}") for step, id in saved.items()}
    assert {step: one["state"] for step, one in found.items()} == {10: "DELETED", 20: "DELETED", 30: "COMPLETED", 40: "COMPLETED"}
    assert found[10]["reason"] == found[20]["reason"] == "removed by admin"


def test_what_a_killed_master_had_not_deleted_yet_keeps_its_checkpoints(tmp_path):
    """A deletion is written down in two parts: first that its storage is to be freed, then that the experiment is gone."""
    with running_master(tmp_path) as master:
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", "entrypoint=python3 2_checkpoints.py 0.001"]
        experiment = str(master.cli_json(*create)["id"])
        master.wait_state(experiment, "COMPLETED")
        kept = f"/api/v1/experiments/{experiment}/checkpoints"
        there = master.get(kept)["total"]
        repository = pathlib.Path(master.get(f"/api/v1/trials/{master.trial_of(experiment)['id']}")["repository"])
        master.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "cairn.db")) as database, database:
            database.execute("INSERT INTO settings VALUES (?, ?)", (f"remove/{experiment}", "{}"))
        master.start()
        later = str(master.cli_json(*create)["id"])  # and one that is deleted to its end
        master.wait_state(later, "COMPLETED")
        gone = pathlib.Path(master.get(f"/api/v1/trials/{master.trial_of(later)['id']}")["repository"])
        master.cli("e", "delete", later, "--yes")
        deadline = time.monotonic() + 60
        while gone.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not gone.exists()
        assert cairn.verify(str(repository)).ok and master.get(kept)["total"] == there > 0
        master.post(f"/api/v1/experiments/{experiment}/continue")
        master.wait_state(experiment, "COMPLETED")
        master.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "cairn.db")) as database:
            assert database.execute("SELECT count(*) FROM settings WHERE name LIKE 'remove/%'").fetchone() == (0,)
        master.start()
