"""Experiments on a bucket and on HDFS: killed, started again, restored; the record is there and nowhere else."""

import csv
import io
import json
import os
import signal

import hdfs_server
import pytest
import s3_server
from tuned_program import (
    PROGRAM,
    assert_gone,
    children_of,
    expected,
    start,
    wait_for,
    write_program,
)

import cairn
from cairn import tune
from cairn.tune.logger import PolicyLog


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    server = s3_server.Server(tmp_path_factory.mktemp("s3"))
    server.make_bucket("tuned")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    server = hdfs_server.Server(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.stop()


@pytest.fixture
def storage(request, monkeypatch):
    """Where experiments are, as users write it."""
    if request.param == "hdfs":
        return request.getfixturevalue("hdfs").url("tuned")
    for variable, value in request.getfixturevalue("bucket").environment().items():
        monkeypatch.setenv(variable, value)
    return "s3://tuned/runs"


@pytest.fixture
def program(tmp_path):
    return write_program(tmp_path)


def on_record(told):
    """How many reports the trials were told to be on record."""
    return len(told.read_text().splitlines()) if told.exists() else 0


def progress(directory):
    """Reports on record; of a tuner that was killed, which opening it takes over."""
    native = cairn._native.Tuner.open(directory, False)
    try:
        return [len(native.results(trial["trial"])) for trial in native.trials(False)]
    finally:
        native.close()


@pytest.mark.parametrize("storage,which", [("s3", "class"), ("hdfs", "train")], indirect=["storage"])
def test_killed_and_restored_the_results_are_those_of_an_undisturbed_run(
    storage, program, tmp_path, which
):
    where = f"{storage}/{which}"
    told = tmp_path / "told"
    process = start(program, where, which, pace="0.3", told=told)
    # Both places are taken, and one of the trials has made a checkpoint at least.
    wait_for(lambda: on_record(told) >= 5 or process.poll() is not None, seconds=60)
    below = children_of(process.pid)
    assert process.poll() is None, process.communicate()[0]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert_gone(below)
    before = progress(f"{where}/e")
    assert sum(before) >= on_record(told), "what was answered was lost"

    # Whoever has the URL goes on, on any machine.
    namespace = {"__name__": "tuned_program"}
    exec(compile(PROGRAM, "tuned_program.py", "exec"), namespace)
    trainable = namespace["train" if which == "train" else "Klass"]
    assert tune.Tuner.can_restore(f"{where}/e")
    results = tune.Tuner.restore(f"{where}/e", trainable).fit()
    found = {
        r.config["lr"]: [(m["training_iteration"], m["i"], m["x"]) for m in r.results]
        for r in results
    }
    assert found == expected()
    assert results[0].checkpoint.to_dict()["i"] == 12
    for result in results:
        stored = tune.Result.from_path(result.path)
        assert [m["training_iteration"] for m in stored.results] == list(range(1, 13))
        assert stored.config == result.config and stored.checkpoint.to_dict()["i"] == 12
    assert not os.path.exists(tmp_path / "e"), "nothing was kept beside"


@pytest.mark.parametrize("storage", ["s3", "hdfs"], indirect=True)
def test_files_that_other_tools_read_are_there_too(storage, tmp_path):
    broken = tmp_path / "broken"
    broken.touch()

    def train(config):
        tune.report({"loss": config["x"] * 0.5})
        if config["x"] == 1 and os.path.exists(broken):
            raise RuntimeError("the reason")
        tune.report({"loss": config["x"] * 0.25, "late": 1})

    where = f"{storage}/logged"
    run = tune.RunConfig(storage_path=where, name="e", verbose=0)
    tune.Tuner(train, param_space={"x": tune.grid_search([1, 2])}, run_config=run).fit()
    files = cairn._native.StoreFiles.open(f"{where}/e")

    def text(name):
        return (files.get(name) or b"").decode()

    first, second = "train_00000", "train_00001"
    assert [json.loads(line)["loss"] for line in text(f"{first}/result.json").splitlines()] == [0.5]
    assert text(f"{first}/error.txt").rstrip().endswith("RuntimeError: the reason")
    assert files.get(f"{second}/error.txt") is None
    assert json.loads(text(f"{second}/params.json")) == {"x": 2}
    rows = list(csv.DictReader(io.StringIO(text(f"{second}/progress.csv"))))
    assert [(row["loss"], row["late"]) for row in rows] == [("1.0", ""), ("0.5", "1")]
    assert len(files.get(f"{second}/events.out.tfevents.cairn")) > 100
    assert str(tune.Result.from_path(f"{where}/e/{first}").error).rstrip().endswith("the reason")

    broken.unlink()
    results = tune.Tuner.restore(f"{where}/e", train, restart_errored=True).fit()
    assert results.num_errors == 0
    again = tune.Result.from_path(f"{where}/e/{first}")
    assert again.error is None and [m["loss"] for m in again.results] == [0.5, 0.25]


@pytest.mark.parametrize("storage", ["s3", "hdfs"], indirect=True)
def test_the_log_of_copies_is_there_too(storage):
    where = f"{storage}/copies"
    log = PolicyLog(where)
    log.start([{"trial": "a", "donor": "b"}])
    log.append([{"trial": "c", "donor": "b"}])
    log.finish()
    found = cairn._native.StoreFiles.open(where).get("pbt_global.txt").decode().splitlines()
    assert [json.loads(line)["trial"] for line in found] == ["a", "c"]


@pytest.mark.parametrize("storage", ["s3", "hdfs"], indirect=True)
def test_a_trial_that_is_not_there_has_no_result(storage):
    with pytest.raises(ValueError, match="neither result.json nor checkpoints"):
        tune.Result.from_path(f"{storage}/nothing/e/train_00000")


@pytest.mark.parametrize("storage", ["s3", "hdfs"], indirect=True)
def test_what_is_not_there_cannot_be_restored(storage):
    assert not tune.Tuner.can_restore(f"{storage}/nothing/e")
    with pytest.raises(cairn.NotFound):
        tune.Tuner.restore(f"{storage}/nothing/e", lambda config: None)
