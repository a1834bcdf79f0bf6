"""SIGKILL of `cairn checkpoint copy`: started again it goes on with what is missing, and the copy is whole."""

import json
import os
import random
import subprocess
import time

import numpy as np
import pytest
from children import command_line
from gate import Gate
from s3_server import Server

import cairn


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Eight full checkpoints and a chain on the last, of a few megabytes each."""
    directory = str(tmp_path_factory.mktemp("source") / "run")
    table = cairn.EmbeddingTable("t", 8, optimizer=cairn.optimizers.SGD(1.0))
    r = np.random.default_rng(3)
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        for step in range(8):
            table.apply_gradients(np.arange(2000), r.random((2000, 8)))
            m.save(step, {"w": r.random(500_000), "step": step}, tables=[table], blocking=True)
        for step in (8, 9):
            table.apply_gradients([step], np.ones((1, 8)))
            m.save(
                step,
                {"w": r.random(500_000), "step": step},
                tables=[table],
                kind="consecutive",
                blocking=True,
            )
    return directory


def steps_at(where):
    try:
        with cairn.CheckpointManager(where, read_only=True) as m:
            return [info.step for info in m.list()]
    except cairn.NotFound:
        return []


def copy_with_kills(source, target, kills):
    """Kills the copy at moments spread over its time; returns how often it was struck in the middle."""
    command = [command_line(), "checkpoint", "copy", source, target, "--all", "--json"]
    r = random.Random(5)
    there = []
    struck = 0
    for _ in range(kills):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Until the next checkpoint is there, then a random moment later: the kill's, not a
        # synchronisation.
        deadline = time.monotonic() + 60
        while child.poll() is None and len(steps_at(target)) <= len(there):
            assert time.monotonic() < deadline
        time.sleep(r.random() * 0.05)
        child.kill()
        struck += child.wait() == -9
        child.communicate()
        now = steps_at(target)
        assert now[: len(there)] == there, "what was there stays"
        there = now
        assert cairn.verify(target).ok
    return struck, there, command


def check_copy(source, target, struck, there, command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert len(report["already_there"]) == len(there), "only what is missing is copied"
    assert len(report["copied"]) == 10 - len(there)
    assert struck > 0 and there, "no kill hit the middle of the copy: nothing was tested"
    assert steps_at(target) == list(range(10))
    assert cairn.verify(target, deep=True).ok
    assert cairn.diff(source, target).same
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(again.stdout)["copied"] == []


def test_a_local_copy_goes_on(source, tmp_path):
    target = str(tmp_path / "copy")
    check_copy(source, target, *copy_with_kills(source, target, kills=4))


def test_a_copy_to_a_bucket_goes_on(source, tmp_path, monkeypatch):
    import boto3

    server = Server(tmp_path)
    try:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        boto3.client("s3").create_bucket(Bucket="copies")
        target = "s3://copies/run"
        check_copy(source, target, *copy_with_kills(source, target, kills=4))
    finally:
        server.stop()


FILES, FILE_BYTES = 24, 4 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """One checkpoint of many files."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "mine").mkdir()
    for i in range(FILES):
        (folder / "mine" / f"{i:02}.bin").write_bytes(os.urandom(FILE_BYTES))
    directory = str(folder / "run")
    with cairn.CheckpointManager(directory) as m:
        m.save(7, {"w": np.arange(10)}, files=str(folder / "mine"), blocking=True)
    return directory


def kill_in_the_middle(command, arrived):
    """Kills the copy when some of its files are at the target, but not all."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while child.poll() is None and arrived() < FILES // 3:
        assert time.monotonic() < deadline
    child.kill()
    assert child.wait() == -9, "it was quicker than the kill: nothing was tested"
    child.communicate()


def go_on(command, source, target):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert [info["step"] for info in report["copied"]] == [7]
    assert report["bytes_resumed"] >= (FILES // 3 - 2) * FILE_BYTES
    assert (
        FILES * FILE_BYTES
        <= report["bytes"] + report["bytes_resumed"]
        < FILES * FILE_BYTES + (1 << 20)
    )
    assert steps_at(target) == [7]
    assert cairn.verify(target, deep=True).ok
    assert cairn.diff(source, target).same
    return report


def test_one_large_checkpoint_goes_on_with_its_files(large, tmp_path):
    target = tmp_path / "copy"
    command = [command_line(), "checkpoint", "copy", large, str(target), "--json"]
    kill_in_the_middle(command, lambda: len(list(target.glob("checkpoint_*/files/*.bin"))))
    assert steps_at(str(target)) == [], "half a copy does not count"
    go_on(command, large, str(target))
    assert len(list(target.glob("checkpoint_*"))) == 1, "what the first left was swept"


def test_one_large_checkpoint_goes_on_in_a_bucket(large, tmp_path, monkeypatch):
    import boto3

    server = Server(tmp_path)
    gate = Gate(server.port)
    try:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="copies")
        target = "s3://copies/run"
        command = [command_line(), "checkpoint", "copy", large, target, "--json"]

        def arrived():
            keys = client.list_objects_v2(Bucket="copies").get("Contents", [])
            return sum(key["Key"].endswith(".bin") for key in keys)

        kill_in_the_middle(command, arrived)
        assert steps_at(target) == [], "half a copy does not count"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
        report = go_on(command, large, target)
        # Requests, those of the checks included, come on top.
        assert report["bytes"] <= gate.up < report["bytes"] + (1 << 20), "only the rest"
        assert report["bytes"] < FILES * FILE_BYTES - report["bytes_resumed"] + (1 << 20)
    finally:
        gate.close()
        server.stop()
