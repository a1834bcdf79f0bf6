"""A tuner that shows its trials on the page of a master: also when one of the two was away."""

import signal
import subprocess
import sys

import pytest
from master_process import running_master
from tuned_program import PROGRAM, assert_gone, children_of, expected

from cairn import tune
from cairn.tune.master_reporter import reporter_for


def start(master, program, directory, gate):
    """A tuner whose trials wait after four iterations until the gate is there."""
    env = {**master.environment(GATE=str(gate)), "CAIRN_TOKEN": master.token()}
    return subprocess.Popen([sys.executable, program, str(directory), "train"], env=env)


def shown(master):
    """{learning rate: the curve that the master has} of the trials that were started."""
    out = {}
    for trial in master.get("/api/v1/trials?limit=100")["trials"]:
        curve = master.get(f"/api/v1/trials/{trial['id']}/metrics")["metrics"]
        out[trial["hparams"]["lr"]] = [
            (m["steps_completed"], m["values"]["i"], m["values"]["x"]) for m in curve
        ]
    return out


def test_trials_are_shown_by_a_master_that_was_away_and_a_tuner_that_was_killed(tmp_path):
    program = tmp_path / "tuned_program.py"
    program.write_text(PROGRAM)
    gate = tmp_path / "gate"
    with running_master(tmp_path / "master") as master:
        tuner = start(master, str(program), tmp_path / "store", gate)
        master.wait("/api/v1/trials", lambda answer: answer["total"] >= 2)
        below = children_of(tuner.pid)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
        assert_gone(below)

        tuner = start(master, str(program), tmp_path / "store", gate)
        trial = master.get("/api/v1/trials")["trials"][0]["id"]
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["run_id"] >= 2)
        master.kill()
        gate.touch()  # it has something to tell while the master is away
        master.start()
        assert tuner.wait(120) == 0
        assert shown(master) == expected()
        experiments = master.get("/api/v1/experiments?limit=100")["experiments"]
        assert {e["name"] for e in experiments} == {f"e/train_{i:05}" for i in range(4)}
        for experiment in experiments:
            master.wait_state(experiment["id"], "COMPLETED")


def test_what_a_script_reports_has_curves_and_not_what_the_tuner_adds(tmp_path, monkeypatch):
    def f(config):
        tune.report({"loss": 0.5, "nested": {"top1": 1}})

    with running_master(tmp_path / "master") as master:
        monkeypatch.setenv("CAIRN_TOKEN", master.token())
        run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, master=master.url)
        tune.Tuner(f, run_config=run).fit()
        [trial] = master.get("/api/v1/trials")["trials"]
        [report] = master.get(f"/api/v1/trials/{trial['id']}/metrics")["metrics"]
        assert report["steps_completed"] == 1
        assert set(report["values"]) == {"loss", "nested", "time_this_iter_s", "time_total_s"}


@pytest.mark.parametrize(("mode", "best"), [("max", 0.9), ("min", 0.25)])
def test_trials_have_a_best_metric_there(tmp_path, monkeypatch, mode, best):
    def f(config):
        for loss in (0.5, config["top"], 0.25, 0.4):
            tune.report({"eval": {"loss": loss}, "other": -1})

    with running_master(tmp_path / "master") as master:
        monkeypatch.setenv("CAIRN_TOKEN", master.token())
        tuner = tune.Tuner(
            f,
            param_space={"top": 0.9},
            tune_config=tune.TuneConfig(metric="eval/loss", mode=mode),
            run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, master=master.url),
        )
        tuner.fit()
        [experiment] = master.get("/api/v1/experiments?sort=best")["experiments"]
        assert (experiment["best"]["metric"], experiment["best"]["value"]) == ("eval/loss", best)
        [trial] = master.get("/api/v1/trials")["trials"]
        assert trial["best"]["value"] == best
        assert "eval/loss" in master.cli("e", "ls").stdout


def test_a_master_that_is_not_there_changes_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CAIRN_TOKEN", "a token")
    monkeypatch.setattr("cairn.tune.master_reporter._PATIENCE", 0.5)

    def f(config):
        tune.report({"i": 1})

    [result] = tune.Tuner(
        f,
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0, master="http://127.0.0.1:9"),
    ).fit()
    assert result.error is None and result.metrics["i"] == 1
    assert "the master is not told" in capfd.readouterr().err


def test_a_master_needs_a_token_and_is_asked_for(monkeypatch):
    monkeypatch.delenv("CAIRN_TOKEN", raising=False)
    monkeypatch.delenv("CAIRN_MASTER", raising=False)
    assert reporter_for(None, "e", "id") is None
    with pytest.raises(ValueError, match="CAIRN_TOKEN"):
        reporter_for("http://127.0.0.1:9", "e", "id")
    monkeypatch.setenv("CAIRN_MASTER", "http://127.0.0.1:9")
    assert reporter_for(None, "e", "id") is None, "for the command line"
    monkeypatch.setenv("CAIRN_TOKEN", "a token")
    assert reporter_for(None, "e", "id") is not None


def test_ends_that_a_master_did_not_hear_of_are_told_by_the_next_life(tmp_path, monkeypatch):
    monkeypatch.setattr("cairn.tune.master_reporter._PATIENCE", 0.5)

    def f(config):
        for i in range(1, 4):
            tune.report({"i": i, "x": config["lr"] * i})
        if config["lr"] == 2:
            raise RuntimeError("two")

    def fit():
        space = {"lr": tune.grid_search([1, 2])}
        run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, master=master.url)
        return tune.Tuner(f, param_space=space, run_config=run).fit()

    with running_master(tmp_path / "master") as master:
        monkeypatch.setenv("CAIRN_TOKEN", master.token())
        master.stop()
        fit()
        master.start()
        monkeypatch.setattr("cairn.tune.master_reporter._PATIENCE", 120)
        fit()
        assert shown(master) == {lr: [(i, i, lr * i) for i in (1, 2, 3)] for lr in (1, 2)}
        trials = master.get("/api/v1/trials?limit=100")["trials"]
        assert {t["hparams"]["lr"]: t["state"] for t in trials} == {1: "COMPLETED", 2: "PAUSED"}
        fit()  # now it is known there
        assert {t["run_id"] for t in master.get("/api/v1/trials?limit=100")["trials"]} == {1}


def test_what_a_master_refuses_holds_up_nothing_else(tmp_path, monkeypatch, capfd):
    class Spoils(tune.Callback):
        """As a report of an older program, which was not looked at so closely."""

        def on_trial_result(self, result, **info):
            if result["i"] == 2 and result["config"]["lr"] == 1:
                result["note"] = "a\0b"

    def f(config):
        for i in range(1, 4):
            tune.report({"i": i, "x": config["lr"] * i})

    with running_master(tmp_path / "master") as master:
        monkeypatch.setenv("CAIRN_TOKEN", master.token())
        run = tune.RunConfig(
            storage_path=tmp_path, name="e", verbose=0, master=master.url, callbacks=[Spoils()]
        )
        space = {"lr": tune.grid_search([1, 2])}
        tune.Tuner(f, param_space=space, run_config=run).fit()
        assert shown(master) == {1: [(1, 1, 1), (3, 3, 3)], 2: [(1, 1, 2), (2, 2, 4), (3, 3, 6)]}
    said = capfd.readouterr().err
    assert said.count("report 2 of trial f_00000 is not shown") == 1 and "NUL" in said
