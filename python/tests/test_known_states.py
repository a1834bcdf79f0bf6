"""A state that was saved before is described faster, and exactly as if it had not been."""

import collections
import weakref

import numpy as np
import pytest
import torch

import cairn
from cairn import _native, _tree


class Counting:
    """An object with a state of its own, whose arrays are new ones each time."""

    def __init__(self):
        self.count = 0

    def state_dict(self):
        self.count += 1
        return {"count": self.count, "buffer": np.full(3, self.count), "also": np.zeros(2)}

    def load_state_dict(self, state):
        self.count = state["count"]


def state():
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight = torch.nn.Parameter(torch.ones(4))
    return {
        "w": w,
        "tied": w,
        "torch": {
            "weight": weight,
            "again": weight,
            "buffer": torch.zeros(2, dtype=torch.bfloat16),
        },
        "slots": {0: {"m": np.zeros(3)}, 1: {"m": np.ones(3)}, (2, "x"): None},
        "ordered": collections.OrderedDict(a=np.ones(1), b=True),
        "list": [np.zeros(3, np.int64), 4, "text"],
        "pair": (np.ones(2), np.ones(0)),
        "mapped": np.ones(2).view(np.memmap),
        "rng": np.random.default_rng(3),
        "generator": torch.Generator(),
        "epoch": 3,
        "number": Number(),
        "rate": 1e-4,
        "object": Counting(),
        "odd": float("inf"),
        "scalar": np.float32(2),
    }


def described(value, known=None):
    """All that a save is given."""
    encoded = _tree.encode(value, _tree.Layout(), known=known)
    return encoded.json, encoded.nbytes, encoded.tensors.digest(), len(encoded.keep)


class Walks:
    """Counts the states that were described anew."""

    def __init__(self, monkeypatch):
        self.anew = 0
        encode = _tree._Encoder.encode

        def counted(encoder, value, known):
            self.anew += 1
            encode(encoder, value, known)

        monkeypatch.setattr(_tree._Encoder, "encode", counted)


@pytest.fixture
def walks(monkeypatch):
    return Walks(monkeypatch)


def fill(s):
    s["w"][:] = 7
    s["torch"]["weight"].data += 1


def move(s):
    s["slots"][0]["m"] = np.full(3, 4.0)
    s["torch"]["buffer"] = torch.ones(2, dtype=torch.bfloat16)


class Number(Counting):
    """An object whose state is no container."""

    def state_dict(self):
        return 7


VALUES = {
    "nothing": lambda s: None,
    "bytes of arrays": fill,
    "numbers": lambda s: s.update(epoch=4, rate=2.5, odd=float("nan")),
    "a number to a text": lambda s: s.update(epoch="the fourth, “last”"),
    "None to a large number": lambda s: s["slots"].update({(2, "x"): 2**70}),
    "a random state": lambda s: s["rng"].random(),
    "a scalar": lambda s: s.update(scalar=np.float32(3)),
    "elements of lists": lambda s: s["list"].__setitem__(2, None),
    "arrays elsewhere": move,
    "arrays that change places": lambda s: s["slots"].update({0: s["slots"][1], 1: s["slots"][0]}),
    "equal keys": lambda s: s.update({"".join(["ep", "och"]): 5}),
}

MORE = {
    "a key more": lambda s: s.update(more=1),
    "a key less": lambda s: s.pop("epoch"),
    "another key": lambda s: s["slots"].update({3: s["slots"].pop(1)}),
    "another order": lambda s: s.update(w=s.pop("w")),
    "another order of an OrderedDict": lambda s: s["ordered"].move_to_end("a"),
    "another shape": lambda s: s.update(w=np.zeros((3, 2), np.float32)),
    "another dtype": lambda s: s.update(w=np.zeros((2, 3), np.int32)),
    "another byte order": lambda s: s.update(w=np.zeros((2, 3), np.dtype(">f4"))),
    "no longer contiguous": lambda s: s.update(w=np.zeros((3, 2), np.float32).T),
    "no longer tied": lambda s: s.update(tied=s["w"].copy()),
    "tied to a copy": lambda s: s.update(w=s["w"].copy()),
    "newly tied": lambda s: s["slots"][0].update(m=s["slots"][1]["m"]),
    "the same memory of another dtype": lambda s: s["slots"][0].update(
        m=s["slots"][1]["m"].view(np.int64)
    ),
    "torch for NumPy": lambda s: s.update(w=torch.zeros(2, 3)),
    "NumPy for torch": lambda s: s["torch"].update(buffer=np.zeros(2, np.float32)),
    "frozen": lambda s: s["torch"]["weight"].requires_grad_(False),
    "no parameter": lambda s: s["torch"].update(weight=s["torch"]["weight"].detach()),
    "a negated view": lambda s: s["torch"].update(weight=torch._neg_view(s["torch"]["weight"])),
    "a value for an array": lambda s: s.update(w=1),
    "an array for a value": lambda s: s.update(epoch=np.ones(1)),
    "a list for a value": lambda s: s.update(epoch=[1]),
    "a tuple for a list": lambda s: s.update(list=tuple(s["list"])),
    "a longer list": lambda s: s["list"].append(1),
    "a shorter list": lambda s: s["list"].pop(),
    "a dict for an OrderedDict": lambda s: s.update(ordered=dict(s["ordered"])),
    "an array for a random state": lambda s: s.update(rng=np.ones(1)),
    "complex numbers": lambda s: s.update(w=np.zeros((2, 3), np.complex64)),
    "a number for an object": lambda s: s.update(number=7),
    "an object for a number": lambda s: s.update(epoch=Number()),
    "an object and a number that change places": lambda s: s.update(epoch=Number(), number=3),
    "a piece": lambda s: s.update(w=cairn.Shard(np.zeros((2, 3), np.float32), (4, 3), (0, 0))),
}


@pytest.mark.parametrize("change", [*VALUES, *MORE])
def test_a_known_state_is_described_as_an_unknown_one(change):
    value, known = state(), _native.KnownState()
    described(value, known)
    {**VALUES, **MORE}[change](value)
    for _ in range(3):  # also what was changed is known then
        quick = described(value, known)
        value["object"].count -= 1
        assert quick == described(value)
        value["object"].count -= 1


@pytest.mark.parametrize("change", VALUES)
def test_what_differs_in_values_alone_is_not_described_anew(change, walks):
    value, known = state(), _native.KnownState()
    described(value, known)
    for _ in range(3):
        VALUES[change](value)
        described(value, known)
    assert walks.anew == 1


@pytest.mark.parametrize("change", MORE)
def test_what_differs_in_more_is_described_anew(change, walks):
    value, known = state(), _native.KnownState()
    described(value, known)
    MORE[change](value)
    described(value, known)
    assert walks.anew == 2


def test_a_state_that_is_another_one_each_time_is_known_no_more(walks):
    known = _native.KnownState()
    for count in range(8):
        value = {str(i): np.zeros(2) for i in range(count)}
        assert described(value, known) == described(value)
    same = {"x": np.zeros(2)}
    walks.anew = 0
    described(same, known)
    described(same, known)
    assert walks.anew == 2


def test_a_very_large_state_is_described_anew_each_time(walks):
    value, known = {"many": list(range(200_001))}, _native.KnownState()
    assert described(value, known) == described(value, known) == described(value)
    assert walks.anew == 3


def test_a_state_that_cannot_be_stored_is_refused_by_its_place():
    value, known = {"a": {"b": np.ones(2), "c": 1}}, _native.KnownState()
    described(value, known)
    value["a"]["c"] = object()
    with pytest.raises(cairn.Invalid, match="a/c"):
        described(value, known)
    value["a"]["c"] = "\ud800"
    with pytest.raises(cairn.Invalid, match="a/c"):
        described(value, known)
    value["a"]["c"] = 2
    assert described(value, known) == described(value)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_object_is_asked_once_for_each_save(lazy):
    """It may gather its state from other processes, which are asked once."""
    value, known = state(), _native.KnownState()
    for count, scalar in enumerate([1, [1], np.ones(1), 2], start=1):
        value["scalar"] = scalar  # behind the object
        saved = _tree.encode(value, _tree.Layout(), lazy, known)
        assert value["object"].count == count
        assert f'"object":{{"dict":{{"count":{count},' in saved.json
        assert len(saved.stateful) == 2


def test_an_object_in_two_places_is_asked_for_each():
    twice = Counting()
    value, known = {"a": twice, "b": [twice], "c": 1}, _native.KnownState()
    _tree.encode(value, _tree.Layout(), known=known)
    value["c"] = [1]
    saved = _tree.encode(value, _tree.Layout(), known=known)
    assert twice.count == 4 and '"count":3' in saved.json and '"count":4' in saved.json


def test_another_layout_is_another_state():
    value, known = state(), _native.KnownState()
    for layout in (_tree.Layout(), _tree.Layout(rank=1, world_size=2, participant="rank_1")):
        quick = _tree.encode(value, layout, known=known)
        value["object"].count -= 1
        assert quick.json == _tree.encode(value, layout).json
        value["object"].count -= 1


def test_nothing_of_a_known_state_is_kept_alive():
    array = np.ones(3)
    gone = weakref.ref(array)
    known = _native.KnownState()
    value = {"w": array}
    described(value, known)
    described(value, known)
    del array, value
    assert gone() is None


def test_a_dict_that_changes_while_it_is_described_is_described_anew():
    value, known = {}, _native.KnownState()

    class Adding(Counting):
        def state_dict(self):
            value[f"more {len(value)}"] = np.zeros(2)
            return super().state_dict()

    value.update(object=Adding(), w=np.ones(2))
    for _ in range(3):
        described(value, known)  # what is in it depends on the moment; it must not fail
    del value["object"]
    assert described(value, known) == described(value)


def test_many_saves_of_one_manager_are_restored_each(tmp_path):
    value = state()
    with cairn.CheckpointManager(tmp_path, keep_last=None) as manager:
        expected = []
        for step in range(5):
            value["epoch"] = step
            value["w"][:] = step
            value["slots"][0]["m"] = np.full(3, step)
            manager.save(step, value, lazy=step % 2 == 0).guard()
            expected.append(value["object"].count)
        manager.wait()
        for step in range(5):
            found = manager.restore(step=step).state
            assert found["epoch"] == step
            assert found["w"].tolist() == [[step] * 3] * 2 and found["tied"] is found["w"]
            assert found["slots"][0]["m"].tolist() == [step] * 3
            assert found["object"]["count"] == expected[step]
            assert found["object"]["buffer"].tolist() == [expected[step]] * 3
