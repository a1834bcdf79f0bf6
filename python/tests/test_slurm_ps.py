"""Jobs with parameter servers on a real Slurm: servers and trainers are jobs, and come back wherever there is room."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from cluster_work import PYTHON, ServerJob, server_training, servers_survive
from master_process import ROOT
from slurm_cluster import running_slurm
from test_ps_run import CAIRN, undisturbed


@pytest.fixture(scope="module")
def slurm():
    with running_slurm() as cluster:
        yield cluster


def run_job(slurm, directory, command, *flags):
    return ServerJob("slurm", directory, command, *flags, SLURM_CONF=str(slurm.conf))


def processes(job, role):
    """The process of each server (`pserver`) or trainer by its number: its pid and environment."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            environment = dict(
                variable.split("=", 1)
                for variable in (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                if "=" in variable
            )
        except OSError:
            continue
        if environment.get("CAIRN_LAUNCH_ID", "").split(".")[0].rsplit("_", 1)[0] != role:
            continue
        if "cairn-shim" in words[0] or f"{job.repository}/launches" not in environment.get("CAIRN_CHIEF", ""):
            continue
        found[int(environment["CAIRN_LAUNCH_ID"].split(".")[0].rsplit("_", 1)[1])] = (int(entry.name), environment)
    return found


def job_of(environment):
    """As scancel knows it."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format(**environment)
    return environment["SLURM_JOB_ID"]


def test_a_job_goes_on_when_a_job_of_it_is_cancelled_and_when_it_is_killed_itself(slurm, tmp_path):
    def cancel(job):
        assert set(processes(job, "trainer")) == {0, 1}
        _, environment = processes(job, "ps")[1]
        slurm.run("scancel", job_of(environment))

    servers_survive(slurm, "slurm", tmp_path, [], cancel, SLURM_CONF=str(slurm.conf))


def test_a_job_whose_time_is_over_comes_back_and_learns_the_same(slurm, tmp_path):
    """A limit of one minute for each server and trainer, all of which stand still until the first is taken back."""
    for name in "ab":
        (tmp_path / name).mkdir()
    expected = undisturbed(tmp_path / "a", 40)
    command, output = server_training(tmp_path / "b", 40)
    flags = ["--full-steps", "20", "--incremental-steps", "5", "--max-restarts", "1"]
    flags += ["--resource", "time=1", "--resource", "warning=10"]
    job = ServerJob("slurm", tmp_path / "b", command, *flags, WAITS_AT="18", SLURM_CONF=str(slurm.conf))
    try:
        job.until_step(17)
        before = set(slurm.jobs())
        assert len(before) == 4
        job.until(lambda line: "] lost: " in line)
        pathlib.Path(f"{output}.go").touch()
        job.until_step(30)
        assert set(slurm.jobs()) - before, "on in other jobs"
        assert job.end() == 0, job.said
    finally:
        if job.process.poll() is None:
            job.process.kill()
    assert json.loads(output.read_text()) == expected
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_what_slurm_refuses_ends_the_job_with_its_words(slurm, tmp_path):
    command, _ = server_training(tmp_path, 5)
    flags = ["--max-restarts", "1", "--resource", "partition=nowhere"]
    job = run_job(slurm, tmp_path, command, *flags)
    assert job.end() == 1
    assert "nvalid partition" in job.said
    job = run_job(slurm, tmp_path, command, "--resource", "partiton=low")
    assert job.end() != 0
    assert "partiton" in job.said


def test_the_click_through_example_on_two_nodes_of_which_one_is_lost(slurm, tmp_path):
    """What is learned is the same to the bit as on one machine, undisturbed."""
    example = ROOT / "examples/ctr/train.py"
    here = tmp_path / "here.json"
    there = tmp_path / "there.json"
    command = [CAIRN, "ps", "run", "--servers", "2", "--trainers", "2", "--dir", tmp_path / "here", "--full-secs", "0", "--"]
    command += [sys.executable, example, "--steps", "90", "--output", here]
    subprocess.run([str(word) for word in command], env={**os.environ, "PYTHONPATH": PYTHON}, check=True, stdout=subprocess.DEVNULL)

    # Somebody else has most of the first node when the job begins, so that it is spread over both.
    other = slurm.submit("--nodelist=n1", "--ntasks=6", "-o", "/dev/null", script="#!/bin/sh\nsleep 600\n")
    slurm.until("it runs", lambda: slurm.state(other) == "RUNNING")
    flags = ["--full-steps", "30", "--incremental-steps", "10"]
    command = [sys.executable, example, "--steps", "90", "--pause", "0.3", "--output", there]
    job = run_job(slurm, tmp_path, command, *flags)
    job.until_step(12)
    nodes = [environment["SLURMD_NODENAME"] for role in ("ps", "trainer") for _, environment in processes(job, role).values()]
    assert sorted(set(nodes)) == ["n1", "n2"] and len(nodes) == 4
    slurm.run("scancel", other)
    slurm.kill("slurmd.n2")
    try:
        job.until(lambda line: "NODE_FAIL" in line)
        assert job.end() == 0, job.said
    finally:
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGKILL)
        slurm.start("slurmd.n2")
    assert "went back" in job.said or "goes on from step" in job.said
    assert json.loads(there.read_text()) == json.loads(here.read_text())
    assert not processes(job, "ps"), "nothing lives on the node that was lost"
