"""`cairn checkpoint copy` between any two of a disk, a bucket and HDFS."""

import json
import subprocess

import hdfs_server
import numpy as np
import pytest
import s3_server
from children import command_line

import cairn

KINDS = ("disk", "bucket", "hdfs")
STATE = {"w": np.arange(4_000_000), "b": np.ones(3, np.float32), "name": "ümläut"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A repository of each kind, by kind and name; with one checkpoint of several parts called `source`."""
    import boto3

    folder = tmp_path_factory.mktemp("places")
    s3 = s3_server.Server(tmp_path_factory.mktemp("s3"))
    hdfs = hdfs_server.Server(tmp_path_factory.mktemp("hdfs"))
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in s3.environment().items():
            patch.setenv(variable, value)
        boto3.client("s3").create_bucket(Bucket="places")

        def place(kind, name):
            if kind == "disk":
                return str(folder / name)
            return f"s3://places/{name}" if kind == "bucket" else hdfs.url(f"places/{name}")

        for kind in KINDS:
            with cairn.CheckpointManager(place(kind, "source"), keep_last=None) as m:
                m.save(1, STATE, files={"notes.txt": b"mine"}, blocking=True)
                m.save(2, {**STATE, "b": np.zeros(3, np.float32)}, blocking=True)
        yield place
    s3.stop()
    hdfs.stop()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_every_byte_arrives(place, source, target):
    there, here = place(source, "source"), place(target, f"from-{source}")
    command = [command_line(), "checkpoint", "copy", there, here, "--all", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [info["step"] for info in json.loads(done.stdout)["copied"]] == [1, 2]
    assert cairn.verify(here, deep=True).ok
    assert cairn.diff(there, here).same
    loaded = cairn.load(here)
    np.testing.assert_array_equal(loaded["w"], STATE["w"])
    assert loaded["name"] == "ümläut" and loaded["b"].tolist() == [0, 0, 0]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(again.stdout)["copied"] == []
