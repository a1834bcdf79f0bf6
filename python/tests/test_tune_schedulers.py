"""Experiments with schedulers that stop, pause and clone; budgets, limits, callbacks."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from tune_kills import note_kill, wait_for_a_step
from tuned_program import KILLS, assert_gone, children_of, reports, wait_for

from cairn import tune
from cairn.tune.schedulers import MedianStoppingRule, PopulationBasedTraining
from cairn.tune.search import ConcurrencyLimiter, OptunaSearch
from cairn.tune.stoppers import TimeoutStopper

PROGRAM = '''
import json, os, sys, time
from cairn import tune
from cairn.tune.result import read_reports
from cairn.tune.schedulers import ASHAScheduler, MedianStoppingRule, PopulationBasedTraining
from cairn.tune.search import OptunaSearch

class Climb(tune.Trainable):
    def setup(self, config):
        self.x, self.n = 0.0, 0
    def step(self):
        time.sleep(float(os.environ.get("PACE", "0")))
        self.n += 1
        self.x += self.config["lr"]
        return {"x": self.x, "lr": self.config["lr"]}
    def save_checkpoint(self, directory):
        return {"x": self.x, "n": self.n}
    def load_checkpoint(self, state):
        self.x, self.n = state["x"], state["n"]

def reports(result):
    return read_reports(os.path.join(result.path, "result.json"))

def make(directory, which):
    of = dict(metric="x", mode="max")
    run = tune.RunConfig(storage_path=directory, name=which, verbose=0,
                         stop={"training_iteration": 9},
                         failure_config=tune.FailureConfig(max_failures=-1))
    if which == "asha":
        how = tune.TuneConfig(**of, max_concurrent_trials=1, scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3))
        space = {"lr": tune.grid_search([0.3, 0.1, 0.9, 0.2, 0.7, 0.5])}
    elif which == "promote":
        how = tune.TuneConfig(**of, max_concurrent_trials=1, scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, type="promotion"))
        space = {"lr": tune.grid_search([0.3, 0.1, 0.9, 0.2, 0.7, 0.5])}
    elif which == "median":
        how = tune.TuneConfig(**of, max_concurrent_trials=1, scheduler=MedianStoppingRule(
            time_attr="training_iteration", grace_period=2, min_samples_required=3))
        space = {"lr": tune.grid_search([0.5, 0.2, 0.8, 0.1, 0.25, 0.9])}
    elif which == "optuna":
        how = tune.TuneConfig(**of, num_samples=6, max_concurrent_trials=1, search_alg=OptunaSearch(seed=3))
        space = {"lr": tune.uniform(0.0, 1.0)}
    else:
        how = tune.TuneConfig(**of, seed=7, num_samples=4, max_concurrent_trials=1, scheduler=PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=3, quantile_fraction=0.5, synch=True,
            seed=5, hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)}))
        space = {"lr": tune.uniform(0.1, 1.0)}
    return tune.Tuner(Climb, param_space=space, tune_config=how, run_config=run)

def outcome(results):
    return [[r.config["lr"], [[m["training_iteration"], m["x"], m["config"]["lr"]] for m in reports(r)]] for r in results]

if __name__ == "__main__":
    print("OUTCOME", json.dumps(outcome(make(sys.argv[1], sys.argv[2]).fit())))
'''


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "scheduled_program.py"
    path.write_text(PROGRAM)
    return str(path)


def start(program, directory, which, pace="0"):
    return subprocess.Popen(
        [sys.executable, program, str(directory), which],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PACE": pace},
    )


def outcome(process):
    output = process.communicate(timeout=120)[0]
    lines = [line for line in output.splitlines() if line.startswith("OUTCOME ")]
    assert lines, output
    import json

    return json.loads(lines[0][8:])


def named():
    namespace = {"__name__": "scheduled_program"}
    exec(compile(PROGRAM, "scheduled_program.py", "exec"), namespace)
    return namespace


def test_asha_stops_the_worse_ones(tmp_path):
    names = named()
    results = names["make"](tmp_path, "asha").fit()
    reached = {r.config["lr"]: len(reports(r)) for r in results}
    # One at a time, in order, against the 2/3 percentile of those before it at the rung. Rung 1: 0.3 is
    # alone; 0.1 < 0.3; 0.9 >= 0.23; 0.2 < 0.5; 0.7 >= 0.3; 0.5 < 0.57. Rung 3: 2.7 >= 0.9, and 0.7 three
    # times is a rounding error below 2.1.
    assert reached == {0.3: 9, 0.1: 1, 0.9: 9, 0.2: 1, 0.7: 3, 0.5: 1}


def test_promoting_asha_pauses_and_goes_on_at_the_next_iteration(tmp_path):
    results = named()["make"](tmp_path, "promote").fit()
    for result in results:
        iterations = [m["training_iteration"] for m in reports(result)]
        assert iterations == list(range(1, len(iterations) + 1))
        assert result.error is None
        lr = result.config["lr"]
        assert result.metrics["x"] == pytest.approx(lr * len(iterations))
    best = max(results, key=lambda r: len(reports(r)))
    # Two of six go on at rung 1; of two at rung 3 nobody is among the best third.
    assert best.config["lr"] == 0.9
    assert sorted(len(reports(r)) for r in results) == [1, 1, 1, 1, 3, 3]


def test_the_median_rule_stops_what_is_worse_than_the_median_of_the_means(tmp_path):
    results = named()["make"](tmp_path, "median").fit()
    reached = {r.config["lr"]: len(reports(r)) for r in results}
    # One at a time, in order; x is lr times the iteration. The first three are too few to compare with. From
    # iteration 2 on, where its best is 2 lr, the others' means are 2 lr: the median of 1, 0.4, 1.6 is 1.
    #   0.1: 0.2 < 1, at the first comparison. 0.25: of 1, 0.4, 1.6 and 0.2 the median is 0.7, and 0.5 is less.
    #   0.9: 1.8 is more than any mean, and so it stays.
    assert reached == {0.5: 9, 0.2: 9, 0.8: 9, 0.1: 2, 0.25: 2, 0.9: 9}
    assert not results.errors


def test_the_median_rule_with_several_trials_at_a_time_stops_no_good_one(tmp_path):
    def train(config):
        for _ in range(20):
            tune.report({"loss": config["x"]})

    rule = MedianStoppingRule(time_attr="training_iteration", grace_period=2, min_samples_required=2)
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([4, 1, 3, 2, 9, 8])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=3, scheduler=rule),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    reached = {r.config["x"]: len(reports(r)) for r in results}
    # Whoever comes when: the best is worse than no median, and the last two are worse than all others' means.
    assert reached[1] == 20 and max(reached[9], reached[8]) < 20
    assert not results.errors


def test_pbt_clones_the_better_ones(tmp_path):
    results = named()["make"](tmp_path, "pbt").fit()
    assert [len(reports(r)) for r in results] == [9] * 4
    assert not any(r.error for r in results)
    # Somebody went on with another's state: its curve does not rise by one rate alone.
    slopes = []
    for result in results:
        xs = [m["x"] for m in reports(result)]
        slopes.append(len({round(b - a, 9) for a, b in zip(xs, xs[1:])}))
    assert max(slopes) > 1


def test_reports_made_anew_have_the_hyperparameters_of_then(tmp_path):
    names = named()
    tuner = names["make"](tmp_path, "pbt")
    tuner._flags["summarize_after"] = 1  # which must not stand in for what happened
    results = tuner.fit()
    files = [os.path.join(r.path, name) for r in results for name in ("result.json", "progress.csv")]
    before = [open(path).read() for path in files]
    assert max(len({m["config"]["lr"] for m in reports(r)}) for r in results) > 1
    os.remove(tmp_path / "pbt" / ".logged")  # as after a kill: the files are made from the record
    for path in files:
        os.remove(path)
    tune.Tuner.restore(tmp_path / "pbt", names["Climb"]).fit()
    assert [open(path).read() for path in files] == before


def test_pbt_clones_by_link(tmp_path):
    """A copy of another trial's state writes none of its bytes, whatever their size."""
    large = 8 << 20

    def train(config):
        written = int(open("/proc/self/io").read().split("wchar:")[1].split()[0])
        checkpoint = tune.get_checkpoint()
        start, cloned = 0, False
        if checkpoint is not None:
            with checkpoint.as_directory() as path:
                assert os.path.getsize(f"{path}/weights") == large
                start = int(open(f"{path}/step").read())
                cloned = open(f"{path}/trial").read() != tune.get_trial_id()
        for step in range(start + 1, 5):
            with tempfile.TemporaryDirectory() as path:
                with open(f"{path}/weights", "wb") as file:
                    file.write(bytes([config["lr"]]) * large)
                with open(f"{path}/step", "w") as file:
                    file.write(str(step))
                with open(f"{path}/trial", "w") as file:
                    file.write(tune.get_trial_id())
                metrics = {"score": config["lr"], "written": written, "cloned": cloned}
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(path))

    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, quantile_fraction=0.5, synch=True,
        hyperparam_mutations={"lr": [1, 9]}, resample_probability=0.0,
    )  # fmt: skip
    results = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([1, 9])},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, seed=1),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0),
    ).fit()
    assert not results.errors
    assert (tmp_path / "e" / "pbt_global.txt").read_text().count("donor") >= 1
    clones = [r for result in results for r in reports(result) if r["cloned"]]
    assert clones, "no trial began with another's checkpoint"
    assert all(r["written"] < large / 8 for r in clones), clones



@pytest.mark.parametrize("which", ["asha", "promote", "median", "pbt", "optuna"])
def test_killed_and_started_again_the_decisions_are_the_same(program, tmp_path, which):
    import random

    calm = outcome(start(program, tmp_path / "calm", which))
    generator = random.Random(f"{which} {os.environ.get('CAIRN_TUNE_SEED', '1')}")
    for _ in range(min(KILLS, 8)):
        process = start(program, tmp_path / "rough", which, pace="0.03")
        wait_for(lambda p=process: len(children_of(p.pid)) >= 2 or p.poll() is not None)
        wait_for_a_step(generator, tmp_path / "rough" / which, 0.6)
        below = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert_gone(below)
        note_kill(which, tmp_path / "rough" / which)
    rough = outcome(start(program, tmp_path / "rough", which))
    assert rough == calm


def test_optuna_through_a_limiter(tmp_path):
    def f(config):
        return {"y": (config["x"] - 0.3) ** 2}

    results = tune.Tuner(
        f,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="y",
            mode="min",
            num_samples=6,
            search_alg=ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=1),
        ),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert len({r.config["x"] for r in results}) == 6


def test_a_time_budget_ends_trials_well_and_they_save(tmp_path, monkeypatch):
    Climb = named()["Climb"]
    reported = set()

    class Budget(TimeoutStopper):
        """Is not over before both trials have something to save, however long they take to start."""

        def __call__(self, trial_id, result):
            reported.add(trial_id)
            return self.stop_all()

        def stop_all(self):
            return len(reported) == 2 and super().stop_all()

    monkeypatch.setattr("cairn.tune.search_policy.TimeoutStopper", Budget)
    os.environ["PACE"] = "0.02"
    try:
        began = time.monotonic()
        results = tune.Tuner(
            Climb,
            param_space={"lr": tune.grid_search([0.1, 0.2])},
            tune_config=tune.TuneConfig(time_budget_s=5, max_concurrent_trials=2),
            run_config=tune.RunConfig(
                storage_path=tmp_path,
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            ),
        ).fit()
    finally:
        del os.environ["PACE"]
    assert 5 <= time.monotonic() - began < 120
    assert len(results) == 2
    for result in results:
        assert result.error is None and result.status == "TERMINATED"
        last = result.metrics["training_iteration"]
        assert result.checkpoint.path and f"checkpoint_{last:06}" in os.listdir(result.path)


def test_no_more_trials_at_a_time_than_allowed(tmp_path):
    log = str(tmp_path / "log")

    def f(config):
        with open(log, "a") as file:
            file.write("+\n")
        time.sleep(0.05)
        with open(log, "a") as file:
            file.write("-\n")

    tune.Tuner(
        f,
        param_space={"x": tune.grid_search(list(range(9)))},
        tune_config=tune.TuneConfig(max_concurrent_trials=3),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    now = most = 0
    for line in open(log):
        now += 1 if line == "+\n" else -1
        most = max(most, now)
    assert now == 0 and 1 <= most <= 3


def test_callbacks_see_everything_in_order(tmp_path):
    class Recorder:
        def __init__(self):
            self.seen = []

        def setup(self, **info):
            self.seen.append("setup")

        def on_step_begin(self, iteration, trials):
            self.waits = True

        def on_step_end(self, iteration, trials):
            assert self.waits, "a step ends that did not begin"
            self.waits = False

        def on_trial_start(self, iteration, trials, trial):
            assert self.waits, "told between two steps"
            self.seen.append("start")

        def on_trial_restore(self, iteration, trials, trial):
            self.seen.append("restore")

        def on_trial_save(self, iteration, trials, trial):
            self.seen.append("save")

        def on_trial_result(self, iteration, trials, trial, result):
            self.seen.append(("result", result["training_iteration"], result["config"]))

        def on_checkpoint(self, iteration, trials, trial, checkpoint):
            assert trial.checkpoint is checkpoint and trial.logdir == trial.path
            self.seen.append(("checkpoint", checkpoint.to_dict()))

        def on_trial_complete(self, iteration, trials, trial):
            self.seen.append("complete")

        def on_experiment_end(self, trials):
            self.seen.append(("end", len(trials)))

    def f(config):
        tune.report({"a": 1})
        tune.report({"a": 2}, checkpoint=tune.Checkpoint.from_dict({"k": 3}))

    recorder = Recorder()
    tune.Tuner(
        f,
        param_space={"x": 1},
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0, callbacks=[recorder]),
    ).fit()
    assert recorder.seen == [
        "setup",
        "start",
        ("result", 1, {"x": 1}),
        ("checkpoint", {"k": 3}),
        "save",
        ("result", 2, {"x": 1}),
        "complete",
        ("end", 1),
    ]


def test_callbacks_are_told_that_a_trial_goes_on_from_a_checkpoint(tmp_path):
    class Recorder(tune.logger.LoggerCallback):
        def __init__(self):
            self.seen = []

        def log_trial_start(self, trial):
            self.seen.append("start")

        def log_trial_restore(self, trial):
            self.seen.append("restore")

        def log_trial_save(self, trial):
            self.seen.append("save")

        def on_trial_recover(self, iteration, trials, trial, **info):
            self.seen.append(("recover", trial.error.splitlines()[-1]))

        def setup(self, num_samples=None, **info):
            self.seen.append(("setup", num_samples))

        def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
            self.seen.append(checkpoint.to_dict())

        def on_step_end(self, iteration, trials, **info):
            self.steps = (iteration, len(trials))

    def f(config):
        if tune.get_checkpoint() is None:
            tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_dict({}))
            raise RuntimeError("once")
        tune.report({"a": 2})

    recorder = Recorder()
    run = tune.RunConfig(
        storage_path=tmp_path,
        verbose=0,
        callbacks=[recorder],
        failure_config=tune.FailureConfig(max_failures=1),
    )
    [result] = tune.Tuner(f, run_config=run).fit()
    assert result.error is None
    recovered = ("recover", "RuntimeError: once")
    assert recorder.seen == [("setup", 1), "start", {}, "save", recovered, "start", "restore"]
    assert recorder.steps[0] > 0 and recorder.steps[1] == 1


def test_resources_bound_how_many_run_at_a_time(tmp_path):
    def f(config):
        return 1

    tuner = tune.Tuner(tune.with_resources(f, {"cpu": 10_000}))
    assert tuner._concurrency() == 1


def test_the_example_with_torch_finds_something(tmp_path):
    import runpy

    path = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "python", "tune_pbt.py")
    results = runpy.run_path(path)["main"](str(tmp_path), iterations=10)
    assert not results.errors
    assert results.get_best_result().metrics["accuracy"] > 0.55
    # One that goes on from the last checkpoint of another takes a step before it stops.
    assert all(r.metrics["training_iteration"] in (10, 11) for r in results)
