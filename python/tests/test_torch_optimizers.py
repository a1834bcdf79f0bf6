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
