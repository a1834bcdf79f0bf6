"""Searchers, schedulers, loggers and results in real experiments."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from cairn import tune
from cairn.tune.schedulers import ASHAScheduler, PopulationBasedTraining


def climb(config):
    x = 0.0
    for _ in range(config.get("steps", 6)):
        x += config["lr"]
        tune.report({"x": x, "nested": {"y": 2 * x}})


def logged(result):
    """What the files of a trial say: iterations of result.json, progress.csv and the events."""
    with open(f"{result.path}/result.json") as file:
        lines = [json.loads(line) for line in file]
    with open(f"{result.path}/progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    events = [
        event.step
        for event in EventFileLoader(f"{result.path}/events.out.tfevents.cairn").Load()
        if any(value.tag == "x" for value in event.summary.value)
    ]
    iterations = [line["training_iteration"] for line in lines]
    assert [int(row["training_iteration"]) for row in rows] == iterations == events
    assert [float(row["nested/y"]) for row in rows] == [line["nested"]["y"] for line in lines]
    return lines


def test_an_experiment_is_searched_stopped_logged_and_read(tmp_path):
    seen = []

    class Watch(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            seen.append((trial.trial_id, result["training_iteration"]))

        def on_experiment_end(self, trials, **info):
            seen.append(len(trials))

    results = tune.Tuner(
        climb,
        param_space={"lr": tune.grid_search([3.0, 2.0, 1.0, 5.0]), "steps": 9},
        tune_config=tune.TuneConfig(
            metric="x", mode="max", max_concurrent_trials=1, scheduler=ASHAScheduler(max_t=9, reduction_factor=3)
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0, callbacks=[Watch()]),
    ).fit()  # fmt: skip
    assert isinstance(results, tune.ResultGrid)
    # Rungs 1, 3, 9, one at a time: 3 runs alone; 2 and 1 are worse at the first rung; 5 is better.
    assert [result.metrics["training_iteration"] for result in results] == [9, 1, 1, 9]
    assert results.get_best_result().config["lr"] == 5.0
    assert results.num_errors == 0 and results.num_terminated == 4
    assert len(seen) == 21 and seen[-1] == 4
    for result in results:
        lines = logged(result)
        assert [line["x"] for line in lines] == [report["x"] for report in result.results]
        assert lines[-1]["config"] == result.config and lines[-1]["trial_id"] == result.trial_id
        again = tune.Result.from_path(result.path)
        assert again.config == result.config and again.metrics["x"] == result.metrics["x"]
    assert list(results.get_dataframe()["config/lr"]) == [3.0, 2.0, 1.0, 5.0]


def test_failures_are_in_the_results_and_in_error_txt(tmp_path):
    def fail(config):
        tune.report({"x": 1})
        if config["i"] == 1:
            raise ValueError("not this one")

    results = tune.Tuner(
        fail,
        param_space={"i": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert results.num_errors == 1 and results[0].error is None
    assert isinstance(results[1].error, tune.TrialError) and "not this one" in str(results[1].error)
    with open(f"{results[1].path}/error.txt") as file:
        assert "not this one" in file.read()
    assert "not this one" in str(tune.Result.from_path(results[1].path).error)
    assert not os.path.exists(f"{results[0].path}/error.txt")


class Climb(tune.Trainable):
    def setup(self, config):
        self.x = 0.0

    def step(self):
        self.x += self.config["lr"]
        return {"x": self.x, "nested": {"y": 2 * self.x}}

    def save_checkpoint(self, directory):
        return {"x": self.x}

    def load_checkpoint(self, state):
        self.x = state["x"]


def run_population(directory, places):
    return tune.Tuner(
        Climb,
        param_space={"lr": tune.grid_search([0.1, 0.2, 0.5, 1.0])},
        tune_config=tune.TuneConfig(
            metric="x",
            mode="max",
            max_concurrent_trials=places,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=2,
                synch=True,
                seed=1,
                resample_probability=0.0,
                hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
            ),
        ),
        run_config=tune.RunConfig(
            storage_path=str(directory), verbose=0, stop={"training_iteration": 8}
        ),
    ).fit()


def test_a_synchronous_population_does_not_depend_on_its_places(tmp_path):
    outcomes = []
    for places in (1, 3):
        results = run_population(tmp_path / str(places), places)
        outcomes.append(
            [(result.config, [one["x"] for one in result.results]) for result in results]
        )
    assert outcomes[0] == outcomes[1]


def test_a_population_copies_and_says_so(tmp_path):
    results = run_population(tmp_path, 2)
    assert results.num_errors == 0
    with open(f"{results.experiment_path}/pbt_global.txt") as file:
        copies = [json.loads(line) for line in file]
    assert [copy["time"] for copy in copies] == [2, 4, 6]  # the worst of four, each time
    # The worst went on from the state of the best, with a learning rate near its.
    first = copies[0]
    trial = next(result for result in results if result.trial_id == first["trial"])
    assert (first["old_config"]["lr"], first["donor_score"]) == (0.1, 2.0)
    assert first["new_config"]["lr"] in (0.8, 1.2)
    lines = logged(trial)
    assert [line["training_iteration"] for line in lines] == list(range(1, 9))
    assert [report["x"] for report in trial.results] == [line["x"] for line in lines]
    assert lines[2]["x"] == pytest.approx(2.0 + first["new_config"]["lr"])
    assert os.path.exists(f"{results.experiment_path}/pbt_policy_{first['trial']}.txt")


PROGRAM = """
import os, sys, time
from cairn import tune

class Climb(tune.Trainable):
    def setup(self, config):
        self.x = 0.0
    def step(self):
        # The last two trials wait for whoever starts the program without a gate.
        while self.config["lr"] > 2 and "GATE" in os.environ:
            time.sleep(0.01)
        self.x += self.config["lr"]
        return {"x": self.x, "nested": {"y": 2 * self.x}}
    def save_checkpoint(self, directory):
        return {"x": self.x}
    def load_checkpoint(self, state):
        self.x = state["x"]

if __name__ == "__main__":
    results = tune.Tuner(
        Climb, param_space={"lr": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
        tune_config=tune.TuneConfig(metric="x", mode="max", max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=sys.argv[1], name="e", stop={"training_iteration": 10},
                                  checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=3)),
    ).fit()
    print("BEST", results.get_best_result().path)
"""


def test_no_iteration_is_logged_twice_when_the_tuner_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "runs")]
    experiment = tmp_path / "runs" / "e"
    for reports in (3, 12, 20):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GATE": "closed"},
        )
        deadline = time.monotonic() + 120
        while (
            sum(path.read_text().count("\n") for path in experiment.glob("*/result.json")) < reports
        ):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Not a terminal: plain lines, one for each trial that ended.
    assert len(re.findall(r"TERMINATED after 10 iterations x=", done.stderr)) >= 2
    paths = sorted(path.parent for path in experiment.glob("*/result.json"))
    assert len(paths) == 4
    for path, rate in zip(paths, [1.0, 2.0, 3.0, 4.0]):
        lines = logged(tune.Result.from_path(path))
        assert [(line["training_iteration"], line["x"]) for line in lines] == [
            (i, i * rate) for i in range(1, 11)
        ]
    assert done.stdout.strip() == f"BEST {paths[3]}"
