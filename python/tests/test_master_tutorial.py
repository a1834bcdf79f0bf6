"""The tutorial of the Core API through a real master: the golden numbers, by the command line and by REST, on both databases."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import threading
import urllib.request

import pytest
from master_process import (
    EXAMPLES,
    PROGRAM,
    Refused,
    held,
    postgresql,
    running_master,
    wait_until_held,
)

STEP = "0.004"  # seconds of each of the 100 steps
WHOLE = [(step, step) for step in range(10, 101, 10)]
CONTINUED = [(step, step + 100) for step in range(10, 101, 10)]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def master(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("master")
    with contextlib.ExitStack() as stack:
        database = None
        if request.param == "postgresql":
            database = stack.enter_context(postgresql()).url
        yield stack.enter_context(running_master(directory, database=database))


def slow(script, seconds=STEP):
    return ["--config", f"entrypoint=python3 {script}.py {seconds}"]


def create(master, script, *flags, seconds=STEP, entrypoint=None):
    """By the command line; the experiment's id."""
    how = ["--config", f"entrypoint={entrypoint}"] if entrypoint else slow(script, seconds)
    return master.cli_json("e", "create", EXAMPLES / f"{script}.yaml", EXAMPLES, *how, *flags)["id"]


def test_paused_reactivated_and_continued_by_the_command_line(master, tmp_path):
    experiment = create(master, "2_checkpoints", entrypoint=held("2_checkpoints", 35, tmp_path / "go-on"))
    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
    wait_until_held(tmp_path / "go-on")
    assert master.cli("e", "pause", experiment).stdout.startswith(f"experiment {experiment} is PAUS")
    waited = master.cli("e", "wait", experiment, "--or-paused", check=False)
    assert (waited.returncode, waited.stdout.split()) == (3, [experiment, "PAUSED"])
    before = master.reports(trial)
    assert before == WHOLE[:4], "it was told at step 35, and saved after 40"
    (tmp_path / "go-on").touch()
    paused = master.cli_json("t", "show", trial)
    assert paused["resumes_from_step"] == before[-1][0]
    assert paused["latest_checkpoint"]["steps_completed"] == before[-1][0]

    assert "experiment" in master.cli("e", "activate", experiment).stdout
    followed = master.cli("e", "logs", "-f", experiment)
    assert "100 steps, x = 100" in followed.stdout
    assert f"experiment {experiment} is COMPLETED" in followed.stdout
    assert master.reports(trial) == WHOLE, "it went on at the same batch"
    assert master.reports(trial, "validation") == [(100, 100)]
    runs = master.get(f"/api/v1/trials/{trial}/runs")["runs"]
    assert [(run["resume_mode"], run["outcome"]) for run in runs] == [("fresh", "paused"), ("resume", "completed")]

    new = master.cli_json("e", "continue", experiment, "--new")
    assert new["id"] != experiment and new["parent"]["experiment"] == experiment
    assert master.cli("e", "wait", new["id"]).stdout.split() == [new["id"], "COMPLETED"]
    continued = master.trial_of(new["id"])["id"]
    assert continued != trial
    assert master.reports(continued) == CONTINUED, "old weights, steps of its own"

    # Whoever waits after the answer waits for the new run, not for the old end.
    assert master.cli_json("e", "continue", experiment)["state"] in ("QUEUED", "STARTING", "RUNNING")
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert [run["live"] for run in master.get(f"/api/v1/trials/{trial}/runs")["runs"]] == [False] * 3
    assert master.reports(trial) == WHOLE, "a finished trial has nothing to do"


def test_a_killed_process_goes_on_from_its_last_checkpoint(master, tmp_path):
    script = held("2_checkpoints", 45, tmp_path / "go-on")
    experiment = create(master, "2_checkpoints", "--config", "max_restarts=3", entrypoint=script)
    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
    wait_until_held(tmp_path / "go-on")
    (process,) = master.processes(trial)
    os.kill(process, signal.SIGKILL)
    (tmp_path / "go-on").touch()
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert master.reports(trial) == WHOLE, "nothing is lost, nothing is doubled"
    runs = master.get(f"/api/v1/trials/{trial}/runs")["runs"]
    assert len(runs) == 2 and runs[1]["resume_mode"] == "resume"
    assert runs[0]["exit_signal"] == signal.SIGKILL
    assert [run["outcome"] for run in runs] == ["failed", "completed"]
    assert runs[1]["from"]["steps_completed"] == 40


def test_all_of_it_by_rest_alone(master):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(EXAMPLES / "2_checkpoints.py", "2_checkpoints.py")
    code = master.post("/api/v1/code", packed.getvalue(), headers={"Content-Type": "application/gzip"})
    config = f"name: by rest\nentrypoint: python3 2_checkpoints.py {STEP}\nsearcher: {{name: single, metric: x, smaller_is_better: false}}\n"
    body = {"config": config, "code": code["code"], "request_id": "a-request-of-this-test-" + master.directory.name[-8:].replace("_", "-")}
    experiment = master.post("/api/v1/experiments", body)["id"]
    assert master.post("/api/v1/experiments", body)["id"] == experiment, "the same request again"

    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
    lines, end = follow(master, f"/api/v1/trials/{trial}/logs?follow=true")
    assert [line["text"] for line in lines if "steps, x" in line["text"]] == [f"{s} steps, x = {x}" for s, x in WHOLE]
    assert end == {"state": "COMPLETED"}
    done = master.wait_state(experiment, "COMPLETED")
    assert done["best"]["value"] == 100 and done["best"]["trial"] == trial
    assert master.reports(trial) == WHOLE

    checkpoints = master.get(f"/api/v1/trials/{trial}/checkpoints?sort=steps_completed&order=asc")["checkpoints"]
    assert [c["steps_completed"] for c in checkpoints] == [step for step, _ in WHOLE]
    newest = checkpoints[-1]["id"]
    archive = tarfile.open(fileobj=io.BytesIO(master.get(f"/api/v1/checkpoints/{newest}/download?format=tar", raw=True)))
    (member,) = [name for name in archive.getnames() if name.endswith("files/checkpoint")]
    assert archive.extractfile(member).read().decode() == f"100,100,{trial}"
    assert master.ask("PATCH", f"/api/v1/checkpoints/{newest}", {"pinned": True})["pinned"]
    lineage = master.get(f"/api/v1/checkpoints/{newest}/lineage")
    assert {node["id"] for node in lineage["nodes"]} >= {c["id"] for c in checkpoints}

    # Continued from the third of them.
    third = checkpoints[2]["id"]
    new = master.post(f"/api/v1/experiments/{experiment}/continue", {"new": True, "from": third})
    master.wait_state(new["id"], "COMPLETED")
    assert master.reports(master.trial_of(new["id"])["id"]) == [(step, step + 30) for step in range(10, 101, 10)]

    with pytest.raises(Refused) as pinned:
        master.ask("DELETE", f"/api/v1/checkpoints/{newest}")
    assert pinned.value.status == 412


def follow(master, path):
    """The lines and the end of a stream."""
    request = urllib.request.Request(f"http://127.0.0.1:{master.port}{path}")
    request.add_header("Authorization", f"Bearer {master.token()}")
    lines, end, kind = [], None, None
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        for raw in stream:
            line = raw.decode().rstrip("\r\n")
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                data = json.loads(line[5:])
                if kind == "log":
                    lines.append(data)
                elif kind == "end":
                    end = data
    return lines, end


def test_interrupted_follower_only_detaches(master, tmp_path):
    process = subprocess.Popen(
        [
            *(str(PROGRAM), "e", "create", str(EXAMPLES / "2_checkpoints.yaml"), str(EXAMPLES), "-f"),
            *("--config", f"entrypoint={held('2_checkpoints', 15, tmp_path / 'go-on')}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=master.environment(),
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    for line in process.stdout:
        if "10 steps" in line:
            break
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130
    assert "detached" in said and "cairn e logs -f" in said
    (tmp_path / "go-on").touch()
    experiment = said.split("created experiment ")[1].split()[0]
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert master.reports(master.trial_of(experiment)["id"]) == WHOLE


def test_search_tries_its_values_and_names_the_best(master):
    experiment = create(master, "3_hpsearch", "--config", "searcher.max_trials=4", seconds="0.001")
    done = master.wait_state(experiment, "COMPLETED", "ERROR")
    assert done["state"] == "COMPLETED", done["message"]
    trials = master.get(f"/api/v1/experiments/{experiment}/trials?sort=best&order=desc")["trials"]
    assert len(trials) == 4
    best = max(trial["hparams"]["increment_by"] for trial in trials)
    assert done["best"]["value"] == 100 * best
    for trial in trials:
        by = trial["hparams"]["increment_by"]
        assert 1 <= by <= 8
        assert master.reports(trial["id"]) == [(step, step * by) for step in range(10, 101, 10)]


def test_policy_is_previewed_and_kept(master):
    experiment = create(master, "2_checkpoints", seconds="0.001")
    master.wait_state(experiment, "COMPLETED")
    preview = master.cli_json("e", "set-policy", experiment, "--keep-last", "2", "--preview")
    assert [r["steps_completed"] for r in preview["removals"]] == [step for step in range(10, 81, 10)]
    assert len(master.cli_json("e", "checkpoints", experiment)["checkpoints"]) == 10, "nothing was done"
    master.cli("e", "set-policy", experiment, "--keep-last", "2")
    left = master.wait(f"/api/v1/experiments/{experiment}/checkpoints", lambda page: page["total"] == 2)
    assert sorted(c["steps_completed"] for c in left["checkpoints"]) == [90, 100]
    master.cli("e", "download", experiment, "-o", master.directory / f"model-{experiment}")
    found = list((master.directory / f"model-{experiment}").rglob("checkpoint"))
    assert [path.read_text().split(",")[:2] for path in found] == [["100", "100"]]
    assert master.cli("e", "delete", experiment, check=False).returncode == 1
    master.cli("e", "delete", experiment, "--yes")
    with pytest.raises(Refused) as gone:
        master.get(f"/api/v1/experiments/{experiment}")
    assert gone.value.status == 404


def test_mistakes_in_a_config_are_named_with_line_and_suggestion(master, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("name: a\nentrypont: python3 x.py\nsearcher: {name: single, metric: x}\n")
    refused = master.cli("e", "create", config, EXAMPLES, check=False)
    assert refused.returncode == 1
    assert "entrypont" in refused.stderr and "entrypoint" in refused.stderr and "2" in refused.stderr


def test_checkpoints_are_pinned_verified_sorted_and_removed_by_command(master):
    searcher = json.dumps({"name": "single", "metric": "x", "smaller_is_better": False})
    policy = json.dumps({"score": "x", "order": "max"})
    settings = ("--config", f"searcher={searcher}", "--config", f"checkpoint_policy={policy}")
    experiment = create(master, "2_checkpoints", *settings, seconds="0.001")
    master.wait_state(experiment, "COMPLETED")
    trial = master.trial_of(experiment)["id"]
    assert master.get(f"/api/v1/trials/{trial}")["progress"] == 1
    page = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=100")["checkpoints"]
    by_step = {one["steps_completed"]: one for one in page}
    assert all(one["kind"] == "full" and one["base"] is None for one in page)

    # Only the last step was validated: it has a score, and comes first whichever way.
    scored = master.get(f"/api/v1/trials/{trial}/checkpoints?sort=score&limit=3")
    assert scored["total"] == 10
    assert [one["score"] for one in scored["checkpoints"]] == [100, None, None]
    assert master.cli_json("t", "checkpoints", trial, "--best", "-n", "1")["checkpoints"][0]["steps_completed"] == 100

    # Checkpoints are named by their ids, or by as much of the beginning as no other one has.
    good = by_step[20]["id"]
    master.cli("e", "pin", good[:12])
    assert master.get(f"/api/v1/checkpoints/{good}")["pinned"]
    assert master.get(f"/api/v1/checkpoints/{good[:12]}")["id"] == good
    unknown = master.cli("e", "pin", "0123-nobody", check=False)
    assert unknown.returncode == 1 and "no checkpoint" in unknown.stderr
    begun = master.cli_json("e", "continue", experiment, "--new", "--from", good[:12], "--config", "entrypoint='true'")
    assert begun["parent"]["checkpoint"] == good
    refused = master.cli("e", "continue", create(master, "0_start", "--paused"), "--new", "--from", good[:12], check=False)
    assert refused.returncode == 1 and "has no checkpoint" in refused.stderr
    verified = master.cli_json("e", "verify", good, by_step[30]["id"])
    assert [one["state"] for one in verified.values()] == ["GOOD", "GOOD"]

    told = master.cli("e", "rm", experiment, "*", "--dry-run").stdout
    assert told.count("would remove") == 9 and f"kept {good}: " in told
    refused = master.cli("e", "rm", experiment, "*", check=False)
    assert refused.returncode == 1 and "--yes" in refused.stderr
    one = by_step[10]["path"].rsplit("/", 1)[-1] or by_step[10]["id"]
    assert f"removed {by_step[10]['id']}" in master.cli("t", "rm", trial, one, "--yes").stdout
    master.cli("e", "rm", experiment, "*", "--yes")
    left = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=100")["checkpoints"]
    assert [one["steps_completed"] for one in left] == [20], "of a trial that has ended the latest goes too"
    master.cli("e", "unpin", good)
    assert not master.get(f"/api/v1/checkpoints/{good}")["pinned"]

    # A damaged one is told by the exit code, and a link lets its owner in once.
    files = [path for path in pathlib.Path(by_step[20]["repository"]).rglob("files/*") if path.is_file()]
    for path in files:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[::-1] + b"!")
    bad = master.cli("e", "verify", good, check=False)
    assert bad.returncode == 1 and "DAMAGED" in bad.stdout
    code = master.cli("login-link").stdout.strip().split("#code=")[1]
    assert master.post("/api/v1/auth/login", {"code": code})["user"]["username"] == "admin"
    with pytest.raises(Refused):
        master.post("/api/v1/auth/login", {"code": code})
