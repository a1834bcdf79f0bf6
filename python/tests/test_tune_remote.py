"""Experiments on a bucket and on HDFS: killed, started again, restored; the record is there and nowhere else."""

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
    assert not os.path.exists(tmp_path / "e"), "nothing was kept beside"


@pytest.mark.parametrize("storage", ["s3", "hdfs"], indirect=True)
def test_what_is_not_there_cannot_be_restored(storage):
    assert not tune.Tuner.can_restore(f"{storage}/nothing/e")
    with pytest.raises(cairn.NotFound):
        tune.Tuner.restore(f"{storage}/nothing/e", lambda config: None)
