"""Plain values, keys and nesting come back as they were; what cannot is refused by name."""

import collections
import enum
import math
import random
import struct
import sys

import numpy as np
import pytest
from sameness import assert_same

import cairn

NAN_WITH_PAYLOAD = struct.unpack("<d", struct.pack("<Q", 0x7FF8DEADBEEF0001))[0]
NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]

VALUES = {
    "counter": collections.Counter({3: 1, "x": 2, (1, 2): 2**70}),
    "empty counter": collections.Counter(),
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "2**53": 2**53,
    "2**53+1": 2**53 + 1,
    "-2**63-1": -(2**63) - 1,
    "2**128-1": 2**128 - 1,
    "ten thousand digits": 7**12000,
    "minus ten thousand digits": -(7**12000),
    "float": 0.1,
    "whole float": 1.0,
    "large float": 1e300,
    "smallest float": 5e-324,
    "minus zero": -0.0,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "nan": math.nan,
    "nan payload": NAN_WITH_PAYLOAD,
    "negative nan": NEGATIVE_NAN,
    "complex": complex(1.5, -0.0),
    "complex nan": complex(NAN_WITH_PAYLOAD, -math.inf),
    "empty text": "",
    "text": 'quotes " \\ \n \0 and €, 𝄞, 漢字',
    "empty bytes": b"",
    "bytes": bytes(range(256)),
    "bytes at the limit": b"x" * 1024,
    "bytes over the limit": b"y" * 1025,
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "empty ordered dict": collections.OrderedDict(),
    "set": {1, "a", (2, 3), None},
    "frozenset": frozenset({b"x", 2.5}),
    "nested empties": {"a": {}, "b": [[], ()], "c": ({},)},
    "ordered dict": collections.OrderedDict([("z", 1), ("a", 2)]),
    "order of keys": {"z": 1, "a": 2, "m": 3},
    "int keys": {0: "a", 1: "b", -5: "c", 2**70: "d"},
    "mixed keys": {1: "int", "1": "text", None: "none", (1, "x"): "tuple", b"1": "bytes", 2.5: "f"},
    "bool key": {True: 1, "True": 2},
    "awkward keys": {"a/b": 1, "a.b": 2, "": 3, "/": 4, "~2": 5, "ключ": 6, "x\0y": 7, "a\nb": 8},
    "tags as keys": {"tensor": 1, "dict": {"tuple": [1]}, "int": "5", "cairn_state": 1},
    "tags as lists": {"tuple": [1, 2], "set": {"bytes": "eA=="}},
    "tuple in list": [(1, [2, (3,)]), {"k": (4,)}],
    "numpy scalars": [
        np.float32(0.1),
        np.float64(-0.0),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.float16(1.5),
        np.complex64(1 - 2j),
        np.datetime64("2024-02-29T12:00:00", "ms"),
        np.timedelta64(5, "D"),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(round_trip, name):
    assert_same({"value": VALUES[name]}, round_trip({"value": VALUES[name]}))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_replaces_the_one_given(directory, name):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"value": VALUES[name]}, blocking=True)
        given = {"value": None}
        restored = m.restore(given)
    assert restored.state is given
    assert_same({"value": VALUES[name]}, given)


def test_all_values_together(round_trip):
    assert_same(VALUES, round_trip(VALUES))


@pytest.mark.parametrize("root", [3, "text", None, [1, 2], (1,), b"abc", np.arange(3), {"": 1}])
def test_the_state_may_be_any_value(round_trip, root):
    assert_same(root, round_trip(root))


def test_colliding_names_stay_apart(round_trip):
    state = {
        "a/b": np.zeros(2),
        "a": {"b": np.ones(2), "b~2": np.full(2, 2.0)},
        "a/b~2": np.full(2, 3.0),
        1: np.full(2, 4.0),
        "1": np.full(2, 5.0),
    }
    assert_same(state, round_trip(state))


def test_colliding_names_reach_their_targets_in_any_order(directory):
    def state(scale):
        return {
            "a/b": np.full(2, 1.0 * scale),
            "a": {"b": np.full(2, 2.0 * scale)},
            "x/y": 1 * scale,
            "x": {"y": 2 * scale},
        }

    with cairn.CheckpointManager(directory) as m:
        m.save(0, state(1), blocking=True)
        given = state(0)
        turned = {key: given[key] for key in reversed(list(given))}
        m.restore(turned)
    assert_same(state(1), {key: turned[key] for key in state(1)})


def test_a_key_of_ten_thousand_characters(round_trip):
    state = {"k" * 10_000: np.arange(5), "ü" * 10_000: {"v" * 10_000: 1}}
    assert_same(state, round_trip(state))


def test_nesting_of_a_hundred_levels(round_trip):
    state = np.arange(3)
    for level in range(100):
        state = {"d": state} if level % 2 else [state]
    assert_same(state, round_trip(state))


def test_nesting_without_end_is_refused(directory):
    deep = []
    for _ in range(5000):
        deep = [deep]
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="deeper"):
        m.save(0, {"deep": deep})


def test_nested_frozensets_without_end_are_refused(directory):
    deep = frozenset()
    for _ in range(300):
        deep = frozenset({deep})
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="deeper"):
        m.save(0, {"deep": deep})


def test_a_state_that_contains_itself_is_refused(directory):
    state = {"a": [1]}
    state["a"].append(state)
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="a/1.*itself"):
        m.save(0, state)


def test_the_same_list_twice_is_no_cycle(round_trip):
    shared = [1, 2]
    assert_same({"a": shared, "b": shared}, round_trip({"a": shared, "b": shared}))


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


REFUSED = {
    "object": object(),
    "function": len,
    "module": sys,
    "enum": Colour.RED,
    "subclass of str": Text("x"),
    "named tuple": collections.namedtuple("Point", "x y")(1, 2),
    "default dict": collections.defaultdict(list),
    "numpy text": np.str_("x"),
    "numpy bytes": np.bytes_(b"x"),
    "long double": np.longdouble(1),
    "text array": np.array(["a", "b"]),
    "object array": np.array([object()]),
    "long double array": np.zeros(2, np.longdouble),
    "structured array": np.zeros(2, dtype=[("a", "i4")]),
    "masked array": np.ma.masked_array([1, 2], mask=[0, 1]),
    "range": range(3),
    "lone surrogate": "\ud800",
    "system random": random.SystemRandom(),
    "generator": (i for i in ()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_by_name(directory, name):
    with cairn.CheckpointManager(directory) as m:
        with pytest.raises(cairn.Invalid, match="model/here"):
            m.save(0, {"fine": 1, "model": {"here": REFUSED[name]}})
        assert m.list() == []


@pytest.mark.parametrize(
    "key", [object(), np.int64(3), frozenset({1})], ids=["object", "np", "set"]
)
def test_a_key_that_cannot_be_stored_is_refused(directory, key):
    with (
        cairn.CheckpointManager(directory) as m,
        pytest.raises(cairn.Invalid, match="keys of type"),
    ):
        m.save(0, {"outer": {key: 1}})


def test_a_lone_surrogate_in_a_key_is_refused(directory):
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="surrogate"):
        m.save(0, {"\udcff": 1})


def test_a_refused_state_leaves_the_manager_usable(directory):
    with cairn.CheckpointManager(directory) as m:
        with pytest.raises(cairn.Invalid):
            m.save(0, {"bad": object()})
        m.save(1, {"good": 1}, blocking=True)
        assert m.restore().state == {"good": 1}


METADATA = {"text": "ä", "list": [1, 2.5, None, True], "nested": {"a": {"b": -1}}, "big": 2**63}


def test_metadata_comes_back(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {}, metadata=METADATA, metrics={"loss": 0.25, "acc": {"top1": 1}}, blocking=True)
        restored = m.restore()
    assert restored.metadata == METADATA
    assert restored.metrics == {"loss": 0.25, "acc": {"top1": 1}}


def test_numpy_numbers_are_fine_as_metrics(directory):
    with cairn.CheckpointManager(directory) as m:
        info = m.save(0, {}, metrics={"a": np.float32(0.5), "b": np.array(3)}, blocking=True).wait()
    assert info.metrics == {"a": 0.5, "b": 3}


@pytest.mark.parametrize(
    "bad", [{"a": object()}, {1: 2}, {"a": np.zeros(3)}, [1], {"a": {"b": b"x"}}, {"a": 2**64}]
)
def test_metrics_that_are_no_values_are_refused(directory, bad):
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid):
        m.save(0, {}, metrics=bad)


def test_metadata_that_contains_itself_is_refused(directory):
    loop = {}
    loop["again"] = loop
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid):
        m.save(0, {}, metadata=loop)


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, True, 2**63])
def test_a_step_that_is_no_step_is_refused(directory, step):
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid):
        m.save(step, {})


@pytest.mark.parametrize("value, kind", [(object(), "an object"), (range(3), "a range")])
def test_what_cannot_be_stored_is_called_as_people_do(tmp_path, value, kind):
    with cairn.CheckpointManager(tmp_path / "c") as manager:
        with pytest.raises(cairn.Invalid, match=f"x: {kind} "):
            manager.save(1, {"x": value})
