"""Trials of a tuner as jobs of a real Ray: a tuner that is killed finds them again."""

import pytest
from cluster_work import Tuning
from ray_cluster import Ray

from cairn import tune

RUN = {"launcher": "ray", "host": "127.0.0.1", "resources": {"num_cpus": 1, "memory": "64M"}}


@pytest.fixture(scope="module")
def ray():
    return Ray()


def test_a_tuner_that_is_killed_finds_its_jobs_again(ray, tmp_path):
    Tuning(tmp_path, 0.7, RUN).is_found_again(ray)


def test_a_trial_whose_job_is_stopped_goes_on_from_its_checkpoint(ray, tmp_path):
    def stop():
        (victim,) = [job for job in ray.jobs("RUNNING") if "train_00001" in job["metadata"]["cairn_launch"]]
        ray.stop(victim["submission_id"])

    Tuning(tmp_path, 0.5, RUN).goes_on_from_a_checkpoint(ray, stop)


def test_launchers_are_named():
    with pytest.raises(ValueError, match="rya"):
        tune.RunConfig(launcher="rya")
    with pytest.raises(ValueError, match="ray"):
        tune.RunConfig(resources={"num_cpus": 1})
