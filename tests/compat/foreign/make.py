#!/usr/bin/env python3
"""Writes the golden files of foreign formats beside this script, with the real packages.

Run once for each release that is to be covered, in an environment with paddlepaddle, torch, onnx, numpy and safetensors:

    FLAGS_enable_pir_api=0 python tests/compat/foreign/make.py paddle tests/compat/foreign/paddle_3.3
    python tests/compat/foreign/make.py torch tests/compat/foreign/torch_2
    python tests/compat/foreign/make.py onnx tests/compat/foreign/onnx_1

Each folder gets `expected*.safetensors`: what a reader must find, written by the safetensors package.
"""

import os
import shutil
import sys

import numpy as np


def expected(path, arrays):
    from safetensors.numpy import save_file

    save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path)


def paddle_static(out):
    import paddle
    from paddle.static import io

    paddle.enable_static()
    paddle.seed(7)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 3], "float32")
        attr = lambda name: paddle.ParamAttr(name=name)
        hidden = paddle.static.nn.fc(x, 4, activation="relu", weight_attr=attr("fc/w"), bias_attr=attr("fc/b"))
        y = paddle.static.nn.fc(hidden, 2, weight_attr=attr("out.w"), bias_attr=attr("out.b"))
        loss = paddle.mean(y)
        paddle.optimizer.Momentum(0.01, 0.9).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    for _ in range(2):
        executor.run(main, feed={"x": np.arange(6, dtype="float32").reshape(2, 3)}, fetch_list=[loss])
    variables = [v for v in main.list_vars() if v.persistable and v.name not in ("feed", "fetch")]
    io.save_vars(executor, f"{out}/vars", main, vars=variables)
    io.save_vars(executor, f"{out}/combined", main, vars=variables, filename="params")
    names = sorted(v.name for v in variables)
    with open(f"{out}/combined/names.txt", "w", encoding="utf-8") as file:
        file.write("".join(name + "\n" for name in names))
    scope = paddle.static.global_scope()
    expected(f"{out}/expected_static.safetensors", {n: np.array(scope.find_var(n).get_tensor()) for n in names})
    paddle.disable_static()


def paddle_dynamic(out):
    import paddle

    paddle.seed(7)
    net = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.BatchNorm1D(4), paddle.nn.Linear(4, 2))
    schedule = paddle.optimizer.lr.StepDecay(0.01, 2)
    optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters())
    for _ in range(3):
        net(paddle.arange(6, dtype="float32").reshape([2, 3])).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
    paddle.save(net.state_dict(), f"{out}/model.pdparams")
    paddle.save(net.state_dict(), f"{out}/protocol2.pdparams", protocol=2)
    paddle.save(optimizer.state_dict(), f"{out}/model.pdopt")
    expected(f"{out}/expected_pdparams.safetensors", {k: v.numpy() for k, v in net.state_dict().items()})
    slots = {k: v.numpy() for k, v in optimizer.state_dict().items() if hasattr(v, "numpy")}
    state = schedule.state_dict()
    slots["LR_Scheduler/last_epoch"] = np.array(state["last_epoch"], np.int64)
    slots["LR_Scheduler/last_lr"] = np.array(state["last_lr"], np.float64)
    expected(f"{out}/expected_pdopt.safetensors", slots)


def torch_file(out):
    import torch

    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    base = torch.arange(6.0).reshape(2, 3)
    state = {
        "model": net.state_dict(),
        "transposed": base.t(),
        "slice": base[1],
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "bytes": torch.tensor([0, 1, 65535], dtype=torch.uint16),
        "empty": torch.zeros(0, 4),
        "step": 12,
        "lr": 0.125,
        "name": "left out",
    }
    torch.save(state, f"{out}/model.pt")
    from safetensors.torch import save_file

    want = {f"model/{k}": v.clone() for k, v in net.state_dict().items()}
    for name in ("transposed", "slice", "half", "parameter", "bytes", "empty"):
        want[name] = state[name].detach().clone().contiguous()
    want["step"] = torch.tensor(12)
    want["lr"] = torch.tensor(0.125, dtype=torch.float64)
    save_file(want, f"{out}/expected.safetensors")


def onnx_file(out):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = {
        "raw": np.arange(6, dtype=np.float32).reshape(2, 3),
        "large": np.arange(300, dtype=np.float32),
        "counts": np.array([1, -2, 3], np.int64),
        "half": np.array([1.5, -2.0], np.float16),
    }
    typed = {
        "floats": helper.make_tensor("floats", TensorProto.FLOAT, [2], [0.5, 2.5]),
        "int8s": helper.make_tensor("int8s", TensorProto.INT8, [3], [-1, 0, 1]),
        "doubles": helper.make_tensor("doubles", TensorProto.DOUBLE, [1], [3.25]),
    }
    initializers = [numpy_helper.from_array(v, k) for k, v in weights.items()] + list(typed.values())
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "raw"], ["y"])], "golden", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, f"{out}/inline.onnx")
    onnx.save(model, f"{out}/external.onnx", save_as_external_data=True, location="external.data", size_threshold=1000)
    values = dict(weights)
    values.update({k: numpy_helper.to_array(v) for k, v in typed.items()})
    expected(f"{out}/expected.safetensors", values)
    training_graph(out)


def training_graph(out):
    """A click model as it is trained: dropout and batch normalisation in training mode, a loss, a metric's statistics, an
    update of weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(7)
    weight = lambda name, *shape: numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name)
    one = lambda name, value, dtype: numpy_helper.from_array(np.array(value, dtype), name)
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "fc1.w", "fc1.b"], ["h1"], "fc1"),
        node("BatchNormalization", ["h1", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["h2", "bn.new_mean", "bn.new_var"],
             "bn", training_mode=1),
        node("Relu", ["h2"], ["h3"], "relu"),
        node("Dropout", ["h3", "ratio", "training"], ["h4"], "dropout"),
        node("Gemm", ["h4", "fc2.w", "fc2.b"], ["logit"], "fc2"),
        node("Sigmoid", ["logit"], ["probability"], "sigmoid"),
        node("Sub", ["probability", "label"], ["error"], "error"),
        node("Mul", ["error", "error"], ["squared"], "square"),
        node("ReduceMean", ["squared"], ["loss"], "loss", keepdims=0),
        node("Add", ["auc.positives", "label"], ["auc.new_positives"], "auc"),
        node("Momentum", ["lr", "step", "fc2.w", "fc2.w", "fc2.w_velocity"], ["fc2.new_w", "fc2.new_velocity"], "update",
             domain="ai.onnx.preview.training", alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0),
        node("Mul", ["fc2.new_w", "ratio"], ["after_update"], "after"),
    ]  # fmt: skip
    initializers = [
        weight("fc1.w", 5, 8), weight("fc1.b", 8), weight("bn.scale", 8), weight("bn.bias", 8), weight("bn.mean", 8),
        numpy_helper.from_array(rng.uniform(0.5, 2, 8).astype(np.float32), "bn.var"), weight("fc2.w", 8, 1),
        weight("fc2.b", 1), weight("fc2.w_velocity", 8, 1), weight("auc.positives", 1), one("ratio", 0.5, np.float32),
        one("training", True, np.bool_), one("lr", 0.1, np.float32), one("step", 0, np.int64),
    ]  # fmt: skip
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
    graph = helper.make_graph(
        nodes, "click", [value("x", "batch", 5), value("label", "batch", 1)],
        [value("probability", "batch", 1), value("loss"), value("auc.new_positives", "batch", 1), value("after_update", 8, 1)],
        initializers,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), f"{out}/training.onnx")


def main():
    what, out = sys.argv[1:]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    if what == "paddle":
        paddle_static(out)
        paddle_dynamic(out)
    else:
        {"torch": torch_file, "onnx": onnx_file}[what](out)


if __name__ == "__main__":
    main()
