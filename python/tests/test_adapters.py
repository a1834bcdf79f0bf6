"""What the adapters' environment is not needed for."""

import importlib
import sys

import pytest
import torch

import cairn
from cairn.torch import Loader


@pytest.mark.parametrize(
    "module, missing, command",
    [
        ("lightning", ["lightning", "pytorch_lightning"], "pip install lightning"),
        ("huggingface", ["transformers"], "pip install transformers"),
        ("mlflow", ["mlflow"], "pip install mlflow"),
        ("wandb", ["wandb"], "pip install wandb"),
    ],
)
def test_a_missing_library_is_named_with_its_remedy(monkeypatch, module, missing, command):
    for name in [n for n in sys.modules if n.split(".")[0] in missing]:
        monkeypatch.delitem(sys.modules, name)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"cairn.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=command):
        importlib.import_module(f"cairn.integrations.{module}")


def test_a_loader_begins_the_next_epoch_after_the_last_batch():
    """Also for who counts the batches and does not ask for one more."""
    whole = Loader(torch.arange(6), batch_size=2, seed=1)
    epochs = [[b.tolist() for b in whole] for _ in range(3)]
    counted = Loader(torch.arange(6), batch_size=2, seed=1)
    found = []
    for _ in range(3):
        batches = iter(counted)
        found.append([next(batches).tolist() for _ in range(len(counted))])
    assert found == epochs
    assert epochs[0] != epochs[1]


def test_a_loader_put_after_an_epochs_last_batch_has_none_left():
    loader = Loader(torch.arange(6), batch_size=2, seed=1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again = Loader(torch.arange(6), batch_size=2, seed=1)
    again.load_state_dict(loader.state_dict())
    assert list(again) == [] and again.epoch == 1


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"batch_size": 3}, {"shuffle": False}, {"dataset": torch.arange(7)}]
)
def test_a_position_among_other_examples_is_refused(other):
    same = {"dataset": torch.arange(6), "batch_size": 2, "shuffle": True, "seed": 1}
    loader = Loader(**same)
    next(iter(loader))
    state = loader.state_dict()
    Loader(**same).load_state_dict(state)
    Loader(**same).load_state_dict({"epoch": 0, "next": 1, "seed": 1})  # as it was written before
    name = next(iter(other)).replace("dataset", "examples")
    with pytest.raises(cairn.Invalid, match=f"the state is of {name}"):
        Loader(**{**same, **other}).load_state_dict(state)
