"""Repositories on HDFS: a real NameNode and DataNode, and hdfs-native as the independent reader."""

import json
import subprocess
import sys

import hdfs_native
import numpy as np
import pytest
from children import command_line
from hdfs_server import Server
from safetensors.numpy import load

import cairn


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.stop()


def test_save_restore_and_retention(server):
    url = server.url("runs/a")
    w = np.arange(10.0)
    with cairn.CheckpointManager(url, keep_last=2) as m:
        assert m.restore() is None
        for step in range(4):
            m.save(step, {"w": w + step, "name": f"step {step}"})
        m.wait()
        assert [info.step for info in m.list()] == [2, 3]
    with cairn.CheckpointManager(url) as m:
        r = m.restore({"w": w, "name": None})
    assert r.step == 3 and r.state["name"] == "step 3"
    assert w.tolist() == (np.arange(10.0) + 3).tolist()
    assert r.info.path.startswith(url + "/checkpoint_")
    assert cairn.verify(url).ok


def test_another_client_reads_the_bytes_that_were_saved(server):
    rng = np.random.default_rng(7)
    state = {"w": rng.standard_normal((64, 64)), "large": rng.integers(0, 255, 40 << 20, np.uint8)}
    info = cairn.save(server.url("bytes"), state)
    client = hdfs_native.Client(f"hdfs://127.0.0.1:{server.rpc}")
    directory = "/bytes/" + info.path.rsplit("/", 1)[1]

    def read(path):
        with client.read(path) as file:
            return file.read()

    found = {}
    for entry in json.loads(read(directory + "/manifest.json"))["files"]:
        if entry["path"].endswith(".safetensors"):
            found.update(load(read(directory + "/" + entry["path"])))
    assert (found["w"] == state["w"]).all() and (found["large"] == state["large"]).all()
    names = [status.path for status in client.list_status("/bytes", recursive=True)]
    assert not [name for name in names if ".cairn-tmp/" in name and "/p0" in name]


def test_files_that_did_not_change_are_referred_to(server):
    url = server.url("shared")
    frozen = np.ones(1 << 20)
    with cairn.CheckpointManager(url, keep_last=2) as m:
        for step in range(5):
            handle = m.save(step, {"frozen": frozen, "count": np.array([step])})
            handle.wait()
        assert handle.bytes_shared > 8 << 20
        m.wait()
        assert (m.restore().state["frozen"] == 1).all()
    assert cairn.verify(url).ok


KILLED = """
import sys, numpy as np, cairn
with cairn.CheckpointManager(sys.argv[1], keep_last=2) as m:
    r = m.restore()
    step = 0 if r is None else r.step + 1
    while True:
        value = np.full(1 << 18, step)
        m.save(step, {"x": value, "step": step}).wait()
        print(step, flush=True)
        step += 1
"""


def test_acknowledged_saves_survive_kills(server):
    url = server.url("killed")
    acknowledged = -1
    for round in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2 + round):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        writer.wait()
        with cairn.CheckpointManager(url, read_only=True) as m:
            r = m.restore()
        assert r.step >= acknowledged
        assert (r.state["x"] == r.step).all() and r.state["step"] == r.step
    with cairn.CheckpointManager(url) as m:  # sweeps what the killed ones left
        m.save(1000, {"x": 1}).wait()
    assert cairn.verify(url).ok


def test_the_command_line_knows_hdfs(server, tmp_path):
    url = server.url("cli")
    cairn.save(url, {"w": np.arange(3)})
    shown = subprocess.run(
        [command_line(), "checkpoint", "ls", url], capture_output=True, text=True, check=True
    )
    assert "latest" in shown.stdout
    subprocess.run(
        [command_line(), "checkpoint", "copy", url, str(tmp_path / "local")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert cairn.load(tmp_path / "local")["w"].tolist() == [0, 1, 2]


def test_errors_name_what_is_wrong(server):
    with pytest.raises(cairn.NotFound):
        cairn.CheckpointManager(server.url("nothing/here"), read_only=True)
    with pytest.raises(cairn.Error, match="RPC port"):
        cairn.CheckpointManager(f"hdfs://127.0.0.1:{server.rpc}/x")
