"""Experiments that have ended and get more iterations or samples; and the summaries of those that have."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from tuned_program import reports

from cairn import tune
from cairn.tune.result import read_reports


def test_more_iterations_and_more_samples_for_a_finished_experiment(tmp_path):
    class Adds(tune.Trainable):
        def setup(self, config):
            self.n = 0

        def step(self):
            self.n += self.config["by"]
            return {"n": self.n}

        def save_checkpoint(self, d):
            return {"n": self.n}

        def load_checkpoint(self, state):
            self.n = state["n"]

    tune.Tuner(
        Adds,
        param_space={"by": tune.grid_search([1, 10])},
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            name="e",
            verbose=0,
            stop={"training_iteration": 2},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    more = tune.Tuner.extend(tmp_path / "e", Adds, stop={"training_iteration": 5}).fit()
    assert [r.metrics["n"] for r in more] == [5, 50]
    assert [[m["training_iteration"] for m in reports(r)] for r in more] == [[1, 2, 3, 4, 5]] * 2
    more = tune.Tuner.extend(tmp_path / "e", Adds, num_samples=2).fit()
    assert [r.metrics["n"] for r in more] == [5, 50, 5, 50]


def test_numbers_that_are_not_finite_are_numbers_in_later_samples_too(tmp_path):
    def f(config):
        return {"sum": config["a"] + config["b"]}

    space = {"a": float("inf"), "b": tune.choice([float("nan")])}
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tune.Tuner(f, param_space=space, run_config=run).fit()
    results = tune.Tuner.extend(tmp_path / "e", f, num_samples=2).fit()
    assert [str(result.metrics["sum"]) for result in results] == ["nan", "nan"]
    assert [str(result.config) for result in results] == ["{'a': inf, 'b': nan}"] * 2


@pytest.mark.parametrize("kind", ["variants", "limiter", "optuna"])
def test_points_to_evaluate_that_are_not_finite_are_numbers_on_record_too(tmp_path, kind):
    def f(config):
        return {"loss": config["a"]}

    def search():
        if kind == "optuna":
            pytest.importorskip("optuna")
            return tune.search.OptunaSearch(points_to_evaluate=[{"a": float("inf")}], seed=1)
        found = tune.search.BasicVariantGenerator([{"a": float("inf")}], random_state=1)
        return tune.search.ConcurrencyLimiter(found, 1) if kind == "limiter" else found

    def tuner():
        return tune.Tuner(
            f,
            param_space={"a": tune.choice([float("inf"), float("nan")])},
            tune_config=tune.TuneConfig(search_alg=search(), metric="loss", mode="min"),
            run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
        )

    for again in (
        tuner,
        tuner,
        lambda: tune.Tuner.restore(tmp_path / "e", f),
        lambda: tune.Tuner.extend(tmp_path / "e", f, num_samples=2),
    ):
        results = again().fit()
        assert str(results[0].config) == "{'a': inf}"
    assert len(results) == 2


EXTENDED = """
import os, sys, time
from cairn import tune

class Adds(tune.Trainable):
    def setup(self, config):
        self.n = 0
    def step(self):
        while self.config["by"] == 10 and self.iteration == 3 and not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        self.n += self.config["by"]
        return {"n": self.n}
    def save_checkpoint(self, directory):
        return {"n": self.n}
    def load_checkpoint(self, state):
        self.n = state["n"]

def bound(trial, result):
    return result["training_iteration"] >= 5

def main(directory, stop):
    return tune.Tuner.extend(os.path.join(directory, "e"), Adds, stop=stop).fit()

if __name__ == "__main__":
    main(sys.argv[1], bound if sys.argv[3] == "function" else {"training_iteration": 5})
"""


@pytest.mark.parametrize("kind", ["bounds", "function"])
def test_an_extension_that_was_killed_adds_no_more_than_asked_for(tmp_path, monkeypatch, kind):
    program, gate = tmp_path / "extended_program.py", tmp_path / "gate"
    program.write_text(EXTENDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), str(gate), kind])
    sys.modules.pop("extended_program", None)
    import extended_program

    tune.Tuner(
        extended_program.Adds,
        param_space={"by": tune.grid_search([1, 10])},
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            name="e",
            verbose=0,
            stop={"training_iteration": 2},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()
    child = subprocess.Popen([sys.executable, str(program), str(tmp_path), str(gate), kind])
    log = tmp_path / "e" / "Adds_00000" / "result.json"
    while len(read_reports(str(log))) < 5:
        assert child.poll() is None
        time.sleep(0.02)
    child.kill()
    child.wait()

    gate.touch()
    stop = extended_program.bound if kind == "function" else {"training_iteration": 5}
    for _ in range(2):  # what was cut off, and what is there already
        more = extended_program.main(str(tmp_path), stop)
        assert [r.metrics["n"] for r in more] == [5, 50]
        assert [[m["training_iteration"] for m in reports(r)] for r in more] == [[1, 2, 3, 4, 5]] * 2


def test_a_killed_extension_is_part_of_what_is_restored(tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    (tmp_path / "extended_program.py").write_text(EXTENDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), str(gate), "bounds"])
    sys.modules.pop("extended_program", None)
    import extended_program

    gate.touch()
    tune.Tuner(
        extended_program.Adds,
        param_space={"by": tune.grid_search([1, 10])},
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, stop={"n": 1}),
    ).fit()
    # It is on record that they go on, and nothing more has happened.
    extension = tune.Tuner.extend(tmp_path / "e", extended_program.Adds, stop={"n": 30})
    monkeypatch.setattr(extension, "_loop", lambda *_: False)
    extension.fit()
    more = tune.Tuner.restore(tmp_path / "e", extended_program.Adds).fit()
    assert [r.metrics["n"] for r in more] == [30, 30]


def test_what_cannot_be_an_extension_is_refused(tmp_path):
    def one(config):
        tune.report({"i": 1})

    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, stop=lambda trial, result: True)
    tune.Tuner(one, tune_config=tune.TuneConfig(num_samples=2), run_config=run).fit()
    with pytest.raises(ValueError, match="counts all samples"):
        tune.Tuner.extend(tmp_path / "e", one, num_samples=1, stop={"i": 3})
    for wrong in (True, 2.5, "3", 0):
        with pytest.raises(ValueError, match="num_samples"):
            tune.Tuner.extend(tmp_path / "e", one, num_samples=wrong, stop={"i": 3})
    with pytest.raises(ValueError, match="a function of yours"):
        tune.Tuner.extend(tmp_path / "e", one, num_samples=3)
    assert len(tune.Tuner.extend(tmp_path / "e", one, num_samples=3, stop={"i": 1}).fit()) == 3


def many(config):
    for i in range(40):
        tune.report({"i": i, "loss": config["lr"] * i})


def run_many(directory, **more):
    tuner = tune.Tuner(
        many,
        param_space={"lr": tune.grid_search([0.1, 0.2, 0.3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, **more),
        run_config=tune.RunConfig(storage_path=str(directory), name="e", verbose=0,
                                  stop={"i": 30}),
    )
    tuner._flags["summarize_after"] = 20
    return tuner.fit()


def table(grid):
    return [(r.trial_id, r.config, r.status, r.metrics["loss"], len(r.results)) for r in grid]


def summary_of(directory):
    return os.path.join(str(directory), "e", "summary")


def test_a_finished_experiment_has_a_summary_and_comes_back_from_it(tmp_path):
    before = table(run_many(tmp_path))
    written = open(summary_of(tmp_path), "rb").read()
    after = tune.Tuner.restore(str(tmp_path / "e"), many).fit()
    assert table(after) == before
    assert open(summary_of(tmp_path), "rb").read() == written, "nothing happened"


@pytest.mark.parametrize("damage", ["cut", "flipped", "another", "missing"])
def test_a_summary_that_cannot_be_used_costs_time_and_nothing_else(tmp_path, damage):
    before = table(run_many(tmp_path))
    path = summary_of(tmp_path)
    data = bytearray(open(path, "rb").read())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    elif damage == "another":
        other = tmp_path / "other"
        run_many(other)
        data = open(summary_of(other), "rb").read()
    os.remove(path)
    if damage != "missing":
        open(path, "wb").write(data)
    again = tune.Tuner.restore(str(tmp_path / "e"), many)
    again._flags["summarize_after"] = 20
    assert table(again.fit()) == before
    assert os.path.getsize(path) > 1000, "it was written anew"


def test_more_samples_come_after_a_summary_as_without_one(tmp_path):
    run_many(tmp_path, num_samples=1)
    shutil.copytree(tmp_path / "e", tmp_path / "without")
    os.remove(tmp_path / "without" / "summary")
    grids = [
        tune.Tuner.extend(str(tmp_path / name), many, num_samples=2).fit()
        for name in ("e", "without")
    ]
    assert len(grids[0]) == 6
    assert table(grids[0]) == table(grids[1])
