"""cairn.io: saving and loading variables by role."""

import os
import shutil
import threading

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file, save_file

import cairn
from cairn import _program, io

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "compat", "foreign")


def program(prefix="fc/"):
    scope = cairn.Scope()
    scope.parameter(prefix + "w", np.arange(12, dtype=np.float32).reshape(3, 4), 0.0)
    scope.parameter(prefix + "b", np.arange(4, dtype=np.float32))
    scope.persistable(prefix + "w_velocity", np.ones((3, 4), np.float32))
    scope.persistable("step", np.int64(3))
    scope.temporary("hidden", np.zeros(2))
    return scope


def values(scope):
    return {v.name: scope[v.name].copy() for v in scope.vars("persistable")}


def same(a, b):
    return a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)


@pytest.mark.parametrize("filename", [None, "all"])
def test_persistables_come_back(directory, filename):
    scope = program()
    want = values(scope)
    saved = io.save_persistables(directory, scope, filename=filename)
    assert saved.names == ["fc/b", "fc/w", "fc/w_velocity", "step"] and saved.bytes == 120
    for name in saved.names:
        scope[name][...] = 0
    loaded = io.load_persistables(directory, scope)
    assert sorted(loaded.names) == saved.names and loaded.bytes == 120 and loaded.skipped == []
    assert same(values(scope), want)
    files = [f for f in os.listdir(saved.info.path + "/__model__") if f.endswith(".safetensors")]
    assert len(files) == (4 if filename is None else 1)
    found = {}
    for file in files:
        found.update(load_file(f"{saved.info.path}/__model__/{file}"))
    assert same(found, want), "any tool opens the files"
    assert cairn.verify(directory).ok


def test_params_out_of_persistables(directory):
    io.save_persistables(directory, program())
    scope = program()
    scope["fc/w"][:] = 0
    scope["step"][...] = 9
    loaded = io.load_params(directory, scope)
    assert scope["fc/w"][2, 3] == 11 and scope["step"] == 9
    assert ("step", "not a parameter") in loaded.skipped


def test_a_selection_by_names_and_by_predicate(directory):
    assert io.save_vars(directory, program(), vars=["step"]).names == ["step"]
    saved = io.save_vars(directory, program(), predicate=lambda v: v.name.startswith("fc/"))
    assert saved.names == ["fc/b", "fc/w", "fc/w_velocity"]
    assert io.load_vars(directory, program(), vars=["fc/b"]).names == ["fc/b"]
    with pytest.raises(cairn.Invalid, match="nope"):
        io.save_vars(directory, program(), vars=["nope"])


def test_an_empty_selection_is_an_error(directory):
    with pytest.raises(cairn.Invalid, match="no variable was selected"):
        io.save_params(directory, cairn.Scope())
    with pytest.raises(cairn.Invalid, match="no variable was selected"):
        io.save_vars(directory, program(), predicate=lambda v: False)
    assert not os.path.exists(directory)


def test_a_mismatch_lists_everything_and_changes_nothing(directory):
    io.save_persistables(directory, program())
    scope = cairn.Scope()
    scope.parameter("fc/w", np.ones((4, 3), np.float32))
    scope.parameter("fc/bias", np.ones(4, np.float32))
    scope.persistable("fc/w_velocity", np.ones((3, 4), np.float32))
    before = values(scope)
    with pytest.raises(cairn.Mismatch) as caught:
        io.load_persistables(directory, scope)
    assert caught.value.missing == ["fc/bias"]
    assert caught.value.unexpected == ["fc/b", "step"]
    assert caught.value.mismatched == ["fc/w: stored F32 [3,4], wanted F32 [4,3]"]
    assert same(values(scope), before)
    loaded = io.load_persistables(directory, scope, strict=False)
    assert (
        loaded.names == ["fc/w_velocity"] and ("fc/bias", "not in the checkpoint") in loaded.skipped
    )
    loaded = io.load_params(directory, scope, rename={"fc/b": "fc/bias"}, skip=["fc/w"])
    assert loaded.names == ["fc/bias"] and scope["fc/bias"].tolist() == [0, 1, 2, 3]


def test_a_save_that_is_replaced_meanwhile_is_loaded_as_it_is_then(directory):
    scope = program()
    io.save_persistables(directory, scope)
    stop = threading.Event()

    def save():
        while not stop.is_set():
            io.save_persistables(directory, scope)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(60):
            io.load_persistables(directory, program())
    finally:
        stop.set()
        writer.join()


def test_an_initializer_after_a_load_is_refused(directory):
    scope = program()
    scope.initialize(1)
    io.save_params(directory, scope)
    io.load_params(directory, scope)
    with pytest.raises(cairn.Error, match="overwrite values that were loaded: fc/w"):
        scope.initialize(1)
    scope.initialize(1, overwrite=True)


def test_a_frozen_scope_is_not_loaded_into(directory):
    scope = program()
    io.save_params(directory, scope)
    with pytest.raises(cairn.Error, match="frozen"):
        io.load_params(directory, scope.clone(for_test=True))


def test_a_program_of_another_kind_is_refused(directory):
    with pytest.raises(cairn.Invalid, match="a dict is none"):
        io.save_params(directory, {"w": np.zeros(1)})
    with pytest.raises(cairn.Invalid, match="slots itself"):
        io.save_persistables(directory, program(), optimizer=object())


# --- torch modules


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )


def train(model, optimizer, steps=2):
    for i in range(steps):
        optimizer.zero_grad()
        model(torch.arange(6.0).reshape(2, 3) + i).square().mean().backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "tensor_lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fresh_module_and_optimizer_go_on_bit_for_bit(directory, kind):
    make = OPTIMIZERS[kind]
    model = network()
    optimizer = make(model.parameters())
    train(model, optimizer)
    saved = io.save_persistables(directory, model, optimizer=optimizer)
    assert "1.running_mean" in saved.names and "optimizer/group_0/lr" in saved.names
    train(model, optimizer)

    again = network(seed=1)
    other = make(again.parameters())
    io.load_persistables(directory, again, optimizer=other)
    train(again, other)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    want, found = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert want.keys() == found.keys()
    for number, slots in want.items():
        for slot, value in slots.items():
            assert value is None or torch.equal(
                torch.as_tensor(value), torch.as_tensor(found[number][slot])
            )


def test_roles_of_a_module():
    model = network()
    roles = {v.name: v.role for v in io.list_vars(model, torch.optim.SGD(model.parameters(), 0.1))}
    assert roles["0.weight"] == "parameter" and roles["1.num_batches_tracked"] == "persistable"
    assert roles["optimizer/group_0/lr"] == "persistable"


def test_params_of_a_module_out_of_persistables(directory):
    model = network()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer)
    io.save_persistables(directory, model, optimizer=optimizer, filename="all")
    again = network(seed=1)
    io.load_params(directory, again)
    assert torch.equal(model[0].weight, again[0].weight)
    assert again[0].weight.requires_grad


def test_a_save_before_the_first_step_has_no_slots_and_loads(directory):
    model = network()
    io.save_persistables(directory, model, optimizer=OPTIMIZERS["adam"](model.parameters()))
    again = network(seed=1)
    optimizer = OPTIMIZERS["adam"](again.parameters())
    io.load_persistables(directory, again, optimizer=optimizer)
    assert torch.equal(model[0].weight, again[0].weight) and not optimizer.state


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_parameters_that_never_had_a_gradient_have_no_slots_and_load(directory, kind):
    def build():
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "spare": torch.nn.Linear(3, 2)})
        return model, OPTIMIZERS[kind](model.parameters())

    def step(model, optimizer):
        optimizer.zero_grad()
        model["used"](torch.ones(4, 3)).pow(2).sum().backward()
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer)
    io.save_persistables(directory, model, optimizer=optimizer)
    again, its_optimizer = build()
    io.load_persistables(directory, again, optimizer=its_optimizer)
    step(model, optimizer)
    step(again, its_optimizer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert len(its_optimizer.state) == len(optimizer.state)


class Tied(torch.nn.Module):
    """One weight and one buffer in two places each; which is the first is a matter of the order."""

    def __init__(self, order):
        super().__init__()
        parts = {"embedding": torch.nn.Embedding(3, 3), "head": torch.nn.Linear(3, 3)}
        for name in order:
            self.add_module(name, parts[name])
        parts["head"].weight = parts["embedding"].weight
        for name in order:
            parts[name].register_buffer("count", torch.zeros(2) if name == order[0] else None)
            parts[name].count = parts[order[0]].count

    def forward(self, x):
        self.head.count += 1
        return self.head(x)


FORWARDS, BACKWARDS = ("embedding", "head"), ("head", "embedding")


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("used", [False, True], ids=["fresh_optimizer", "used_optimizer"])
@pytest.mark.parametrize("orders", [(FORWARDS, BACKWARDS), (BACKWARDS, FORWARDS)])
def test_tied_weights_are_loaded_in_whatever_order_the_module_was_built(
    directory, orders, used, steps
):
    model = Tied(orders[0])
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer, steps)
    io.save_persistables(directory, model, optimizer=optimizer)

    again = Tied(orders[1])
    other = OPTIMIZERS["adam"](again.parameters())
    if used and steps:
        train(again, other, 1)
    io.load_persistables(directory, again, optimizer=other)
    assert len(other.state) == len(optimizer.state)
    assert again.head.weight is again.embedding.weight
    for _ in range(2):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name
        train(model, optimizer)
        train(again, other)
    alone = Tied(orders[1])
    io.load_params(directory, alone)


def test_a_missing_tied_weight_is_missing_under_its_first_name(directory):
    io.save_params(directory, torch.nn.Linear(3, 3))
    model = Tied(FORWARDS)
    with pytest.raises(cairn.Mismatch) as caught:
        io.load_params(directory, model)
    assert sorted(caught.value.missing) == ["embedding.weight", "head.bias"]


def test_another_optimizers_slots_are_refused_and_can_be_dropped(directory):
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train(model, optimizer)
    io.save_persistables(directory, model, optimizer=optimizer)
    again = network(seed=1)
    adam = OPTIMIZERS["adam"](again.parameters())
    before = again[0].weight.clone()
    with pytest.raises(cairn.Mismatch) as caught:
        io.load_persistables(directory, again, optimizer=adam)
    assert "optimizer/0.weight/exp_avg" in caught.value.missing
    assert "optimizer/0.weight/momentum_buffer" in caught.value.unexpected
    assert torch.equal(again[0].weight, before) and not adam.state
    # The explicit choice: everything but the optimizer.
    io.load_vars(directory, again, predicate=lambda v: not v.name.startswith("optimizer/"))
    assert torch.equal(model[0].weight, again[0].weight)


def test_a_learning_rate_that_is_a_number_is_loaded(directory):
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = 0.025
    io.save_persistables(directory, model, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 1.0
    io.load_persistables(directory, model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.025


def rates(lr, **options):
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr, **options)


def test_a_learning_rate_of_numpy_is_saved_as_a_float(directory):
    model, optimizer = rates(0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.cos(epoch / 10))
    optimizer.param_groups[0]["lr"] = np.float32(0.25)
    io.save_persistables(directory, model, optimizer=optimizer)
    model, optimizer = rates(0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    io.load_persistables(directory, model, optimizer=optimizer)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"]) == (0.25, 0.1) and type(group["lr"]) is float


def test_a_learning_rate_that_began_as_an_int_goes_on_as_a_float(directory):
    model, optimizer = rates(1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    schedule.step()
    io.save_persistables(directory, model, optimizer=optimizer)
    model, optimizer = rates(1)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    io.load_persistables(directory, model, optimizer=optimizer)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["initial_lr"]) == (0.5, 1.0)


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_what_a_scheduler_notes_is_loaded_before_and_after_it_is_made(directory, scheduler_first):
    def made():
        model = network()
        return model, torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)

    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scheduler.step()
    io.save_persistables(directory, model, optimizer=optimizer)
    fresh, again = made()
    if scheduler_first:
        torch.optim.lr_scheduler.StepLR(again, 1, 0.1)
    io.load_persistables(directory, fresh, optimizer=again)
    assert again.param_groups[0]["lr"] == pytest.approx(0.05)
    assert again.param_groups[0]["initial_lr"] == 0.5


def groups_of(model, order, lr=0.5):
    rates = {0: 0.1, 2: 0.2}
    groups = [{"params": list(model[i].parameters()), "lr": rates[i]} for i in order]
    return torch.optim.Adam(groups, lr=lr)


def test_learning_rates_of_groups_in_another_order_are_refused(directory):
    model = network()
    optimizer = groups_of(model, [0, 2])
    train(model, optimizer)
    io.save_persistables(directory, model, optimizer=optimizer)

    again = network(seed=1)
    same = groups_of(again, [0, 2])
    for group in same.param_groups:
        group["lr"] = 7.0
    io.load_persistables(directory, again, optimizer=same)
    assert [group["lr"] for group in same.param_groups] == [0.1, 0.2]

    again = network(seed=1)
    other = groups_of(again, [2, 0])
    before = again[0].weight.clone()
    with pytest.raises(cairn.Mismatch, match="learning rate of 0.bias, 0.weight") as caught:
        io.load_persistables(directory, again, optimizer=other)
    assert len(caught.value.mismatched) == 2
    assert torch.equal(again[0].weight, before) and not other.state
    swap = {"optimizer/group_0/lr": "optimizer/group_1/lr", "optimizer/group_1/lr": "optimizer/group_0/lr"}
    io.load_persistables(directory, again, optimizer=other, rename=swap)
    assert [group["lr"] for group in other.param_groups] == [0.2, 0.1]
    assert torch.equal(again[0].weight, model[0].weight)


@pytest.mark.parametrize("stored", [np.float64(0.25), np.int64(3)])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_save_that_does_not_note_whose_learning_rates_it_has_is_loaded(directory, steps, stored):
    model = network()
    optimizer = groups_of(model, [0, 2])
    train(model, optimizer, steps)
    scope = cairn.Scope()
    for entry in _program.TorchProgram(model, optimizer).entries(loading=False):
        value = stored if entry.name.endswith("/lr") else entry.value
        declare = scope.parameter if entry.variable.role == "parameter" else scope.persistable
        declare(entry.name, np.asarray(value.detach() if isinstance(value, torch.Tensor) else value))
    io.save_persistables(directory, scope)
    again = network(seed=1)
    other = groups_of(again, [0, 2])
    io.load_persistables(directory, again, optimizer=other)
    assert [group["lr"] for group in other.param_groups] == [float(stored)] * 2
    assert len(other.state) == len(optimizer.state)


def test_an_optimizer_whose_state_is_no_tensors_says_who_saves_it(directory):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.arange(6.0).reshape(2, 3)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(cairn.Invalid, match="a list cannot be saved here.*CheckpointManager"):
        io.save_persistables(directory, model, optimizer=optimizer)


def test_a_lazy_module_says_what_to_do(directory):
    with pytest.raises(cairn.Invalid, match="'weight' has no shape yet.*call the module once"):
        io.save_params(directory, torch.nn.LazyLinear(2))


def test_a_save_that_has_the_learning_rate_as_an_int_is_loaded(directory):
    """As saves were before learning rates were always floats."""
    scope = cairn.Scope()
    scope.parameter("weight", np.ones((1, 2), np.float32))
    scope.parameter("bias", np.ones(1, np.float32))
    scope.persistable("optimizer/group_0/lr", np.array(3))
    io.save_persistables(directory, scope)
    model, optimizer = rates(0.1)
    io.load_persistables(directory, model, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] == 3.0 and model.weight.min() == 1


MEANINGS = {
    "days into seconds": (np.array([18262], "datetime64[D]"), np.zeros(1, "datetime64[s]")),
    "a span of time into a time": (np.array([5], "m8[s]"), np.zeros(1, "M8[s]")),
    "times into integers": (np.array([18262], "datetime64[D]"), np.zeros(1, np.int64)),
    "integers into times": (np.array([18262]), np.zeros(1, "datetime64[D]")),
    "complex numbers into pairs": (np.array([1 + 2j]), np.zeros((1, 2))),
    "pairs into complex numbers": (np.array([[1.0, 2.0]]), np.zeros(1, np.complex128)),
}


def saved_by(writer, path, value):
    if writer == "io":
        scope = cairn.Scope()
        scope.persistable("x", value)
        scope.persistable("w", np.ones(2))
        io.save_persistables(path, scope)
    elif writer == "manager":
        cairn.save(path, {"x": value, "w": np.ones(2)})


@pytest.mark.parametrize("writer", ["io", "manager"])
@pytest.mark.parametrize("case", MEANINGS)
def test_the_same_bytes_with_another_meaning_are_refused(directory, writer, case):
    stored, wanted = MEANINGS[case]
    saved_by(writer, directory, stored)
    scope = cairn.Scope()
    x, w = scope.persistable("x", wanted), scope.persistable("w", np.zeros(2))
    with pytest.raises(cairn.Mismatch, match="x: stored .*, wanted .*Nothing was changed") as error:
        io.load_vars(directory, scope)
    assert len(error.value.mismatched) == 1 and (x == wanted).all() and not w.any()
    loaded = io.load_vars(directory, scope, strict=False)
    assert loaded.names == ["w"] and [name for name, why in loaded.skipped] == ["x"]
    assert "wanted" in loaded.skipped[0][1] and (x == wanted).all() and w.all()


@pytest.mark.parametrize("writer", ["io", "manager"])
@pytest.mark.parametrize("case", MEANINGS)
def test_what_has_the_same_meaning_is_loaded_also_under_another_name(directory, writer, case):
    stored, _ = MEANINGS[case]
    saved_by(writer, directory, stored)
    scope = cairn.Scope()
    y = scope.persistable("y", np.zeros(stored.shape, stored.dtype))
    scope.persistable("w", np.zeros(2))
    io.load_vars(directory, scope, rename={"x": "y"})
    assert (y == stored).all()


def test_a_file_of_pairs_is_not_loaded_into_complex_numbers(tmp_path):
    save_file({"x": np.ones((3, 2))}, tmp_path / "a.safetensors")
    scope = cairn.Scope()
    scope.parameter("x", np.zeros(3, np.complex128))
    with pytest.raises(cairn.Mismatch, match="stored plain numbers, wanted complex128"):
        io.load_vars(tmp_path / "a.safetensors", scope)


def test_tensors_that_are_not_contiguous_are_filled(directory):
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    io.save_params(directory, module)
    with torch.no_grad():
        module.w.zero_()
    io.load_params(directory, module)
    assert module.w.tolist() == [[0, 3], [1, 4], [2, 5]]


# --- what others wrote


def expected(name):
    return load_file(os.path.join(GOLDEN, name))


def test_readers_of_foreign_files():
    names = (
        open(os.path.join(GOLDEN, "paddle_3.3/combined/names.txt"), encoding="utf-8").read().split()
    )
    static = expected("paddle_3.3/expected_static.safetensors")
    assert same(io.read(os.path.join(GOLDEN, "paddle_3.3/vars")), static)
    assert same(io.read(os.path.join(GOLDEN, "paddle_3.3/combined/params"), names=names), static)
    params = expected("paddle_3.3/expected_pdparams.safetensors")
    assert same(io.read(os.path.join(GOLDEN, "paddle_3.3/model.pdparams")), params)
    slots = expected("paddle_3.3/expected_pdopt.safetensors")
    assert same(io.read(os.path.join(GOLDEN, "paddle_3.3/model.pdopt")), slots)
    onnx = expected("onnx_1/expected.safetensors")
    assert same(io.read(os.path.join(GOLDEN, "onnx_1/external.onnx")), onnx)


def test_torch_files_of_this_torch(tmp_path):
    state = {"m": network().state_dict(), "z": torch.view_as_complex(torch.ones(2, 2)), "n": 3}
    torch.save(state, tmp_path / "a.pt")
    found = io.read(tmp_path / "a.pt")
    assert found["n"] == 3 and found["z"].dtype == np.complex64 and found["z"][0] == 1 + 1j
    for name, tensor in state["m"].items():
        assert (found["m/" + name] == tensor.numpy()).all()
    again = network(seed=1)
    io.load_params(
        tmp_path / "a.pt", again, rename={f"m/{n}": n for n, _ in again.named_parameters()}
    )
    assert torch.equal(again[0].weight, state["m"]["0.weight"])


@pytest.mark.parametrize("checksums", [True, False])
def test_a_flipped_byte_of_a_torch_file_is_found_where_torch_wrote_checksums(tmp_path, checksums):
    weight = torch.arange(1000.0)
    torch.serialization.set_crc32_options(checksums)
    try:
        torch.save({"w": weight, "b": torch.zeros(3)}, tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert (io.read(tmp_path / "m.pt")["w"] == weight.numpy()).all()
    content = bytearray((tmp_path / "m.pt").read_bytes())
    content[content.find(weight.numpy().tobytes()) + 1007] ^= 0x40
    (tmp_path / "m.pt").write_bytes(content)
    if checksums:
        with pytest.raises(cairn.Corruption, match=r'm/data/\d" does not have .* checksum'):
            io.read(tmp_path / "m.pt")
    else:
        assert (io.read(tmp_path / "m.pt")["w"] != weight.numpy()).sum() == 1


def test_a_module_is_loaded_from_paddles_parameters():
    model = network()
    stored = io.read(os.path.join(GOLDEN, "paddle_3.3/model.pdparams"))
    assert stored["0.weight"].shape == (3, 4), "Paddle keeps a layer's weights transposed"
    with pytest.raises(cairn.Mismatch, match=r"0.weight: stored F32 \[3,4\], wanted F32 \[4,3\]"):
        io.load_params(os.path.join(GOLDEN, "paddle_3.3/model.pdparams"), model)
    loaded = io.load_params(
        os.path.join(GOLDEN, "paddle_3.3/model.pdparams"), model, vars=["0.bias", "2.bias"]
    )
    assert sorted(loaded.names) == ["0.bias", "2.bias"]


def test_paddles_combined_file_in_a_directory():
    scope = cairn.Scope()
    names = (
        open(os.path.join(GOLDEN, "paddle_3.3/combined/names.txt"), encoding="utf-8").read().split()
    )
    for name, array in expected("paddle_3.3/expected_static.safetensors").items():
        scope.persistable(name, np.zeros_like(array))
    where = os.path.join(GOLDEN, "paddle_3.3/combined")
    io.load_persistables(where, scope, filename="params", names=names)
    assert same(values(scope), expected("paddle_3.3/expected_static.safetensors"))


def test_an_expanded_tensor_of_torch_says_what_to_do(tmp_path):
    torch.save({"w": torch.ones(1).expand(5)}, tmp_path / "a.pt")
    with pytest.raises(cairn.Error, match="save a contiguous copy"):
        io.read(tmp_path / "a.pt")
    torch.save({"w": torch.arange(5.0)[2:3].expand(4)}, tmp_path / "b.pt")
    assert io.read(tmp_path / "b.pt")["w"].tolist() == [2, 2, 2, 2]


def test_files_of_others_are_read_by_url(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "a b.pt")
    assert io.read((tmp_path / "a b.pt").as_uri())["w"].tolist() == [1]
    with pytest.raises(cairn.Invalid, match="gs://"):
        io.read("gs://bucket/a.pt")


def test_a_pickle_with_code_is_refused(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    (tmp_path / "evil.pdparams").write_bytes(pickle.dumps({"w": Evil()}))
    with pytest.raises(cairn.Invalid, match="posix.system"):
        io.read(tmp_path / "evil.pdparams")
    torch.save({"w": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(cairn.Invalid, match="posix.system"):
        io.read(tmp_path / "evil.pt")


def test_files_that_name_the_same_bytes_over_and_over_are_refused(tmp_path):
    """A few MB would become gigabytes. What is named a few times (tied weights) is read."""
    import pickle

    square = np.asfortranarray(np.ones((1000, 1000), np.float32))  # copied: it stands column by column

    def files(times):
        names = [f"layer.{i}.w" for i in range(times)]
        (tmp_path / "a.pdparams").write_bytes(pickle.dumps(dict.fromkeys(names, square), 4))
        plain, turned = torch.ones(1000, 1000), torch.ones(1000, 1000).t()
        torch.save(dict.fromkeys(names, plain), tmp_path / "plain.pt")
        torch.save(dict.fromkeys(names, turned), tmp_path / "turned.pt")
        (tmp_path / "w.bin").write_bytes(b"\1" * 4_000_000)
        model = onnx.ModelProto(ir_version=8)
        for name in names:
            tensor = model.graph.initializer.add(name=name, dims=[1000, 1000], data_type=1)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="w.bin")
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        return [tmp_path / name for name in ("a.pdparams", "plain.pt", "turned.pt", "m.onnx")]

    for path in files(3):
        assert len(io.read(path)) == 3
    for path in files(60):
        with pytest.raises(cairn.Corruption, match="over and over"):
            io.read(path)


def test_names_that_would_take_more_memory_than_the_file_are_refused(tmp_path):
    import pickle

    tree = {"x" * 60_000: {str(i): 1 for i in range(5000)}}  # 300 MB of names
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(tree, 4))
    with pytest.raises(cairn.Corruption, match="over and over"):
        io.read(tmp_path / "a.pdparams")


def test_a_pickle_that_nests_without_end_is_read_or_refused_but_ends_nothing(tmp_path):
    deep = 400_000
    nested = b"cbuiltins\nbytearray\nq\x00" + b"h\x00" * (deep - 1) + b"C\x04\0\0\x80?" + b"\x85R" * deep
    dtype = b"cnumpy\ndtype\n(X\x02\0\0\0f4\x89\x88tR"
    array = b"cnumpy.core.numeric\n_frombuffer\n(" + nested + dtype + b"K\x01\x85X\x01\0\0\0CtR"
    (tmp_path / "deep.pdparams").write_bytes(b"\x80\x04}X\x01\0\0\0w" + array + b"s.")
    assert io.read(tmp_path / "deep.pdparams")["w"].tolist() == [1]
    (tmp_path / "lists.pdparams").write_bytes(
        b"\x80\x04}X\x01\0\0\0w" + b"]" * deep + b"a" * (deep - 1) + b"s."
    )
    with pytest.raises(cairn.Corruption, match="deeper"):
        io.read(tmp_path / "lists.pdparams")


def test_a_name_behind_a_prefix_is_told(directory, tmp_path):
    scope = program()
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"model": scope}, blocking=True)
    torch.save({"net": {"fc/w": torch.ones(3, 4), "fc/b": torch.ones(4)}}, tmp_path / "m.pt")
    for path, prefix in ((directory, "model/"), (tmp_path / "m.pt", "net/")):
        with pytest.raises(cairn.Mismatch, match=f"{prefix}fc/b is stored.*rename"):
            io.load_params(path, scope)
        io.load_params(path, scope, rename={prefix + n: n for n in ("fc/w", "fc/b")})


def test_arrays_and_numbers_of_numpy_in_a_torch_file_are_read(tmp_path):
    state = {"w": torch.ones(2), "best": np.float64(0.5), "order": np.arange(6).reshape(2, 3).T}
    torch.save(state, tmp_path / "a.pt")
    found = io.read(tmp_path / "a.pt")
    assert found["best"] == 0.5 and found["order"].tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    "state, says",
    [(torch.ones(2), "without a name"), ({("a", 1): torch.ones(2)}, "cannot be a name")],
)
def test_what_has_no_name_is_no_damage(tmp_path, state, says):
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(cairn.Invalid, match=says):
        io.read(tmp_path / "a.pt")


def test_paddles_program_beside_its_variables_is_passed_over(tmp_path):
    folder = tmp_path / "vars"
    shutil.copytree(os.path.join(GOLDEN, "paddle_3.3/vars"), folder)
    (folder / "__model__").write_bytes(b"\x0a\x05hello")
    assert same(io.read(folder), expected("paddle_3.3/expected_static.safetensors"))


def test_plain_safetensors_are_loaded(tmp_path):
    save_file(
        {"fc/w": np.ones((3, 4), np.float32), "fc/b": np.ones(4, np.float32)},
        tmp_path / "a.safetensors",
    )
    scope = program()
    io.load_params(tmp_path / "a.safetensors", scope)
    assert scope["fc/w"].min() == 1


def test_one_name_is_a_name_and_not_its_letters(directory):
    scope = cairn.Scope()
    kept = scope.parameter("fc/w", np.ones(2))
    scope.parameter("fc/b", np.ones(2))
    io.save_params(directory, scope)
    kept[:] = 5
    assert io.load_params(directory, scope, skip="fc/w").names == ["fc/b"]
    assert kept.tolist() == [5, 5]
    assert io.load_vars(directory, scope, vars="fc/w").names == ["fc/w"]


@pytest.mark.parametrize(
    "arguments",
    [{"rename": ["w"]}, {"rename": {"w": 5}}, {"skip": [5]}, {"skip": 5}, {"vars": 5},
     {"predicate": 5}, {"filename": 5}, {"format": 3}, {"names": [1]}, {"names": "ab"}],
    ids=str,
)  # fmt: skip
def test_arguments_of_a_wrong_kind_are_invalid(directory, arguments):
    scope = cairn.Scope()
    scope.parameter("w", np.ones(2))
    io.save_params(directory, scope)
    with pytest.raises(cairn.Invalid, match=next(iter(arguments))):
        io.load_params(directory, scope, **arguments)
    for filename in (5, "", "a\0b"):
        with pytest.raises(cairn.Invalid, match="filename"):
            io.save_params(directory + "2", scope, filename=filename)
    assert not os.path.exists(directory + "2")
    with pytest.raises(cairn.Invalid, match="names"):
        io.read(directory, names=[1])


class Counted(torch.nn.Module):
    """Has a state beside its tensors."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_a_state_beside_the_tensors_is_not_left_out_in_silence(directory):
    model = Counted()
    for save in (io.save_persistables, io.save_vars):
        with pytest.raises(cairn.Invalid, match="'_extra_state' .* CheckpointManager"):
            save(directory, model)
    assert io.save_params(directory, model).names == ["layer.bias", "layer.weight"]
    assert io.save_vars(directory, model, predicate=lambda var: True).names


def test_a_compiled_module_has_the_names_of_the_one_that_was_written(directory, tmp_path):
    def made(compiled):
        model = torch.nn.BatchNorm1d(2)
        optimizer = torch.optim.Adam(model.parameters())
        return (torch.compile(model, backend="eager") if compiled else model), optimizer

    model, optimizer = made(True)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    saved = io.save_persistables(directory, model, optimizer=optimizer)
    assert not any("_orig_mod" in name for name in saved.names)
    torch.save(model.state_dict(), tmp_path / "compiled.pt")  # as others name them
    for compiled in (False, True):
        fresh, slots = made(compiled)
        io.load_persistables(directory, fresh, optimizer=slots)
        assert torch.equal(fresh.weight, model.weight)
        assert slots.state[fresh.weight]["step"] == 1
        fresh, _ = made(compiled)
        io.load_persistables(tmp_path / "compiled.pt", fresh)
        assert torch.equal(fresh.weight, model.weight)
