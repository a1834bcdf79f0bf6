"""Trials of a tuner as jobs of a real Ray: a tuner that is killed finds them again."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest
from ray_cluster import Ray

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
        file.write(f"{config['x']} {step} {os.environ['CAIRN_LAUNCH_KEY']}\\n")
    while step < 12:
        time.sleep(seconds)
        step += 1
        tune.report({"score": step * config["x"]}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

tuner = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1, 2, 3])},
    tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=3),
    run_config=tune.RunConfig(
        name="e", storage_path=where, verbose=0, launcher="ray", host="127.0.0.1", resources={"num_cpus": 1, "memory": "64M"}
    ),
)
for result in tuner.fit():
    print("ended", result.config["x"], result.metrics["score"], len(result.metrics_dataframe))
"""


@pytest.fixture(scope="module")
def ray():
    return Ray()


def begin(directory, seconds):
    script = directory / "experiment.py"
    script.write_text(textwrap.dedent(EXPERIMENT))
    return subprocess.Popen(
        [sys.executable, str(script), str(directory), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "CAIRN_SHIM": SHIM},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def starts(directory):
    path = directory / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def ended(process):
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    lines = sorted(line for line in out.splitlines() if line.startswith("ended"))
    assert lines == [f"ended {x} {12 * x} 12" for x in (1, 2, 3)], "every result, each once"


def test_a_tuner_that_is_killed_finds_its_jobs_again(ray, tmp_path):
    process = begin(tmp_path, 0.7)
    ray.until("all trials run", lambda: len(starts(tmp_path)) == 3)
    launches = sorted(key for _, _, key in starts(tmp_path))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(ray.jobs("RUNNING")) == 3, "they go on without it"
    ended(begin(tmp_path, 0.7))
    assert sorted(key for _, _, key in starts(tmp_path)) == launches, "none was started again"
    ray.until("no job is left", lambda: not ray.jobs())


def test_a_trial_whose_job_is_stopped_goes_on_from_its_checkpoint(ray, tmp_path):
    process = begin(tmp_path, 0.5)
    ray.until("it has saved", lambda: any(tmp_path.glob("e/train_00001/checkpoint_*")))
    (victim,) = [job for job in ray.jobs("RUNNING") if "train_00001" in job["metadata"]["cairn_launch"]]
    ray.stop(victim["submission_id"])
    ended(process)
    again = [int(step) for x, step, _ in starts(tmp_path) if x == "2"]
    assert len(again) == 2 and again[0] == 0 < again[1]
    ray.until("no job is left", lambda: not ray.jobs())


def test_launchers_are_named():
    with pytest.raises(ValueError, match="rya"):
        tune.RunConfig(launcher="rya")
    with pytest.raises(ValueError, match="ray"):
        tune.RunConfig(resources={"num_cpus": 1})
