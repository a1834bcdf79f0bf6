"""SIGKILL of `cairn checkpoint copy` in the middle of one large file: started again it goes on inside that file.

What was moved again is counted where it moves: by a proxy in front of the bucket, and by the kernel.
"""

import json
import os
import pathlib
import resource
import subprocess
import time
import urllib.error
import urllib.request

import hdfs_server
import numpy as np
import pytest
from children import command_line

import cairn

PART = 8 << 20
HDFS_PART = 16 << 20
# Of a killed copy the eight parts in flight may all arrive later, out of the system's buffers: twice ten and eight are fewer.
FILE = 40 * PART
HELD = 14 * PART  # so many bytes pass before the kill; eight parts of them may be in flight
LEAST = HELD - 9 * PART  # and so many have arrived
ROOM = 2 << 20  # for requests, records and manifests


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """One checkpoint of one large file."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "mine").mkdir()
    (folder / "mine" / "large.bin").write_bytes(os.urandom(FILE))
    directory = str(folder / "run")
    with cairn.CheckpointManager(directory) as m:
        m.save(7, {"w": np.arange(10)}, files=str(folder / "mine"), blocking=True)
    return directory


def command(source, target):
    return [command_line(), "checkpoint", "copy", source, target, "--json"]


def start(source, target):
    return subprocess.Popen(command(source, target), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill(child):
    child.kill()
    assert child.wait() == -9, "it was quicker than the kill: nothing was tested"
    child.communicate()


def until(reached, child):
    deadline = time.monotonic() + 120
    while not reached():
        assert child.poll() is None, "it was over before it could be killed"
        assert time.monotonic() < deadline


def kill_when(gate, held, reached, source, target):
    """Kills a copy that is held up after so many bytes, once enough of them have arrived."""
    gate.hold("up", held)
    child = start(source, target)
    gate.wait_until_held(child)
    until(reached, child)
    kill(child)
    gate.open()


def go_on(source, target, least=LEAST):
    done = subprocess.run(command(source, target), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [info["step"] for info in report["copied"]] == [7]
    assert FILE <= report["bytes"] + report["bytes_resumed"] < FILE + ROOM
    assert report["bytes_resumed"] >= least, "what had arrived of the file"
    return report


def check(source, target):
    assert cairn.verify(target, deep=True).ok
    assert cairn.diff(source, target).same


def uploads(client):
    return client.list_multipart_uploads(Bucket="copies").get("Uploads", [])


def arrived(client):
    """The parts of all unfinished uploads, as another client sees them."""
    count = 0
    for upload in uploads(client):
        found = client.list_parts(Bucket="copies", Key=upload["Key"], UploadId=upload["UploadId"])
        count += len(found.get("Parts", []))
    return count


def test_into_a_bucket(source, gated_bucket):
    gate, client = gated_bucket
    target = "s3://copies/run"
    kill_when(gate, HELD, lambda: arrived(client) * PART >= LEAST, source, target)
    there = arrived(client) * PART
    assert FILE > there >= LEAST, "the kill hit the middle of the file"
    before = gate.up
    report = go_on(source, target)
    sent = gate.up - before
    assert sent < FILE - there + ROOM, f"{sent} bytes were sent, {FILE - there} were missing"
    assert report["bytes_resumed"] >= there
    assert uploads(client) == [], "nothing is left that costs money"
    check(source, target)


def test_into_a_bucket_with_kill_after_kill(source, gated_bucket):
    gate, client = gated_bucket
    target = "s3://copies/run"
    there, sent = 0, gate.up
    kills = 2
    for _ in range(kills):
        kill_when(
            gate, 10 * PART, lambda before=there: arrived(client) * PART > before, source, target
        )
        now = arrived(client) * PART
        assert now > there, "each one gets further than the one before"
        there = now
    assert there < FILE
    report = go_on(source, target)
    assert report["bytes_resumed"] >= there
    # What was in flight at a kill is sent again, and nothing else.
    assert gate.up - sent < FILE + kills * 9 * PART + ROOM
    assert uploads(client) == []
    check(source, target)


def test_an_upload_that_no_copy_goes_on_with_is_swept(source, gated_bucket):
    gate, client = gated_bucket
    target = "s3://copies/run"
    kill_when(gate, HELD, lambda: arrived(client) > 0, source, target)
    assert len(uploads(client)) == 1
    with cairn.CheckpointManager(target) as m:
        assert m.list() == []
    assert uploads(client) == []


def test_from_a_bucket_to_a_disk(source, gated_bucket, tmp_path):
    gate, _ = gated_bucket
    subprocess.run(command(source, "s3://copies/run"), check=True, capture_output=True, timeout=300)
    target = tmp_path / "copy"
    gate.hold("down", 20 * PART)
    child = start("s3://copies/run", str(target))
    gate.wait_until_held(child)

    content = (pathlib.Path(source).parent / "mine" / "large.bin").read_bytes()

    def arrived(offset):
        for file in target.glob("checkpoint_*/files/large.bin"):
            with open(file, "rb") as left:
                left.seek(offset)
                return left.read(4096) == content[offset : offset + 4096]
        return False

    until(lambda: arrived(16 * PART), child)
    kill(child)
    gate.open()
    with cairn.CheckpointManager(str(target), read_only=True) as m:
        assert m.list() == [], "half a copy does not count"
    before = gate.down
    blocks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock
    report = go_on("s3://copies/run", str(target), least=10 * PART)
    # Behind a part that is missing some chunks are read ahead.
    fetched = gate.down - before
    assert fetched < report["bytes"] + 4 * PART + ROOM, "what was there is not fetched again"
    written = 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock - blocks)
    assert written < report["bytes"] + ROOM, "nor written again"
    assert len(list(target.glob("checkpoint_*"))) == 1, "what the first left was swept"
    check("s3://copies/run", str(target))


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    server = hdfs_server.Server(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.stop()


def test_into_hdfs(source, hdfs, monkeypatch):
    target = hdfs.url("copies/run")

    def ask(path, operation):
        url = f"http://127.0.0.1:{hdfs.http}/webhdfs/v1{path}?op={operation}&user.name=test"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            assert error.code == 404, error.read()
            return {"FileStatuses": {"FileStatus": []}}

    def parts(path="/copies/run/.cairn-tmp"):
        """The parts that are whole, as the NameNode knows them."""
        count = 0
        for entry in ask(path, "LISTSTATUS")["FileStatuses"]["FileStatus"]:
            if entry["type"] == "DIRECTORY":
                count += parts(path + "/" + entry["pathSuffix"])
            else:
                count += entry["length"] == HDFS_PART
        return count

    monkeypatch.setenv("CAIRN_UPLOAD_LIMIT", str(16 << 20))  # so that the kill hits the middle
    child = start(source, target)
    until(lambda: parts() * HDFS_PART >= LEAST, child)
    kill(child)
    there = parts() * HDFS_PART
    assert FILE > there >= LEAST, "the kill hit the middle of the file"
    monkeypatch.delenv("CAIRN_UPLOAD_LIMIT")
    report = go_on(source, target)
    assert report["bytes"] <= FILE - there + ROOM
    assert parts() == 0, "nothing is left unfinished"
    check(source, target)
