"""Trials of a tuner as jobs of a real Slurm: a tuner that is killed finds them again."""

import pytest
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


def test_launchers_are_named():
    with pytest.raises(ValueError, match="slrum"):
        tune.RunConfig(launcher="slrum")
    with pytest.raises(ValueError, match="slurm"):
        tune.RunConfig(resources={"partition": "low"})
