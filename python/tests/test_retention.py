"""Which checkpoints stay."""

import math
import os
import subprocess
import sys

import pytest

import cairn


def steps_after(directory, saves, **options):
    """Saves (step, metrics) one after the other; gives the steps that stay."""
    with cairn.CheckpointManager(directory, **options) as m:
        for step, metrics in saves:
            m.save(step, {"x": step}, metrics=metrics, blocking=True)
        m.wait()
        return [info.step for info in m.list()]


def plain(count):
    return [(step, None) for step in range(count)]


def scored(*scores):
    return [(step, {} if s is None else {"acc": s}) for step, s in enumerate(scores)]


def test_three_stay_unless_told_otherwise(directory):
    assert steps_after(directory, plain(6)) == [3, 4, 5]


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_keep_last(directory, keep):
    assert steps_after(directory, plain(6), keep_last=keep) == list(range(6))[-keep:]


def test_keep_last_none_keeps_all(directory):
    assert steps_after(directory, plain(12), keep_last=None) == list(range(12))


def test_keep_best_by_greatest_score(directory):
    saves = scored(0.1, 0.9, 0.5, 0.8, 0.2)
    assert steps_after(directory, saves, keep_last=1, keep_best=2, score="acc") == [1, 3, 4]


def test_keep_best_by_least_score(directory):
    saves = scored(0.1, 0.9, 0.5, 0.05, 0.7)
    kept = steps_after(directory, saves, keep_last=1, keep_best=2, score="acc", order="min")
    assert kept == [0, 3, 4]


def test_a_nested_score(directory):
    saves = [(step, {"val": {"acc": s}}) for step, s in enumerate([0.1, 0.9, 0.5, 0.2])]
    assert steps_after(directory, saves, keep_last=1, keep_best=1, score="val/acc") == [1, 3]


@pytest.mark.parametrize("order", ["max", "min"])
def test_nan_and_missing_scores_are_the_worst_in_both_orders(directory, order):
    saves = scored(math.nan, 0.5, None, math.nan, 0.6, None, None)
    kept = steps_after(directory, saves, keep_last=1, keep_best=2, score="acc", order=order)
    assert kept == [1, 4, 6]


def test_infinities_are_numbers(directory):
    saves = scored(-math.inf, math.nan, math.inf, 0.0)
    assert steps_after(directory, saves, keep_last=1, keep_best=1, score="acc") == [2, 3]


@pytest.mark.parametrize("order", ["max", "min"])
def test_of_equal_scores_the_later_stays(directory, order):
    saves = scored(0.5, 0.5, 0.5, 0.5)
    kept = steps_after(directory, saves, keep_last=1, keep_best=2, score="acc", order=order)
    assert kept == [2, 3]


def test_keep_every(directory):
    assert steps_after(directory, plain(10), keep_last=1, keep_every=4) == [0, 4, 8, 9]


def test_removed_checkpoints_are_gone_from_the_disk(directory):
    steps_after(directory, plain(5), keep_last=1)
    assert [n for n in os.listdir(directory) if n.startswith("checkpoint")] == ["checkpoint_000004"]


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(directory):
    with cairn.CheckpointManager(directory, keep_last=1) as m:
        first = m.save(0, {"x": 0}, blocking=True).wait()
        m.pin(first.id)
        for step in (1, 2):
            m.save(step, {"x": step}, blocking=True)
        m.wait()
        assert [(i.step, i.pinned) for i in m.list()] == [(0, True), (2, False)]
        m.unpin(first.id)
        m.save(3, {"x": 3}, blocking=True)
        m.wait()
        assert [i.step for i in m.list()] == [3]


def test_delete_removes_one(directory):
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        infos = [m.save(step, {"x": step}, blocking=True).wait() for step in range(3)]
        m.delete(infos[1].id)
        assert [i.step for i in m.list()] == [0, 2]
        assert not os.path.exists(infos[1].path)
        with pytest.raises(cairn.NotFound):
            m.restore(id=infos[1].id)


@pytest.mark.parametrize("what", ["pin", "unpin", "delete"])
def test_an_unknown_id_is_not_found(directory, what):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {}, blocking=True)
        with pytest.raises(cairn.NotFound):
            getattr(m, what)("00000000-0000-4000-8000-000000000000")
        with pytest.raises(cairn.Invalid):
            getattr(m, what)(3)


def test_late_metrics_are_added_and_count(directory):
    with cairn.CheckpointManager(directory, keep_last=2, keep_best=1, score="acc") as m:
        infos = [m.save(s, {}, metrics={"loss": 1.0}, blocking=True).wait() for s in range(2)]
        m.add_metrics(infos[0].id, {"acc": 0.9})
        m.add_metrics(infos[1].id, {"acc": 0.1})
        assert m.list()[0].metrics == {"loss": 1.0, "acc": 0.9}
        for step in range(2, 5):
            m.save(step, {}, metrics={"acc": 0.2}, blocking=True)
        m.wait()
        assert [i.step for i in m.list()] == [0, 3, 4]


def test_another_process_scores_what_a_training_saves(directory):
    judge = "import sys, cairn; cairn.CheckpointManager(sys.argv[1], read_only=True).add_metrics(sys.argv[2], {'acc': float(sys.argv[3])})"
    with cairn.CheckpointManager(directory, keep_last=1, keep_best=1, score="acc") as m:
        for step, score in enumerate([0.1, 0.9, 0.5, 0.2]):
            info = m.save(step, {}, blocking=True).wait()
            subprocess.run([sys.executable, "-c", judge, directory, info.id, str(score)], check=True)
        m.save(4, {}, blocking=True)
        m.wait()
        assert [(i.step, i.metrics) for i in m.list()] == [(1, {"acc": 0.9}), (4, {})]


def test_serial_names_count_from_zero(directory):
    with cairn.CheckpointManager(directory, naming="serial", keep_last=2) as m:
        names = [os.path.basename(m.save(s, {}, blocking=True).wait().path) for s in (10, 20, 30)]
        assert names == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    with cairn.CheckpointManager(directory, naming="serial") as m:
        assert m.latest().step == 30
        path = m.save(40, {}, blocking=True).wait().path
        assert os.path.basename(path) == "checkpoint_3"


def test_step_names_show_the_step(directory):
    with cairn.CheckpointManager(directory) as m:
        paths = [m.save(s, {}, blocking=True).wait().path for s in (40, 40, 1_000_000)]
    assert [os.path.basename(p) for p in paths] == [
        "checkpoint_000040", "checkpoint_000040-2", "checkpoint_1000000"]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{"keep_last": 0}, {"keep_last": -1}, {"keep_best": 0, "score": "x"}, {"keep_best": 2},
     {"keep_every": 0}, {"order": "largest"}, {"naming": "date"}, {"on_busy": "queue"},
     {"keep_last": 1.5}, {"deadline": "soon"}, {"deadline": -1}, {"rank": 2, "world_size": 2},
     {"rank": -1}, {"world_size": 0}, {"job": ""}, {"job": 3}, {"keep_last": True}],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused(directory, options):
    with pytest.raises(cairn.Invalid):
        cairn.CheckpointManager(directory, **options)
    assert not os.path.exists(directory)
