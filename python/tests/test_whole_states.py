"""cairn.save, load, verify and diff; directories that cannot be used."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from children import Child
from sameness import assert_same
from test_restore_choice import data_file, flip

import cairn
from cairn import _plan, oneshot

STATE = {
    "w": np.arange(100_000.0),
    "t": torch.arange(10, dtype=torch.bfloat16),
    "z": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 3)),
    "zero-d": np.array(5),
    "nested": [1, ("a", b"b"), {"deep": None}],
}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "model")


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_a_state_comes_back(path, mmap):
    cairn.save(path, STATE)
    assert_same(STATE, cairn.load(path, mmap=mmap))


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_one_checkpoint_is_loaded_from_its_own_directory(path, tmp_path, mmap):
    info = cairn.save(path, STATE)
    elsewhere = shutil.copytree(info.path, tmp_path / "copied out")
    assert_same(STATE, cairn.load(elsewhere, mmap=mmap))


def test_a_path_object_is_a_path(path):
    cairn.save(pathlib.Path(path), {"x": 1})
    assert cairn.load(pathlib.Path(path)) == {"x": 1}


def test_saving_again_replaces(path):
    for n in range(4):
        cairn.save(path, {"n": n, "w": np.full(1000, n)})
    assert cairn.load(path)["n"] == 3
    assert len([d for d in os.listdir(path) if d.startswith("checkpoint")]) == 1


def test_a_state_that_is_refused_leaves_the_old_one(path):
    cairn.save(path, {"n": 1})
    with pytest.raises(cairn.Invalid):
        cairn.save(path, {"n": object()})
    assert cairn.load(path) == {"n": 1}


def test_save_does_not_replace_the_checkpoints_of_a_job(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(5, {"x": 5}, blocking=True)
    with pytest.raises(cairn.Invalid, match="step 5"):
        cairn.save(directory, {"x": 1})
    assert cairn.load(directory) == {"x": 5}


def test_mapped_arrays_can_be_changed_and_the_file_does_not(path):
    cairn.save(path, {"w": np.zeros(10_000)})
    mapped = cairn.load(path, mmap=True)["w"]
    mapped[:] = 7
    assert cairn.load(path)["w"].max() == 0.0


def test_mapped_arrays_outlive_their_checkpoint(path):
    cairn.save(path, {"w": np.full(200_000, 1.0)})
    mapped = cairn.load(path, mmap=True)["w"]
    for n in range(2, 6):
        cairn.save(path, {"w": np.full(200_000, float(n))})
    assert mapped.min() == mapped.max() == 1.0


def test_tied_arrays_are_tied_when_mapped(path):
    w = np.arange(5000)
    cairn.save(path, {"a": w, "b": w})
    mapped = cairn.load(path, mmap=True)
    assert mapped["a"] is mapped["b"]


# Damage ----------


def test_a_damaged_state_is_not_loaded(path):
    flip(data_file(cairn.save(path, STATE).path), -5000)
    with pytest.raises(cairn.Corruption):
        cairn.load(path)


@pytest.mark.parametrize("file", ["manifest.json", "rank_0/state.json"])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_damaged_records_are_not_loaded(path, file, mmap):
    info = cairn.save(path, STATE)
    flip(os.path.join(info.path, file), 60)
    with pytest.raises(cairn.Corruption):
        cairn.load(info.path, mmap=mmap)


def test_a_short_file_is_not_mapped(path):
    info = cairn.save(path, STATE)
    os.truncate(data_file(info.path), 5000)
    with pytest.raises(cairn.Corruption):
        cairn.load(path, mmap=True)


def test_verify_finds_a_flipped_byte(path):
    info = cairn.save(path, STATE)
    report = cairn.verify(path)
    assert report.ok and report.bytes > 800_000 and len(report.checkpoints) == 1
    flip(data_file(info.path), -5000)
    report = cairn.verify(path)
    assert not report.ok
    assert os.path.basename(info.path) in str(report.problems)


def test_shallow_verify_finds_a_missing_file_and_no_flipped_byte(path):
    info = cairn.save(path, STATE)
    flip(data_file(info.path), -5000)
    assert cairn.verify(path, deep=False).ok
    os.unlink(data_file(info.path))
    assert not cairn.verify(path, deep=False).ok


def test_diff_tells_what_changed(tmp_path):
    a = {
        "same": np.ones(3),
        "moved": np.zeros(3),
        "shape": np.zeros(3),
        "gone": np.zeros(1),
        "dtype": np.zeros(2),
    }
    b = {
        "same": np.ones(3),
        "moved": np.array([0, 0.25, -0.5]),
        "shape": np.zeros(4),
        "new": np.zeros(1),
        "dtype": np.zeros(2, np.float32),
    }
    one, two = cairn.save(tmp_path / "a", a), cairn.save(tmp_path / "b", b)
    for left, right in ((one, two), (tmp_path / "a", tmp_path / "b"), (one.path, two.path)):
        found = cairn.diff(left, right)
        assert (found.added, found.removed, found.changed) == (["new"], ["gone"], {"moved": 0.5})
        assert sorted(found.reshaped) == ["dtype", "shape"] and not found.same
    assert cairn.diff(one, one).same


def test_values_beside_the_tensors_differ_too(tmp_path):
    def state(lr, names, seed):
        values = {"lr": lr, "names": names, "nan": float("nan"), "empty": {}}
        return {**values, "w": np.ones(2), "rng": np.random.default_rng(seed)}

    one = cairn.save(tmp_path / "a", state(0.1, ["x", "y"], 1))
    two = cairn.save(tmp_path / "b", state(0.2, ["x"], 1))
    three = cairn.save(tmp_path / "c", state(0.1, ["x", "y"], 2))
    found = cairn.diff(one, two)
    assert found.values == ["lr", "names/1"] and not found.same
    assert found.added == found.removed == found.reshaped == [] and found.changed == {}
    assert all(name.startswith("rng/state") for name in cairn.diff(one, three).values)
    assert not cairn.diff(one, three).same and cairn.diff(one, one).same
    four = cairn.save(tmp_path / "d", 5)
    assert cairn.diff(four, cairn.save(tmp_path / "e", 6)).values == ["the state"]


def test_a_checkpoint_that_is_removed_while_it_is_mapped_gives_way_to_the_next(
    tmp_path, monkeypatch
):
    with cairn.CheckpointManager(tmp_path, keep_last=1) as m:
        m.save(1, {"w": np.full(3, 1)}, blocking=True)
        read = oneshot._read_records

        def overtaken(path):
            monkeypatch.setattr(oneshot, "_read_records", read)
            m.save(2, {"w": np.full(3, 2)}, blocking=True)
            m.wait()
            assert not os.path.exists(path)
            return read(path)

        monkeypatch.setattr(oneshot, "_read_records", overtaken)
        assert cairn.load(tmp_path, mmap=True)["w"].tolist() == [2, 2, 2]
        shutil.rmtree(m.latest().path + "/__model__")
        with pytest.raises(cairn.Error):
            cairn.load(tmp_path, mmap=True)


def test_files_that_were_removed_since_are_none(tmp_path, monkeypatch):
    with cairn.CheckpointManager(tmp_path) as m:
        info = m.save(1, {"x": 1}, files={"a/b": b"1"}, blocking=True).wait()
        finish = _plan.Plan.finish

        def removed(self, tensors):
            shutil.rmtree(info.path)
            return finish(self, tensors)

        monkeypatch.setattr(_plan.Plan, "finish", removed)
        restored = m.restore()
        assert restored.state == {"x": 1} and dict(restored.files) == {}


def test_a_file_url_is_a_path(tmp_path):
    where = f"file://{tmp_path}/a%20b"
    cairn.save(where, {"w": np.ones(2)})
    assert (tmp_path / "a b").is_dir()
    for path in (where, tmp_path / "a b"):
        assert cairn.load(path)["w"].tolist() == cairn.load(path, mmap=True)["w"].tolist() == [1, 1]
        assert cairn.diff(path, where).same and cairn.verify(path).ok
    with pytest.raises(cairn.Invalid, match="three slashes"):
        cairn.load("file://host/a")


@pytest.mark.parametrize("call", [cairn.load, lambda path: cairn.diff(path, path)])
def test_an_empty_path_is_not_the_current_directory(call):
    with pytest.raises(cairn.Invalid, match="empty"):
        call("")


# Plain safetensors ----------


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_a_safetensors_file_is_loaded(tmp_path, mmap):
    tensors = {"a": np.arange(7, dtype=np.float32), "b": np.zeros((2, 0)), "c": np.array(3)}
    safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors")
    loaded = cairn.load(tmp_path / "m.safetensors", mmap=mmap)
    assert_same(tensors, {name: loaded[name] for name in tensors})


def test_a_directory_of_safetensors_files_is_loaded(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    safetensors.torch.save_file({"b": torch.zeros(2).bfloat16()}, tmp_path / "model-2.safetensors")
    loaded = cairn.load(tmp_path)
    assert sorted(loaded) == ["a", "b"] and str(loaded["b"].dtype) == "bfloat16"


def test_a_name_in_two_safetensors_files_is_refused(tmp_path):
    for n in (1, 2):
        safetensors.numpy.save_file({"a": np.full(2, n)}, tmp_path / f"model-{n}.safetensors")
    with pytest.raises(cairn.Invalid, match="'a'"):
        cairn.load(tmp_path)


def test_other_tools_read_what_we_write(path):
    info = cairn.save(path, {"w": np.arange(5), "t": torch.ones(3)})
    assert safetensors.numpy.load_file(data_file(info.path))["w"].tolist() == [0, 1, 2, 3, 4]


def header(entry, data=b"\0" * 8):
    text = json.dumps({"w": entry}).encode()
    return len(text).to_bytes(8, "little") + text + data


BAD_FILES = {
    "empty": b"",
    "short": b"\1\2\3",
    "huge header": (1 << 62).to_bytes(8, "little") + b"{}",
    "no json": (4).to_bytes(8, "little") + b"@@@@",
    "no object": (2).to_bytes(8, "little") + b"[]",
    "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "outside": header({"dtype": "F32", "shape": [99], "data_offsets": [0, 396]}),
    "backwards": header({"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}),
    "wrong size": header({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}),
    "odd bytes": header({"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}),
    "no shape": header({"dtype": "F32", "data_offsets": [0, 8]}),
    "text offsets": header({"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}),
    "negative shape": header({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}),
    "entry is a number": header(5),
    "unknown dtype": header({"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_a_bad_safetensors_file_is_refused(tmp_path, name, mmap):
    file = tmp_path / "bad.safetensors"
    file.write_bytes(BAD_FILES[name])
    with pytest.raises((cairn.Corruption, cairn.Invalid), match="bad.safetensors"):
        cairn.load(file, mmap=mmap)


# Paths that cannot be used ----------


@pytest.mark.parametrize("call", [cairn.load, cairn.verify, lambda p: cairn.diff(p, p)],
                         ids=["load", "verify", "diff"])  # fmt: skip
def test_a_path_that_does_not_exist_is_not_found(tmp_path, call):
    with pytest.raises(cairn.NotFound, match="nowhere"):
        call(tmp_path / "nowhere")


def test_an_empty_directory_holds_nothing_to_load(tmp_path):
    with pytest.raises(cairn.NotFound):
        cairn.load(tmp_path)


def test_a_repository_without_checkpoints_holds_nothing_to_load(directory):
    cairn.CheckpointManager(directory).close()
    for mmap in (False, True):
        with pytest.raises(cairn.NotFound):
            cairn.load(directory, mmap=mmap)


@pytest.mark.parametrize("call", [cairn.CheckpointManager, lambda p: cairn.save(p, {"x": 1})],
                         ids=["manager", "save"])  # fmt: skip
def test_a_file_where_a_directory_should_be_is_an_error(tmp_path, call):
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below"):
        with pytest.raises(cairn.Error, match="file"):
            call(place)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("bad", [3, None, b"bytes", ["list"]], ids=str)
def test_a_path_that_is_no_path_is_refused(bad):
    with pytest.raises((cairn.Invalid, TypeError)):
        cairn.CheckpointManager(bad)


@pytest.mark.parametrize("bad", ["", "nul\0byte"], ids=["empty", "nul"])
def test_a_path_that_cannot_be_one_is_refused(bad):
    with pytest.raises(cairn.Error):
        cairn.CheckpointManager(bad)


UNPRIVILEGED = """
os.seteuid(65534)
try:
    {call}
except cairn.PermissionDenied as error:
    assert isinstance(error, PermissionError) and sys.argv[1] in str(error), error
    print("denied")
"""


@pytest.mark.parametrize(
    "call",
    ["cairn.CheckpointManager(sys.argv[1] + '/new')", "cairn.save(sys.argv[1] + '/new', {})",
     "cairn.load(sys.argv[1] + '/secret/x.safetensors')", "cairn.load(sys.argv[1] + '/secret')"],
)  # fmt: skip
def test_what_the_system_forbids_is_permission_denied(tmp_path, call):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    (closed / "secret").mkdir()
    (closed / "secret" / "x.safetensors").write_bytes(b"")
    (closed / "secret" / "cairn.json").write_bytes(b"")
    (closed / "secret").chmod(0o700)
    for parent in tmp_path.parents:
        if parent.owner() == "root" and parent.name.startswith(("pytest-", "test_")):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    if os.geteuid() != 0:
        closed.chmod(0o500)
        (closed / "secret").chmod(0)
    code = UNPRIVILEGED if os.geteuid() == 0 else UNPRIVILEGED.replace("os.seteuid(65534)", "")
    _, out, err = Child(code.format(call=call), closed).end()
    assert out == "denied\n", err


@pytest.mark.parametrize("bad", [3, None, b"bytes", "caf\udce9"], ids=ascii)
@pytest.mark.parametrize(
    "call",
    [cairn.load, cairn.verify, lambda p: cairn.diff(p, p), lambda p: cairn.save(p, {}),
     cairn.CheckpointManager, cairn.io.load_vars, cairn.io.read],
    ids=["load", "verify", "diff", "save", "manager", "load_vars", "read"],
)  # fmt: skip
def test_what_is_no_path_is_invalid_everywhere(call, bad):
    cairn.default_scope().clear()
    cairn.default_scope().parameter("w", np.zeros(1))
    with pytest.raises(cairn.Invalid, match="path|UTF-8"):
        call(bad)
    cairn.default_scope().clear()


@pytest.mark.parametrize(
    "options",
    [{"job": "\udc80"}, {"score": 5}, {"participant": 5}, {"run": "1"}, {"join_deadline": "1"},
     {"deadline": True}],
    ids=str,
)  # fmt: skip
def test_options_of_a_wrong_type_are_refused_by_name(tmp_path, options):
    with pytest.raises(cairn.Invalid, match=next(iter(options))):
        cairn.CheckpointManager(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
