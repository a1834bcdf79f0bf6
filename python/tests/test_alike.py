"""States that are alike are matched natively; all else, and what they must have in common."""

import collections

import numpy as np
import pytest
import torch
from sameness import assert_same

import cairn
from cairn import _arrays, _native, _plan, _tree


def text_of(state):
    return _tree.encode(state, _tree.Layout()).json.encode()


def alike(stored, given):
    return _native.match_state(text_of(stored), given, *_arrays.torch_tensors())


def state():
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {
        "w": w,
        "tied": w,
        "list": [np.zeros(3, np.int64), 4, "text"],
        "pair": (np.ones(2), np.ones(0)),
        "ordered": collections.OrderedDict(a=np.float64(1) * np.ones(1), b=True),
        "epoch": 3,
        "rate": 1e-4,
    }


def test_the_same_structure_is_alike():
    found = alike(state(), state())
    assert found is not None
    assert found.count == 5  # tied arrays once


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("epoch"),
        lambda s: s.update(more=1),
        lambda s: s.update(w=np.zeros((3, 2), np.float32)),
        lambda s: s.update(w=np.zeros((2, 3), np.float64)),
        lambda s: s.update(w=np.zeros((2, 3), np.dtype(">f4"))),
        lambda s: s.update(w=np.zeros((3, 2), np.float32).T),
        lambda s: s.update(w=np.zeros((2, 3), np.complex64)),
        lambda s: s.update(epoch=None),
        lambda s: s.update(epoch=np.ones(1)),
        lambda s: s.update(list=[np.zeros(3, np.int64), 4]),
        lambda s: s.update(list=(np.zeros(3, np.int64), 4, "text")),
        lambda s: s.update(pair=(np.ones(2), 1.0)),
        lambda s: s["w"].setflags(write=False),
        lambda s: s.update(w=s["list"][0].view(np.float32).reshape(2, 3)),  # tied to another
        lambda s: s.update({1: 2}),
    ],
)
def test_what_differs_is_left_to_the_plan(change):
    given = state()
    change(given)
    assert alike(state(), given) is None


def tensors():
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    return {
        "weight": weight,
        "tied": weight,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "number": torch.tensor(7),
        "nothing": torch.empty(0, 2),
        "array": np.ones(2),
    }


def test_tensors_of_torch_are_alike_and_are_filled():
    stored, given = tensors(), tensors()
    found = alike(stored, given)
    assert found is not None and found.count == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(weight=torch.zeros(3, 2)),
        lambda s: s.update(half=torch.zeros(3, dtype=torch.float16)),
        lambda s: s.update(half=torch.zeros(6, dtype=torch.bfloat16)[::2]),
        lambda s: s.update(half=torch.zeros(1, dtype=torch.bfloat16).expand(3)),
        lambda s: s.update(number=7),
        lambda s: s.update(number=torch.tensor(7, device="meta")),
        lambda s: s.update(array=torch.zeros(2)),
        lambda s: s.update(array=s["weight"].detach().flatten()[:4].view(torch.float64)),  # tied to another
        lambda s: s.update(weight=torch.zeros(2, 3, dtype=torch.complex64)),
        lambda s: s.update(half=torch.zeros(3).to_sparse()),
    ],
)
def test_tensors_that_differ_are_left_to_the_plan(change):
    given = tensors()
    change(given)
    assert alike(tensors(), given) is None


def test_a_state_of_tensors_is_filled_natively(tmp_path, monkeypatch):
    stored = tensors()
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(1, stored, blocking=True)
        given = tensors()
        for value in given.values():
            if isinstance(value, torch.Tensor):
                value.data.zero_()
            else:
                value[:] = 0
        before = {name: id(value) for name, value in given.items()}
        monkeypatch.setattr(_plan, "Plan", None)  # not asked
        m.restore(given)
    assert before == {name: id(value) for name, value in given.items()}
    assert_same(stored, given)


@pytest.mark.parametrize("cut", [0, 1, 20, 60, -1, -2])
def test_text_that_is_cut_off_is_not_alike(cut):
    assert _native.match_state(text_of(state())[:cut], state()) is None


def test_text_of_another_version_or_with_more_behind_it_is_not_alike():
    text = text_of(state())
    assert _native.match_state(text.replace(b":1,", b":2,", 1), state()) is None
    assert _native.match_state(text + b"x", state()) is None
    assert _native.match_state(text.replace(b"epoch", b"epo\xff\xff"), state()) is None


def test_another_order_of_keys_restores_all_the_same(tmp_path):
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(1, {"a": np.ones(2), "b": 2}, blocking=True)
        given = {"b": 0, "a": np.zeros(2)}
        m.restore(given)
    assert given["b"] == 2 and given["a"].tolist() == [1, 1]


def test_both_ways_fill_alike(tmp_path, monkeypatch):
    stored = state()
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(1, stored, blocking=True)
        filled = []
        for native in (True, False):
            given = state()
            for array in (given["w"], given["list"][0], given["pair"][0], given["ordered"]["a"]):
                array[...] = 0
            given["list"][1:] = [0, ""]
            given["ordered"]["b"], given["epoch"], given["rate"] = False, 0, 0.5
            if not native:
                monkeypatch.setattr(_native, "match_state", lambda *_: None)
            restored = m.restore(given)
            assert restored.state is given and restored.skipped == []
            filled.append(text_of(given))
            np.testing.assert_equal(given, stored)
    assert filled[0] == filled[1] == text_of(stored)


def test_stored_apart_cannot_fill_what_is_tied(tmp_path):
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(1, {"a": np.ones(2), "b": np.zeros(2)}, blocking=True)
        both = np.full(2, 7.0)
        with pytest.raises(cairn.Mismatch, match="apart"):
            m.restore({"a": both, "b": both})
    assert both.tolist() == [7, 7]
