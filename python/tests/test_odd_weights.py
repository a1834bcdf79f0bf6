"""Weights of a graph whose sizes lie: refused by name before anything is allocated or written."""

import onnx
import pytest
from onnx import helper

import cairn
from cairn import io


@pytest.mark.parametrize(
    "shape, says",
    [
        ([2**40, 2**40], '"w": .* has over 2\\^64 elements'),
        ([2**62, 4], '"w": .* has over 2\\^64 elements'),
        ([2**31, 2**31], '"w": .* has over 2\\^64 bits'),
        ([2**40], '"w": its elements do not fill its shape'),
        ([3], '"w": its elements do not fill its shape'),
        ([-1], "a dimension is negative"),
    ],
)
def test_a_weight_of_another_size_than_its_bytes_is_refused(tmp_path, shape, says):
    value = helper.make_tensor_value_info
    weight = onnx.TensorProto(
        name="w", data_type=onnx.TensorProto.FLOAT, dims=shape, raw_data=bytes(16)
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [value("y", onnx.TensorProto.FLOAT, ["n", "m"])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(cairn.Corruption, match=says):
        io.save_inference_model(tmp_path / "model", ["x"], ["y"], model)
    assert not (tmp_path / "model").exists()
