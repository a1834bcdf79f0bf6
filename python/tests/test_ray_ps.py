"""Jobs with parameter servers on a real Ray: servers and trainers are jobs, and come back when they are stopped."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from ray_cluster import Ray
from test_ps_run import CAIRN, TRAIN, undisturbed

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ray():
    return Ray()


class Job:
    """`cairn ps run` on Ray; what it and its processes say is read line by line."""

    def __init__(self, directory, command, *flags, **variables):
        words = [CAIRN, "ps", "run", "--launcher", "ray", "--servers", "2", "--trainers", "2"]
        words += ["--dir", directory / "repository", "--full-secs", "0", *flags, "--", *command]
        self.process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def until(self, wanted):
        """Reads on until a line says so."""
        for line in self.process.stdout:
            self.said += line
            if wanted(line):
                return line
        raise AssertionError(self.said)

    def until_step(self, number):
        def reached(line):
            words = line.split()
            return words[:2] == ["[trainer_0]", "step"] and int(words[2]) >= number

        self.until(reached)

    def end(self):
        self.said += self.process.communicate(timeout=180)[0]
        return self.process.returncode


def training(directory, steps):
    """The command of test_ps_run's trainers, and where they write what they learned."""
    script = directory / "train.py"
    script.write_text(TRAIN)
    return [sys.executable, script, steps, directory / "rows.json"], directory / "rows.json"


def test_a_job_goes_on_when_a_job_of_it_is_stopped_and_when_it_is_killed_itself(ray, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    expected = undisturbed(tmp_path / "a", 60)
    flags = ["--full-steps", "20", "--incremental-steps", "5", "--resource", "num_cpus=1", "--resource", f"address={ray.address}"]
    command, output = training(tmp_path / "b", 60)
    job = Job(tmp_path / "b", command, *flags, WAITS_AT="18")
    job.until_step(17)
    (server,) = [each for each in ray.jobs("RUNNING") if each["metadata"]["cairn_launch"].startswith("ps_1")]
    ray.stop(server["submission_id"])
    job.until(lambda line: line.startswith("[ps_1] lost: "))
    pathlib.Path(f"{output}.go").touch()
    job.until_step(25)
    # Then the whole of it: its processes do not outlive it.
    job.process.kill()
    job.process.communicate()
    ray.until("no job is left", lambda: not ray.jobs())
    again = Job(tmp_path / "b", command, *flags)
    assert again.end() == 0, again.said
    begun = int(again.said.split("[trainer_0] begin ")[1].split()[0])
    assert begun >= 20, "from a checkpoint"
    assert json.loads(output.read_text()) == expected
    ray.until("no job is left", lambda: not ray.jobs())


def test_what_ray_is_not_asked_for_is_named(tmp_path):
    command, _ = training(tmp_path, 5)
    job = Job(tmp_path, command, "--resource", "num_cpu=1")
    assert job.end() != 0
    assert "num_cpu" in job.said
