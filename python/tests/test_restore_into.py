"""Restoring into what is given: in place, tied, renamed, skipped, compared before anything changes."""

import collections
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sameness import assert_same

import cairn
from cairn import _tree


@pytest.fixture
def saved(directory):
    """Saves one state; gives a manager on it."""
    managers = []

    def save(state, **options):
        manager = cairn.CheckpointManager(directory, **options)
        managers.append(manager)
        manager.save(3, state, metrics={"loss": 1.5}, metadata={"note": "x"}, blocking=True)
        return manager

    yield save
    for manager in managers:
        manager.close()


def stored_tensor_bytes(manager):
    path = os.path.join(manager.latest().path, "__model__", "model.safetensors.index.json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)["metadata"]["total_size"]


# In place ----------


def test_parameters_stay_the_same_objects(saved):
    model = torch.nn.Linear(3, 2)
    expected = [p.detach().clone() for p in model.parameters()]
    m = saved(dict(model.named_parameters()))
    before = [(id(p), p.data_ptr(), p.requires_grad) for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    m.restore(dict(model.named_parameters()))
    assert before == [(id(p), p.data_ptr(), p.requires_grad) for p in model.parameters()]
    assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected))


def test_a_frozen_target_stays_frozen(saved):
    m = saved({"w": torch.ones(2, requires_grad=True)})
    given = {"w": torch.zeros(2)}
    m.restore(given)
    assert not given["w"].requires_grad
    assert given["w"].tolist() == [1.0, 1.0]


def test_filling_a_leaf_that_requires_grad_leaves_no_graph(saved):
    m = saved({"w": torch.ones(2, 2).t()})
    w = torch.zeros(2, 2, requires_grad=True)
    m.restore({"w": w.t()})
    assert w.grad_fn is None and w.is_leaf
    assert w.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_values_are_replaced_in_the_given_containers(saved):
    m = saved({"epoch": 3, "lr": [0.1, 0.2], "nested": {"deep": {"x": "y"}}})
    inner = {"x": None}
    given = {"epoch": 0, "lr": [0, 0], "nested": {"deep": inner}}
    restored = m.restore(given)
    assert restored.state is given
    assert given == {"epoch": 3, "lr": [0.1, 0.2], "nested": {"deep": {"x": "y"}}}
    assert given["nested"]["deep"] is inner


def test_values_inside_tuples_reach_the_given_dict(saved):
    m = saved({"betas": (0.9, 0.99), "deep": [({"a": 1}, 2)]})
    given = {"betas": (0, 0), "deep": [({"a": None}, None)]}
    m.restore(given)
    assert given == {"betas": (0.9, 0.99), "deep": [({"a": 1}, 2)]}


def test_a_named_tuple_that_is_given_stays_one(saved):
    Point = collections.namedtuple("Point", "x y")
    m = saved({"p": (1, np.arange(2))})
    given = {"p": Point(None, np.zeros(2, np.int64))}
    m.restore(given)
    assert type(given["p"]) is Point
    assert given["p"].x == 1 and given["p"].y.tolist() == [0, 1]


def test_none_takes_whatever_is_stored(saved):
    state = {"model": {"w": np.arange(3), "names": ["a"]}, "epoch": 4}
    m = saved(state)
    given = {"model": None, "epoch": None}
    m.restore(given)
    assert_same(state, given)


def test_the_state_itself_may_be_an_array(saved):
    m = saved(np.arange(4))
    target = np.zeros(4, np.int64)
    assert m.restore(target).state is target
    assert target.tolist() == [0, 1, 2, 3]


def test_elements_of_a_list_are_found_by_text_keys(saved):
    m = saved({"layers": [np.zeros(1), np.ones(1)]})
    given = {"layers": {"1": np.zeros(1), "0": np.ones(1)}}
    m.restore(given)
    assert [given["layers"]["0"][0], given["layers"]["1"][0]] == [0.0, 1.0]


def test_step_metrics_and_metadata_come_along(saved):
    restored = saved({"x": 1}).restore()
    assert (restored.step, restored.metrics, restored.metadata) == (3, {"loss": 1.5}, {"note": "x"})
    assert restored.info.step == 3 and restored.skipped == [] and restored.fallbacks == []


# Tied ----------


@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
def test_tied_arrays_are_stored_once_and_come_back_tied(saved, make):
    w = make(1000)
    m = saved({"embed": w, "head": {"w": w}, "other": make(10)})
    assert stored_tensor_bytes(m) == 1010 * 8
    restored = m.restore().state
    assert restored["embed"] is restored["head"]["w"]
    assert restored["other"] is not restored["embed"]


def test_views_of_one_memory_are_tied(saved):
    w = np.arange(12.0).reshape(3, 4)
    m = saved({"a": w, "b": w[:], "t": w.T, "u": w.T})
    assert stored_tensor_bytes(m) == 2 * 12 * 8
    restored = m.restore().state
    restored["a"][0, 0] = 100
    assert restored["b"][0, 0] == 100
    assert restored["t"] is restored["u"]


def test_a_parameter_and_its_detached_self_share_memory_again(saved):
    w = torch.nn.Parameter(torch.zeros(3))
    restored = saved({"p": w, "d": w.detach()}).restore().state
    assert type(restored["p"]) is torch.nn.Parameter and type(restored["d"]) is torch.Tensor
    with torch.no_grad():
        restored["p"].fill_(2)
    assert restored["d"].tolist() == [2.0, 2.0, 2.0]


def test_tied_targets_are_filled_once(saved):
    w = np.arange(5.0)
    m = saved({"a": w, "b": w})
    target = np.zeros(5)
    restored = m.restore({"a": target, "b": target})
    assert target.tolist() == w.tolist()
    assert restored.bytes == 40


def test_untied_targets_are_both_filled(saved):
    w = torch.arange(5.0)
    m = saved({"a": w, "b": w})
    given = {"a": torch.zeros(5), "b": torch.zeros(5)}
    m.restore(given)
    assert torch.equal(given["a"], w) and torch.equal(given["b"], w)


def test_a_tied_array_into_a_target_and_into_new_memory(saved):
    w = np.arange(5.0)
    m = saved({"a": w, "b": w})
    given = {"a": np.zeros(5), "b": None}
    m.restore(given)
    assert given["a"].tolist() == w.tolist()
    assert given["b"].tolist() == w.tolist()


@pytest.mark.parametrize(
    "target",
    [
        np.full((3, 2), 7.0),
        np.full((2, 3), 7.0).T,
        np.full((3, 2), 7.0, dtype=">f8"),
        torch.full((2, 3), 7.0, dtype=torch.float64).t(),
    ],
    ids=["plain", "transposed", "big-endian", "torch"],
)
def test_arrays_stored_apart_do_not_fit_tied_targets(saved, target):
    m = saved({"a": np.zeros((3, 2)), "b": np.ones((3, 2))})
    with pytest.raises(cairn.Mismatch, match="b: stored apart from a"):
        m.restore({"a": target, "b": target})
    assert target.tolist() == [[7.0, 7.0]] * 3


class Copying:
    """Gives copies of what it holds: they die when they were described."""

    def __init__(self, value, make):
        self.value = value
        self.make = make

    def state_dict(self):
        return {"w": self.make(self.value)}

    def load_state_dict(self, state):
        self.value = complex(np.asarray(state["w"]).ravel()[-1]).real


COPIES = {
    "contiguous": lambda value: np.full((500, 2), value),
    "transposed": lambda value: np.full((2, 500), value).T,
    "reversed": lambda value: np.full((500, 2), value)[::-1],
    "big-endian": lambda value: np.full((500, 2), value, dtype=">f8"),
    "torch, transposed": lambda value: torch.full((2, 500), value).t(),
    "torch, conjugated": lambda value: torch.full((500, 2), complex(value)).conj(),
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
def test_copies_that_follow_each_other_in_memory_are_not_tied(saved, make):
    m = saved({str(i): Copying(float(i), make) for i in range(8)})
    found = {str(i): Copying(-1.0, make) for i in range(8)}
    m.restore(found)
    assert [part.value for part in found.values()] == [float(i) for i in range(8)]


@pytest.mark.parametrize("rank", [0, 1])
def test_copies_are_not_tied_where_another_rank_writes_them(rank):
    layout = _tree.Layout(rank, 2, f"trainer_{rank}", own="args", common=True)
    state = {str(i): Copying(float(i), COPIES["contiguous"]) for i in range(8)}
    state["a torch tensor"] = Copying(1.0, COPIES["torch, transposed"])
    stored = json.loads(_tree.encode(state, layout).json)["state"]["dict"]
    names = {part["dict"]["w"]["tensor"]["name"] for part in stored.values()}
    assert len(names) == len(state)


# Compared first ----------


def test_a_mismatch_lists_everything_and_changes_nothing(saved):
    m = saved(
        {
            "same": np.ones(2),
            "shape": np.ones(3),
            "dtype": np.ones(2),
            "extra": {"x": 1, "n": None},
            "value": 5,
        }
    )
    given = {
        "same": np.zeros(2),
        "shape": np.zeros((3, 1)),
        "dtype": np.zeros(2, np.float32),
        "lost": np.zeros(1),
        "deep": {"lost": 3},
        "value": 0,
    }
    with pytest.raises(cairn.Mismatch) as refused:
        m.restore(given)
    error = refused.value
    assert sorted(error.missing) == ["deep/lost", "lost"]
    assert error.unexpected == ["extra/x"]
    assert error.mismatched == [
        "shape: stored F64 [3], wanted F64 [3,1]",
        "dtype: stored F64 [2], wanted F32 [2]",
    ]
    for name in ("deep/lost", "extra/x", "F64 [3,1]"):
        assert name in str(error)
    assert given["same"].tolist() == [0.0, 0.0] and given["value"] == 0


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(np.zeros(2), 5), (5, np.zeros(2)), ({"a": 1}, 5), ({"a": 1}, np.zeros(1)), ([1], "x")],
    ids=["array as value", "value as array", "dict as value", "dict as array", "list as text"],
)
def test_another_kind_of_thing_is_a_mismatch(saved, stored, wanted):
    m = saved({"x": stored})
    with pytest.raises(cairn.Mismatch) as refused:
        m.restore({"x": wanted})
    assert len(refused.value.mismatched) == 1


def test_a_list_of_another_length_is_a_mismatch(saved):
    m = saved({"l": [1, 2, 3]})
    with pytest.raises(cairn.Mismatch) as refused:
        m.restore({"l": [0, 0]})
    assert refused.value.unexpected == ["l/2"]


def test_not_strict_restores_what_matches_and_reports_the_rest(saved):
    m = saved({"same": np.ones(2), "shape": np.ones(3), "extra": 1, "epoch": 9})
    given = {"same": np.zeros(2), "shape": np.zeros(4), "lost": np.zeros(1), "epoch": 0}
    restored = m.restore(given, strict=False)
    assert given["same"].tolist() == [1.0, 1.0] and given["epoch"] == 9
    assert given["shape"].tolist() == [0.0] * 4 and given["lost"].tolist() == [0.0]
    assert dict(restored.skipped) == {
        "shape": "stored F64 [3], wanted F64 [4]",
        "lost": "not in the checkpoint",
        "extra": "not asked for",
    }


# Renamed, skipped ----------


def test_renaming_a_leaf_and_a_subtree(saved):
    m = saved({"old": np.arange(2), "encoder": {"w": np.ones(2), "deep": {"b": 5}}, "encoderx": 1})
    given = {
        "new": np.zeros(2, np.int64),
        "backbone": {"w": np.zeros(2), "deep": {"b": 0}},
        "encoderx": 0,
    }
    m.restore(given, rename={"old": "new", "encoder": "backbone"})
    assert given["new"].tolist() == [0, 1]
    assert given["backbone"]["w"].tolist() == [1.0, 1.0]
    assert given["backbone"]["deep"]["b"] == 5 and given["encoderx"] == 1


def test_the_longest_name_that_is_renamed_counts(saved):
    m = saved({"a": {"b": {"w": 1}, "c": 2}})
    given = {"x": {"c": 0}, "y": {"w": 0}}
    m.restore(given, rename={"a": "x", "a/b": "y"})
    assert given == {"x": {"c": 2}, "y": {"w": 1}}


def test_two_names_may_change_places(saved):
    m = saved({"a": np.zeros(1), "b": np.ones(1)})
    given = {"a": np.full(1, 5.0), "b": np.full(1, 6.0)}
    m.restore(given, rename={"a": "b", "b": "a"})
    assert (given["a"][0], given["b"][0]) == (1.0, 0.0)


def test_a_renamed_subtree_can_be_taken_whole(saved):
    m = saved({"old": {"w": np.arange(2), "n": 3}})
    given = {"new": None}
    m.restore(given, rename={"old": "new"})
    assert_same({"new": {"w": np.arange(2), "n": 3}}, given)


def test_renaming_onto_another_name_is_refused(saved):
    m = saved({"a": np.zeros(1), "b": np.ones(1)})
    with pytest.raises(cairn.Invalid, match="both .* would become b"):
        m.restore({"b": np.zeros(1)}, rename={"a": "b"})


def test_renaming_needs_a_state(saved):
    with pytest.raises(cairn.Invalid, match="rename"):
        saved({"a": 1}).restore(rename={"a": "b"})


def test_skipped_names_are_left_alone(saved):
    m = saved({"body": {"w": np.ones(2)}, "head": {"w": np.ones(2), "b": 1}, "epoch": 4})
    given = {"body": {"w": np.zeros(2)}, "head": {"w": np.zeros(3), "b": 0}, "epoch": 0}
    restored = m.restore(given, skip=["head"])
    assert given["body"]["w"].tolist() == [1.0, 1.0] and given["epoch"] == 4
    assert given["head"]["w"].tolist() == [0.0] * 3 and given["head"]["b"] == 0
    assert sorted(restored.skipped) == [
        ("head/b", "left alone, as asked for"),
        ("head/w", "left alone, as asked for"),
    ]


def test_skipped_names_need_not_be_given(saved):
    m = saved({"a": 1, "head": {"w": np.ones(2)}})
    given = {"a": 0}
    assert m.restore(given, skip={"head"}).skipped == [("head/w", "left alone, as asked for")]
    assert given == {"a": 1}


def test_skipped_names_are_not_in_a_new_state(saved):
    m = saved({"a": 1, "head": {"w": np.ones(2), "b": 2}, "t": (1, 2)})
    restored = m.restore(skip=["head/w", "t"])
    assert restored.state == {"a": 1, "head": {"b": 2}}


def test_a_stored_name_may_be_skipped_after_renaming(saved):
    m = saved({"old": np.ones(1), "x": 1})
    given = {"new": np.zeros(1), "x": 0}
    m.restore(given, rename={"old": "new"}, skip="old")
    assert given["new"][0] == 0.0 and given["x"] == 1


@pytest.mark.parametrize("given", [{"a": np.zeros(1), "x": {"y": 0}}, None])
def test_misspelt_names_are_refused_or_reported(saved, given):
    m = saved({"a": np.ones(1), "x": {"y": 1}})
    with pytest.raises(cairn.Invalid, match="skip: 'x/z': there is nothing of that name"):
        m.restore(given, skip=["x/z"])
    assert given is None or given["a"][0] == 0.0
    restored = m.restore(given, skip=["x/z"], strict=False)
    assert restored.skipped == [("x/z", "there is nothing of that name")]
    if given is not None:
        with pytest.raises(cairn.Invalid, match="rename: 'A': there is nothing of that name"):
            m.restore(given, rename={"A": "a"})


def test_what_is_given_and_not_stored_may_be_skipped(saved):
    given = {"a": 0, "new": {"w": np.zeros(1)}}
    saved({"a": 1}).restore(given, skip=["new"])
    assert given["a"] == 1


def test_only_tables_are_tables(saved):
    m = saved({"a": 1})
    with pytest.raises(cairn.Invalid, match="tables: .* not a dict"):
        m.restore({"a": 0}, tables=[{}])
    with pytest.raises(cairn.Invalid, match="tables: .* not a ndarray"):
        m.save(9, {"a": 0}, tables=[np.zeros(1)])


# Objects with a state of their own ----------

STATEFUL = """
import sys, cairn, numpy as np
class Counter:
    def __init__(self): self.n, self.w = 0, np.zeros(2)
    def state_dict(self): return {"n": self.n, "w": self.w}
    def load_state_dict(self, state): self.n, self.w = state["n"], state["w"]
assert "torch" not in sys.modules
one = Counter(); one.n = 5; one.w[:] = 3
with cairn.CheckpointManager(sys.argv[1]) as m:
    m.save(0, {"c": one, "lr": 0.5}, blocking=True)
    two = Counter()
    given = {"c": two, "lr": None}
    m.restore(given)
    assert given["c"] is two and two.n == 5 and two.w.tolist() == [3.0, 3.0], (two.n, two.w)
    assert m.restore().state["c"]["n"] == 5
print("fine")
"""


def test_objects_with_state_dict_work_without_torch(directory):
    done = subprocess.run(
        [sys.executable, "-c", STATEFUL, directory],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr


def test_an_array_whose_elements_are_one_in_memory_is_refused(saved):
    manager = saved({"w": np.arange(3.0), "n": np.zeros(1)})
    one = np.zeros(1)
    expanded = np.lib.stride_tricks.as_strided(one, (3,), (0,))
    first = np.full(1, 7.0)
    for target in (expanded, torch.from_numpy(one).expand(3)):
        with pytest.raises(cairn.Invalid, match="w: .*share"):
            manager.restore({"n": first, "w": target})
    assert first.tolist() == [7.0], "nothing was changed"


# Modules ----------


def restored(directory, saved, into):
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"model": saved}, blocking=True)
        return m.restore({"model": into})


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("now", [False, True])
def test_a_module_may_be_compiled_or_not(directory, before, now):
    def made(compiled):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        if not compiled:
            return model
        model[1] = torch.compile(model[1], backend="eager")
        return torch.compile(model, backend="eager")

    saved, into = made(before), made(now)
    restored(directory, saved, into)
    pairs = list(zip(into.parameters(), saved.parameters()))
    assert len(pairs) == 4 and all(torch.equal(a, b) for a, b in pairs)
    with cairn.CheckpointManager(directory, read_only=True) as m:
        state = m.restore().state["model"]
    assert sorted(state) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_names_that_torch_compile_gave_are_known(directory):
    saved, into = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with cairn.CheckpointManager(directory) as m:
        names = {f"_orig_mod.{name}": value for name, value in saved.state_dict().items()}
        m.save(1, {"model": names}, blocking=True)
        m.restore({"model": into})
    assert torch.equal(into.weight, saved.weight)


def test_a_lazy_module_is_refused_by_name_until_it_is_made(directory):
    model = torch.nn.Sequential(torch.nn.LazyLinear(1))
    with cairn.CheckpointManager(directory) as m:
        for lazy in (False, True):
            with pytest.raises(cairn.Invalid, match="model/0.weight is not made yet"):
                m.save(1, {"model": model}, lazy=lazy)
    made = torch.nn.Sequential(torch.nn.LazyLinear(1))
    made(torch.ones(1, 3))
    restored(directory, made, model)
    assert torch.equal(model[0].weight, made[0].weight)


class Wrapping(torch.nn.Module):
    """Its state_dict gives copies."""

    def __init__(self, size):
        super().__init__()
        self.layer = torch.nn.Linear(size, 1)
        self.phase = torch.nn.Parameter(torch.randn(2, dtype=torch.complex64))
        self.register_state_dict_post_hook(
            lambda module, state, prefix, meta: state.update({k: v.clone() for k, v in state.items()})
        )


def test_shapes_of_a_module_whose_state_is_a_copy_are_compared_first(tmp_path):
    saved = Wrapping(2)
    into = Wrapping(2)
    restored(tmp_path / "same", saved, into)
    assert torch.equal(into.layer.weight, saved.layer.weight)
    assert torch.equal(into.phase, saved.phase)
    array = np.zeros(2)
    with cairn.CheckpointManager(tmp_path / "other") as m:
        m.save(1, {"array": np.ones(2), "model": saved}, blocking=True)
        with pytest.raises(cairn.Mismatch, match=r"layer.weight: stored \[1, 2\], wanted \[1, 3\]"):
            m.restore({"array": array, "model": Wrapping(3)})
    assert array.tolist() == [0, 0]
