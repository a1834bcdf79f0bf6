"""Trainables that close their output, fork, report odd numbers; settings of odd types."""

import enum
import json
import os
import shutil
import signal
import sys

import numpy as np
import pytest

from cairn import tune


def fit(trainable, tmp_path, tune_config=None, **run):
    run_config = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, **run)
    return tune.Tuner(trainable, tune_config=tune_config, run_config=run_config).fit()


@pytest.mark.parametrize("how", ["closed", "none", "broken"])
def test_the_error_of_a_trial_without_output_is_told(tmp_path, how):
    def f(config):
        tune.report({"x": 1})
        if how == "closed":
            sys.stdout.close()
            sys.stderr.close()
        elif how == "none":
            sys.stdout = sys.stderr = None
        else:
            read, write = os.pipe()
            os.close(read)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.dup2(write, 2)
        raise ValueError("the reason")

    [result] = fit(f, tmp_path)
    assert str(result.error).splitlines()[-1] == "ValueError: the reason"


class Silent(tune.Trainable):
    def setup(self, config):
        pass

    def step(self):
        sys.stdout.close()
        sys.stderr.close()
        return {"done": True}

    def reset_config(self, new_config):
        return True


def test_a_reused_object_may_close_its_output(tmp_path):
    [result] = fit(Silent, tmp_path, tune.TuneConfig(reuse_actors=True))
    assert result.error is None and result.status == "TERMINATED"


@pytest.mark.parametrize("how", ["raises", "exits", "returns"])
def test_a_fork_that_leaves_the_trainable_is_not_the_trial(tmp_path, capfd, how):
    def f(config):
        tune.report({"x": 1}, checkpoint=tune.Checkpoint.from_dict({"x": 1}))
        pid = os.fork()
        if pid == 0:
            if how == "raises":
                raise ValueError("of the fork")
            if how == "exits":
                sys.exit(3)
            return None
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        tune.report({"x": 2, "code": code}, checkpoint=tune.Checkpoint.from_dict({"x": 2}))
        return None

    [result] = fit(f, tmp_path)
    assert result.error is None and result.checkpoint.to_dict() == {"x": 2}
    assert result.metrics["code"] == {"raises": 1, "exits": 3, "returns": 0}[how]
    said = capfd.readouterr().err
    assert "failed" not in said
    assert ("ValueError: of the fork" in said) == (how == "raises")


def test_a_trial_whose_directory_was_removed_begins_anew(tmp_path):
    def f(config):
        checkpoint = tune.get_checkpoint()
        for i in range(checkpoint.to_dict()["i"] + 1 if checkpoint else 0, 4):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i}))
            if i == 2 and not (tmp_path / "mended").exists():
                raise RuntimeError("not yet")

    [result] = fit(f, tmp_path)
    assert result.error is not None
    shutil.rmtree(result.path)
    (tmp_path / "mended").touch()
    [result] = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()
    assert result.error is None and [one["i"] for one in result.results] == [0, 1, 2, 3]
    assert result.checkpoint.to_dict() == {"i": 3}


@pytest.mark.parametrize("damage", ["garbage", "removed", "a line too few", "a line of a list"])
def test_a_damaged_result_json_is_made_anew(tmp_path, damage):
    def f(config):
        checkpoint = tune.get_checkpoint()
        for i in range(checkpoint.to_dict()["i"] + 1 if checkpoint else 0, 4):
            checkpoint = tune.Checkpoint.from_dict({"i": i}) if i < 2 else None
            tune.report({"i": i}, checkpoint=checkpoint)
            if i == 2 and not (tmp_path / "mended").exists():
                raise RuntimeError("not yet")

    [result] = fit(f, tmp_path)
    path = os.path.join(result.path, "result.json")
    lines = open(path).read().splitlines(keepends=True)
    (tmp_path / "mended").touch()
    if damage == "removed":
        os.remove(path)
    else:
        new = {"garbage": ["{{{\n", "x\n"], "a line too few": lines[1:], "a line of a list": ["[1]\n", *lines]}
        with open(path, "w") as file:
            file.writelines(new[damage])
    [result] = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()
    assert result.error is None
    written = [json.loads(line) for line in open(path)]
    assert [(one["training_iteration"], one["i"]) for one in written] == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_numbers_of_other_widths_are_reported(tmp_path):
    def f(config):
        return {"long": np.longdouble(0.5), "masked": np.ma.masked, "half": np.float16(0.5)}

    [result] = fit(f, tmp_path, stop={"long": np.float32(7)})
    assert (result.metrics["long"], result.metrics["half"]) == (0.5, 0.5)
    assert np.isnan(result.metrics["masked"])  # which is no 0.0


def test_tensors_of_one_element_are_numbers(tmp_path):
    import torch

    def f(config):
        return {"a": torch.tensor([2]), "b": np.array([[3.0]]), "c": torch.tensor([1, 2])}

    [result] = fit(f, tmp_path)
    assert [result.metrics[name] for name in "abc"] == [2, 3.0, [1, 2]]


def test_texts_of_enumerations_are_their_values(tmp_path):
    class Metric(str, enum.Enum):
        LOSS = "loss"
        KIND = "kind"

    def f(config):
        tune.report({Metric.LOSS: 1.0, "kind": Metric.KIND}, checkpoint=tune.Checkpoint.from_dict({"x": 1}))

    config = tune.TuneConfig(metric=Metric.LOSS, mode="min")
    checkpoints = tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute=Metric.LOSS)
    result = fit(f, tmp_path, config, checkpoint_config=checkpoints).get_best_result()
    assert result.error is None
    assert (result.metrics["loss"], result.metrics["kind"]) == (1.0, "kind")


def test_counts_may_be_of_numpy(tmp_path):
    config = tune.TuneConfig(num_samples=np.int64(2), max_concurrent_trials=np.int32(1))
    results = fit(
        lambda config: {"x": 1}, tmp_path, config,
        failure_config=tune.FailureConfig(max_failures=np.int64(1)),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=np.int64(1)),
    )  # fmt: skip
    assert len(results) == 2
    assert (type(config.num_samples), config.num_samples) == (int, 2)
    for wrong in (2.0, True, "2", np.float64(2)):
        with pytest.raises(ValueError, match="num_samples must be a whole number"):
            tune.TuneConfig(num_samples=wrong)


def test_settings_of_other_types_are_refused_by_name():
    with pytest.raises(ValueError, match="tune_config must be a TuneConfig, not {'num_samples': 2}"):
        tune.Tuner(len, tune_config={"num_samples": 2})
    with pytest.raises(ValueError, match="run_config must be a RunConfig, not {'name': 'x'}"):
        tune.Tuner(len, run_config={"name": "x"})
    with pytest.raises(ValueError, match="callbacks must be a list of callbacks, not 5"):
        tune.RunConfig(callbacks=5)
    with pytest.raises(ValueError, match="checkpoint_score_attribute must be the name of a metric, not 5"):
        tune.CheckpointConfig(checkpoint_score_attribute=5)
    with pytest.raises(ValueError, match="name must be the name of a directory"):
        tune.RunConfig(name="a\0b")


def test_columns_are_added_to_a_reporter():
    reporter = tune.CLIReporter(metric_columns=["loss"], parameter_columns={"lr": "rate"})
    reporter.add_metric_column("acc")
    reporter.add_metric_column("score", representation="points")
    reporter.add_parameter_column("width")
    trial = tune.Trial("a", {"lr": 0.5, "width": 3})
    trial.last_result = {"loss": 1, "acc": 2, "score": 4}
    header, [row], _ = reporter.table([trial])
    assert header == ["trial", "status", "rate", "width", "iter", "time (s)", "loss", "acc", "points"]
    assert row == ["a", "PENDING", "0.5", "3", "", "", "1", "2", "4"]
    with pytest.raises(ValueError, match="'acc' is a column already"):
        reporter.add_metric_column("acc")
    reporter = tune.CLIReporter(infer_limit=1)
    reporter.add_metric_column("score")
    assert reporter.table([trial])[0][-2:] == ["loss", "score"]
