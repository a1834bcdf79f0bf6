"""Result and ResultGrid."""

import json
import math
import subprocess
import sys

import pytest

import cairn
from cairn.tune.result import Result, TrialError
from cairn.tune.result_grid import ResultGrid

BIG = 2**53


def grid(reports, **options):
    results = [
        Result(f"t{i}", f"/x/t{i}", {"i": i, "o": {"p": i}}, [{"m": m} for m in ms])
        for i, ms in enumerate(reports)
    ]
    return ResultGrid(results, **options)


@pytest.mark.parametrize(
    ("scope", "mode", "best"),
    [("last", "max", 2), ("last", "min", 1), ("all", "max", 1), ("all", "min", 1), ("avg", "max", 1), ("avg", "min", 2),
     ("last-5-avg", "max", 0), ("last-10-avg", "max", 0)],
)  # fmt: skip
def test_the_best_by_scope(scope, mode, best):
    reports = [[3, 3, 3], [9, 5, 0], [1, 1, 4]]
    if "-" in scope:
        reports = [[100, *([4] * 10)], [1000, *([1] * 10)], [3] * 5]
    assert grid(reports).get_best_result("m", mode, scope).config["i"] == best


def test_nan_and_infinities_are_left_out_or_worst():
    values = grid([[math.nan], [math.inf], [2.0], [1.0]])
    assert values.get_best_result("m", "max").config["i"] == 2
    assert values.get_best_result("m", "max", filter_nan_and_inf=False).config["i"] == 1
    assert values.get_best_result("m", "min", filter_nan_and_inf=False).config["i"] == 3
    assert (
        grid([[math.nan], [math.nan]])
        .get_best_result("m", "max", filter_nan_and_inf=False)
        .config["i"]
        == 0
    )
    with pytest.raises(RuntimeError, match="filter_nan_and_inf"):
        grid([[math.nan]]).get_best_result("m", "max")


def test_large_integers_and_nested_metrics():
    assert grid([[BIG], [BIG + 1], [float(BIG)]]).get_best_result("m", "max").config["i"] == 1
    nested = ResultGrid(
        [Result(str(i), "/x", {"i": i}, [{"val": {"acc": a}}]) for i, a in enumerate([1, 3, 2])]
    )
    assert nested.get_best_result("val/acc", "max").config["i"] == 1


def test_what_is_missing_is_said():
    empty = ResultGrid(
        [Result("a", "/x", {}, []), Result("b", "/x", {}, [{"other": 1}], error="Traceback\nboom")]
    )
    assert (
        len(empty) == 2 and [r.trial_id for r in empty] == ["a", "b"] and empty[1].trial_id == "b"
    )
    assert empty[0].metrics["trial_id"] == "a" and empty[0].error is None
    assert (
        empty.num_errors == 1
        and isinstance(empty.errors[0], TrialError)
        and "boom" in str(empty.errors[0])
    )
    with pytest.raises(RuntimeError, match="no trial has a value of 'm'"):
        empty.get_best_result("m", "max")
    with pytest.raises(ValueError, match="name a metric"):
        empty.get_best_result()
    with pytest.raises(ValueError, match="mode"):
        empty.get_best_result("m", "biggest")
    with pytest.raises(ValueError, match="scope"):
        empty.get_best_result("m", "max", scope="middle")
    assert grid([[1], [2]], metric="m", mode="min").get_best_result().config["i"] == 0


@pytest.mark.parametrize("error", [None, "Traceback"])
def test_a_trial_that_never_reported_has_metrics_that_say_which_it_was(error):
    result = Result("a", "/x", {"lr": 1}, [], error, "ERROR" if error else "TERMINATED", [])
    assert result.metrics.get("training_iteration") is None
    assert result.metrics["config"] == {"lr": 1} and result.metrics["trial_id"] == "a"
    assert result.metrics["done"] is (error is None)
    assert len(result.metrics_dataframe) == 0


def test_a_result_is_shown_by_what_the_trial_reported():
    result = Result("a", "/x", {"lr": 1}, [{"loss": 0.5, "pid": 7, "time_total_s": 1.0}])
    assert "metrics={'loss': 0.5}" in repr(result)


def test_the_best_of_one_is_that_whatever_it_reported():
    assert grid([[3]]).get_best_result().config["i"] == 0
    assert grid([[]]).get_best_result().metrics["trial_id"] == "t0"
    with pytest.raises(RuntimeError, match="no trial has a value of 'm'"):
        grid([[]]).get_best_result("m", "max")


def test_dataframes():
    values = grid([[1, 5, 3], [2]])
    frame = values.get_dataframe()
    assert list(frame["m"]) == [3, 2]
    assert list(frame["config/o/p"]) == [0, 1]
    assert list(frame["logdir"]) == ["/x/t0", "/x/t1"]
    assert list(values.get_dataframe("m", "max")["m"]) == [5, 2]
    assert list(values[0].metrics_dataframe["m"]) == [1, 5, 3]
    with pytest.raises(ValueError, match="together"):
        values.get_dataframe("m")


def test_a_result_is_read_from_its_directory_wherever_it_is(tmp_path):
    trial = tmp_path / "trial_1"
    trial.mkdir()
    (trial / "params.json").write_text(json.dumps({"lr": 0.5}))
    (trial / "result.json").write_text(
        '{"loss": 2.0, "training_iteration": 1}\n{"loss": NaN, "training_iteration": 2}\n{"lo'
    )
    with cairn.CheckpointManager(trial, keep_last=None) as manager:
        for step, loss in enumerate([3.0, 1.0, 2.0]):
            manager.save(step, {"x": step}, metrics={"val": {"loss": loss}}, blocking=True)
    moved = tmp_path / "elsewhere"
    trial.rename(moved)
    result = Result.from_path(moved)
    assert result.config == {"lr": 0.5}
    assert result.metrics["training_iteration"] == 2 and math.isnan(result.metrics["loss"])
    assert result.error is None
    assert [metrics["val"]["loss"] for _, metrics in result.best_checkpoints] == [3.0, 1.0, 2.0]
    assert result.checkpoint._info.step == 2
    assert result.get_best_checkpoint("val/loss", "min")._info.step == 1
    with pytest.raises(ValueError, match="no checkpoint"):
        result.get_best_checkpoint("acc", "min")
    (moved / "error.txt").write_text("Traceback")
    assert str(Result.from_path(moved).error) == "Traceback"
    with pytest.raises(ValueError, match="does not exist"):
        Result.from_path(trial)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="neither"):
        Result.from_path(tmp_path / "other")
    (moved / "result.json").write_text('{"loss\n{"loss": 2}\n')
    with pytest.raises(ValueError, match="line 1"):
        Result.from_path(moved)


def test_pandas_is_imported_when_it_is_asked_for():
    code = "import sys, cairn.tune.result_grid, cairn.tune.search_policy; print([m for m in ('pandas', 'torch', 'optuna') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_lines_of_reports_end_where_json_says(tmp_path):
    notes = ["a\u2028b", "a\x85b", "a\x1cb\x0bc"]
    # As programs in C++ write them: only what JSON demands is escaped.
    lines = [json.dumps({"training_iteration": i, "note": note}, ensure_ascii=False) for i, note in enumerate(notes, 1)]
    (tmp_path / "result.json").write_text("".join(line + "\n" for line in lines) + '{"training_it', encoding="utf-8")
    assert [one["note"] for one in Result.from_path(tmp_path).results] == notes


def test_a_file_is_no_experiment(tmp_path):
    (tmp_path / "file").touch()
    assert not cairn.tune.Tuner.can_restore(tmp_path / "file")
