"""Trials of a tuner as jobs of a real Slurm: a tuner that is killed finds them again."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
from slurm_cluster import running_slurm

from cairn import tune

ROOT = pathlib.Path(__file__).parents[2]
SHIM = os.path.abspath(os.path.join(os.environ.get("CAIRN_BIN_DIR", "build/dev/bin"), "cairn-shim"))

EXPERIMENT = """
import os, sys, time
from cairn import tune

where, seconds = sys.argv[1], float(sys.argv[2])

def train(config):
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    with open(os.path.join(where, "starts"), "a") as file:
        job = os.environ["SLURM_JOB_ID"]
        if "SLURM_ARRAY_JOB_ID" in os.environ:  # as scancel knows it
            job = os.environ["SLURM_ARRAY_JOB_ID"] + "_" + os.environ["SLURM_ARRAY_TASK_ID"]
        file.write(f"{config['x']} {step} {job}\\n")
    while step < 12:
        time.sleep(seconds)
        step += 1
        tune.report({"score": step * config["x"]}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

tuner = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1, 2, 3])},
    tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=3),
    run_config=tune.RunConfig(
        name="e", storage_path=where, verbose=0, launcher="slurm", resources={"partition": "low", "time": 10}
    ),
)
for result in tuner.fit():
    print("ended", result.config["x"], result.metrics["score"], len(result.metrics_dataframe))
"""


@pytest.fixture(scope="module")
def slurm():
    with running_slurm() as cluster:
        yield cluster


def begin(slurm, directory, seconds):
    script = directory / "experiment.py"
    script.write_text(textwrap.dedent(EXPERIMENT))
    return subprocess.Popen(
        [sys.executable, str(script), str(directory), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "SLURM_CONF": str(slurm.conf), "CAIRN_SHIM": SHIM},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def starts(directory):
    path = directory / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def ended(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    lines = sorted(line for line in out.splitlines() if line.startswith("ended"))
    assert lines == [f"ended {x} {12 * x} 12" for x in (1, 2, 3)], "every result, each once"


def test_a_tuner_that_is_killed_finds_its_jobs_again(slurm, tmp_path):
    process = begin(slurm, tmp_path, 0.5)
    slurm.until("all trials run", lambda: len(starts(tmp_path)) == 3)
    jobs = sorted(job for _, _, job in starts(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(slurm.jobs()) == 3, "they go on without it"
    ended(begin(slurm, tmp_path, 0.5))
    assert sorted(job for _, _, job in starts(tmp_path)) == jobs, "none was started again"
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_a_trial_whose_job_is_cancelled_goes_on_from_its_checkpoint(slurm, tmp_path):
    process = begin(slurm, tmp_path, 0.3)
    slurm.until("it has saved", lambda: any(tmp_path.glob("e/train_00001/checkpoint_*")))
    victim = next(job for x, _, job in starts(tmp_path) if x == "2")
    slurm.run("scancel", victim)
    ended(process)
    again = [(int(step), job) for x, step, job in starts(tmp_path) if x == "2"]
    assert len(again) == 2 and again[0][0] == 0 < again[1][0] and again[1][1] != victim
    slurm.until("no job is left", lambda: not slurm.jobs())


def test_launchers_are_named():
    with pytest.raises(ValueError, match="slrum"):
        tune.RunConfig(launcher="slrum")
    with pytest.raises(ValueError, match="slurm"):
        tune.RunConfig(resources={"partition": "low"})
