"""What a load must refuse, as a table, for scopes and for torch modules: whatever does not fit, no
variable in memory may change."""

import os
import pickle

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import save_file

import cairn
from cairn import io


def scope_of(shapes=None, left_out=(), renamed=None, extra=None, dtypes=None, prefix="fc/"):
    """The program of the save, or one that differs from it."""
    plan = {
        prefix + "w": ("parameter", (3, 4), np.float32),
        prefix + "b": ("parameter", (4,), np.float32),
        "out.w": ("parameter", (4, 2), np.float32),
        prefix + "w_velocity": ("persistable", (3, 4), np.float32),
        "step": ("persistable", (), np.int64),
    }
    plan.update(extra or {})
    scope = cairn.Scope()
    for name, (role, shape, dtype) in plan.items():
        if name in left_out:
            continue
        shape = (shapes or {}).get(name, shape)
        dtype = (dtypes or {}).get(name, dtype)
        getattr(scope, role)((renamed or {}).get(name, name), np.full(shape, 200, dtype))
    return scope


def largest_file(saved):
    folder = os.path.join(saved.info.path, "__model__")
    files = [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".safetensors")]
    return max(files, key=os.path.getsize)


def cut(saved):
    file = largest_file(saved)
    os.chmod(file, 0o644)
    os.truncate(file, os.path.getsize(file) - 40)


def flip(saved, name=None, at=-1):
    file = os.path.join(saved.info.path, name) if name else largest_file(saved)
    os.chmod(file, 0o644)
    with open(file, "r+b") as stream:
        stream.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = stream.read(1)
        stream.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        stream.write(bytes([byte[0] ^ 0x10]))


# case: (the program that loads, damage, exception, what it says)
CASES = {
    "missing": (
        lambda: scope_of(extra={"extra.w": ("parameter", (4,), np.float32)}),
        None,
        cairn.Mismatch,
        "extra.w",
    ),
    "extra": (lambda: scope_of(left_out=["fc/w_velocity"]), None, cairn.Mismatch, "fc/w_velocity"),
    "renamed_with_equal_shape": (
        lambda: scope_of(renamed={"fc/b": "fc/bias"}),
        None,
        cairn.Mismatch,
        "fc/bias",
    ),
    "transposed_shape": (
        lambda: scope_of(shapes={"fc/w": (4, 3)}),
        None,
        cairn.Mismatch,
        r"fc/w: stored F32 \[3,4\], wanted F32 \[4,3\]",
    ),
    "wider_layer": (
        lambda: scope_of(shapes={"out.w": (4, 3)}),
        None,
        cairn.Mismatch,
        r"out.w: stored F32 \[4,2\], wanted F32 \[4,3\]",
    ),
    "other_dtype": (
        lambda: scope_of(dtypes={"fc/w": np.int32}),
        None,
        cairn.Mismatch,
        r"fc/w: stored F32 \[3,4\], wanted I32 \[3,4\]",
    ),
    "file_cut_by_40_bytes": (scope_of, cut, cairn.Corruption, r"\.safetensors"),
    "flipped_byte": (scope_of, flip, cairn.Corruption, r"\.safetensors"),
    "flipped_byte_in_the_manifest": (
        scope_of,
        lambda saved: flip(saved, "manifest.json", 100),
        cairn.Corruption,
        "manifest",
    ),
    "file_gone": (
        scope_of,
        lambda saved: os.remove(largest_file(saved)),
        cairn.Corruption,
        r"\.safetensors",
    ),
    "weights_of_another_network_with_the_same_shapes": (
        lambda: scope_of(prefix="conv/"),
        None,
        cairn.Mismatch,
        "conv/w",
    ),
    "another_optimizers_slots": (
        lambda: scope_of(renamed={"fc/w_velocity": "fc/w_moment1"}),
        None,
        cairn.Mismatch,
        "fc/w_moment1",
    ),
}


def memory(scope):
    return {v.name: scope[v.name].tobytes() for v in scope.vars()}


@pytest.mark.parametrize("filename", [None, "one_file"])
@pytest.mark.parametrize("case", CASES)
def test_a_scope_is_left_as_it_was(directory, case, filename):
    build, damage, exception, says = CASES[case]
    saved = io.save_persistables(directory, scope_of(), filename=filename)
    if damage:
        damage(saved)
    scope = build()
    for each in scope.vars():
        scope[each.name][...] = 7
    before = memory(scope)
    with pytest.raises(exception, match=says) as caught:
        io.load_persistables(directory, scope)
    assert memory(scope) == before
    if exception is cairn.Mismatch:
        error = caught.value
        assert error.missing or error.unexpected or error.mismatched
    scope.initialize(1)  # nothing counts as loaded


def network(width=4, bias=True, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, width, bias=bias), torch.nn.Linear(width, 2)).to(
        dtype
    )


class Other(torch.nn.Module):
    """The same shapes under other names."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)


def transposed():
    model = network()
    model[0].weight = torch.nn.Parameter(torch.zeros(3, 4))
    return model


MODULES = {
    "missing": (lambda: torch.nn.Sequential(*network(), torch.nn.Linear(2, 1)), None, "2.weight"),
    "extra": (lambda: network(bias=False), None, "0.bias"),
    "transposed_shape": (transposed, None, r"0.weight: stored F32 \[4,3\], wanted F32 \[3,4\]"),
    "wider_layer": (lambda: network(width=5), None, "0.weight"),
    "other_dtype": (lambda: network(dtype=torch.float64), None, r"wanted F64"),
    "file_cut_by_40_bytes": (network, cut, r"\.safetensors"),
    "flipped_byte": (network, flip, r"\.safetensors"),
    "weights_of_another_network_with_the_same_shapes": (Other, None, "first.weight"),
}


def of_module(model, optimizer):
    return (
        {name: t.clone() for name, t in model.state_dict().items()},
        {
            (n, slot): torch.as_tensor(value).clone()
            for n, slots in optimizer.state_dict()["state"].items()
            for slot, value in slots.items()
        },
    )


def same(a, b):
    return all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a, b)
    )


def stepped(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh_optimizer", "used_optimizer"])
@pytest.mark.parametrize("case", [*MODULES, "another_optimizers_slots"])
def test_a_module_and_its_optimizer_are_left_as_they_were(directory, case, fresh):
    saved_model = network()
    saved_by = torch.optim.SGD(saved_model.parameters(), 0.1, momentum=0.9)
    stepped(saved_model, saved_by)
    saved = io.save_persistables(directory, saved_model, optimizer=saved_by)
    build, damage, says = MODULES.get(case, (network, None, "exp_avg"))
    if damage:
        damage(saved)
    model = build()
    if case == "another_optimizers_slots":
        optimizer = torch.optim.Adam(model.parameters(), 0.5)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    if not fresh:
        stepped(model, optimizer)
    before = of_module(model, optimizer)
    with pytest.raises((cairn.Mismatch, cairn.Corruption), match=says):
        io.load_persistables(directory, model, optimizer=optimizer)
    assert same(of_module(model, optimizer), before)
    assert optimizer.param_groups[0]["lr"] == 0.5


def write_torch(path, state):
    torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)


def write_pdparams(path, state):
    with open(path, "wb") as stream:
        pickle.dump(state, stream, protocol=4)


def write_onnx(path, state):
    model = onnx.ModelProto(ir_version=8)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in state.items()
    )
    onnx.save(model, path)


WRITERS = {
    "m.pt": write_torch,
    "m.safetensors": lambda path, state: save_file(state, path),
    "m.pdparams": write_pdparams,
    "m.onnx": write_onnx,
}
FOREIGN = ["missing", "extra", "renamed_with_equal_shape", "transposed_shape", "wider_layer"]
FOREIGN += ["other_dtype", "file_cut_by_40_bytes", "weights_of_another_network_with_the_same_shapes"]


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("name", WRITERS)
def test_files_of_others_leave_a_scope_as_it_was(tmp_path, name, case):
    stored = scope_of()
    path = tmp_path / name
    WRITERS[name](path, {v.name: stored[v.name].copy() for v in stored.vars()})
    io.load_persistables(path, scope_of())  # as it is, it fits
    if case == "file_cut_by_40_bytes":
        os.truncate(path, os.path.getsize(path) - 40)
    build, _, exception, _ = CASES[case]
    scope = build()
    for each in scope.vars():
        scope[each.name][...] = 7
    before = memory(scope)
    with pytest.raises(exception):
        io.load_persistables(path, scope)
    assert memory(scope) == before
    scope.initialize(1)  # nothing counts as loaded
