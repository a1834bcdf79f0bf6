"""SIGKILL while variables or inference models are saved: the directory holds one save, whole, never an
older one than was acknowledged."""

import random
import time

import numpy as np
from children import Child

import cairn
from cairn import io

WRITER = """
from cairn import io
scope = cairn.Scope()
for i in range(20):
    scope.parameter(f"layer/{i}/w", np.zeros(5000 + i), None)
scope.persistable("step", np.int64(0))
if os.path.isdir(sys.argv[1]):
    io.load_persistables(sys.argv[1], scope)
print("from", int(scope["step"]))
while True:
    step = int(scope["step"]) + 1
    for v in scope.vars():
        scope[v.name][...] = step
    io.save_persistables(sys.argv[1], scope, filename=None if step % 2 else "all")
    print(step)
"""


def stored(path):
    scope = cairn.Scope()
    for i in range(20):
        scope.parameter(f"layer/{i}/w", np.zeros(5000 + i))
    scope.persistable("step", np.int64(0))
    io.load_persistables(path, scope)
    values = {float(scope[v.name].min()) for v in scope.vars()}
    values |= {float(scope[v.name].max()) for v in scope.vars()}
    assert len(values) == 1, "the variables are of one save"
    return int(values.pop())


def test_kills_leave_a_whole_save(tmp_path):
    path = str(tmp_path / "model")
    r = random.Random(11)
    last = 0
    for _ in range(8):
        child = Child(WRITER, path)
        first = child.line()
        assert first.startswith("from "), child.end()
        assert int(first.split()[1]) >= last
        heard = [child.line() for _ in range(1 + r.randrange(3))]
        time.sleep(r.random() * 0.05)  # the moment of the kill, not a synchronisation
        heard = [int(line) for line in heard + child.kill().split("\n") if line]
        found = stored(path)
        assert found >= max(heard, default=last)
        last = found
    assert cairn.verify(path).ok


MODEL_WRITER = """
import onnx
from onnx import helper, numpy_helper
from cairn import io

def model(step):
    weights = [numpy_helper.from_array(np.full((40 + i, 64), step, np.float32), f"w{i}") for i in range(8)]
    nodes = [helper.make_node("ReduceMax", [f"w{i}"], [f"most{i}"], keepdims=0) for i in range(8)]
    nodes += [helper.make_node("ReduceMin", [f"w{i}"], [f"least{i}"], keepdims=0) for i in range(8)]
    nodes += [helper.make_node("Max", [f"most{i}" for i in range(8)], ["most"])]
    nodes += [helper.make_node("Min", [f"least{i}" for i in range(8)], ["least"])]
    nodes += [helper.make_node("Add", ["x", name], [f"{name}_y"]) for name in ("most", "least")]
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [value("x")], [value("most_y"), value("least_y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

step = int(sys.argv[2])
while True:
    step += 1
    io.save_inference_model(sys.argv[1], ["x"], ["most_y", "least_y"], model(step))
    print(step)
"""


def test_kills_leave_a_whole_model(tmp_path):
    path = str(tmp_path / "model")
    r = random.Random(12)
    last = 0
    program = None
    for _ in range(8):
        child = Child(MODEL_WRITER, path, str(last))
        heard = [int(child.line()) for _ in range(1 + r.randrange(3))]
        time.sleep(r.random() * 0.02)  # the moment of the kill, not a synchronisation
        heard += [int(line) for line in child.kill().split("\n") if line]
        if program is None:
            program, _, _ = io.load_inference_model(path)
        else:
            program.reload()
        most, least = program.run({"x": np.zeros(1, np.float32)})
        assert most == least, "the weights are of one save"
        assert most >= max(heard)
        last = int(most[0])
        fresh, _, _ = io.load_inference_model(path)
        assert fresh.run({"x": np.zeros(1, np.float32)})[0] == last
    assert cairn.verify(path).ok
