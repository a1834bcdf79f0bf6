"""cairn.torch.capture and the optimizers that it brings back."""

import pytest
import torch

import cairn
import cairn.torch


def stepped(make):
    model = torch.nn.Linear(3, 1)
    optimizer = make(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def adam(directory):
    """A repository with a training by Adam."""
    model, optimizer = stepped(lambda p: torch.optim.Adam(p, 0.01))
    with cairn.CheckpointManager(directory) as manager:
        state = {"train": cairn.torch.capture(model=model, optimizer=optimizer)}
        manager.save(1, state, blocking=True)
        yield manager


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "SGD"),
        (lambda p: torch.optim.RMSprop(p, 0.1), "RMSprop"),
        (lambda p: torch.optim.Adagrad(p, 0.1), "Adagrad"),
    ],
)
def test_another_optimizers_state_is_refused_and_nothing_changed(adam, make, named):
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    optimizer = make(model.parameters())
    with pytest.raises(cairn.Mismatch, match=f"betas.*another optimizer.*{named}"):
        adam.restore({"train": cairn.torch.capture(model=model, optimizer=optimizer)})
    slots = {name for slots in optimizer.state.values() for name in slots}
    assert torch.equal(model.weight, before) and "exp_avg" not in slots


def test_a_fresh_one_of_the_same_kind_takes_it_also_under_a_scheduler(adam):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # puts initial_lr into the groups
    adam.restore({"train": cairn.torch.capture(model=model, optimizer=optimizer)})
    assert optimizer.param_groups[0]["lr"] == 0.01
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_text_that_cannot_be_stored_is_named(directory):
    with cairn.CheckpointManager(directory) as manager:
        with pytest.raises(cairn.Invalid, match="surrogate"):
            manager.save(1, {}, metrics={"a": "\ud800"})
        with pytest.raises(cairn.Invalid, match="surrogate"):
            manager.save(1, {}, metadata={"\udfff": 1})


SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "multi-step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 20),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "warm restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.ConstantLR(o, total_iters=2),
            torch.optim.lr_scheduler.MultiStepLR(o, [3]),
        ],
        [2],
    ),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler:UserWarning")
@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_learning_rates_go_on_as_they_would_have(directory, make):
    def begun():
        model, optimizer = stepped(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
        schedule = make(optimizer)
        return optimizer, schedule, {"train": cairn.torch.capture(model, optimizer, schedule)}

    def rates(optimizer, schedule, steps):
        found = []
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    optimizer, schedule, _ = begun()
    whole = rates(optimizer, schedule, 8)
    optimizer, schedule, state = begun()
    first = rates(optimizer, schedule, 3)
    with cairn.CheckpointManager(directory) as m:
        m.save(3, state, blocking=True)
        optimizer, schedule, state = begun()
        m.restore(state)
    assert first + rates(optimizer, schedule, 5) == whole


class Float32Moments(torch.optim.Optimizer):
    """Keeps float32 moments of parameters of any dtype."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            moment = self.state[p].setdefault("moment", torch.zeros_like(p, dtype=torch.float32))
            moment.mul_(0.9).add_(p.grad.float(), alpha=0.1)
            p.add_(-0.1 * moment.to(p.dtype))


@pytest.mark.parametrize(
    "make, dtype, slot",
    [
        (Float32Moments, torch.bfloat16, "moment"),
        (lambda p: torch.optim.NAdam(p, 0.01), torch.float64, "mu_product"),
    ],
)
def test_slots_of_another_dtype_than_their_parameter_keep_their_bits(directory, make, dtype, slot):
    def begun():
        model = torch.nn.Linear(3, 1).to(dtype)
        optimizer = make(model.parameters())
        return model, optimizer, cairn.torch.capture(model=model, optimizer=optimizer)

    model, optimizer, state = begun()
    for _ in range(3):
        model(torch.rand(2, 3).to(dtype)).sum().backward()
        optimizer.step()
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"train": state}, blocking=True)
        other, fresh, state = begun()
        m.restore({"train": state})
    for p, q in zip(model.parameters(), other.parameters()):
        stored, found = optimizer.state[p][slot], fresh.state[q][slot]
        assert found.dtype == stored.dtype == torch.float32 and torch.equal(found, stored)


class Normed(torch.nn.Module):
    """Large enough to be copied for a while."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(2048, 2048)
        self.norm = torch.nn.BatchNorm1d(2048)

    def forward(self, x):
        return self.norm(self.wide(x))


def test_a_forward_pass_after_a_lazy_save_does_not_change_what_is_stored(directory):
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train = cairn.torch.capture(model=model, optimizer=optimizer)
    x = torch.randn(4, 2048)
    with cairn.CheckpointManager(directory, keep_last=None) as manager:
        saved = []
        for step in range(4):
            saved.append({name: value.clone() for name, value in model.state_dict().items()})
            handle = manager.save(step, {"train": train, "plain": model}, lazy=True)
            model.norm(x)  # the statistics change before anything waits
            model(x).sum().backward()
            optimizer.step()
            handle.wait()
        for step, wanted in enumerate(saved):
            state = manager.restore(step=step).state
            for found in (state["train"]["model"], state["plain"]):
                assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_lazy_save_describes_no_memory_that_changes_outside_of_steps():
    shared = torch.zeros(3)
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("one", shared)
    model.register_buffer("other", shared)
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
    state = cairn.torch.capture(model=model, optimizer=optimizer).cairn_save_lazily()
    kept = {name for name, value in state["model"].items() if same_memory(value, model, name)}
    assert kept == {"weight", "bias"}
    assert state["model"]["one"] is state["model"]["other"], "tied buffers stay tied"
    assert state["optimizer"]["param_groups"][0]["lr"].data_ptr() != rate.data_ptr()


def same_memory(value, model, name):
    return value.data_ptr() == getattr(model, name).data_ptr()


class Wrapper(torch.optim.Optimizer):
    """As accelerate wraps optimizers: without torch's __init__."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)

    def state_dict(self):
        return self.optimizer.state_dict()

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_the_step_of_a_wrapped_optimizer_waits_for_a_lazy_save(directory):
    model, inner = stepped(lambda p: torch.optim.Adam(p, 0.01))
    wrapper = Wrapper(inner)
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"optimizer": wrapper}, blocking=True)
        handle = manager.save(2, {"optimizer": wrapper}, lazy=True)
        waited = []
        guard, handle.guard = handle.guard, lambda: (waited.append(True), guard())
        wrapper.step()
        assert waited == [True]


@pytest.mark.parametrize("second", ["of another manager", "skipped"])
def test_a_step_waits_for_every_lazy_save_that_still_reads(directory, second):
    weight = torch.nn.Parameter(torch.zeros(1 << 23))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    state = {"weight": weight, "optimizer": optimizer}
    weight.grad = torch.ones_like(weight)
    with cairn.CheckpointManager(f"{directory}/a", on_busy="skip") as one:
        with cairn.CheckpointManager(f"{directory}/b") as another:
            for step in range(4):
                before = float(weight.detach()[0])
                first = one.save(step, state, lazy=True)
                (one if second == "skipped" else another).save(10 + step, state, lazy=True)
                optimizer.step()
                assert weight.max() == before - 1
                first.wait()
                stored = one.restore(step=step).state["weight"]
                assert stored.min() == stored.max() == before
                one.wait()
                another.wait()


def test_a_lazy_save_of_an_optimizer_that_nothing_can_stop_is_refused_by_name(directory):
    class Stubborn(Wrapper):
        def __init__(self):
            self.optimizer = None

        def state_dict(self):
            return {"state": {}, "param_groups": []}

    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"optimizer": Stubborn()}, blocking=True)
        with pytest.raises(cairn.Invalid, match="lazy=True.*Stubborn"):
            manager.save(2, {"optimizer": Stubborn()}, lazy=True)
        assert manager.latest().step == 1


@pytest.mark.parametrize(
    "stored, shown",
    [
        ({"lr": 0.1}, "a dict of lr"),
        (None, "None"),
        (5, "an int"),
        ([1, 2], "a list"),
        (torch.zeros(2), "an array"),
        ({"state": {}, "param_groups": [1]}, "a dict of state, param_groups"),
    ],
)
def test_what_is_no_optimizers_state_is_a_mismatch_or_skipped(directory, stored, shown):
    weight = torch.zeros(2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"opt": stored, "weight": torch.ones(2)}, blocking=True)
        with pytest.raises(cairn.Mismatch, match=f"opt: stored {shown}.*Nothing was") as refused:
            manager.restore({"opt": optimizer, "weight": weight})
        assert len(refused.value.mismatched) == 1 and not weight.any()
        skipped = manager.restore({"opt": optimizer, "weight": weight}, strict=False).skipped
        assert [name for name, why in skipped] == ["opt"] and shown in skipped[0][1]
        assert weight.all() and optimizer.param_groups[0]["lr"] == 0.1


# Gradients that are gathered over several batches ----------


class Gathering(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 1)
        self.rows = torch.nn.Embedding(5, 3, sparse=True)
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.phase = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, ids):
        return self.dense(self.rows(ids) * self.phase.real).square().mean()


@pytest.mark.parametrize("lazy", [False, True])
def test_gradients_come_back_as_they_were(directory, lazy):
    model = Gathering()
    state = {"train": cairn.torch.capture(model, gradients=cairn.torch.Gradients(model))}
    model(torch.tensor([1, 2, 1])).backward()
    model(torch.tensor([4])).backward()
    dense, rows = model.dense.weight.grad.clone(), model.rows.weight.grad.to_dense()
    phase = model.phase.grad.clone()
    with cairn.CheckpointManager(directory) as m:
        handle = m.save(1, state, lazy=lazy)
        model(torch.tensor([3])).backward()  # no step of an optimizer, which would wait
        handle.wait()
        model.unused.grad = torch.ones(2)
        m.restore(state)
    assert torch.equal(model.dense.weight.grad, dense) and torch.equal(model.phase.grad, phase)
    assert model.rows.weight.grad.is_sparse and torch.equal(model.rows.weight.grad.to_dense(), rows)
    assert model.unused.grad is None


def test_gradients_of_another_module_are_refused_and_nothing_is_changed(directory):
    model, other = torch.nn.Linear(3, 1), torch.nn.Linear(4, 1)
    model(torch.ones(1, 3)).sum().backward()
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"epoch": 7, "gradients": cairn.torch.Gradients(model)}, blocking=True)
        state = {"epoch": 0, "gradients": cairn.torch.Gradients(other)}
        with pytest.raises(cairn.Mismatch, match=r"weight: stored \[1, 3\], wanted \[1, 4\]"):
            m.restore(state)
    assert state["epoch"] == 0 and other.weight.grad is None
    with pytest.raises(cairn.Invalid, match="not of a dict"):
        cairn.torch.Gradients({})


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr, 0.9)])
def test_a_state_that_was_put_back_stays_what_it_was(directory, kind):
    """torch's load_state_dict takes the given tensors for its own, and the next step changes them."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = kind(model.parameters(), lr=0.1)
        return model, optimizer, cairn.torch.capture(model=model, optimizer=optimizer, rng=False)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        return model.weight.detach().clone()

    model, optimizer, train = made()
    step(model, optimizer)
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"train": train}).wait()
        state = m.restore().state["train"]
    train.restore(state)
    once = step(model, optimizer)
    train.restore(state)  # back again, as one does after a loss that is NaN
    assert torch.equal(step(model, optimizer), once)

    other_model, other_optimizer, other = made()  # and from one living object into another
    other.restore(train.state())
    step(other_model, other_optimizer)
    twin = {name: slot.clone() for name, slot in optimizer.state[model.weight].items()}
    step(other_model, other_optimizer)
    assert all(torch.equal(optimizer.state[model.weight][name], twin[name]) for name in twin)
