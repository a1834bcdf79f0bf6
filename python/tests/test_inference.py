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


# A shape, a constant in a node, one in a branch, a weight of a branch, and one without elements: none of
# them goes into params.safetensors.
INNER_TENSORS = '''
<ir_version: 8, opset_import: ["": 17]>
g (float[n, 4] x, bool c) => (float[m, 2] y)
<float[4] w = {1, 2, 3, 4}, int64[2] shape = {-1, 2}, float[0, 2] none = {}>
{
    h = Mul(x, w)
    r = Reshape(h, shape)
    k = Constant <value = float[2] {10, 20}> ()
    z = Add(r, k)
    b = If (c) <
        then_branch = yes () => (float[m, 2] p) <float[2] v = {5, 6}> { p = Mul(z, v) },
        else_branch = no () => (float[m, 2] q) {
            u = Constant <value = float[2] {7, 8}> ()
            q = Mul(z, u)
        }
    >
    y = Concat <axis = 0> (b, none)
}
'''


def all_tensors(message):
    """Every TensorProto inside of a message."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        repeated = not hasattr(value, "ListFields")
        for one in value if repeated else [value]:
            if isinstance(one, onnx.TensorProto):
                yield one
            yield from all_tensors(one)


def test_nothing_in_a_saved_model_points_to_files_beside_the_one_it_came_from(
    directory, tmp_path, rng
):
    model = onnx.parser.parse_model(INNER_TENSORS)
    (tmp_path / "source").mkdir()
    data = bytearray()
    for tensor in all_tensors(model):
        array = onnx.numpy_helper.to_array(tensor)
        name, kind, dims = tensor.name, tensor.data_type, list(tensor.dims)
        tensor.Clear()
        tensor.name, tensor.data_type = name, kind
        tensor.dims.extend(dims)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "all.bin"), ("offset", len(data)), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        data += array.tobytes()
    (tmp_path / "source" / "all.bin").write_bytes(data)
    (tmp_path / "source" / "model.onnx").write_bytes(model.SerializeToString())

    saved = io.save_inference_model(directory, ["x", "c"], ["y"], tmp_path / "source" / "model.onnx")
    assert saved.weights == ["w"]
    kept = onnx.load(saved.path, load_external_data=False)
    external = [t.name for t in all_tensors(kept) if t.data_location == onnx.TensorProto.EXTERNAL]
    assert external == ["w"]
    program, _, _ = io.load_inference_model(directory)
    reference = onnxruntime.InferenceSession(saved.path)
    plain = onnxruntime.InferenceSession(onnx.parser.parse_model(INNER_TENSORS).SerializeToString())
    for c in (True, False):
        feeds = {"x": rng.standard_normal((3, 4)).astype(np.float32), "c": np.array(c)}
        (want,) = plain.run(None, feeds)
        np.testing.assert_allclose(program.run(feeds)[0], want, rtol=1e-5)
        np.testing.assert_allclose(reference.run(None, feeds)[0], want, rtol=1e-5)


@pytest.mark.parametrize("location", ["../all.bin", "/etc/hostname", "all.bin"])
def test_a_constant_that_points_elsewhere_is_refused(directory, tmp_path, location):
    model = onnx.parser.parse_model(INNER_TENSORS)
    (tmp_path / "source").mkdir()
    (tmp_path / "all.bin").write_bytes(bytes(64))
    constant = next(node for node in model.graph.node if node.op_type == "Constant").attribute[0].t
    constant.ClearField("float_data")
    constant.ClearField("raw_data")
    constant.data_location = onnx.TensorProto.EXTERNAL
    constant.external_data.add(key="location", value=location)
    path = tmp_path / "source" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(cairn.Error, match="all.bin|hostname"):
        io.save_inference_model(directory, ["x", "c"], ["y"], path)
    with pytest.raises(cairn.Error):
        io.save_inference_model(directory, ["x", "c"], ["y"], model)


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


SPLIT = """<ir_version: 8, opset_import: ["": 18]>
g (float[4] x) => (float[2] y) {
    a, b = Split <axis = 0, num_outputs = 2> (x)
    y = Add (a, b)
}"""
# Inside of a function and of a branch the names are others'; the call and the If give way. A function
# of another version than the model's stays a call.
CALL = """<ir_version: 8, opset_import: ["": 18, "own": 1]>
g (float[4] x) => (float[2] y) {
    a, b = own.halves (x)
    y = Add (a, b)
}
<domain: "own", opset_import: ["": 17]>
halves (x) => (a, b) {
    zero = Constant <value = int64[1] {0}> ()
    two = Constant <value = int64[1] {2}> ()
    four = Constant <value = int64[1] {4}> ()
    a = Slice (x, zero, two)
    b = Slice (x, two, four)
}"""
BRANCH = """<ir_version: 8, opset_import: ["": 18]>
g (float[4] x) => (float[2] y) <bool yes = {1}> {
    a, b = If (yes) <
        then_branch = t () => (float[2] ta, float[2] tb) {
            ta, tb = Split <axis = 0, num_outputs = 2> (x)
        },
        else_branch = e () => (float[2] eb, float[2] ea) {
            ea, eb = Split <axis = 0, num_outputs = 2> (x)
        }
    >
    y = Add (a, b)
}"""


@pytest.mark.parametrize("other", ["b", "unused#1"])
@pytest.mark.parametrize("text", [SPLIT, CALL, BRANCH])
def test_a_fed_tensor_counts_where_a_kept_operator_computes_it_too(directory, text, other):
    model = onnx.parser.parse_model(text)
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2])
    )
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [other if name == "b" else name for name in names]
    saved = io.save_inference_model(directory, ["x", "a"], ["y"], model)
    onnx.checker.check_model(saved.path, full_check=True)
    feed = {"x": np.array([1, 2, 3, 4], np.float32), "a": np.array([100, 100], np.float32)}
    close(by_onnxruntime(saved.path, feed), [[103, 104]])
    if text is not CALL:  # OpenVINO has no functions
        program, _, _ = io.load_inference_model(directory)
        close(program.run(feed), [[103, 104]])


def test_statistics_of_training_can_be_fed(directory):
    """Their operator no longer gathers them, so that nothing is in the way."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 2] x) => (float[n, 2] y)
        <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {1, 1}, float[2] v = {1, 1}> {
            h, mean, var = BatchNormalization <epsilon = 0.0, training_mode = 1> (x, s, b, m, v)
            y = Add (h, mean)
        }"""
    )
    saved = io.save_inference_model(directory, ["x", "mean"], ["y"], model)
    feed = {"x": np.ones((1, 2), np.float32), "mean": np.full(2, 7, np.float32)}
    close(by_onnxruntime(saved.path, feed), [[[7, 7]]])
    close(io.load_inference_model(directory)[0].run(feed), [[[7, 7]]])


def test_what_is_reloaded_is_where_it_was_when_the_process_moves(tmp_path, monkeypatch):
    def save(weight):
        io.save_inference_model(
            tmp_path / "model",
            ["x"],
            ["y"],
            onnx.parser.parse_model(
                '<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y) '
                f"<float[2] w = {{{weight}, {weight}}}> {{ y = Mul (x, w) }}"
            ),
        )

    monkeypatch.chdir(tmp_path)
    save(1)
    program, _, _ = io.load_inference_model("model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    save(2)
    program.reload()
    assert program.run({"x": np.ones((1, 2), np.float32)})[0].tolist() == [[2.0, 2.0]]


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


@pytest.mark.parametrize("dims", [(1 << 40, 1 << 40), (1 << 62, 2), (1 << 31, 1 << 31)])
def test_a_weight_that_says_to_be_larger_than_any_memory_is_refused(tmp_path, dims):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"""
    )
    model.graph.initializer[0].dims[:] = dims
    with pytest.raises(cairn.Corruption, match="w"):
        io.save_inference_model(tmp_path / "model", ["x"], ["y"], model)
    assert not os.path.exists(tmp_path / "model") or not os.listdir(tmp_path / "model")
    (tmp_path / "w.onnx").write_bytes(model.SerializeToString())
    scope = cairn.Scope()
    w = scope.parameter("w", np.zeros((2, 2), np.float32))
    with pytest.raises(cairn.Corruption, match="w"):
        io.load_params(tmp_path / "w.onnx", scope)
    assert not w.any()


@pytest.mark.parametrize("rows, ids", [(2, 3), (8, 7), (3, 2), (401, 400), (2, 0)])
def test_sizes_that_do_not_go_together_are_refused_by_the_first_run_too(directory, rows, ids):
    """OpenVINO adds 2 rows to 3 without a word, or dies of it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x, int64[m] i) => (float[k, 3] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { e = Gather(w, i) y = Add(e, x) }"""
    io.save_inference_model(directory, ["x", "i"], ["y"], onnx.parser.parse_model(text))
    program, _, _ = io.load_inference_model(directory)
    x, i = np.ones((rows, 3), np.float32), np.zeros(ids, np.int64)
    for _ in range(2):
        with pytest.raises(cairn.Invalid, match=f"x .{rows}, 3., i .{ids}.: do their sizes belong"):
            program.run({"x": x, "i": i})
    (y,) = program.run({"x": x, "i": np.zeros(rows, np.int64)})
    np.testing.assert_array_equal(y, x + np.array([1, 2, 3], np.float32))


@pytest.mark.parametrize("threads", [1, 4])
def test_a_run_that_failed_does_not_spoil_those_after_it(directory, threads):
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3] x, int64[n] i) => (float[n, 3] y)
        <float[5, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}>
        { e = Gather(w, i) y = Add(e, x) }"""
    io.save_inference_model(directory, ["x", "i"], ["y"], onnx.parser.parse_model(text))
    program, _, _ = io.load_inference_model(directory, threads=1)
    w = np.arange(1, 16, dtype=np.float32).reshape(5, 3)
    wrong = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(60):
            n = int(draw.choice([1, 2, 7, 400, 2000]))
            x, i = draw.standard_normal((n, 3)).astype(np.float32), draw.integers(0, 5, n)
            (y,) = program.run({"x": x, "i": i})
            if y.shape != x.shape or not np.allclose(y, w[i] + x, rtol=1e-6):
                wrong.append(f"{n} rows: wrong")
            if n > 1 and draw.random() < 0.3:
                try:
                    program.run({"x": x, "i": np.arange(n + 1) % 5})
                    wrong.append(f"{n} and {n + 1} rows: taken")
                except cairn.Invalid as error:
                    assert f"x [{n}, 3], i [{n + 1}]" in str(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize(
    "of, feed",
    [
        ("float[n, 2]", np.ones(3, np.complex64)),
        ("float[n, 2]", torch.ones(3, dtype=torch.complex64)),
        ("int64[n]", np.zeros(3, "datetime64[D]")),
        ("int64[n]", np.zeros(3, "timedelta64[s]")),
    ],
)
def test_feeds_whose_bytes_would_pass_for_other_numbers_are_refused(directory, of, feed):
    model = f'<ir_version: 8, opset_import: ["": 17]> g ({of} x) => ({of} y) {{ y = Add (x, x) }}'
    io.save_inference_model(directory, ["x"], ["y"], onnx.parser.parse_model(model))
    program, _, _ = io.load_inference_model(directory)
    with pytest.raises(cairn.Invalid, match="'x' is of (complex|date|time)"):
        program.run({"x": feed})


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


def test_parameters_of_a_module_come_out_of_its_inference_model(exported):
    """Statistics and other buffers are no parameters, and are passed over."""
    module, directory, saved, _ = exported
    assert "tower.1.running_mean" in saved.weights
    other = Click()
    loaded = io.load_params(directory, other)
    assert len(loaded.names) == len(list(other.parameters()))
    assert ("tower.1.running_mean", "not a parameter") in loaded.skipped
    assert torch.equal(other.tower[0].weight, module.tower[0].weight)


def test_an_export_says_nothing_of_what_is_of_no_use(exported, directory, caplog, recwarn):
    module, _, _, options = exported
    io.save_inference_model(directory, ["ids", "dense"], ["p"], module, **options)
    assert not [r for r in caplog.records if "torchvision" in r.getMessage()]
    assert not [w for w in recwarn if "axis name" in str(w.message)]


def test_plain_numbers_have_the_dtype_that_the_model_wants(exported):
    _, directory, _, _ = exported
    program, _, _ = io.load_inference_model(directory)
    feed = {"ids": [[1, 2, 3]], "dense": [[0.5, 1, 2, 3]]}
    arrays = {"ids": np.array([[1, 2, 3]]), "dense": np.array([[0.5, 1, 2, 3]], np.float32)}
    close(program.run(feed), program.run(arrays))
    with pytest.raises(cairn.Invalid, match=r'"ids" is F64 \[1,3\]'):
        program.run({**feed, "ids": [[1, 2, 3.5]]})
    with pytest.raises(cairn.Invalid, match="'dense' is no array"):
        program.run({**feed, "dense": [[1], [1, 2]]})


def test_a_module_too_large_for_one_message_is_exported_through_files(
    exported, directory, monkeypatch
):
    module, _, small, options = exported
    monkeypatch.setattr(cairn.inference, "_MOST_INLINE_BYTES", 0)
    large = io.save_inference_model(directory, ["ids", "dense"], ["p"], module, **options)
    for name in ("model.onnx", "params.safetensors"):
        files = [os.path.join(os.path.dirname(saved.path), name) for saved in (small, large)]
        first, second = (open(file, "rb").read() for file in files)
        assert first == second, name
    assert not os.path.exists(os.path.join(os.getcwd(), "model.onnx.data"))


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


def test_a_model_that_is_replaced_meanwhile_is_loaded_as_it_is_then(directory):
    x = np.ones((1, 5), np.float32)
    io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    program, _, _ = io.load_inference_model(directory)
    (wanted,) = program.run({"x": x})
    stop = threading.Event()

    def save():
        while not stop.is_set():
            io.save_inference_model(directory, ["x"], ["probability"], TRAINING)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(15):
            again, _, _ = io.load_inference_model(directory)
            program.reload()
            close(again.run({"x": x}) + program.run({"x": x}), [wanted, wanted])
    finally:
        stop.set()
        writer.join()


def test_operators_that_do_nothing_do_not_hide_feeds_and_targets(directory, rng):
    from onnx import helper

    model = with_nodes(
        [
            helper.make_node("Dropout", ["x"], ["y"]),
            helper.make_node("Identity", ["y"], ["z"]),
            helper.make_node("Mul", ["z", "w"], ["scaled"]),
            helper.make_node("Identity", ["scaled"], ["same"]),
        ],
        outputs=[
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3])
            for name in ("y", "z", "scaled", "same")
        ],
    )
    x = rng.normal(size=(4, 3)).astype(np.float32)
    for i, targets in enumerate((["y"], ["z", "y"], ["same", "z", "scaled"], ["scaled", "same"])):
        place = f"{directory}{i}"
        io.save_inference_model(place, ["x"], targets, model)
        program, _, _ = io.load_inference_model(place)
        close(program.run({"x": x}), [x * (2 if t in ("scaled", "same") else 1) for t in targets])


def test_another_graph_is_not_reloaded(exported, directory):
    io.save_inference_model(directory, ["x"], ["probability"], TRAINING)
    program, _, _ = io.load_inference_model(directory)
    with pytest.raises(cairn.Error, match="graph is another one"):
        program.reload(exported[1])


def with_nodes(nodes, *, inputs=None, outputs=None, functions=(), opset=17):
    """A model of x -> y with a weight w."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [value("x", TensorProto.FLOAT, ["batch", 3])],
        outputs or [value("y", TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(np.full(3, 2, np.float32), "w")],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    domains.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    return helper.make_model(graph, opset_imports=domains, functions=list(functions), ir_version=8)


def test_dropout_inside_of_a_function_is_in_inference_mode(directory, rng):
    from onnx import TensorProto, helper

    def function(name, nodes):
        return helper.make_function("own", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17)])

    true = helper.make_tensor("", TensorProto.BOOL, [], [True])
    half = helper.make_tensor("", TensorProto.FLOAT, [], [0.5])
    drops = [
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("Constant", [], ["true"], value=true),
        helper.make_node("Dropout", ["a", "half", "true"], ["b"]),
    ]
    unused = [helper.make_node("Adam", ["a"], ["b"], domain="ai.onnx.preview.training")]
    model = with_nodes(
        [
            helper.make_node("Drop", ["x"], ["h"], domain="own"),
            helper.make_node("Mul", ["h", "w"], ["y"]),
        ],
        functions=[function("Drop", drops), function("Unused", unused)],
    )
    saved = io.save_inference_model(directory, ["x"], ["y"], model)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    close(by_onnxruntime(saved.path, {"x": x}), [x * 2])
    close(io.load_inference_model(directory)[0].run({"x": x}), [x * 2])
    model.functions[0].node.append(
        helper.make_node("Gradient", ["a"], ["c"], domain="ai.onnx.preview.training")
    )
    io.save_inference_model(directory, ["x"], ["y"], model)  # nothing needs it
    model.functions[0].node[2].input[0] = "c"
    with pytest.raises(cairn.Invalid, match="Gradient"):
        io.save_inference_model(directory + "2", ["x"], ["y"], model)


def of_functions():
    """y = 4 * w * leaky(x): functions that call each other, with an attribute and a branch; the names
    inside are those outside."""
    from onnx import TensorProto, helper

    node, opset = helper.make_node, helper.make_opsetid
    twice = [node("Add", ["a", "a"], ["b"])]
    four = [
        node("Twice", ["x"], ["a"], domain="own", name="first"),
        node("Twice", ["a"], ["y"], domain="own", name="second"),
    ]
    leaky = node("LeakyRelu", ["x"], ["y"])
    slope = leaky.attribute.add()
    slope.name, slope.ref_attr_name, slope.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    choose = {
        "then_branch": helper.make_graph([leaky], "then", [], [out]),
        "else_branch": helper.make_graph([node("Neg", ["x"], ["y"])], "else", [], [out]),
    }
    chosen = [
        node("Constant", [], ["c"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])),
        node("If", ["c"], ["b"], **choose),
    ]
    functions = [
        helper.make_function("own", "Twice", ["a"], ["b"], twice, [opset("", 17)]),
        helper.make_function("own", "Four", ["x"], ["y"], four, [opset("", 17), opset("own", 1)]),
        helper.make_function("own", "Chosen", ["x"], ["b"], chosen, [opset("", 17)], ["slope"]),
    ]
    nodes = [
        node("Chosen", ["x"], ["a"], domain="own", slope=0.25),
        node("Four", ["a"], ["b"], domain="own"),
        node("Mul", ["b", "w"], ["y"]),
    ]
    return with_nodes(nodes, functions=functions)


def of_overloads():
    """y = (x + x) * (x + x) * w, by two functions of one name."""
    from onnx import helper

    opsets = [helper.make_opsetid("", 17)]
    functions, nodes = [], []
    for which, (operator, given, made) in {"sum": ("Add", "x", "a"), "": ("Mul", "a", "b")}.items():
        body = [helper.make_node(operator, ["u", "u"], ["v"])]
        function = helper.make_function("own", "Own", ["u"], ["v"], body, opsets, overload=which)
        functions.append(function)
        nodes.append(helper.make_node("Own", [given], [made], domain="own", overload=which))
    model = with_nodes([*nodes, helper.make_node("Mul", ["b", "w"], ["y"])], functions=functions)
    model.ir_version = 10  # the first that has overloads
    return model


def of_a_branch():
    """y = x * w, or x + the branch's own weight."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    out = value("r", TensorProto.FLOAT, ["batch", 3])
    own = onnx.numpy_helper.from_array(np.full(3, 5, np.float32), "own_w")
    drop = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Dropout", ["m"], ["r"])]
    branches = {
        "then_branch": helper.make_graph(drop, "then", [], [out]),
        "else_branch": helper.make_graph(
            [helper.make_node("Add", ["x", "own_w"], ["r"])], "else", [], [out], [own]
        ),
    }
    inputs = [value("x", TensorProto.FLOAT, ["batch", 3]), value("c", TensorProto.BOOL, [])]
    return with_nodes([helper.make_node("If", ["c"], ["y"], **branches)], inputs=inputs)


def of_a_loop():
    """y = x + n * (x * w), the number of turns fed."""
    from onnx import TensorProto, helper

    value, node = helper.make_tensor_value_info, helper.make_node
    state = [value(f"state_{end}", TensorProto.FLOAT, ["batch", 3]) for end in ("in", "out")]
    go = [value(f"go_{end}", TensorProto.BOOL, []) for end in ("in", "out")]
    body = [
        node("Mul", ["x", "w"], ["m"]),
        node("Add", ["state_in", "m"], ["state_out"]),
        node("Identity", ["go_in"], ["go_out"]),
    ]
    turn = value("turn", TensorProto.INT64, [])
    body = helper.make_graph(body, "body", [turn, go[0], state[0]], [go[1], state[1]])
    inputs = [value("x", TensorProto.FLOAT, ["batch", 3]), value("n", TensorProto.INT64, [])]
    return with_nodes([node("Loop", ["n", "", "x"], ["y"], body=body)], inputs=inputs)


@pytest.mark.parametrize(
    "model, feeds",
    [
        (of_functions, {}),
        (of_overloads, {}),
        (of_a_branch, {"c": np.array(True)}),
        (of_a_branch, {"c": np.array(False)}),
        (of_a_loop, {"n": np.array(4)}),
        (of_a_loop, {"n": np.array(0)}),
    ],
    ids=["functions", "overloads", "then", "else", "loop", "no_turn"],
)
def test_functions_branches_and_loops_run_as_in_onnxruntime(directory, rng, model, feeds):
    model = model()
    onnx.checker.check_model(model)
    feeds = {"x": rng.normal(size=(5, 3)).astype(np.float32), **feeds}
    before = model.SerializeToString()
    (expected,) = by_onnxruntime(before, feeds)
    saved = io.save_inference_model(directory, list(feeds), ["y"], model)
    assert model.SerializeToString() == before, "the program is as it was"
    assert len(onnx.load(saved.path).functions) == 0
    close(by_onnxruntime(saved.path, feeds), [expected])
    program, _, _ = io.load_inference_model(directory)
    close(program.run(feeds), [expected])
    # New weights arrive inside of them too.
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.full(3, 7, np.float32), "w")
    )
    io.save_inference_model(directory, list(feeds), ["y"], model)
    program.reload()
    close(program.run(feeds), by_onnxruntime(model.SerializeToString(), feeds))


def test_a_weight_without_elements_and_one_without_dimensions(directory):
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("Concat", ["x", "none"], ["c"], axis=0),
        helper.make_node("Mul", ["c", "one"], ["y"]),
    ]
    model = with_nodes(nodes)
    weights = {"none": np.zeros((0, 3), np.float32), "one": np.float32(4)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()
    )
    feeds = {"x": np.ones((2, 3), np.float32)}
    saved = io.save_inference_model(directory, ["x"], ["y"], model)
    expected = [np.full((2, 3), 4, np.float32)]
    close(by_onnxruntime(saved.path, feeds), expected)
    program, _, _ = io.load_inference_model(directory)
    close(program.run(feeds), expected)


def joined(kind, weight):
    """y = x, then the weight."""
    from onnx import helper, numpy_helper

    value = helper.make_tensor_value_info
    model = with_nodes(
        [helper.make_node("Concat", ["x", "known"], ["y"], axis=0)],
        inputs=[value("x", kind, ["n"])],
        outputs=[value("y", kind, ["m"])],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([weight]), "known"))
    return model


@pytest.mark.parametrize(
    "dtype, fits, beyond",
    [
        (np.int64, 2**31 - 1, 2**31),
        (np.int64, -(2**31), -(2**53) - 1),
        (np.uint64, 2**31 - 1, 2**63),
        (np.uint32, 2**31 - 1, 2**31),
        (np.float64, 3e38, -4e38),
        (np.float64, np.nan, np.inf),  # which it takes for the largest float there is
    ],
)
def test_numbers_that_openvino_would_take_for_others_are_refused(directory, dtype, fits, beyond):
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    io.save_inference_model(directory, ["x"], ["y"], joined(kind, dtype(1)))
    program, _, _ = io.load_inference_model(directory)
    (found,) = program.run({"x": np.array([fits], dtype)})
    np.testing.assert_allclose(found, np.array([fits, 1], dtype), rtol=1e-6)
    with pytest.raises(cairn.Invalid, match='feed "x" has .*32 bits'):
        program.run({"x": np.array([1, beyond], dtype)})


@pytest.mark.parametrize(
    "weight, text",
    [
        (np.int64(2**40), "1099511627776"),
        (np.uint64(2**63), "9223372036854775808"),
        (np.uint64(2**64 - 1), "18446744073709551615"),
        (np.uint32(2**31), "2147483648"),
        (np.uint32(2**32 - 1), "4294967295"),
        (np.float64(-4e38), r"-4e\+38"),
        (np.finfo(np.float64).max, r"1.79769e\+308"),
        (np.float64(-np.inf), "-inf"),
    ],
)
def test_a_weight_that_openvino_would_take_for_another_is_refused(directory, weight, text):
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    io.save_inference_model(directory, ["x"], ["y"], joined(kind, weight))
    with pytest.raises(cairn.Error, match=f"the number {text} in known.*32 bits"):
        io.load_inference_model(directory)


@pytest.mark.parametrize(
    "weight", [np.float64(3e38), np.float64(np.nan), np.uint32(2**31 - 1), np.uint64(2**31 - 1)]
)
def test_a_weight_that_fits_is_taken(directory, weight):
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    io.save_inference_model(directory, ["x"], ["y"], joined(kind, weight))
    program, _, _ = io.load_inference_model(directory)
    (found,) = program.run({"x": np.array([1], weight.dtype)})
    np.testing.assert_allclose(found, np.array([1, weight], weight.dtype), rtol=1e-6)


@pytest.mark.parametrize(
    "values", [np.array([-2.5, 3e38]), np.array([1, 2**31 - 1], np.uint64), np.array([7], np.uint32)]
)
def test_a_clip_without_bounds_has_none_that_do_not_fit(directory, values):
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    value = helper.make_tensor_value_info
    model = with_nodes(
        [helper.make_node("Clip", ["x"], ["y"])],
        inputs=[value("x", kind, ["n"])],
        outputs=[value("y", kind, ["n"])],
    )
    io.save_inference_model(directory, ["x"], ["y"], model)
    program, _, _ = io.load_inference_model(directory)
    (found,) = program.run({"x": values})
    np.testing.assert_allclose(found, values, rtol=1e-6)


def test_a_function_that_calls_itself_is_refused(directory):
    from onnx import helper

    calls = [helper.make_node("Again", ["a"], ["b"], domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    again = helper.make_function("own", "Again", ["a"], ["b"], calls, opsets)
    model = with_nodes([helper.make_node("Again", ["x"], ["y"], domain="own")], functions=[again])
    with pytest.raises(cairn.Invalid, match='"Again" calls itself'):
        io.save_inference_model(directory, ["x"], ["y"], model)


@pytest.mark.parametrize("innermost", ["computes", "empty"])
def test_functions_that_multiply_without_end_are_refused(directory, innermost):
    from onnx import helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(40):
        inner = f"F{i + 1}" if i < 39 else "Neg"
        domain = "own" if i < 39 else ""
        calls = [
            helper.make_node(inner, ["a"], ["m"], domain=domain),
            helper.make_node(inner, ["m"], ["b"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"F{i}", ["a"], ["b"], calls, opsets))
    if innermost == "empty":
        del functions[-1].node[:]
    model = with_nodes([helper.make_node("F0", ["x"], ["y"], domain="own")], functions=functions)
    with pytest.raises(cairn.Invalid, match="over 262144 (nodes|times)"):
        io.save_inference_model(directory, ["x"], ["y"], model)


def test_what_openvino_computes_wrongly_is_not_run(directory, rng):
    """state + x * w inside of a Scan: OpenVINO 2026.4 gives other numbers than onnxruntime."""
    from onnx import TensorProto, helper

    value, node = helper.make_tensor_value_info, helper.make_node
    row = lambda name: value(name, TensorProto.FLOAT, [3])  # noqa: E731
    body = helper.make_graph(
        [
            node("Mul", ["each", "w"], ["m"]),
            node("Add", ["state", "m"], ["next"]),
            node("Identity", ["next"], ["out"]),
        ],
        "body",
        [row("state"), row("each")],
        [row("next"), row("out")],
    )
    model = with_nodes([node("Scan", ["w", "x"], ["last", "y"], num_scan_inputs=1, body=body)])
    saved = io.save_inference_model(directory, ["x"], ["y"], model)
    x = rng.normal(size=(4, 3)).astype(np.float32)
    close(by_onnxruntime(saved.path, {"x": x}), [2 + np.cumsum(2 * x, axis=0)])
    with pytest.raises(cairn.Error, match="Scan, which OpenVINO computes wrongly"):
        io.load_inference_model(directory)


def test_training_operators_inside_of_a_branch_are_refused_by_name(directory):
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    branches = {}
    for name in ("then", "else"):
        inner = helper.make_node(
            "Momentum", ["x"], [name], name="update", domain="ai.onnx.preview.training"
        )
        out = value(name, TensorProto.FLOAT, ["batch", 3])
        branches[name + "_branch"] = helper.make_graph([inner], name, [], [out])
    model = with_nodes(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        inputs=[value("x", TensorProto.FLOAT, ["batch", 3]), value("c", TensorProto.BOOL, [])],
    )
    with pytest.raises(cairn.Invalid, match='Momentum .node "update"., which exists only'):
        io.save_inference_model(directory, ["x", "c"], ["y"], model)


def test_shapes_that_the_model_does_not_declare_are_inferred_or_asked_for(directory, rng):
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    silent = value("y", TensorProto.FLOAT, None)
    saved = io.save_inference_model(directory, ["x"], ["y"], with_nodes(nodes, outputs=[silent]))
    assert saved.targets == [io.Signature("y", "float32", (None, 3))]
    program, _, _ = io.load_inference_model(directory)
    x = rng.normal(size=(2, 3)).astype(np.float32)
    close(program.run({"x": x}), [x * 2])
    unknown = [value("x", TensorProto.FLOAT, None)]
    with pytest.raises(cairn.Invalid, match='how many dimensions "x" has; declare its shape'):
        io.save_inference_model(directory + "2", ["x"], ["y"], with_nodes(nodes, inputs=unknown))


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
