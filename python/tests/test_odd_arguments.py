"""What is given and cannot be: an error of Cairn's that names it, whatever Python would have raised."""

import os

import numpy as np
import pytest

import cairn

HUGE = 10**400  # a whole number that no float holds


def session(**settings):
    return cairn.train.MonitoredTrainingSession("runs/a", tables=[], **settings)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: cairn.CheckpointManager("runs/a", deadline=HUGE), "deadline"),
        (lambda: cairn.CheckpointManager("runs/a", join_deadline=-HUGE), "join_deadline"),
        (lambda: session(save_checkpoint_secs=HUGE), "save_checkpoint_secs"),
        (lambda: session(save_checkpoint_steps=HUGE), "save_checkpoint_steps"),
        (lambda: session(save_incremental_checkpoint_secs=-HUGE), "incremental_checkpoint_secs"),
        (lambda: cairn.CheckpointConfig("runs/a", save_seconds=HUGE), "save_seconds"),
        (lambda: cairn.optimizers.Adagrad(HUGE), "learning_rate"),
        (lambda: cairn.initializers.Constant(HUGE), "value"),
        (lambda: cairn.L2WeightEvict(HUGE), "l2_weight_threshold"),
        (lambda: cairn.Scope().parameter("w", np.zeros(1), learning_rate_factor=HUGE), "factor"),
        (lambda: cairn.Scope().parameter("w", np.zeros(1), initializer=HUGE), "initializer"),
    ],
)
def test_a_number_that_no_float_holds_is_refused_by_name(made, named):
    def use():
        found = made()
        if isinstance(found, cairn.L2WeightEvict):
            cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(), eviction=found)

    with pytest.raises(cairn.Invalid, match=named):
        use()


def test_a_learning_rate_that_no_float_holds_is_refused():
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(0.5))
    with pytest.raises(cairn.Invalid, match="learning_rate"):
        table.learning_rate = HUGE
    assert table.learning_rate == 0.5


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_a_path_that_is_too_long_is_an_error_of_cairns(name):
    for look in (cairn.load, cairn.verify, lambda path: cairn.diff(path, path)):
        with pytest.raises(cairn.Error, match="too long"):
            look(name)
    with pytest.raises(cairn.Error, match="too long"):
        cairn.io.load_params(name, scope_of_one())


def scope_of_one():
    scope = cairn.Scope()
    scope.parameter("w", np.zeros(1))
    return scope


def test_a_relative_path_in_a_directory_that_is_gone_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    before = os.getcwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        for use in (cairn.CheckpointManager, lambda path: cairn.save(path, {})):
            with pytest.raises(cairn.NotFound, match="working directory"):
                use("runs/a")
        with pytest.raises(cairn.NotFound, match="working directory"):
            cairn.train.MonitoredTrainingSession("runs/a", tables=[]).__enter__()
        with cairn.CheckpointManager(tmp_path / "there") as manager:  # an absolute one does
            manager.save(0, {"x": 1}, blocking=True)
    finally:
        os.chdir(before)


def test_initializers_take_their_numbers_by_the_short_names_too():
    of = cairn.initializers
    assert of.Constant(x=0.5) == of.Constant(0.5) == of.Constant(value=0.5)
    assert of.Uniform(lo=-1, hi=2) == of.Uniform(-1, 2) == of.Uniform(low=-1, high=2)
    assert of.Uniform(hi=2) == of.Uniform(high=2)
    with pytest.raises(TypeError, match="low"):
        of.Uniform(1, lo=1)
    with pytest.raises(TypeError, match="nothing"):
        of.Uniform(nothing=1)
