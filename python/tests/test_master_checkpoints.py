"""What a real master tells of checkpoints that hold tensors: where they lie, what differs, where they came from."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
from master_process import EXAMPLES, Refused, running_master

import cairn

SCRIPT = """
import cairn, numpy

with cairn.core.init() as ctx:
    state = {"frozen": numpy.ones((4, 5), numpy.float32), "weight": numpy.zeros((8, 16), numpy.float32)}
    for step in (1, 2, 3):
        state["weight"][:step] += 0.5
        if step == 3:
            state["late"] = numpy.arange(3)
        ctx.checkpoint.save(state, {"steps_completed": step, "note": "step %d" % step}, blocking=True)
"""
SHARING = """
import cairn, numpy

with cairn.core.init() as ctx:
    state = {"frozen": numpy.ones((512, 512), numpy.float32), "weight": numpy.zeros(16, numpy.float32)}
    for step in range(1, 7):
        state["weight"] += 1
        ctx.checkpoint.save(state, {"steps_completed": step}, blocking=True)
"""
CONFIG = "name: tensors\nentrypoint: python3 train.py\nsearcher: {name: single, metric: x}\nmax_restarts: 0\n"


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as master:
        yield master


@pytest.fixture(scope="module")
def checkpoints(master):
    """By step."""
    code = master.directory / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "config.yaml").write_text(CONFIG)
    experiment = master.cli_json("e", "create", code / "config.yaml", code)["id"]
    done = master.wait_state(experiment, "COMPLETED", "ERROR")
    trial = master.trial_of(experiment)["id"]
    assert done["state"] == "COMPLETED", master.cli("t", "logs", trial).stdout
    found = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=100")["checkpoints"]
    assert sorted(one["steps_completed"] for one in found) == [1, 2, 3]
    return {one["steps_completed"]: one for one in found}


def test_what_is_shared_with_earlier_ones_is_not_new(master):
    code = master.directory / "sharing"
    code.mkdir()
    (code / "train.py").write_text(SHARING)
    (code / "config.yaml").write_text(CONFIG)
    experiment = master.cli_json("e", "create", code / "config.yaml", code)["id"]
    assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
    found = master.get(f"/api/v1/experiments/{experiment}/checkpoints?limit=100")["checkpoints"]
    by_step = {one["steps_completed"]: one for one in found}
    assert by_step[1]["new_bytes"] == by_step[1]["bytes"] > 1_000_000
    assert 0 < by_step[6]["new_bytes"] < 100_000 < by_step[6]["bytes"]
    assert master.get(f"/api/v1/checkpoints/{by_step[6]['id']}")["new_bytes"] == by_step[6]["new_bytes"]
    # What went does not make the others dearer.
    master.ask("DELETE", f"/api/v1/checkpoints/{by_step[1]['id']}")
    after = master.get(f"/api/v1/experiments/{experiment}/checkpoints?limit=100&state=COMPLETED,DELETED")["checkpoints"]
    assert {one["steps_completed"]: one["new_bytes"] for one in after} == {
        step: None if step == 1 else one["new_bytes"] for step, one in by_step.items()
    }


def test_tensors_are_told_with_their_file(master, checkpoints):
    path = f"/api/v1/checkpoints/{checkpoints[1]['id']}"
    answer = master.get(path + "/tensors")
    tensors = {one["name"]: one for one in answer["tensors"]}
    assert tensors["weight"]["shape"] == [8, 16] and tensors["weight"]["dtype"] == "F32" and tensors["weight"]["bytes"] == 512
    files = [one["path"] for one in master.get(path + "/files")["files"]]
    assert {one["file"] for one in tensors.values()} <= set(files)
    assert [one["name"] for one in master.get(path + "/tensors?search=WEI")["tensors"]] == ["weight"]


def test_what_differs_is_told_with_how_much_of_how_much(master, checkpoints):
    first, second, third = (checkpoints[step]["id"] for step in (1, 2, 3))
    near = master.get(f"/api/v1/checkpoints/{first}/diff?with={second}")
    assert (near["changed"], near["added"], near["removed"]) == (1, 0, 0)
    (weight,) = near["tensors"]
    assert weight == {"name": "weight", "kind": "changed", "max_difference": 0.5, "changed_elements": 32, "elements": 128}
    far = {one["name"]: one["kind"] for one in master.get(f"/api/v1/checkpoints/{first}/diff?with={third}")["tensors"]}
    assert far == {"weight": "changed", "late": "added"}
    back = {one["name"]: one["kind"] for one in master.get(f"/api/v1/checkpoints/{third}/diff?with={first}")["tensors"]}
    assert back == {"weight": "changed", "late": "removed"}


def test_it_is_downloaded_in_each_format(master, checkpoints):
    path = f"/api/v1/checkpoints/{checkpoints[2]['id']}"
    files = sorted(one["path"] for one in master.get(path + "/files")["files"])
    for kind in ("tar", "tar.gz"):
        with tarfile.open(fileobj=io.BytesIO(master.get(f"{path}/download?format={kind}", raw=True))) as packed:
            names = [name.split("/", 1)[1] for name in packed.getnames() if "/" in name]
        assert set(files) <= set(names), kind
    with zipfile.ZipFile(io.BytesIO(master.get(path + "/download?format=zip", raw=True))) as packed:
        assert packed.testzip() is None
        assert set(files) <= {name.split("/", 1)[1] for name in packed.namelist() if "/" in name}


def test_an_increment_is_downloaded_with_what_it_builds_on(tmp_path):
    repository = tmp_path / "data" / "checkpoints" / "1" / "1"
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0), initializer=cairn.initializers.Constant(0.0))
    with cairn.train.MonitoredTrainingSession(
        str(repository), tables=[table], state={}, save_checkpoint_secs=None, save_checkpoint_steps=4, save_incremental_checkpoint_steps=1
    ) as session:
        for step in range(6):
            session.run(lambda _, step=step: table.assign([step], np.full((1, 2), step, np.float32)))
    with running_master(tmp_path) as master:
        master.stop()
        master.cli("master", "reindex", "--data-dir", tmp_path / "data")
        master.start()
        newest = master.get("/api/v1/experiments/1/checkpoints?sort=steps_completed")["checkpoints"][0]
        assert newest["kind"] == "increment"
        said = master.cli("e", "download", "1", "--checkpoint", newest["id"], "-o", tmp_path / "fetched").stdout
        name = newest["path"].rsplit("/", 1)[1]
        assert f"{name}, beside those that it builds on" in said
    other = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0), initializer=cairn.initializers.Constant(0.0))
    with cairn.CheckpointManager(str(tmp_path / "elsewhere")) as manager:
        manager.restore({"state": {}}, tables=[other], path=str(tmp_path / "fetched" / name))
    assert other.lookup([0, 3, 5]).tolist() == [[0.0, 0.0], [3.0, 3.0], [5.0, 5.0]]


def test_what_another_is_to_begin_with_stays(tmp_path):
    with running_master(tmp_path, slots=1) as master:

        def create(entrypoint):
            return master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", f"entrypoint={entrypoint}")["id"]

        quick = "python3 2_checkpoints.py 0.001"
        first = create(quick)
        master.wait_state(first, "COMPLETED")
        # One that began with it and saved nothing hands on what it began with.
        half = master.get(f"/api/v1/experiments/{first}/checkpoints?sort=steps_completed")["checkpoints"][5]
        assert half["steps_completed"] == 50
        middle = master.cli_json("e", "continue", first, "--new", "--from", half["id"], "--config", "entrypoint=/bin/false")["id"]
        master.wait_state(middle, "ERROR")
        gate = tmp_path / "gate"
        create(f"bash -c 'until [ -e {gate} ]; do sleep 0.02; done'")  # takes the slot
        last = master.cli_json("e", "continue", middle, "--new", "--config", f"entrypoint={quick}")["id"]
        parent = master.get(f"/api/v1/experiments/{last}")["parent"]
        assert (parent["checkpoint"], parent["steps_completed"]) == (half["id"], 50)
        assert f"trial 2, checkpoint {half['id'][:8]}" in master.cli("e", "show", last).stdout
        # Neither a user nor rules take it away; and not its experiment.
        refused = master.cli("e", "delete", first, "--yes", check=False)
        assert refused.returncode == 1 and f"experiment {last} begins with it" in refused.stderr
        with pytest.raises(Refused, match=f"experiment {last} begins with it"):
            master.ask("DELETE", f"/api/v1/checkpoints/{half['id']}")
        going = {one["id"] for one in master.post(f"/api/v1/experiments/{first}/policy/preview", {"keep_last": 1})["removals"]}
        assert len(going) == 8 and half["id"] not in going
        gate.touch()
        master.wait_state(last, "COMPLETED")
        assert master.reports(master.trial_of(last)["id"])[-1] == (100, 150)
        master.cli("e", "delete", first, "--yes")


def test_metadata_is_laid_over_what_was_saved(master, checkpoints):
    path = f"/api/v1/checkpoints/{checkpoints[2]['id']}"
    assert master.get(path)["metadata"]["note"] == "step 2"
    changed = master.ask("PATCH", path, {"metadata": {"note": None, "seen": {"by": ["ada"]}}})
    assert "note" not in changed["metadata"] and changed["metadata"]["seen"] == {"by": ["ada"]}
    assert master.get(path)["metadata"] == changed["metadata"]


def test_a_deleted_one_has_its_place_in_its_lineage(master, checkpoints):
    """Last: it takes one away."""
    first, second, third = (checkpoints[step]["id"] for step in (1, 2, 3))
    whole = master.get(f"/api/v1/checkpoints/{second}/lineage")
    assert {(edge["from"], edge["to"], edge["kind"]) for edge in whole["edges"]} == {(first, second, "next"), (second, third, "next")}
    master.ask("DELETE", f"/api/v1/checkpoints/{second}")
    with pytest.raises(Refused) as refused:
        master.get(f"/api/v1/checkpoints/{second}/tensors")
    assert refused.value.status == 412 and "DELETED" in refused.value.body["message"]
    after = master.get(f"/api/v1/checkpoints/{second}/lineage")
    assert {node["id"]: node["state"] for node in after["nodes"]} == {first: "COMPLETED", second: "DELETED", third: "COMPLETED"}
    assert {(edge["from"], edge["to"]) for edge in after["edges"]} == {(first, second), (second, third)}
    # Seen from the others it is no news.
    assert second not in {node["id"] for node in master.get(f"/api/v1/checkpoints/{third}/lineage")["nodes"]}
