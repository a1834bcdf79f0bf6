"""SIGKILL of `cairn checkpoint copy`: started again it goes on with what is missing, and the copy is whole.

A gate in front of a bucket, which is copied to or from, holds the copy up where the kill is to hit it."""

import json
import os
import random
import subprocess
import time

import numpy as np
import pytest
from children import command_line

import cairn

CHECKPOINT = 4_000_000  # bytes, and a little more


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


def copying(source, target, *flags):
    return [command_line(), "checkpoint", "copy", source, target, "--json", *flags]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_held(gate, way, size, command):
    """A copy that comes to so many bytes, and no further."""
    gate.hold(way, size)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    gate.wait_until_held(child)
    return child


def kill(gate, child):
    child.kill()
    assert child.wait() == -9, "it was quicker than the kill: nothing was tested"
    child.communicate()
    gate.open()


def copy_with_kills(gate, way, source, target, kills):
    """Kills the copy at moments spread over its time; returns what it came to."""
    command = copying(source, target, "--all")
    r = random.Random(5)
    there = []
    # Each kill is behind a whole checkpoint at least, and all of them are before the last.
    least, most = CHECKPOINT * 5 // 4, CHECKPOINT * 9 // 4
    assert kills * most < 10 * CHECKPOINT
    for _ in range(kills):
        kill(gate, start_held(gate, way, r.randrange(least, most), command))
        now = steps_at(target)
        assert now[: len(there)] == there, "what was there stays"
        there = now
        assert cairn.verify(target).ok
    return there, command


def check_copy(source, target, there, command):
    report = run(command)
    assert len(report["already_there"]) == len(there), "only what is missing is copied"
    assert len(report["copied"]) == 10 - len(there)
    assert there, "no checkpoint was there before a kill: nothing was tested"
    assert steps_at(target) == list(range(10))
    assert cairn.verify(target, deep=True).ok
    assert cairn.diff(source, target).same
    assert run(command)["copied"] == []


def test_a_copy_to_a_disk_goes_on(source, gated_bucket, tmp_path):
    gate, _ = gated_bucket
    there = "s3://copies/source"
    run(copying(source, there, "--all"))
    target = str(tmp_path / "copy")
    check_copy(source, target, *copy_with_kills(gate, "down", there, target, kills=4))


def test_a_copy_to_a_bucket_goes_on(source, gated_bucket):
    gate, _ = gated_bucket
    target = "s3://copies/run"
    check_copy(source, target, *copy_with_kills(gate, "up", source, target, kills=4))


FILES, FILE_BYTES = 24, 4 << 20
HELD = FILES * 2 // 3 * FILE_BYTES  # so many bytes pass before the kill; eight files may be in flight


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


def kill_in_the_middle(gate, way, command, arrived):
    """Kills the copy when some of its files are at the target, but not all."""
    child = start_held(gate, way, HELD, command)
    deadline = time.monotonic() + 120
    while arrived() < FILES // 3:
        assert time.monotonic() < deadline and child.poll() is None
    assert arrived() < FILES
    kill(gate, child)


def go_on(command, source, target):
    report = run(command)
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


def test_one_large_checkpoint_goes_on_with_its_files(large, gated_bucket, tmp_path):
    gate, _ = gated_bucket
    source = "s3://copies/source"
    run(copying(large, source))
    target = tmp_path / "copy"
    command = copying(source, str(target))
    kill_in_the_middle(
        gate, "down", command, lambda: len(list(target.glob("checkpoint_*/files/*.bin")))
    )
    assert steps_at(str(target)) == [], "half a copy does not count"
    go_on(command, large, str(target))
    assert len(list(target.glob("checkpoint_*"))) == 1, "what the first left was swept"


def test_one_large_checkpoint_goes_on_in_a_bucket(large, gated_bucket):
    gate, client = gated_bucket
    target = "s3://copies/run"
    command = copying(large, target)

    def arrived():
        keys = client.list_objects_v2(Bucket="copies").get("Contents", [])
        return sum(key["Key"].endswith(".bin") for key in keys)

    kill_in_the_middle(gate, "up", command, arrived)
    assert steps_at(target) == [], "half a copy does not count"
    before = gate.up
    report = go_on(command, large, target)
    # Requests, those of the checks included, come on top.
    assert report["bytes"] <= gate.up - before < report["bytes"] + (1 << 20), "only the rest"
    assert report["bytes"] < FILES * FILE_BYTES - report["bytes_resumed"] + (1 << 20)
