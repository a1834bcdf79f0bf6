"""The factorization machine of train.py as a graph, for `cairn serve`."""

import numpy as np
import onnx
from onnx import TensorProto, helper

import cairn

FIELDS = 8


def program(width):
    """Rows of the features of an impression (a weight, then factors) → the probability of a click."""
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", FIELDS, width])
    score = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch"])
    numbers = {
        "bias": np.zeros(1, np.float32),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "end": np.array([width], np.int64),
        "rows_axis": np.array([1], np.int64),
        "last_axis": np.array([2], np.int64),
        "both_axes": np.array([1, 2], np.int64),
        "half": np.array([0.5], np.float32),
    }
    nodes = [
        helper.make_node("Slice", ["rows", "zero", "one", "last_axis"], ["weights"]),
        helper.make_node("Slice", ["rows", "one", "end", "last_axis"], ["factors"]),
        helper.make_node("ReduceSum", ["weights", "both_axes"], ["linear"], keepdims=0),
        helper.make_node("ReduceSum", ["factors", "rows_axis"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "total"], ["squared_total"]),
        helper.make_node("ReduceSum", ["squared_total", "rows_axis"], ["all_pairs"], keepdims=0),
        helper.make_node("Mul", ["factors", "factors"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "both_axes"], ["own_pairs"], keepdims=0),
        helper.make_node("Sub", ["all_pairs", "own_pairs"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["pairs"]),
        helper.make_node("Add", ["linear", "pairs"], ["unbiased"]),
        helper.make_node("Add", ["unbiased", "bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["probability"]),
    ]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "ctr", [rows], [score], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def export(directory, table, client):
    """The rows come from the table; the bias is found in the checkpoints by its name."""
    cairn.train.export_saved_model(
        directory,
        ["rows"],
        ["probability"],
        program(table.dim),
        tables={"rows": table},
        save_incr_model=True,
        session=client,
    )
