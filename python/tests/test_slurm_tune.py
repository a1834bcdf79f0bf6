"""Trials of a tuner as jobs of a real Slurm: a tuner that is killed finds them again."""

import json
import os
import pathlib
import subprocess

import pytest
from children import command_line
from cluster_work import Tuning
from slurm_cluster import running_slurm

from cairn import tune

RUN = {"launcher": "slurm", "resources": {"partition": "low", "time": 10}}


@pytest.fixture(scope="module")
def slurm():
    with running_slurm() as cluster:
        yield cluster


def test_a_tuner_that_is_killed_finds_its_jobs_again(slurm, tmp_path):
    Tuning(tmp_path, 0.5, RUN, SLURM_CONF=str(slurm.conf)).is_found_again(slurm)


def test_a_trial_whose_job_is_cancelled_goes_on_from_its_checkpoint(slurm, tmp_path):
    tuning = Tuning(tmp_path, 0.3, RUN, SLURM_CONF=str(slurm.conf))

    def cancel():
        [(_, _, job)] = tuning.starts(x=2)
        slurm.run("scancel", job)

    tuning.goes_on_from_a_checkpoint(slurm, cancel)


def test_a_cpp_tuner_that_is_killed_finds_its_jobs_again(slurm, tmp_path):
    gate = tmp_path / "gate"
    options = {
        "directory": str(tmp_path / "runs"),
        "out": str(tmp_path / "out"),
        "space": {"x": {"grid_search": [1, 2]}, "iterations": 4, "wait_for": str(gate)},
        "launcher": "slurm",
        "resources": {"partition": "low", "time": "10"},
        "host": "127.0.0.1",
    }
    program = [os.path.join(os.path.dirname(command_line()), "tune_test_program"), json.dumps(options)]
    environment = {**os.environ, "SLURM_CONF": str(slurm.conf)}
    results = [tmp_path / "runs" / f"trial_0000{i}" / "result.json" for i in range(2)]
    with subprocess.Popen(program, env=environment) as tuner:
        slurm.until("both trials report", lambda: all(one.exists() and one.read_text().endswith("\n") for one in results))
        tuner.kill()
    gate.touch()
    subprocess.run(program, env=environment, check=True, timeout=180)
    trials = json.loads(pathlib.Path(options["out"]).read_text())
    assert [trial["status"] for trial in trials] == ["TERMINATED"] * 2
    for trial, x in zip(trials, (1, 2)):
        assert [report["sum"] for report in trial["results"]] == [x * n * (n + 1) // 2 for n in range(1, 5)]
        # The process of before went on: nothing was begun again.
        assert [report["in_this_run"] for report in trial["results"]] == [1, 2, 3, 4]


def test_launchers_are_named():
    with pytest.raises(ValueError, match="slrum"):
        tune.RunConfig(launcher="slrum")
    with pytest.raises(ValueError, match="slurm"):
        tune.RunConfig(resources={"partition": "low"})
