"""Trials as jobs of a real Slurm: the golden numbers of the tutorial, whatever happens to jobs, daemons and the master."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from cluster_work import SCRIPT, Tutorial
from master_process import EXAMPLES, PROGRAM, ROOT, running_master
from slurm_cluster import running_slurm


@pytest.fixture(scope="module")
def slurm():
    with running_slurm() as cluster:
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(cluster.conf)  # the master's, and the command line's
        try:
            yield cluster
        finally:
            os.environ.pop("SLURM_CONF")
            if before is not None:
                os.environ["SLURM_CONF"] = before


@pytest.fixture(scope="module")
def master(slurm, tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as running:
        yield running


@pytest.fixture(scope="module")
def tutorial(master):
    return Tutorial(master, "slurm")


def test_the_tutorial_pauses_and_goes_on_in_another_job(master, tutorial, slurm):
    experiment, trial = tutorial.create(partition="low", time="10")
    tutorial.until_reported(trial, 3)
    (job,) = slurm.jobs()
    environment = tutorial.environment_of(trial)
    assert f"SLURM_JOB_ID={job}".encode() in environment
    assert b"CAIRN_TRIAL_URL=" + f"http://127.0.0.1:{master.port}".encode() in environment
    tutorial.pauses_and_goes_on(slurm, experiment, trial)


def test_bad_configurations_are_named(master, tutorial):
    assert "partiton" in tutorial.refused("resources.partiton=low")
    experiment, trial = tutorial.create(partition="nowhere")
    tutorial.ended(experiment, "ERROR")
    assert "partition" in master.get(f"/api/v1/trials/{trial}")["message"]


def test_what_waits_in_the_queue_of_slurm_says_why_and_can_be_cancelled(master, tutorial, slurm):
    experiment, trial = tutorial.create(extra="--hold")
    tutorial.queued(trial, "JobHeldUser")
    master.cli("e", "cancel", experiment)
    tutorial.ended(experiment, "CANCELED")
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_a_preempted_trial_goes_on_when_the_urgent_job_is_done(tutorial, slurm):
    slurm.until_idle()
    experiment, trial = tutorial.create(seconds="0.05", partition="low", extra="--exclusive --nodelist=n1")
    tutorial.until_reported(trial, 2)
    slurm.submit("-p", "high", "--exclusive", "--nodelist=n1", "-o", "/dev/null", script="#!/bin/sh\nsleep 1\n")
    tutorial.completed(experiment, trial)
    assert tutorial.resume_modes(trial) == ["fresh", "resume"], "once, and no failure was counted"


def test_a_trial_saves_before_its_time_limit_and_goes_on_in_a_new_job(master, tutorial, slurm):
    """A limit of one minute. Slurm looks twice a minute, and warns when 10 s and its next look would be too late."""
    experiment, trial = tutorial.create(seconds="0.65", time="1", warning="10")
    tutorial.until_reported(trial, 1)
    (first,) = slurm.jobs()
    tutorial.completed(experiment, trial)
    assert slurm.state(first) == "COMPLETED", "it ended by itself, before its time was over"
    runs = master.get(f"/api/v1/trials/{trial}/runs")["runs"]
    assert runs[0]["resume_mode"] == "fresh" and {run["resume_mode"] for run in runs[1:]} == {"resume"}
    assert master.get(f"/api/v1/trials/{trial}")["restarts"] == 0, "no failure was counted"
    logs = master.cli("e", "logs", experiment).stdout
    assert "the scheduler asks it to end" in logs
    saved = [int(line.split()[0]) for line in logs.splitlines() if " steps, x = " in line]
    assert saved == list(range(10, 101, 10)), "no step was done twice: it saved at the signal"
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_a_trial_over_two_nodes(master, tutorial):
    """The ranks of both nodes meet, and their checkpoint is one."""
    script = "import cairn\nwith cairn.core.init() as ctx:\n    d = ctx.distributed\n    print('all', d.allgather([d.rank, d.local_rank, d.cross_rank]))\n"
    experiment, trial = tutorial.create(
        "--config", f"entrypoint={json.dumps(['python3', '-c', script])}", nodes=2, slots_per_trial=4
    )
    tutorial.ended(experiment)
    logs = master.cli("e", "logs", experiment).stdout
    assert logs.count("all [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]") == 4, logs


def test_where_only_a_directory_connects_them_reports_go_through_files(slurm, tmp_path):
    through_files = ("--advertise", "files")
    with running_master(tmp_path) as master:
        tutorial = Tutorial(master, "slurm")
        master.kill()
        master.start(*through_files)
        experiment, trial = tutorial.create(seconds="0.05", restarts=1)
        tutorial.until_reported(trial, 2)
        assert f"CAIRN_TRIAL_URL=files:{tmp_path}/data/tunnel".encode() in tutorial.environment_of(trial)
        master.kill()
        master.start(*through_files)
        tutorial.until_reported(trial, 4)
        master.cli("e", "pause", experiment)
        tutorial.ended(experiment, "PAUSED")
        master.cli("e", "activate", experiment)
        tutorial.completed(experiment, trial)


def test_the_tutorial_through_slurmrestd(slurm, tmp_path, monkeypatch):
    slurm.start("slurmrestd")
    socket = f"unix:{slurm.directory}/rest.sock"
    monkeypatch.setenv("CAIRN_SLURMRESTD", socket)
    checked = json.loads(slurm.run(PROGRAM, "doctor", "--slurm", tmp_path, "--json"))["slurm"]
    assert checked["slurmrestd"] and checked["job"]["sees_directory"]
    slurm.until_idle()
    with running_master(tmp_path) as master:
        tutorial = Tutorial(master, "slurm")
        experiment, trial = tutorial.create(seconds="0.05", partition="low", extra="--exclusive --nodelist=n1")
        tutorial.until_reported(trial, 2)
        slurm.submit("-p", "high", "--exclusive", "--nodelist=n1", "-o", "/dev/null", script="#!/bin/sh\nsleep 1\n")
        tutorial.completed(experiment, trial)
        assert tutorial.resume_modes(trial) == ["fresh", "resume"], "once, and no failure was counted"
        refused, trial = tutorial.create(partition="nowhere")
        tutorial.ended(refused, "ERROR")
        assert "partition" in master.get(f"/api/v1/trials/{trial}")["message"]
    monkeypatch.setenv("CAIRN_SLURMRESTD", "unix:/no/slurm.sock")
    assert "/no/slurm.sock" in slurm.run(PROGRAM, "doctor", "--slurm", tmp_path, check=False, stderr=subprocess.STDOUT)


def test_many_equal_trials_are_one_array(master, tutorial, slurm):
    config = [word for pair in ("resources.launcher=slurm", "resources.extra=--hold") for word in ("--config", pair)]
    experiment = master.cli_json("e", "create", EXAMPLES / "3_hpsearch.yaml", EXAMPLES, *config)["id"]
    slurm.until("all trials wait in Slurm", lambda: len(slurm.jobs("-t", "PENDING")) == 10)
    submissions = set(slurm.run("squeue", "-h", "-o", "%F").split())
    assert len(submissions) <= 4, "one, and what came while it was handed over"
    for submission in submissions:
        slurm.run("scontrol", "release", submission)
    tutorial.ended(experiment)
    trials = master.get(f"/api/v1/experiments/{experiment}/trials")["trials"]
    assert len(trials) == 10
    for trial in trials:
        by = trial["hparams"]["increment_by"]
        assert master.reports(trial["id"]) == [(step, step * by) for step in range(10, 101, 10)]
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_the_example_script_asks_for_another_turn_before_its_time_is_over(slurm, tmp_path):
    shutil.copy(EXAMPLES / f"{SCRIPT}.py", tmp_path)
    log = tmp_path / "log"
    variables = f"PYTHONPATH={ROOT}/python,PYTHONUNBUFFERED=1,PATH={pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    flags = ["--parsable", "-D", tmp_path, "-o", log, f"--export=ALL,{variables}"]
    job = slurm.run("sbatch", *flags, ROOT / "examples/slurm/train.sbatch", cwd=tmp_path).strip()
    slurm.until("it has saved", lambda: log.exists() and "20 steps" in log.read_text())
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # what Slurm does two minutes before
    slurm.until("it is done", lambda: "100 steps" in log.read_text() and slurm.state(job) == "COMPLETED")
    steps = [int(line.split()[0]) for line in log.read_text().splitlines() if " steps, x = " in line]
    assert steps == list(range(10, 101, 10)), "no step was done twice: it saved at the signal"
    assert "Restarts=1" in slurm.run("scontrol", "show", "job", job)


def test_a_script_without_a_master_goes_on_when_its_job_is_requeued(slurm, tmp_path):
    """srun python train.py, and nothing else: the checkpoints are all that connects the job's lives."""
    log = tmp_path / "log"
    script = f"""#!/bin/sh
export PYTHONPATH={ROOT}/python CAIRN_STORAGE={tmp_path}/checkpoints PYTHONUNBUFFERED=1
echo life ${{SLURM_RESTART_COUNT:-0}}
srun {sys.executable} {EXAMPLES / SCRIPT}.py 0.05
"""
    job = slurm.submit("--requeue", "-o", log, "--open-mode=append", script=script)
    slurm.until("it has saved", lambda: log.exists() and "20 steps" in log.read_text())
    slurm.run("scontrol", "requeue", job)
    slurm.until("it is done", lambda: "100 steps" in log.read_text() and slurm.state(job) == "COMPLETED")
    lives = log.read_text().split("life ")[1:]
    assert len(lives) == 2 and lives[1].startswith("1")
    steps = [int(line.split()[0]) for line in lives[1].splitlines() if " steps, x = " in line]
    assert 20 < steps[0] and steps[-1] == 100
    assert all(f"{step} steps, x = {step}" in log.read_text() for step in range(10, 101, 10))


def test_tasks_of_srun_are_ranks_without_a_master(slurm, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(
        "from cairn import core\n"
        "with core.init() as ctx:\n"
        "    ranks = ctx.distributed\n"
        "    print(ranks.rank, ranks.size, ranks.local_rank, ranks.allgather(ranks.rank))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CAIRN_STORAGE": str(tmp_path / "run")}
    command = ["srun", "--nodes=1", "--ntasks=2", "--overcommit", sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 0 [0, 1]", "1 2 1 [0, 1]"]


def test_doctor_checks_the_site(slurm, tmp_path):
    finished = slurm.run(PROGRAM, "doctor", "--slurm", tmp_path, "--json")
    report = json.loads(finished)["slurm"]
    assert report["ok"] and report["job"]["sees_directory"] and report["partitions"] == ["high", "low"]
