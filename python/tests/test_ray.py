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
from cluster_work import Tutorial
from master_process import PROGRAM, ROOT, running_master
from ray_cluster import Ray


@pytest.fixture(scope="module")
def ray():
    return Ray()


@pytest.fixture(scope="module")
def master(ray, tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as running:
        yield running


@pytest.fixture(scope="module")
def tutorial(master):
    return Tutorial(master, "ray")


def test_the_tutorial_pauses_and_goes_on_in_another_job(master, tutorial, ray):
    experiment, trial = tutorial.create(seconds="0.05", num_cpus=1)
    tutorial.until_reported(trial, 3)
    (job,) = ray.jobs()
    assert job["status"] == "RUNNING" and job["metadata"]["cairn_launches"] == str(master.directory / "data" / "runs-ray")
    environment = tutorial.environment_of(trial)
    assert any(entry.startswith(b"RAY_ADDRESS=") for entry in environment), "ray.init() finds its cluster"
    assert b"CAIRN_TRIAL_URL=" + f"http://127.0.0.1:{master.port}".encode() in environment
    tutorial.pauses_and_goes_on(ray, experiment, trial)


def test_bad_configurations_are_named(tutorial):
    assert "num_cpu" in tutorial.refused("resources.num_cpu=2")
    assert "1 processes cannot be shared evenly by 2 nodes" in tutorial.refused("resources.nodes=2")


def test_a_wrong_token_is_named(ray, tmp_path):
    token = tmp_path / "token"
    token.write_text("0" * 64)
    with running_master(tmp_path) as master:
        tutorial = Tutorial(master, "ray")
        master.kill()
        master.start("--ray-token-file", token)
        experiment, trial = tutorial.create()
        tutorial.ended(experiment, "ERROR")
        assert "token" in master.get(f"/api/v1/trials/{trial}")["message"]


def test_what_waits_in_the_queue_of_ray_says_why_and_can_be_cancelled(master, tutorial):
    experiment, trial = tutorial.create(custom="nowhere=1")
    assert "waits in Ray" in tutorial.queued(trial, "resources")["reason"]
    master.cli("e", "cancel", experiment)
    tutorial.ended(experiment, "CANCELED")


def test_a_job_that_somebody_stops_goes_on_in_another(tutorial, ray):
    experiment, trial = tutorial.create(seconds="0.05")
    tutorial.until_reported(trial, 2)
    (job,) = ray.jobs("RUNNING")
    ray.stop(job["submission_id"])
    tutorial.completed(experiment, trial)
    assert tutorial.resume_modes(trial) == ["fresh", "resume"], "once, and no failure was counted"


def test_a_trial_of_several_ranks(master, tutorial):
    script = "import cairn\nwith cairn.core.init() as ctx:\n    d = ctx.distributed\n    print('all', d.allgather([d.rank, d.local_rank]))\n"
    experiment, _ = tutorial.create("--config", f"entrypoint={json.dumps(['python3', '-c', script])}", slots_per_trial=2)
    tutorial.ended(experiment)
    assert master.cli("e", "logs", experiment).stdout.count("all [[0, 0], [1, 1]]") == 2


# Each step is one of all ranks; after ten they wait for a file.
OVER_TWO_NODES = """
import os, time, cairn
with cairn.core.init() as ctx:
    d = ctx.distributed
    step = 0
    if ctx.latest_checkpoint is not None:
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
            step = int(open(path + "/step").read())
    print("all", step, d.allgather([d.rank, d.local_rank, d.cross_rank]), flush=True)
    while step < 40:
        step += 1
        d.allgather(step)
        while step > 10 and not os.path.exists({go!r}):
            time.sleep(0.01)
        if step % 5 == 0 and d.rank == 0:
            ctx.train.report_training_metrics(steps_completed=step, metrics={{"x": step}})
            with ctx.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
                open(path + "/step", "w").write(str(step))
"""


def test_a_trial_over_two_nodes_of_which_one_is_lost(master, tutorial, ray, tmp_path):
    """The ranks of both nodes meet; the next run begins when there are two again, with the last checkpoint."""
    go = tmp_path / "go"
    script = OVER_TWO_NODES.format(go=str(go))
    experiment, trial = tutorial.create(
        "--config", f"entrypoint={json.dumps(['python3', '-c', script])}", nodes=2, slots_per_trial=4, num_cpus=2
    )
    assert "until 2 nodes have what it wants" in tutorial.queued(trial, "nodes")["reason"]
    ray.start("second")
    tutorial.until_reported(trial, 2)
    ray.kill("second")
    assert "until 2 nodes have what it wants" in tutorial.queued(trial, "nodes")["reason"]
    go.touch()  # not before: processes of a lost node may live on for a moment, and would go on
    ray.start("second")
    tutorial.ended(experiment)
    ray.kill("second")
    assert master.reports(trial) == [(step, step) for step in range(5, 41, 5)], "nothing is lost, nothing is doubled"
    assert tutorial.resume_modes(trial) == ["fresh", "resume"], "once, and no failure was counted"
    logs = master.cli("e", "logs", experiment).stdout
    assert logs.count("all 0 [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]") == 4, logs
    assert logs.count("all 10 [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]") == 4, logs


def test_the_examples_of_the_guide(master, tutorial, tmp_path):
    folder = ROOT / "examples" / "ray"
    experiment = master.cli_json("e", "create", folder / "train.yaml", folder)["id"]
    tutorial.ended(experiment)
    assert master.reports(master.trial_of(experiment)["id"])[-1] == (100, 200)
    finished = subprocess.run(
        [sys.executable, folder / "tune.py", tmp_path], env=master.environment(CAIRN_SHIM=str(PROGRAM.parent / "cairn-shim")),
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert "best {'lr': 0.01}" in finished.stdout, finished.stdout + finished.stderr


def test_a_trial_survives_whatever_happens_around_it(master, tutorial, ray):
    """Seeded: the master killed, its job stopped by somebody else, its process killed, in a random order."""
    seed = int(os.environ.get("CAIRN_SEED", time.time_ns() % 1_000_000))
    rng = random.Random(seed)
    experiment, trial = tutorial.create(seconds="0.08", restarts=5)

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
        tutorial.until_reported(trial, min(9, 2 * count + rng.randint(1, 2)))
        event()
    try:
        tutorial.completed(experiment, trial)
    except AssertionError as error:
        raise AssertionError(f"CAIRN_SEED={seed} {[event.__name__ for event in events]}: {error}") from None


def test_a_head_that_is_lost_with_its_jobs_is_noticed_and_the_trial_goes_on_with_a_new_one(tutorial, ray):
    experiment, trial = tutorial.create(seconds="0.05")
    tutorial.until_reported(trial, 3)
    ray.kill("head")
    assert not ray.reachable()
    ray.start("head")
    tutorial.completed(experiment, trial)
    assert tutorial.resume_modes(trial) == ["fresh", "resume"], "once, and no failure was counted"


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
