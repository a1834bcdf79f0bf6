"""A process that was started by hand joins a master: it is watched and paused there, and the same command goes on with the same trial."""

import os
import signal
import subprocess
import sys
import uuid

import pytest
from children import command_line
from master_process import EXAMPLES, HELD, Refused, running_master, wait_until_held

WHOLE = [(step, step) for step in range(10, 101, 10)]


def launch(master, command, token=None, **variables):
    environment = {
        **master.environment(),
        "CAIRN_TRIAL_URL": f"http://127.0.0.1:{master.port}",
        "CAIRN_JOIN_TOKEN": token or master.token(),
        **variables,
    }
    return subprocess.Popen([str(word) for word in command], env=environment, cwd=master.directory)


def start(master, token=None, **variables):
    """With HOLD_AFTER and HOLD_UNTIL as held_run.py has them: by the same command each time."""
    return launch(master, [sys.executable, HELD, EXAMPLES / "2_checkpoints.py", "0.001"], token, **variables)


def start_ranks(master, kinds, seconds):
    """Ranks of one trial, each in its language, as torchrun would start them."""
    commands = {
        "python": [sys.executable, EXAMPLES / "4_distributed.py", seconds],
        "cpp": [os.path.join(os.path.dirname(command_line()), "core_api_distributed"), seconds],
    }
    job = str(uuid.uuid4())
    return [
        launch(
            master, commands[kind], RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID=job, CAIRN_EXTERNAL_ID="by hand",
        )
        for rank, kind in enumerate(kinds)
    ]  # fmt: skip


def only_trial(master):
    page = master.wait("/api/v1/trials", lambda answer: answer["total"] > 0)
    assert page["total"] == 1
    return page["trials"][0]["id"]


def test_a_process_by_hand_is_paused_by_the_master_and_goes_on(tmp_path):
    with running_master(tmp_path) as master:
        hold = {"HOLD_AFTER": "15", "HOLD_UNTIL": str(tmp_path / "go on")}
        process = start(master, **hold)
        trial = only_trial(master)
        wait_until_held(hold["HOLD_UNTIL"])
        listed = master.get("/api/v1/experiments")["experiments"]
        assert [(e["name"].split("-")[0], e["state"], e["owner"]) for e in listed] == [("2_checkpoints.py", "RUNNING", "admin")]
        experiment = listed[0]["id"]
        master.post(f"/api/v1/trials/{trial}/pause")
        assert process.wait(60) == 0, "it saved and ended"
        master.wait_state(experiment, "PAUSED")
        assert "start its command again" in master.cli("e", "activate", experiment).stdout
        seen = master.reports(trial)
        assert seen == WHOLE[:2]

        # The same command again: the same trial, at its step. Killed: again.
        process = start(master, **hold)
        master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: len(answer["metrics"]) > len(seen))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process = start(master, **hold)
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["run_id"] == 3 and answer["state"] == "RUNNING")
        master.kill()
        master.start()
        (tmp_path / "go on").touch()
        assert process.wait(120) == 0
        master.wait_state(experiment, "COMPLETED")
        assert master.reports(trial) == WHOLE
        assert only_trial(master) == trial
        refused = master.cli("e", "continue", experiment, "--new", check=False)
        assert refused.returncode == 1 and "start it again" in refused.stderr


@pytest.mark.parametrize("kinds", [("cpp", "cpp"), ("cpp", "python"), ("python", "cpp")])
def test_ranks_by_hand_in_two_languages_are_one_run(tmp_path, kinds):
    with running_master(tmp_path) as master:
        processes = start_ranks(master, kinds, "0.2")  # twenty seconds: told in the first of them
        trial = only_trial(master)
        master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: answer["metrics"])
        master.post(f"/api/v1/trials/{trial}/pause")
        assert [process.wait(60) for process in processes] == [0, 0], "both saved and ended"
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["state"] == "PAUSED")
        assert 0 < len(master.reports(trial)) < 10
        # The same trial goes on, whichever language a rank speaks now.
        processes = start_ranks(master, kinds[::-1], "0.001")
        assert [process.wait(120) for process in processes] == [0, 0]
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["state"] == "COMPLETED")
        assert master.reports(trial) == [(step, 3 * x) for step, x in WHOLE]
        assert only_trial(master) == trial


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
        process = start(master, token="nonsense")
        assert process.wait(60) != 0
        assert master.get("/api/v1/trials")["total"] == 0


CHATTY = """
import logging, os, sys
logging.basicConfig(format="%(levelname)s %(message)s")
import cairn
with cairn.core.init(send_output=os.environ.get("SEND", "1") == "1") as ctx:
    print("hello from", ctx.info.trial.trial_id, flush=True)
    print("odd: \\u00e9", file=sys.stderr)
    logging.warning("a logger's")
    if os.fork() == 0:
        print("of a fork", flush=True)
        os._exit(0)
    os.wait()
    raise ValueError("the end")
"""


def lines_of(master, trial):
    page = master.get(f"/api/v1/trials/{trial}/logs?limit=1000")
    return [(line["stream"], line["level"], line["text"]) for line in page["lines"]]


def test_what_a_process_by_hand_writes_is_its_log(tmp_path):
    with running_master(tmp_path) as master:
        script = tmp_path / "chatty.py"
        script.write_text(CHATTY)
        process = launch(master, [sys.executable, script])
        assert process.wait(60) == 1
        trial = only_trial(master)
        master.wait(f"/api/v1/trials/{trial}", lambda answer: answer["state"] != "RUNNING")
        lines = lines_of(master, trial)
        assert ("stdout", "INFO", f"hello from {trial}") in lines
        assert ("stderr", "INFO", "odd: \u00e9") in lines
        assert ("stderr", "WARNING", "WARNING a logger's") in lines
        assert ("stderr", "ERROR", "ValueError: the end") in lines
        assert ("stderr", "ERROR", "Traceback (most recent call last):") in lines
        assert "of a fork" not in str(lines)
        shown = master.cli("t", "logs", trial).stdout
        assert f"hello from {trial}" in shown and "ValueError: the end" in shown

        process = launch(master, [sys.executable, script], SEND="0")
        assert process.wait(60) == 1
        assert lines_of(master, trial) == lines


def test_what_a_program_in_cpp_writes_is_its_log(tmp_path):
    with running_master(tmp_path) as master:
        program = os.path.join(os.path.dirname(command_line()), "core_api_checkpoints")
        process = launch(master, [program, "0.001"])
        assert process.wait(60) == 0
        trial = only_trial(master)
        assert any("100" in text for _, _, text in lines_of(master, trial)), lines_of(master, trial)
