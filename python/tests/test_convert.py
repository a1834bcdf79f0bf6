"""python -m cairn convert: other formats into repositories and back; nothing in them is run."""

import array
import json
import os
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from children import command_line

import cairn
from cairn.__main__ import main
from cairn.convert import convert, format_of, read

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(3, 2, generator=generator)
    return {
        "model": {"w": w, "tied": w, "half": torch.ones(2, dtype=torch.bfloat16)},
        "epoch": 3,
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
        "flags": torch.tensor([True, False]),
    }


def same(a, b):
    """Equal, types and all."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".pth"])
def test_torch_files_and_back(state, tmp_path, suffix):
    torch.save(state, tmp_path / f"in{suffix}")
    done = convert(tmp_path / f"in{suffix}", tmp_path / "run", step=1000)
    assert (done.source, done.target, done.left_out) == ("torch", "cairn", [])
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        info = m.latest()
    assert info.step == 1000 and info.path == done.path
    assert info.metadata["converted_from"] == {"format": "torch", "name": f"in{suffix}"}
    found = cairn.load(tmp_path / "run")
    assert same(found, state)
    assert found["model"]["w"] is found["model"]["tied"]
    convert(tmp_path / "run", tmp_path / "out.pt")
    assert same(torch.load(tmp_path / "out.pt", weights_only=True), state)


def test_torch_files_of_the_old_kind(state, tmp_path):
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    convert(tmp_path / "old.pt", tmp_path / "run")
    assert same(cairn.load(tmp_path / "run"), state)


class Runs:
    """A pickle that leaves a file behind when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


def test_a_torch_file_that_would_run_code_is_refused(tmp_path):
    trap = tmp_path / "trap"
    torch.save({"w": torch.ones(1), "x": Runs(str(trap))}, tmp_path / "bad.pt")
    with pytest.raises(cairn.Invalid, match="would run code.*weights_only=False"):
        convert(tmp_path / "bad.pt", tmp_path / "run")
    assert not trap.exists() and not (tmp_path / "run").exists()


def test_a_cut_torch_file_is_corruption(state, tmp_path):
    torch.save(state, tmp_path / "in.pt")
    data = (tmp_path / "in.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(cairn.Corruption, match="no whole torch file"):
        convert(tmp_path / "cut.pt", tmp_path / "run")


def folder_with_index(root, suffix="safetensors"):
    """A Hugging Face folder of two files."""
    root.mkdir()
    parts = [{"a": torch.arange(6.0).reshape(2, 3)}, {"b": torch.ones(4, dtype=torch.bfloat16)}]
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    for part, name in zip(parts, names):
        if suffix == "safetensors":
            safetensors.torch.save_file(part, root / name)
        else:
            torch.save(part, root / name)
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (root / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    (root / "config.json").write_text('{"hidden": 3}')
    return {**parts[0], **parts[1]}, names


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_folders_with_an_index(tmp_path, suffix):
    wanted, names = folder_with_index(tmp_path / "hf", suffix)
    if suffix == "safetensors":  # what the index does not name is not taken
        safetensors.torch.save_file({"stray": torch.ones(1)}, tmp_path / "hf" / "stray.safetensors")
    convert(tmp_path / "hf", tmp_path / "run")
    assert same(cairn.load(tmp_path / "run"), wanted)
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        files = m.restore().files
    assert list(files) == ["config.json"]
    os.unlink(tmp_path / "hf" / names[1])
    with pytest.raises(cairn.NotFound, match=names[1]):
        read(tmp_path / "hf")


def test_an_index_that_lies_is_refused(tmp_path):
    _, names = folder_with_index(tmp_path / "hf")
    index = tmp_path / "hf" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "c": names[1]}}))
    with pytest.raises(cairn.Corruption, match="c: not in the files"):
        read(tmp_path / "hf")
    index.write_text(json.dumps({"weight_map": {"a": f"../{names[0]}"}}))
    with pytest.raises(cairn.Corruption, match="not in its folder"):
        read(tmp_path / "hf")
    index.write_text("[]")
    with pytest.raises(cairn.Corruption, match="not an index"):
        read(tmp_path / "hf")


def test_safetensors_files_and_folders_without_an_index(tmp_path):
    safetensors.numpy.save_file({"a": np.arange(3)}, tmp_path / "a.safetensors")
    assert read(tmp_path / "a.safetensors")["a"].tolist() == [0, 1, 2]
    safetensors.numpy.save_file({"b": np.arange(2)}, tmp_path / "b.safetensors")
    assert set(read(tmp_path)) == {"a", "b"}
    safetensors.numpy.save_file({"a": np.arange(2)}, tmp_path / "c.safetensors")
    with pytest.raises(cairn.Invalid, match="two files hold"):
        read(tmp_path)


def test_complex_numbers_of_other_writers_are_read(tmp_path):
    stored = np.array([[1 + 2j, 3 - 4j, 0], [5j, 6, -1 - 1j]], np.complex64)
    safetensors.torch.save_file({"z": torch.from_numpy(stored)}, tmp_path / "model.safetensors")
    loaded = cairn.load(tmp_path / "model.safetensors")
    assert loaded["z"].dtype == np.complex64
    np.testing.assert_array_equal(loaded["z"], stored)
    done = subprocess.run(
        [command_line(), "checkpoint", "import", tmp_path, tmp_path / "repository", "--step", "3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with cairn.CheckpointManager(tmp_path / "repository", read_only=True) as m:
        np.testing.assert_array_equal(m.restore().state["z"], stored)
        for target in (np.zeros((2, 3), np.complex64), torch.zeros((2, 3), dtype=torch.complex64)):
            m.restore({"z": target})
            np.testing.assert_array_equal(np.asarray(target), stored)
        rows = np.zeros((1, 3), np.complex64)
        m.restore({"z": cairn.Shard(rows, (2, 3), (1, 0))})
        np.testing.assert_array_equal(rows, stored[1:])
        with pytest.raises(cairn.Mismatch, match=r"stored C64 \[2,3\], wanted F32 \[2,3\]"):
            m.restore({"z": np.zeros((2, 3), np.float32)})


def test_a_repository_becomes_safetensors(state, tmp_path):
    cairn.save(tmp_path / "run", state)
    done = convert(tmp_path / "run", tmp_path / "out.safetensors")
    assert done.left_out == ["epoch", "groups/0/lr", "groups/0/betas/0", "groups/0/betas/1"]
    found = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert set(found) == {"model/w", "model/tied", "model/half", "flags"}
    assert same(found["model/tied"], state["model"]["w"])
    done = convert(tmp_path / "run", tmp_path / "folder", to="safetensors", only="model")
    assert done.left_out == [] and done.arrays == 3
    found = safetensors.torch.load_file(tmp_path / "folder" / "model.safetensors")
    assert same(found["half"], state["model"]["half"])


def test_numpy_states_become_safetensors_and_torch_files(tmp_path):
    arrays = {
        "a": np.arange(6).reshape(2, 3),
        "b": np.ones(2, np.float16),
        "empty": np.zeros((0, 2)),
    }
    cairn.save(tmp_path / "run", {"model": arrays})
    convert(tmp_path / "run", tmp_path / "out.safetensors", only="model")
    found = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert all(np.array_equal(found[n], arrays[n]) for n in arrays)
    convert(tmp_path / "run", tmp_path / "out.pt")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert all(np.array_equal(loaded[n].numpy(), arrays[n]) for n in arrays)


@pytest.mark.parametrize("with_torch", [False, True])
@pytest.mark.parametrize("target", ["out.pt", "out.safetensors", "dcp"])
def test_arrays_of_all_kinds_keep_their_values(tmp_path, target, with_torch):
    arrays = {
        "big-endian": np.array([1, 2.5], ">f4"),
        "big-endian complex": np.array([1 + 2j, 3], ">c8"),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(7, ">i8"),
        "typed": array.array("i", [1, -2]),
        "bytes": bytearray(b"abc"),
    }
    if with_torch:
        arrays["tensor"] = torch.tensor([True, False])
    cairn.save(tmp_path / "run", arrays)
    done = convert(tmp_path / "run", tmp_path / target, to="dcp" if target == "dcp" else None)
    assert done.left_out == []
    found = read(tmp_path / target)
    assert set(found) == set(arrays)
    for name, value in arrays.items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(value)), name


@pytest.mark.parametrize("source", ["torch", "cairn"])
def test_parameters_stay_parameters_in_torch_files(tmp_path, source):
    wanted = {
        "w": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "x": torch.ones(1, requires_grad=True),
    }
    torch.save(wanted, tmp_path / "in.pt")
    if source == "cairn":
        convert(tmp_path / "in.pt", tmp_path / "run")
    convert(tmp_path / ("run" if source == "cairn" else "in.pt"), tmp_path / "out.pt", to="torch")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, value in wanted.items():
        assert type(found[name]) is type(value), name
        assert found[name].requires_grad == value.requires_grad, name
        assert torch.equal(found[name], value), name
    for to in ("safetensors", "dcp"):
        convert(tmp_path / "in.pt", tmp_path / to, to=to)
        assert torch.equal(read(tmp_path / to)["w"], torch.ones(2))


@pytest.mark.parametrize("to", ["torch", "dcp"])
def test_keys_and_integers_that_torch_does_not_read_again_are_left_out(tmp_path, to):
    state = {"w": torch.ones(2), b"": 1, 1 << 3000: 2, "big": 1 << 3000, "fits": 1 << 1999, 5: 6}
    done = convert_state(state | {"in": {"x": 0, (1, b""): 1}}, tmp_path, to)
    found = read(tmp_path / "out.pt")
    assert found.pop("w").tolist() == [1, 1]
    five = 5 if to == "torch" else "5"  # folders make texts of all keys
    assert found == {"fits": 1 << 1999, five: 6, "in": {"x": 0}}
    assert done.left_out == [str(b""), str(1 << 3000), "big", "in/(1, b'')"]


def convert_state(state, tmp_path, to):
    """What a pickle of torch may hold, and a repository not always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cairn.convert, "read", lambda path: state)
        torch.save({}, tmp_path / "some.pt")
        return convert(tmp_path / "some.pt", tmp_path / "out.pt", to=to)


@pytest.mark.parametrize("to", ["torch", "safetensors", "dcp"])
def test_tensors_without_plain_memory_are_kept_or_left_out_by_name(tmp_path, to):
    state = {
        "w": torch.ones(2),
        "in": {"sparse": torch.eye(3).to_sparse()},
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    }
    torch.save(state, tmp_path / "in.pt")
    done = convert(tmp_path / "in.pt", tmp_path / "out.pt", to=to)
    if to == "torch":
        found = torch.load(tmp_path / "out.pt", weights_only=True)
        assert torch.equal(found["in"]["sparse"].to_dense(), torch.eye(3))
        assert (done.left_out, done.arrays, done.bytes) == ([], 3, 8 + 36 + 3)
    else:
        named = ["in/sparse", "quantized"] + (["in"] if to == "dcp" else [])
        assert (done.left_out, done.arrays, done.bytes) == (named, 1, 8)
        assert list(read(tmp_path / "out.pt")) == ["w"]


def test_empty_dicts_are_left_out_of_distributed_folders_by_name(tmp_path):
    state = {
        "w": torch.ones(1),
        "a": {"b": {}},
        "steps": [{"x": torch.ones(1)}, {}],
        "whole": ({}, {"x": 1}),
        "list": [],
        7: {},
    }
    done = convert_state(state, tmp_path, "dcp")
    assert done.left_out == ["a/b", "steps/1", "7"]
    found = read(tmp_path / "out.pt")
    assert set(found) == {"w", "steps", "whole", "list"}
    assert (found["whole"], found["list"]) == (({}, {"x": 1}), [])


@pytest.mark.parametrize("to", ["torch", "dcp", "safetensors"])
def test_a_state_of_which_all_is_left_out_makes_no_file(tmp_path, to):
    for state in ({"rng": random.Random(1)}, {"a": {"rng": [random.Random(1)]}}):
        cairn.save(tmp_path / "run", state)
        with pytest.raises(cairn.Invalid, match="nothing"):
            convert(tmp_path / "run", tmp_path / "out.pt", to=to)
        assert not (tmp_path / "out.pt").exists()
    cairn.save(tmp_path / "run", {"rng": random.Random(1), "none": None})
    if to != "safetensors":
        assert convert(tmp_path / "run", tmp_path / "out.pt", to=to).left_out == ["rng"]
        assert read(tmp_path / "out.pt") == {"none": None}


@pytest.mark.parametrize("to", ["torch", "dcp"])
def test_what_a_torch_file_cannot_hold_is_left_out_by_name(tmp_path, to):
    state = {
        "w": np.ones(2),
        "loss": np.float32(0.5),
        "when": np.array([1, 2], "M8[s]"),
        "rng": np.random.default_rng(1),
        "list": [random.Random(1), 3],
        "seen": {1, 2},
        "frozen": frozenset([1]),
        "bytes": b"abc",
        "none": b"",  # a call of bytes(), in a pickle
    }
    cairn.save(tmp_path / "run", state)
    done = convert(tmp_path / "run", tmp_path / "out.pt", to=to)
    assert done.left_out == ["when", "rng", "list/0", "frozen", "none"]
    assert (done.arrays, done.bytes) == (1, 16)
    found = read(tmp_path / "out.pt")
    assert found.pop("w").tolist() == [1, 1]
    assert found == {"loss": 0.5, "list": [None, 3], "seen": {1, 2}, "bytes": b"abc"}

    cairn.save(tmp_path / "none", random.Random(1))
    with pytest.raises(cairn.Invalid, match=f"none: it holds nothing that {to} can"):
        convert(tmp_path / "none", tmp_path / "none.pt", to=to)
    assert not (tmp_path / "none.pt").exists()


def test_keys_that_distributed_folders_take_for_the_same_are_named(tmp_path):
    cairn.save(tmp_path / "run", {"a": {"b": 1}, "a.b": 2})
    with pytest.raises(cairn.Invalid, match="out cannot be written: .*duplicated.*a.b"):
        convert(tmp_path / "run", tmp_path / "out", to="dcp")


def test_what_safetensors_cannot_hold_is_left_out_by_name(tmp_path):
    state = {
        "when": np.array([1, 2], "M8[s]"),
        "wide": np.ones(2, np.complex128),
        "z": np.array([1j], np.complex64),
    }
    cairn.save(tmp_path / "run", state)
    done = convert(tmp_path / "run", tmp_path / "out.safetensors")
    assert (done.left_out, done.arrays) == (["when", "wide"], 1)
    assert read(tmp_path / "out.safetensors")["z"].tolist() == [1j]


def test_keys_that_make_the_same_name_lose_no_array(tmp_path):
    cairn.save(tmp_path / "run", {"a": {"b": np.zeros(1)}, "a/b": np.ones(1)})
    convert(tmp_path / "run", tmp_path / "out.safetensors")
    found = read(tmp_path / "out.safetensors")
    assert {name: float(array[0]) for name, array in found.items()} == {"a/b": 0, "a/b~2": 1}


def test_an_array_with_the_name_of_a_value_is_counted(tmp_path):
    cairn.save(tmp_path / "run", {"a": {"b": np.zeros(4)}, "a/b": 3})
    done = convert(tmp_path / "run", tmp_path / "out.safetensors")
    assert (done.arrays, done.bytes, done.left_out) == (1, 32, ["a/b"])


def test_distributed_folders_and_back(state, tmp_path):
    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"))
    assert format_of(tmp_path / "dcp") == "dcp"
    convert(tmp_path / "dcp", tmp_path / "run", step=40)
    found = cairn.load(tmp_path / "run")
    assert same(found, state)
    convert(tmp_path / "run", tmp_path / "again", to="dcp")
    blank = {"model": {n: torch.zeros_like(t) for n, t in state["model"].items()}, "epoch": None}
    dcp.load(blank, checkpoint_id=str(tmp_path / "again"))
    assert same(blank, {"model": state["model"], "epoch": 3})


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_cut_file_of_a_distributed_folder_is_corruption(state, tmp_path, part):
    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"))
    file = next((tmp_path / "dcp").glob("*.distcp"))
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(cairn.Corruption, match=r"dcp cannot be read: .* says: \w"):
        read(tmp_path / "dcp")


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), SystemExit(3), MemoryError("no more")])
@pytest.mark.parametrize("does", ["reads", "writes"])
def test_what_stops_the_program_is_no_error_of_a_distributed_folder(
    state, tmp_path, monkeypatch, does, cause
):
    """torch makes an exception by rank of all that is raised in it."""

    def stop(*arguments, **options):
        raise cause

    dcp.save(state, checkpoint_id=str(tmp_path / "dcp"))
    cairn.save(tmp_path / "run", state)
    name = "read_data" if does == "reads" else "write_data"
    kind = dcp.FileSystemReader if does == "reads" else dcp.FileSystemWriter
    monkeypatch.setattr(kind, name, stop)
    with pytest.raises(type(cause)) as caught:
        if does == "reads":
            read(tmp_path / "dcp")
        else:
            convert(tmp_path / "run", tmp_path / "out", to="dcp")
    assert caught.value is cause


def test_distributed_folders_cannot_run_code(state, tmp_path):
    trap = tmp_path / "trap"
    dcp.save({"w": torch.ones(1), "x": Runs(str(trap))}, checkpoint_id=str(tmp_path / "value"))
    with pytest.raises(cairn.Invalid, match="would run code"):
        read(tmp_path / "value")
    dcp.save({"w": torch.ones(1)}, checkpoint_id=str(tmp_path / "metadata"))
    (tmp_path / "metadata" / ".metadata").write_bytes(pickle.dumps(Runs(str(trap))))
    with pytest.raises(cairn.Invalid, match="mkdir has no place"):
        read(tmp_path / "metadata")
    assert not trap.exists()
    (tmp_path / "metadata" / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(cairn.Error):
        read(tmp_path / "metadata")


def test_a_step_chooses_the_checkpoint_to_read(tmp_path):
    with cairn.CheckpointManager(tmp_path / "run") as m:
        for step in (1, 2):
            m.save(step, {"x": torch.tensor(step)})
    convert(tmp_path / "run", tmp_path / "one.pt", step=1)
    assert torch.load(tmp_path / "one.pt")["x"] == 1
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        path = m.latest().path
    convert(path, tmp_path / "two.pt")
    assert torch.load(tmp_path / "two.pt")["x"] == 2


def test_an_import_removes_no_checkpoint(tmp_path):
    with cairn.CheckpointManager(tmp_path / "run", keep_last=None) as m:
        for step in range(5):
            m.save(step, {"x": step})
    torch.save({"x": 9}, tmp_path / "in.pt")
    convert(tmp_path / "in.pt", tmp_path / "run", step=9)
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as m:
        assert [i.step for i in m.list()] == [0, 1, 2, 3, 4, 9]


def test_nothing_is_replaced_unless_asked_for(tmp_path):
    cairn.save(tmp_path / "run", {"x": torch.ones(1)})
    (tmp_path / "out.pt").write_text("mine")
    with pytest.raises(cairn.Invalid, match="--force"):
        convert(tmp_path / "run", tmp_path / "out.pt")
    assert (tmp_path / "out.pt").read_text() == "mine"
    convert(tmp_path / "run", tmp_path / "out.pt", force=True)
    assert torch.load(tmp_path / "out.pt")["x"] == 1
    assert [p.name for p in tmp_path.glob("*.part")] == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing", "run"], "there is no 'nothing'"),
        (["run", "elsewhere"], "what should elsewhere become"),
        (["run", "x.pt", "--only", "modle"], "no 'modle'; it has model"),
        (["run", "x.pt", "--step", "77"], "77"),
        (["run", "other", "--to", "cairn"], "cairn checkpoint copy"),
        (["text.txt", "run"], "neither"),
        (["junk.pt", "run"], "junk.pt is no torch file"),
        (["empty.bin", "run"], "empty.bin is no torch file"),
        (["junk.safetensors", "run"], "junk.safetensors"),
        (["empty", "run"], "holds no checkpoints"),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    cairn.save("run", {"model": {"w": torch.ones(1)}})
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.bin").write_bytes(b"")
    for name in ("junk.pt", "junk.safetensors"):
        (tmp_path / name).write_text("this is what it is not, " * 10)
    assert main(["convert", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cairn convert: ") and message in error
    assert error.count("\n") == 1 and "Traceback" not in error


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"this is no torch file at all", id="text"),
        pytest.param(b"\x00\x01\x02" * 100, id="bytes"),
        pytest.param(b"", id="empty"),
    ],
)
def test_junk_called_as_a_torch_file_says_what_it_is_not_and_what_is_taken(tmp_path, content):
    (tmp_path / "junk.pt").write_bytes(content)
    with pytest.raises(cairn.Corruption) as caught:
        convert(tmp_path / "junk.pt", tmp_path / "run")
    said = str(caught.value)
    assert "junk.pt is no torch file: it begins neither as a zip archive" in said
    for taken in ("torch.save", "*.safetensors", "torch.distributed.checkpoint", "cairn.json"):
        assert taken in said
    assert "run code" not in said and "weights_only" not in said
    assert not (tmp_path / "run").exists()


def test_a_pickle_that_ends_early_is_damaged_not_dangerous(state, tmp_path):
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "old.pt").read_bytes()
    for size in (2, 30, 200):
        (tmp_path / "cut.pt").write_bytes(data[:size])
        with pytest.raises(cairn.Corruption, match="cut.pt is no whole torch file"):
            convert(tmp_path / "cut.pt", tmp_path / "run")


def test_the_command(tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "cairn", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert "convert" in run().stdout and run().returncode == 0
    shown = run("convert", "--help")
    assert shown.returncode == 0 and "examples:" in shown.stdout
    assert run("convert", "a").returncode == 2
    torch.save({"model": {"w": torch.ones(250_000)}, "epoch": 3}, tmp_path / "in.pt")
    done = run("convert", "in.pt", "run", "--step", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 arrays, 1.0 MB: torch -> cairn: ")
    done = run("convert", "run", "out.safetensors")
    assert done.returncode == 0 and "left out" in done.stderr and "epoch" in done.stderr


@pytest.mark.parametrize("target", ["out.pt", "out.safetensors", "out"])
def test_rows_of_tables_are_named_as_left_out(tmp_path, target, capsys):
    table = cairn.EmbeddingTable("emb", 2, optimizer=cairn.optimizers.SGD(1.0))
    table.lookup([1, 2, 3])
    with cairn.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"w": np.ones(2)}, tables=[table], blocking=True)
    to = "dcp" if target == "out" else None
    for source, options in (("run", {}), ("run", {"step": 1}), ("run/checkpoint_000001", {})):
        done = convert(tmp_path / source, tmp_path / target, to=to, force=True, **options)
        assert done.arrays == 1 and done.left_out == ["emb (a table of 3 rows)"]
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "again.pt")]) == 0
    assert "emb (a table of 3 rows)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "target, options, says",
    [
        ("file/x.pt", [], "file"),
        ("folder.pt", ["--force"], "folder.pt is a folder"),
        ("folder.safetensors", ["--force"], "folder.safetensors is a folder"),
        ("file", ["--force", "--to", "dcp"], "file is a file"),
        ("file", ["--force", "--to", "safetensors"], "file is a file"),
    ],
)
def test_targets_that_cannot_be_written_are_named(tmp_path, capsys, target, options, says):
    cairn.save(tmp_path / "run", {"w": np.ones(2)})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "folder.safetensors").mkdir()
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / target), *options]) == 1
    assert says in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    assert not list(tmp_path.glob("*.part")) and not any((tmp_path / "folder.pt").iterdir())


def test_a_step_that_is_none_makes_no_repository(state, tmp_path):
    torch.save(state, tmp_path / "m.pt")
    for step in (-1, True, "x"):
        with pytest.raises(cairn.Invalid, match="step"):
            convert(tmp_path / "m.pt", tmp_path / "run", step=step)
    assert not (tmp_path / "run").exists()
