"""Trials as jobs of a real Ray: the golden numbers of the tutorial, whatever happens to jobs and the master."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from master_process import EXAMPLES, PROGRAM, ROOT, running_master
from ray_cluster import Ray

WHOLE = [(step, step) for step in range(10, 101, 10)]
SCRIPT = "2_checkpoints"


@pytest.fixture(scope="module")
def ray():
    return Ray()


@pytest.fixture(scope="module")
def master(ray, tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as running:
        yield running


def create(master, *flags, seconds="0.02", restarts=0, **resources):
    """An experiment on Ray; its id and its trial's."""
    words = ["resources.launcher=ray", f"entrypoint=python3 {SCRIPT}.py {seconds}", f"max_restarts={restarts}"]
    words += [f"resources.{key}={value}" for key, value in resources.items()]
    config = [word for pair in words for word in ("--config", pair)]
    experiment = master.cli_json("e", "create", EXAMPLES / f"{SCRIPT}.yaml", EXAMPLES, *config, *flags)["id"]
    page = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda answer: answer["total"] == 1)
    return experiment, page["trials"][0]["id"]


def until_reported(master, trial, count):
    master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: len(answer["metrics"]) >= count)


def completed(master, experiment, trial):
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert master.reports(trial) == WHOLE, "nothing is lost, nothing is doubled"


def resume_modes(master, trial):
    return [run["resume_mode"] for run in master.get(f"/api/v1/trials/{trial}/runs")["runs"]]


def test_the_tutorial_pauses_and_goes_on_in_another_job(master, ray):
    experiment, trial = create(master, seconds="0.05", num_cpus=1)
    until_reported(master, trial, 3)
    (job,) = ray.jobs()
    assert job["status"] == "RUNNING" and job["metadata"]["cairn_launches"] == str(master.directory / "data" / "runs-ray")
    (process,) = master.processes(trial)
    with open(f"/proc/{process}/environ", "rb") as file:
        environment = file.read().split(b"\0")
    assert any(entry.startswith(b"RAY_ADDRESS=") for entry in environment), "ray.init() finds its cluster"
    assert b"CAIRN_TRIAL_URL=" + f"http://127.0.0.1:{master.port}".encode() in environment
    master.cli("e", "pause", experiment)
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "PAUSED"]
    ray.until("no job is left", lambda: not ray.jobs())
    before = master.reports(trial)
    assert before == WHOLE[: len(before)] and 3 <= len(before) < 10
    master.cli("e", "activate", experiment)
    completed(master, experiment, trial)
    assert "100 steps, x = 100" in master.cli("e", "logs", experiment).stdout


def test_bad_configurations_are_named(master):
    refused = master.cli(
        "e", "create", EXAMPLES / f"{SCRIPT}.yaml", EXAMPLES, "--config", "resources.launcher=ray",
        "--config", "resources.num_cpu=2", check=False,
    )  # fmt: skip
    assert refused.returncode != 0 and "num_cpu" in refused.stderr + refused.stdout


def test_a_wrong_token_is_named(ray, tmp_path):
    token = tmp_path / "token"
    token.write_text("0" * 64)
    with running_master(tmp_path) as master:
        master.kill()
        master.start("--ray-token-file", token)
        experiment, trial = create(master)
        assert master.cli("e", "wait", experiment, check=False).stdout.split() == [experiment, "ERROR"]
        assert "token" in master.get(f"/api/v1/trials/{trial}")["message"]


def test_what_waits_in_the_queue_of_ray_says_why_and_can_be_cancelled(master, ray):
    experiment, trial = create(master, custom="nowhere=1")

    def waits(answer):
        return [entry for entry in answer["queue"] if entry["trial"] == trial and "resources" in entry.get("reason", "")]

    (entry,) = waits(master.wait("/api/v1/cluster", waits))
    assert entry["launcher"] == "ray" and entry["state"] in ("QUEUED", "STARTING")
    assert "waits in Ray" in entry["reason"]
    master.cli("e", "cancel", experiment)
    assert master.cli("e", "wait", experiment, check=False).stdout.split() == [experiment, "CANCELED"]


def test_a_job_that_somebody_stops_goes_on_in_another(master, ray):
    experiment, trial = create(master, seconds="0.05")
    until_reported(master, trial, 2)
    (job,) = ray.jobs("RUNNING")
    ray.stop(job["submission_id"])
    completed(master, experiment, trial)
    assert resume_modes(master, trial) == ["fresh", "resume"], "once, and no failure was counted"


def test_a_trial_of_several_ranks(master):
    script = "import cairn\nwith cairn.core.init() as ctx:\n    d = ctx.distributed\n    print('all', d.allgather([d.rank, d.local_rank]))\n"
    experiment, _ = create(master, "--config", f"entrypoint={json.dumps(['python3', '-c', script])}", slots_per_trial=2)
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert master.cli("e", "logs", experiment).stdout.count("all [[0, 0], [1, 1]]") == 2


def test_the_examples_of_the_guide(master, ray, tmp_path):
    folder = ROOT / "examples" / "ray"
    experiment = master.cli_json("e", "create", folder / "train.yaml", folder)["id"]
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    assert master.reports(master.trial_of(experiment)["id"])[-1] == (100, 200)
    finished = subprocess.run(
        [sys.executable, folder / "tune.py", tmp_path], env=master.environment(CAIRN_SHIM=str(PROGRAM.parent / "cairn-shim")),
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert "best {'lr': 0.01}" in finished.stdout, finished.stdout + finished.stderr


def test_a_trial_survives_whatever_happens_around_it(master, ray):
    """Seeded: the master killed, its job stopped by somebody else, its process killed, in a random order."""
    seed = int(os.environ.get("CAIRN_SEED", time.time_ns() % 1_000_000))
    rng = random.Random(seed)
    experiment, trial = create(master, seconds="0.08", restarts=5)

    def kill_master():
        master.kill()
        master.start()

    def stop_job():
        for job in ray.jobs("RUNNING"):
            ray.ask(f"/api/jobs/{job['submission_id']}/stop", "POST")

    def kill_process():
        for process in master.processes(trial):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    events = [kill_master, stop_job, kill_process]
    rng.shuffle(events)
    for count, event in enumerate(events):
        until_reported(master, trial, min(9, 2 * count + rng.randint(1, 2)))
        event()
    try:
        completed(master, experiment, trial)
    except AssertionError as error:
        raise AssertionError(f"CAIRN_SEED={seed} {[event.__name__ for event in events]}: {error}") from None


def test_a_head_that_is_lost_with_its_jobs_is_noticed_and_the_trial_goes_on_with_a_new_one(master, ray):
    experiment, trial = create(master, seconds="0.05")
    until_reported(master, trial, 3)
    ray.kill_head()
    assert not ray.reachable()
    ray.start_head()
    completed(master, experiment, trial)
    assert resume_modes(master, trial) == ["fresh", "resume"], "once, and no failure was counted"


def test_doctor_checks_the_site(ray, tmp_path):
    finished = subprocess.run([PROGRAM, "doctor", "--ray", tmp_path, "--json"], capture_output=True, text=True, timeout=180)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)["ray"]
    assert report["ok"] and report["token"] and report["job"]["sees_directory"] and report["address"] == ray.address
    assert not list(tmp_path.iterdir()), "nothing is left there"
    (tmp_path / "token").write_text("0" * 64)
    refused = subprocess.run([PROGRAM, "doctor", "--ray", "--ray-token-file", tmp_path / "token"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "token" in refused.stderr
    refused = subprocess.run([PROGRAM, "doctor", "--ray", "--ray-address", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "http://127.0.0.1:1" in refused.stderr
