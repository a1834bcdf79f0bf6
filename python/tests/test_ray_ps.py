"""Jobs with parameter servers on a real Ray: servers and trainers are jobs, and come back when they are stopped."""

import pytest
from cluster_work import ServerJob, server_training, servers_survive
from ray_cluster import Ray


@pytest.fixture(scope="module")
def ray():
    return Ray()


def test_a_job_goes_on_when_a_job_of_it_is_stopped_and_when_it_is_killed_itself(ray, tmp_path):
    def stop(_):
        (server,) = [each for each in ray.jobs("RUNNING") if each["metadata"]["cairn_launch"].startswith("ps_1")]
        ray.stop(server["submission_id"])

    flags = ["--resource", "num_cpus=1", "--resource", f"address={ray.address}"]
    servers_survive(ray, "ray", tmp_path, flags, stop)


def test_what_ray_is_not_asked_for_is_named(tmp_path):
    command, _ = server_training(tmp_path, 5)
    job = ServerJob("ray", tmp_path, command, "--resource", "num_cpu=1")
    assert job.end() != 0
    assert "num_cpu" in job.said
