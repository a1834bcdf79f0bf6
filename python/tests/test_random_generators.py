"""Random generators go on where they stood."""

import random

import numpy as np
import pytest
import torch

import cairn

BIT_GENERATORS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]


def draws(generator):
    if isinstance(generator, random.Random):
        return [generator.random() for _ in range(5)] + [generator.gauss(0, 1) for _ in range(3)]
    if isinstance(generator, np.random.Generator):
        return [*generator.random(5), *generator.integers(0, 9, 3), *generator.normal(size=3)]
    if isinstance(generator, np.random.RandomState):
        return [*generator.rand(5), *generator.randn(3)]
    return torch.rand(5, generator=generator).tolist()


def python_random():
    made = random.Random(7)
    made.gauss(0, 1)  # leaves half of a pair behind
    return made


def numpy_legacy():
    made = np.random.RandomState(7)
    made.randn(1)
    return made


def torch_generator():
    made = torch.Generator()
    made.manual_seed(7)
    torch.rand(3, generator=made)
    return made


def numpy_generator(name):
    def make():
        made = np.random.Generator(getattr(np.random, name)(7))
        made.integers(0, 9, 1, dtype=np.int32)  # leaves half of a word behind
        return made

    return make


GENERATORS = {
    "python": python_random,
    "numpy legacy": numpy_legacy,
    "torch": torch_generator,
    **{name: numpy_generator(name) for name in BIT_GENERATORS},
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_new_generator_goes_on(round_trip, name):
    generator = GENERATORS[name]()
    restored = round_trip({"rng": generator})["rng"]
    assert type(restored) is type(generator)
    assert draws(restored) == draws(generator)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_given_generator_is_set_back(directory, name):
    generator = GENERATORS[name]()
    given = {"rng": generator}
    with cairn.CheckpointManager(directory) as m:
        m.save(0, given, blocking=True)
        expected = draws(generator)
        m.restore(given)
    assert given["rng"] is generator
    assert draws(generator) == expected


def test_a_generator_of_another_kind_does_not_fit(directory):
    given = np.random.Generator(np.random.Philox(1))
    before = draws(given)
    given = np.random.Generator(np.random.Philox(1))
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"rng": np.random.default_rng(1)}, blocking=True)
        with pytest.raises(cairn.Mismatch, match="PCG64"):
            m.restore({"rng": given})
    assert draws(given) == before


def test_states_of_the_global_generators(round_trip):
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    expected = [random.random(), np.random.rand(), torch.rand(1).item()]
    restored = round_trip(states)
    random.setstate(restored["python"])
    np.random.set_state(restored["numpy"])
    torch.set_rng_state(restored["torch"])
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == expected


def test_a_generator_that_was_refused_is_untouched(directory):
    generator = random.Random(3)
    given = {"rng": generator, "missing": np.zeros(2)}
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"rng": random.Random(9)}, blocking=True)
        with pytest.raises(cairn.Mismatch):
            m.restore(given)
    assert generator.random() == random.Random(3).random()
