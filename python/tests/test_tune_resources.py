"""How many trials run at a time, and which GPUs they get: what with_resources asks for is what they have."""

import os
import time

import pytest

from cairn import tune
from cairn.tune._gpus import GpuPlaces, visible_gpus
from cairn.tune._worker_starts import asked_for, cluster_jobs


@pytest.mark.parametrize(
    "given, found",
    [
        ("0,1", ["0", "1"]),
        (" 3 , 1 ", ["3", "1"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),  # as CUDA reads it
        ("2,2", ["2"]),
        ("NoDevFiles", []),
        ("GPU-8932f937,MIG-GPU-8932f937/1/2", ["GPU-8932f937", "MIG-GPU-8932f937/1/2"]),
    ],
)
def test_gpus_are_those_that_cuda_is_to_see(given, found, tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}, str(tmp_path)) == found


def test_gpus_are_counted_where_nothing_is_said(tmp_path):
    assert visible_gpus({}, str(tmp_path)) == []
    cards = tmp_path / "proc" / "driver" / "nvidia" / "gpus"
    for name in ("0000:00:04.0", "0000:00:05.0", "0000:00:06.0"):
        (cards / name).mkdir(parents=True)
    assert visible_gpus({}, str(tmp_path)) == ["0", "1", "2"]
    devices = tmp_path / "dev"
    devices.mkdir()
    for name in ("nvidia2", "nvidia5", "nvidiactl", "nvidia-uvm", "sda"):
        (devices / name).touch()
    # A container has some of the machine's, and counts those from 0.
    assert visible_gpus({}, str(tmp_path)) == ["0", "1"]


def test_no_gpu_is_given_twice_before_it_is_given_back():
    places = GpuPlaces(["5", "6", "7", "8"], 2)
    assert [places.take("a"), places.take("b")] == ["5,6", "7,8"]
    places.give_back("a")
    assert places.take("c") == "5,6"
    shared = GpuPlaces(["0", "1"], 0.5)
    assert sorted(shared.take(owner) for owner in "abcd") == ["0", "0", "1", "1"]
    shared.give_back("c")  # had the first of them
    assert shared.take("e") == "0"


def f(config):
    tune.report({"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})


def at_a_time(monkeypatch, resources=None, cpus=8, gpus="", given=None, **run):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    trainable = f if resources is None else tune.with_resources(f, resources)
    config = tune.TuneConfig(max_concurrent_trials=given)
    return tune.Tuner(trainable, tune_config=config, run_config=tune.RunConfig(**run))._concurrency()


@pytest.mark.parametrize(
    "wanted, trials",
    [
        ({}, 8),
        ({"given": 20}, 20),  # nothing was asked for: what the user says
        ({"resources": {"cpu": 3}}, 2),
        ({"resources": {"cpu": 3}, "given": 5}, 2),
        ({"resources": {"cpu": 3}, "given": 1}, 1),
        ({"resources": {"cpu": 64}}, 1),  # alone, as well as it can
        ({"resources": {"gpu": 1}, "gpus": "0,1"}, 2),
        ({"resources": {"gpu": 1}, "gpus": "0,1", "given": 20}, 2),
        ({"resources": {"gpu": 0.5}, "gpus": "0,1", "given": 20}, 4),
        ({"resources": {"gpu": 1 / 3}, "gpus": "0"}, 3),
        ({"resources": {"gpu": 2}, "gpus": "0,1,2"}, 1),
        ({"resources": {"cpu": 4, "gpu": 1}, "gpus": "0,1,2"}, 2),
        ({"resources": {"cpu": 1, "gpu": 0}}, 8),
        ({"launcher": "slurm", "cpus": 2}, 16),  # the cluster has a queue, and this machine nothing to do with it
        ({"launcher": "ray", "cpus": 2, "given": 40, "resources": {"cpu": 8, "gpu": 4}}, 40),
    ],
)
def test_as_many_run_at_a_time_as_find_room(monkeypatch, wanted, trials):
    assert at_a_time(monkeypatch, **wanted) == trials


def test_more_gpus_than_there_are_is_an_error_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = tune.RunConfig(storage_path=str(tmp_path / "runs"), verbose=0)
    with pytest.raises(ValueError, match="each trial wants 2 GPUs .*this machine has 1"):
        tune.Tuner(tune.with_resources(f, {"gpu": 2}), run_config=run).fit()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("amount", [1.5, -1, float("nan"), float("inf")])
def test_amounts_that_cannot_be(amount):
    with pytest.raises(ValueError, match="GPU|negative"):
        tune.with_resources(f, {"gpu": amount})


def test_clusters_are_asked_for_what_a_trial_takes():
    assert asked_for("ray", {"CPU": 2.0, "GPU": 0.5}) == {"num_cpus": "2", "num_gpus": "0.5"}
    assert asked_for("slurm", {"CPU": 1.5, "GPU": 2.0}) == {"cpus_per_task": "2", "gres": "gpu:2"}
    assert asked_for("slurm", {}) == asked_for("ray", {}) == {}
    with pytest.raises(ValueError, match="Slurm gives whole ones"):
        asked_for("slurm", {"GPU": 0.5})
    run = tune.RunConfig(launcher="slurm", resources={"gres": "gpu:a100:1"}, name="e", storage_path="/runs")
    cluster = cluster_jobs(run, "/runs/e", tune.with_resources(f, {"cpu": 2, "gpu": 1}))
    assert cluster["resources"] == {"cpus_per_task": "2", "gres": "gpu:a100:1"}


def alone_on_its_gpus(config):
    """Fails where another trial has the same GPU. The first two wait for each other: they are there at once."""
    mine = os.environ["CUDA_VISIBLE_DEVICES"]
    held = os.path.join(config["directory"], f"held-{mine}")
    os.close(os.open(held, os.O_CREAT | os.O_EXCL))
    met = os.path.join(config["directory"], "met")
    until = time.monotonic() + 60
    while not os.path.exists(met):
        if len([name for name in os.listdir(config["directory"]) if name.startswith("held-")]) == 2:
            open(met, "w").close()
        assert time.monotonic() < until, "nobody came"
        time.sleep(0.005)
    os.remove(held)
    tune.report({"gpus": mine})


def test_trials_at_the_same_time_have_different_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7,6")
    (tmp_path / "held").mkdir()
    results = tune.Tuner(
        tune.with_resources(alone_on_its_gpus, {"gpu": 1, "cpu": 0.01}),
        param_space={"i": tune.grid_search(list(range(6))), "directory": str(tmp_path / "held")},
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0),
    ).fit()
    assert [str(result.error) for result in results if result.error] == []
    assert {result.metrics["gpus"] for result in results} <= {"4", "GPU-7", "6"}


@pytest.mark.parametrize("amount, seen", [(None, "4,6"), (0, ""), (0.5, "4"), (1, "4"), (2, "4,6")])
def test_a_trial_sees_the_gpus_that_it_asked_for(monkeypatch, tmp_path, amount, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    trainable = f if amount is None else tune.with_resources(f, {"gpu": amount})
    run = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    [result] = tune.Tuner(trainable, run_config=run).fit()
    assert result.metrics["gpus"] == seen


def test_a_trial_that_is_killed_gives_its_gpu_back(monkeypatch, tmp_path):
    def killed_once(config):
        mine = os.environ["CUDA_VISIBLE_DEVICES"]
        if not os.path.exists(config["mark"]):
            open(config["mark"], "w").close()
            os.kill(os.getpid(), 9)
        tune.report({"gpus": mine})

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    run = tune.RunConfig(
        storage_path=str(tmp_path), verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    )
    space = {"mark": str(tmp_path / "mark")}
    trainable = tune.with_resources(killed_once, {"gpu": 2})
    [result] = tune.Tuner(trainable, param_space=space, run_config=run).fit()
    assert result.error is None and result.metrics["gpus"] == "4,6"
