"""What Python reads of an experiment that a C++ program made."""

import csv
import json
import os
import pathlib
import subprocess

import pytest
import s3_server
from children import command_line

from cairn import tune
from cairn.tune.logger import LogBook
from cairn.tune.result_keys import fill_result
from cairn.tune.trial import Trial

PROGRAM = os.path.join(os.path.dirname(command_line()), "tune_example")


def run_example(where):
    subprocess.run([PROGRAM, where], check=True, stdout=subprocess.PIPE, timeout=120)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    where = tmp_path_factory.mktemp("cpp") / "rates"
    run_example(str(where))
    return where


def test_results_are_read_as_those_of_a_python_tuner(experiment):
    results = [tune.Result.from_path(experiment / f"trial_0000{i}") for i in range(3)]
    grid = tune.ResultGrid(results, str(experiment))
    assert [result.config for result in grid] == [{"lr": 0.01}, {"lr": 0.1}, {"lr": 0.3}]
    assert grid.num_errors == 0
    best = grid.get_best_result("loss", "min")
    assert best.config == {"lr": 0.3}
    assert [report["training_iteration"] for report in best.results] == list(range(1, 21))
    assert best.metrics["trial_id"] == "trial_00002"
    assert best.metrics["config"] == {"lr": 0.3}
    with best.checkpoint.as_directory() as directory:
        x = float(pathlib.Path(directory, "x").read_text())
    assert x * x == pytest.approx(best.metrics["loss"])
    assert len(best.metrics_dataframe) == 20


def test_both_writers_make_the_same_files(experiment, tmp_path):
    """Python's loggers, told what the C++ program wrote down, write the same."""
    cpp = experiment / "trial_00001"
    reports = [json.loads(line) for line in (cpp / "result.json").read_text().splitlines()]
    book = LogBook(str(tmp_path))
    trial = Trial("trial_00001", json.loads((cpp / "params.json").read_text()), str(tmp_path / "trial_00001"))
    book.on_trial_start(0, [trial], trial)
    for report in reports:
        filled = ("trial_id", "experiment_tag", "date", "config", "done")
        told = {key: value for key, value in report.items() if key not in filled}
        book.on_trial_result(0, [trial], trial, fill_result(told, trial.trial_id, trial.config))
    trial.status = Trial.TERMINATED
    book.on_trial_complete(0, [trial], trial)
    book.on_experiment_end([trial])
    python = tmp_path / "trial_00001"

    def lines(where):
        return [json.loads(line) for line in (where / "result.json").read_text().splitlines()]

    def rows(where):
        with open(where / "progress.csv", newline="") as file:
            return [{k: as_number(v) for k, v in row.items()} for row in csv.DictReader(file)]

    assert lines(python) == lines(cpp)
    assert rows(python) == rows(cpp)
    assert json.loads((python / "params.json").read_text()) == json.loads((cpp / "params.json").read_text())
    assert (tmp_path / ".logged").read_text() == "trial_00001\n"
    assert "trial_00001\n" in (experiment / ".logged").read_text()
    written = {path.name for path in python.iterdir()}
    assert written == {path.name for path in cpp.iterdir() if path.is_file()} - {"cairn.json"}


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return text


def test_a_python_tuner_says_that_it_is_not_its_own(experiment):
    def train(config):
        tune.report({"loss": 1.0})

    with pytest.raises(ValueError, match="'trial', not 'train'"):
        tune.Tuner.restore(experiment, train)


def test_files_of_an_experiment_in_a_bucket(tmp_path, monkeypatch):
    server = s3_server.Server(tmp_path / "s3")
    try:
        server.make_bucket("tuned")
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        run_example("s3://tuned/rates")
        result = tune.Result.from_path("s3://tuned/rates/trial_00002")
        assert result.config == {"lr": 0.3}
        assert [report["training_iteration"] for report in result.results] == list(range(1, 21))
        run_example("s3://tuned/rates")  # nothing is run or written again
        assert len(tune.Result.from_path("s3://tuned/rates/trial_00002").results) == 20
    finally:
        server.stop()
