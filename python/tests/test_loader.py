"""cairn.torch.Loader: its place, its workers, its share."""

import random

import numpy as np
import pytest
import torch

import cairn
import cairn.torch


class Augmented(torch.utils.data.Dataset):
    """Draws from all random states of the process."""

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return [float(i), torch.rand(1).item(), float(np.random.rand()), random.random()]


class AskedAtOnce(Augmented):
    def __getitems__(self, indices):
        assert type(indices) is list
        return [self[i] for i in indices]


def collated(examples):
    return [sum(column) for column in zip(*examples)] + [torch.rand(1).item()]


@pytest.mark.parametrize("dataset", [Augmented, AskedAtOnce])
@pytest.mark.parametrize("then", [1, 2])
def test_what_workers_draw_depends_on_the_batch_alone(dataset, then):
    def make(workers):
        return cairn.torch.Loader(
            dataset(), batch_size=3, seed=1, num_workers=workers, collate_fn=collated
        )

    loader = make(2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    second = list(loader)
    again = make(then)
    again.load_state_dict(state)
    assert list(again) == rest and list(again) == second
    assert len({tuple(batch) for batch in rest + second}) == 5 + 8, "each batch has draws of its own"


def test_ranks_draw_differently():
    draws = []
    for rank in range(2):
        loader = cairn.torch.Loader(Augmented(), 12, num_workers=1, rank=rank, world_size=2)
        [batch] = loader
        draws.append(batch[1].tolist())
    assert draws[0] != draws[1]


def test_workers_know_the_dataset_that_was_given():
    known = []

    def init(_):
        info = torch.utils.data.get_worker_info()
        assert type(info.dataset) is Augmented
        known.append(info)

    loader = cairn.torch.Loader(Augmented(), 12, num_workers=1, worker_init_fn=init)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("other, named", [({}, "rank 1"), ({"rank": 0, "world_size": 2}, "rank 1"),
                                          ({"rank": 1, "world_size": 3}, "world_size 2")])  # fmt: skip
def test_a_position_in_another_share_is_refused(other, named):
    loader = cairn.torch.Loader(torch.arange(12), 2, rank=1, world_size=2)
    next(iter(loader))
    with pytest.raises(cairn.Invalid, match=f"the state is of {named}"):
        cairn.torch.Loader(torch.arange(12), 2, **other).load_state_dict(loader.state_dict())


def test_a_state_from_before_is_taken():
    loader = cairn.torch.Loader(torch.arange(12), 2, rank=1, world_size=2)
    loader.load_state_dict({"epoch": 3, "next": 1, "seed": 0})
    assert len(list(loader)) == 2


@pytest.mark.parametrize("given", ["itself", "by a call"])
def test_a_trainer_s_epoch_is_whole_whoever_read_from_the_loader_before(given):
    loader = cairn.torch.Loader(torch.arange(8), 2, seed=1)
    next(iter(loader))  # to look at a batch
    seen = []

    def step(model, batch):
        seen.append(batch.tolist())

    reader = loader if given == "itself" else lambda: loader
    cairn.Trainer({}, step).train(2, reader)
    again = cairn.torch.Loader(torch.arange(8), 2, seed=1)
    assert seen == [batch.tolist() for _ in range(2) for batch in again]
