"""cairn.Scope: variables by role."""

import numpy as np
import pytest

import cairn


def program():
    scope = cairn.Scope()
    scope.parameter("fc/w", np.zeros((3, 4), np.float32), cairn.initializers.Uniform(-1, 1))
    scope.parameter("fc/b", np.zeros(4, np.float32), 0.5, trainable=False, learning_rate_factor=2)
    scope.persistable("step", np.int64(3))
    scope.temporary("hidden", np.ones((2, 4)))
    return scope


def test_variables_have_names_roles_dtypes_shapes_and_bytes():
    found = {v.name: v for v in program().vars()}
    assert list(found) == ["fc/b", "fc/w", "hidden", "step"]
    assert found["fc/w"] == cairn.Variable("fc/w", "parameter", "float32", (3, 4), 48)
    assert (found["fc/b"].trainable, found["fc/b"].learning_rate_factor) == (False, 2)
    assert (found["step"].role, found["step"].shape, found["step"].dtype) == (
        "persistable",
        (),
        "int64",
    )
    assert [v.name for v in program().vars("persistable")] == ["fc/b", "fc/w", "step"]
    assert [v.name for v in program().vars("temporary")] == ["hidden"]


def test_views_share_the_scopes_memory():
    scope = program()
    first, second = scope["fc/w"], scope["fc/w"]
    first[1, 2] = 7
    assert second[1, 2] == 7
    scope["fc/b"] = [1, 2, 3, 4]
    assert scope["fc/b"].tolist() == [1, 2, 3, 4]
    with pytest.raises(cairn.Invalid, match="shape"):
        scope["fc/b"] = 1.0


@pytest.mark.parametrize("dtype", [">i4", ">f8", "c8", ">c16", "M8[D]", ">m8[s]"])
def test_what_is_written_into_a_view_stays_whatever_the_byte_order(dtype):
    scope = cairn.Scope()
    given = np.arange(3).astype(dtype)
    view = scope.parameter("w", given)
    assert view.tolist() == given.tolist()
    view[0] = view[2]
    assert scope["w"].tolist() == given[[2, 1, 2]].tolist()
    assert scope["w"].dtype == np.dtype(dtype).newbyteorder("=")


def test_initialize_is_a_function_of_seed_and_name():
    a, b = program(), program()
    a.initialize(seed=5)
    b.initialize(seed=5)
    assert (a["fc/w"] == b["fc/w"]).all() and a["fc/w"].std() > 0
    assert a["fc/b"].tolist() == [0.5] * 4
    assert a["step"] == 3, "no initializer: left alone"
    b.initialize(seed=6)
    assert (a["fc/w"] != b["fc/w"]).any()


def test_temporaries_are_gone_after_the_iteration():
    scope = program()
    kept = scope["hidden"]
    scope.end_iteration()
    assert "hidden" not in scope and "fc/w" in scope
    with pytest.raises(cairn.NotFound, match="hidden"):
        scope["hidden"]
    assert kept.sum() == 8, "whoever holds the memory keeps it"
    scope.temporary("hidden", np.zeros(1))


def test_a_clone_for_testing_cannot_change_the_parameters():
    scope = program()
    test = scope.clone(for_test=True)
    scope["fc/w"][:] = 3
    assert test["fc/w"].min() == 3, "it sees the training's parameters"
    with pytest.raises(ValueError, match="read-only"):
        test["fc/w"][0, 0] = 1
    with pytest.raises(ValueError):
        test["fc/w"].flags.writeable = True
    with pytest.raises(cairn.Error, match="frozen"):
        test["fc/w"] = np.zeros((3, 4))
    with pytest.raises(cairn.Error, match="frozen"):
        test.initialize(1)
    test.temporary("hidden", np.zeros(2))[0] = 1
    assert repr(test) == "<cairn.Scope of 4 variables, frozen>"


def test_a_plain_clone_is_independent():
    scope = program()
    scope.clone()["fc/w"][:] = 3
    assert scope["fc/w"].max() == 0


def test_wrong_declarations_are_refused():
    scope = program()
    with pytest.raises(cairn.Invalid, match="fc/w"):
        scope.parameter("fc/w", np.zeros(1))
    with pytest.raises(cairn.Invalid, match="initializer"):
        scope.parameter("x", np.zeros(1), initializer="zeros")
    with pytest.raises(cairn.Invalid):
        scope.parameter("x", np.zeros(1, np.int32), cairn.initializers.Normal(0, 1))
    with pytest.raises(cairn.Invalid):
        scope.parameter("x", np.array(["text"]))
    with pytest.raises(cairn.Invalid):
        scope.vars("learned")


def test_complex_and_half_variables():
    scope = cairn.Scope()
    z = scope.parameter("z", np.array([1 + 2j], np.complex64))
    h = scope.parameter("h", np.zeros(3, np.float16), 1.5)
    scope.initialize()
    assert z.dtype == np.complex64 and scope["z"][0] == 1 + 2j and h.tolist() == [1.5] * 3


def test_the_default_scope_is_one():
    scope = cairn.default_scope()
    try:
        scope.parameter("w", np.ones(2))
        assert [v.name for v in cairn.io.list_vars()] == ["w"]
    finally:
        scope.clear()


def test_a_manager_and_a_trainer_take_a_scope(directory):
    scope = program()
    scope.initialize(1)
    want = scope["fc/w"].copy()
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"model": scope}, blocking=True)
        scope["fc/w"][:] = 0
        m.restore({"model": scope})
    assert (scope["fc/w"] == want).all()
    with pytest.raises(cairn.Error, match="overwrite"):
        scope.initialize(1)

    def step(model, batch):
        model["fc/b"] += batch

    trainer = cairn.Trainer(scope, step, checkpoint_config=cairn.CheckpointConfig(directory + "2"))
    trainer.train(1, [np.float32(1)] * 3)
    assert scope["fc/b"].tolist() == [3.5] * 4


def test_lists_that_are_no_array_are_invalid():
    with pytest.raises(cairn.Invalid, match="'w': a list is no array"):
        cairn.Scope().parameter("w", [[1], [2, 3]])


def scope_with_a_temporary():
    scope = cairn.Scope()
    scope.parameter("w", np.zeros(2))

    def step(*_):
        scope["w"] += scope.temporary("error", np.ones(2))
        return float(scope["error"].sum())

    return scope, step


def test_a_frozen_scope_is_not_trained():
    with pytest.raises(cairn.Invalid, match="frozen scope .* cannot be trained"):
        cairn.Trainer(program().clone(for_test=True), lambda model, batch: None)


@pytest.mark.parametrize("place", ["model", "state"])
def test_a_trainer_ends_each_iteration_after_its_events(place):
    scope, step = scope_with_a_temporary()
    seen = []

    def handler(event):
        if isinstance(event, cairn.EndStepEvent):
            seen.append("error" in scope)

    given = {"model": scope} if place == "model" else {"model": {}, "state": {"net": scope}}
    cairn.Trainer(step=step, **given).train(2, [1, 2], handler)
    assert seen == [True] * 4 and list(scope) == ["w"]
    assert scope["w"].tolist() == [4, 4]


@pytest.mark.parametrize(
    "state",
    [lambda scope: scope, lambda scope: {"net": scope}, lambda scope: {"nets": [1, {"a": scope}]}],
)
def test_a_session_ends_each_iteration(directory, state):
    scope, step = scope_with_a_temporary()
    with cairn.train.MonitoredTrainingSession(directory, state=state(scope), tables=[]) as session:
        for _ in range(3):
            session.run(step)
            assert list(scope) == ["w"]
    assert scope["w"].tolist() == [3, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.initialize(1.5),
        lambda s: s.initialize("1"),
        lambda s: s.vars(5),
        lambda s: s[5],
        lambda s: s.parameter("v\udc80", np.zeros(1)),
        lambda s: s.parameter("v", np.zeros(1), float("nan")),
        lambda s: s.parameter("v", np.zeros(1), learning_rate_factor=float("nan")),
        lambda s: s.parameter("v", np.zeros(1), learning_rate_factor="1"),
    ],
)
def test_arguments_of_a_wrong_kind_are_invalid(call):
    scope = cairn.Scope()
    scope.parameter("w", np.zeros(1))
    with pytest.raises(cairn.Invalid):
        call(scope)
    assert list(scope) == ["w"]


def test_numbers_of_numpy_are_numbers():
    scope = cairn.Scope()
    w = scope.parameter("w", np.zeros(1), np.int64(3), learning_rate_factor=np.float32(2))
    scope.initialize(np.int64(7))
    assert w.tolist() == [3.0]
