"""Experiments that end before their trials do: time budgets and fail_fast. Nobody waits for a report."""

import os
import signal
import time

from cairn import tune
from cairn.tune.result import read_reports
from cairn.tune.session import HURRY
from cairn.tune.stoppers import Stopper

# Of what would go on; far more than any of these tests may take.
LONG = 120.0


def tuner(trainable, tmp_path, xs, tune_config=None, **run):
    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(xs)},
        tune_config=tune_config or tune.TuneConfig(max_concurrent_trials=len(xs)),
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, **run),
    )


class WhenThere(Stopper):
    """Ends everything, as a time budget does, when all of these files are there."""

    def __init__(self, *paths):
        self.paths = paths

    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return all(map(os.path.exists, self.paths))


def reports(result):
    return read_reports(os.path.join(result.path, "result.json"))


def test_the_end_of_all_does_not_wait_for_a_report(tmp_path):
    def f(config):
        try:
            tune.report({"i": 1})
            open(tmp_path / f"sleeps-{config['x']}", "w").close()
            time.sleep(LONG)
        finally:
            with open(os.path.join(tune.get_trial_dir(), "left"), "w") as file:
                file.write("in good order")

    began = time.monotonic()
    both = WhenThere(tmp_path / "sleeps-1", tmp_path / "sleeps-2")
    results = tuner(f, tmp_path, [1, 2], stop=both).fit()
    assert time.monotonic() - began < LONG / 2
    for result in results:
        assert result.error is None and result.status == "TERMINATED"
        assert [m["i"] for m in reports(result)] == [1]
        assert open(os.path.join(result.path, "left")).read() == "in good order"


def test_fail_fast_does_not_wait_for_the_others_which_stay_resumable(tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("")

    def f(config):
        checkpoint = tune.get_checkpoint()
        for i in range(checkpoint.to_dict()["i"] if checkpoint else 0, 4):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            if i == 1 and os.path.exists(marker):
                if config["x"] == 1:
                    while not os.path.exists(marker.with_name("sleeps")):
                        time.sleep(0.01)
                    raise RuntimeError("fails")
                marker.with_name("sleeps").write_text("")
                time.sleep(LONG)

    began = time.monotonic()
    fail_fast = tune.FailureConfig(fail_fast=True)
    results = tuner(f, tmp_path, [1, 2], failure_config=fail_fast).fit()
    assert time.monotonic() - began < LONG / 2
    assert "fails" in str(results[0].error)
    assert results[1].error is None and results[1].status == "PAUSED"
    marker.unlink()
    results = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()
    assert [[m["i"] for m in reports(r)] for r in results] == [list(range(4))] * 2


class Steps(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        if self.n == 3:
            self.wait_for_hurry()
        return {"n": self.n}

    def wait_for_hurry(self):
        """Lets the experiment be stopped, and waits until the tuner has said so in this step."""
        hurry, came = signal.getsignal(HURRY), []

        def listen(*args):
            hurry(*args)
            came.append(True)

        signal.signal(HURRY, listen)
        open(self.config["marker"], "w").close()
        while not came:
            time.sleep(0.01)

    def save_checkpoint(self, checkpoint_dir):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"]


def test_a_class_that_saves_at_the_end_comes_to_the_end_of_its_step(tmp_path):
    marker = str(tmp_path / "in the third step")
    [result] = tune.Tuner(
        Steps,
        param_space={"marker": marker},
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            verbose=0,
            stop=WhenThere(marker),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    assert result.error is None and result.status == "TERMINATED"
    assert result.checkpoint.to_dict()["n"] == result.metrics["n"] == 3


def test_a_signal_that_the_tuner_did_not_send_changes_nothing(tmp_path):
    def f(config):
        for i in range(3):
            os.kill(os.getpid(), HURRY)
            tune.report({"i": i})

    [result] = tuner(f, tmp_path, [1]).fit()
    assert result.error is None and result.status == "TERMINATED"
    assert [m["i"] for m in reports(result)] == [0, 1, 2]
