"""A process that was started by hand joins a master: it is watched and paused there, and the same command goes on with the same trial."""

import os
import signal
import subprocess
import sys

from master_process import EXAMPLES, Refused, running_master

WHOLE = [(step, step) for step in range(10, 101, 10)]


def start(master, seconds, token=None):
    environment = {
        **master.environment(),
        "CAIRN_TRIAL_URL": f"http://127.0.0.1:{master.port}",
        "CAIRN_JOIN_TOKEN": token or master.token(),
    }
    command = [sys.executable, EXAMPLES / "2_checkpoints.py", seconds]
    return subprocess.Popen([str(word) for word in command], env=environment, cwd=master.directory)


def only_trial(master):
    page = master.wait("/api/v1/trials", lambda answer: answer["total"] > 0)
    assert page["total"] == 1
    return page["trials"][0]["id"]


def test_a_process_by_hand_is_paused_by_the_master_and_goes_on(tmp_path):
    with running_master(tmp_path) as master:
        process = start(master, "0.02")
        trial = only_trial(master)
        master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: answer["metrics"])
        listed = master.get("/api/v1/experiments")["experiments"]
        assert [(e["name"].split("-")[0], e["state"], e["owner"]) for e in listed] == [("2_checkpoints.py", "RUNNING", "admin")]
        experiment = listed[0]["id"]
        master.post(f"/api/v1/trials/{trial}/pause")
        assert process.wait(60) == 0, "it saved and ended"
        master.wait_state(experiment, "PAUSED")
        assert "start its command again" in master.cli("e", "activate", experiment).stdout
        seen = master.reports(trial)
        assert 0 < len(seen) < 10

        # The same command again: the same trial, at its step. Killed: again.
        process = start(master, "0.02")
        master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: len(answer["metrics"]) > len(seen))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process = start(master, "0.02")
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["run_id"] == 3 and answer["state"] == "RUNNING")
        master.kill()
        master.start()
        assert process.wait(120) == 0
        master.wait_state(experiment, "COMPLETED")
        assert master.reports(trial) == WHOLE
        assert only_trial(master) == trial
        refused = master.cli("e", "continue", experiment, "--new", check=False)
        assert refused.returncode == 1 and "start it again" in refused.stderr


def test_who_may_not_create_may_not_join(tmp_path):
    with running_master(tmp_path) as master:
        master.post("/api/v1/users", {"username": "eve", "role": "viewer", "password": "only looking around"})
        login = master.post("/api/v1/auth/login", {"username": "eve", "password": "only looking around"})
        try:
            master.post("/trial/v1/join", {"external_id": "x"}, token=login["token"])
        except Refused as refused:
            assert refused.status == 403
        else:
            raise AssertionError("a viewer joined")
        process = start(master, "0.001", token="nonsense")
        assert process.wait(60) != 0
        assert master.get("/api/v1/trials")["total"] == 0
