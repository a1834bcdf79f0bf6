"""SIGKILL of `cairn checkpoint copy`: started again it goes on with what is missing, and the copy is whole."""

import json
import random
import subprocess
import time

import numpy as np
import pytest
from children import command_line
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
