"""Inference models: cut, saved, run by OpenVINO, compared with onnxruntime."""

import os
import sys
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

import cairn
from cairn import io

TRAINING = os.path.join(
    os.path.dirname(__file__), "..", "..", "tests", "compat", "foreign", "onnx_1", "training.onnx"
)


def by_onnxruntime(path, feed):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def close(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_training_graph_becomes_an_inference_model(directory, rng):
    saved = io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    assert saved.feeds == [io.Signature("x", "float32", (None, 5))]
    assert saved.pruned_nodes == 6 and "fc2.w_velocity" in saved.left_out
    program, feeds, fetches = io.load_inference_model(directory)
    assert (feeds, fetches) == (["x"], ["probability"])
    x = rng.normal(size=(7, 5)).astype(np.float32)
    close(program.run({"x": x}), by_onnxruntime(saved.path, {"x": x}))
    assert repr(program) == "<cairn inference program (x) -> (probability)>"


def test_the_files_open_in_their_own_tools(directory):
    saved = io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    onnx.checker.check_model(saved.path)
    tensors = load_file(os.path.join(os.path.dirname(saved.path), "params.safetensors"))
    assert sorted(tensors) == saved.weights
    original = {
        t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(TRAINING).graph.initializer
    }
    assert all((tensors[name] == original[name]).all() for name in tensors)
    assert cairn.verify(directory).ok


def test_an_onnx_model_in_memory_and_with_external_data(directory, tmp_path, rng):
    model = onnx.load(TRAINING)
    before = model.SerializeToString()
    io.save_inference_model(directory, ["x"], ["probability"], model)
    assert model.SerializeToString() == before, "the user's program is not changed"
    onnx.save(model, tmp_path / "external.onnx", save_as_external_data=True, size_threshold=0)
    saved = io.save_inference_model(
        directory + "2", ["x"], ["probability"], tmp_path / "external.onnx"
    )
    program, _, _ = io.load_inference_model(directory + "2")
    x = rng.normal(size=(2, 5)).astype(np.float32)
    close(program.run({"x": x}), by_onnxruntime(saved.path, {"x": x}))


def test_whether_dropout_trains_is_no_feed(directory, rng):
    """A training graph is often told by an input whether it trains; who predicts is not asked."""
    from onnx import TensorProto, helper

    weight = onnx.numpy_helper.from_array(rng.normal(size=(3, 2)).astype(np.float32), "w")
    half = onnx.numpy_helper.from_array(np.float32(0.5), "half")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Dropout", ["h", "half", "trains"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3]),
            helper.make_tensor_value_info("trains", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [weight, half],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    saved = io.save_inference_model(directory, ["x"], ["y"], model)
    assert saved.weights == ["w"] and "half" in saved.left_out
    program, feeds, _ = io.load_inference_model(directory)
    assert feeds == ["x"]
    x = rng.normal(size=(4, 3)).astype(np.float32)
    close(program.run({"x": x}), by_onnxruntime(saved.path, {"x": x}))
    close(program.run({"x": x}), [x @ onnx.numpy_helper.to_array(weight)])
    with pytest.raises(cairn.Invalid, match='needs "trains"; leave it out'):
        io.save_inference_model(directory + "2", ["x", "trains"], ["y"], model)


def test_wrong_feeds_are_named(directory):
    io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    program, _, _ = io.load_inference_model(directory)
    with pytest.raises(cairn.Invalid, match='"x" is missing'):
        program.run({})
    with pytest.raises(cairn.Invalid, match='no feed "z"; its feeds are x'):
        program.run({"x": np.zeros((1, 5), np.float32), "z": np.zeros(1)})
    with pytest.raises(cairn.Invalid, match=r"F64 \[1,5\]; the model wants F32 \[\?,5\]"):
        program.run({"x": np.zeros((1, 5))})
    with pytest.raises(cairn.Invalid, match=r"F32 \[1,6\]"):
        program.run({"x": np.zeros((1, 6), np.float32)})


@pytest.mark.parametrize(
    "feeds, targets, says",
    [
        (["x"], ["loss"], 'needs "label"'),
        (["x"], ["nope"], 'computes "nope"'),
        (["x", "label"], ["probability"], 'needs "label"; leave it out'),
        (["x"], ["after_update"], "Momentum"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(directory, feeds, targets, says):
    with pytest.raises(cairn.Invalid, match=says):
        io.save_inference_model(directory, feeds, targets, TRAINING)
    assert not os.path.exists(directory)


def test_programs_that_are_none_are_refused(directory):
    with pytest.raises(cairn.Invalid, match="a Scope has no graph"):
        io.save_inference_model(directory, ["x"], ["y"])
    with pytest.raises(cairn.Invalid, match="lists of names"):
        io.save_inference_model(directory, "x", ["y"], TRAINING)
    with pytest.raises(cairn.Invalid, match="a dict is no model"):
        io.save_inference_model(directory, ["x"], ["y"], {})
    with pytest.raises(cairn.Invalid, match="example_inputs"):
        io.save_inference_model(directory, ["x"], ["y"], torch.nn.Linear(2, 2))


class Click(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.tower = torch.nn.Sequential(
            torch.nn.Linear(8 * 3 + 4, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(16, 1),
        )

    def forward(self, ids, dense):
        wide = torch.cat([self.embedding(ids).flatten(1), dense], 1)
        return torch.sigmoid(self.tower(wide))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(1)
    module = Click()
    module.tower[1].running_mean.uniform_(-1, 1)
    directory = str(tmp_path_factory.mktemp("export") / "model")
    inputs = (torch.randint(0, 100, (4, 3)), torch.randn(4, 4))
    options = {
        "example_inputs": inputs,
        "dynamic_axes": {"ids": {0: "batch"}, "dense": {0: "batch"}},
    }
    module.train()
    module.tower[3].eval()
    saved = io.save_inference_model(directory, ["ids", "dense"], ["p"], module, **options)
    return module, directory, saved, options


def test_a_torch_module_is_exported_and_not_changed(exported, rng):
    module, directory, saved, _ = exported
    assert module.training and module.tower[0].training and not module.tower[3].training
    program, feeds, fetches = io.load_inference_model(directory)
    assert (feeds, fetches) == (["ids", "dense"], ["p"])
    feed = {
        "ids": rng.integers(0, 100, (9, 3)),
        "dense": rng.normal(size=(9, 4)).astype(np.float32),
    }
    (found,) = program.run(feed)
    close([found], by_onnxruntime(saved.path, feed))
    module.eval()
    with torch.no_grad():
        wanted = module(torch.from_numpy(feed["ids"]), torch.from_numpy(feed["dense"])).numpy()
    module.train()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_new_weights_reload_while_others_run(exported, tmp_path, rng):
    module, _, _, options = exported
    directory = str(tmp_path / "model")
    names = (["ids", "dense"], ["p"])
    io.save_inference_model(directory, *names, module, **options)
    program, _, _ = io.load_inference_model(directory)
    feed = {"ids": np.zeros((1, 3), np.int64), "dense": np.ones((1, 4), np.float32)}
    first = float(program.run(feed)[0][0, 0])
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.add(float(program.run(feed)[0][0, 0]))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with torch.no_grad():
        module.tower[4].bias += 3
    saved = io.save_inference_model(directory, *names, module, **options)
    program.reload()
    second = float(program.run(feed)[0][0, 0])
    stop.set()
    for reader in readers:
        reader.join()
    assert program.info.id == saved.info.id and program.graph_reads == 1
    assert second > first and seen <= {first, second}
    close([np.array([[second]])], by_onnxruntime(saved.path, feed))


def test_another_graph_is_not_reloaded(exported, directory):
    io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    program, _, _ = io.load_inference_model(directory)
    with pytest.raises(cairn.Error, match="graph is another one"):
        program.reload(exported[1])


def test_a_flipped_byte_is_found(directory):
    saved = io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    os.chmod(saved.path, 0o644)
    with open(saved.path, "r+b") as file:
        file.seek(20)
        file.write(b"~")
    with pytest.raises(cairn.Corruption):
        io.load_inference_model(directory)


def test_a_save_of_variables_is_no_model(directory):
    scope = cairn.Scope()
    scope.parameter("w", np.zeros(1))
    io.save_params(directory, scope)
    with pytest.raises(cairn.Invalid, match="no inference model"):
        io.load_inference_model(directory)


def test_without_openvino_the_error_says_what_to_install(directory, monkeypatch):
    io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(cairn.Unavailable, match="pip install"):
        io.load_inference_model(directory)


def test_without_the_module_the_error_says_what_to_install(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "cairn._predict", None)
    monkeypatch.delattr(cairn, "_predict", raising=False)
    with pytest.raises(cairn.Unavailable, match="libonnx-dev"):
        io.save_inference_model(directory, ["x"], ["probability"], TRAINING)


def test_the_native_module_has_neither_onnx_nor_openvino():
    import subprocess

    from cairn import _native

    linked = subprocess.run(
        ["ldd", _native.__file__], capture_output=True, text=True, check=True
    ).stdout
    assert "onnx" not in linked and "protobuf" not in linked and "openvino" not in linked


def test_models_and_variables_do_not_take_each_others_place(tmp_path):
    scope = cairn.Scope()
    scope.parameter("w", np.zeros(1))
    model, variables = tmp_path / "model", tmp_path / "variables"
    io.save_inference_model(model, ["x"], ["probability"], TRAINING)
    io.save_persistables(variables, scope)
    with pytest.raises(cairn.Invalid, match="another directory"):
        io.save_params(model, scope)
    with pytest.raises(cairn.Invalid, match="another directory"):
        io.save_inference_model(variables, ["x"], ["probability"], TRAINING)
    io.load_inference_model(model)
    assert io.load_persistables(variables, scope).names == ["w"]


def test_arguments_of_a_wrong_kind_are_invalid(tmp_path):
    io.save_inference_model(tmp_path / "m", ["x"], ["probability"], TRAINING)
    program, _, _ = io.load_inference_model(tmp_path / "m", threads=np.int64(1))
    for feed in (None, [1]):
        with pytest.raises(cairn.Invalid, match="feed"):
            program.run(feed)
    for threads in (-1, 0, "2", True):
        with pytest.raises(cairn.Invalid, match="threads"):
            io.load_inference_model(tmp_path / "m", threads=threads)
    with pytest.raises(cairn.Invalid, match="feed_names"):
        io.save_inference_model(tmp_path / "m", None, ["probability"], TRAINING)
