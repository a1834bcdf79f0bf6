"""TuneConfig(reuse_actors=True): an object of the trainable's class goes from one trial to the next."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from cairn import tune
from cairn.tune.schedulers import ASHAScheduler, PopulationBasedTraining


class Reusable(tune.Trainable):
    """Writes down what is done with its objects."""

    def setup(self, config: dict) -> None:
        self.n = 0
        self.note("setup")

    def note(self, what: str) -> None:
        with open(self.config["notes"], "a") as file:
            file.write(f"{os.getpid()} {id(self)} {self.trial_id} {what}\n")

    def step(self) -> dict:
        self.n += 1
        return {"n": self.n, "x": self.config["x"], "pid": os.getpid(), "said": self.said()}

    def said(self) -> Any:
        return [self.trial_id, os.path.basename(self.logdir), self.iteration]

    def save_checkpoint(self, directory: str) -> dict:
        return {"n": self.n}

    def load_checkpoint(self, state: dict) -> None:
        self.n = state["n"]

    def reset_config(self, new_config: dict) -> bool:
        self.n = 0
        self.config = new_config
        self.note("reset")
        return True

    def cleanup(self) -> None:
        self.note("cleanup")


class Refusing(Reusable):
    def reset_config(self, new_config: dict) -> bool:
        self.note("refused")
        return False


class Raising(Reusable):
    def reset_config(self, new_config: dict) -> bool:
        raise RuntimeError("no other configuration, please")


def run(trainable: Any, path: Any, at_a_time: int = 1, trials: int = 4, **more: Any) -> tune.ResultGrid:
    settings = {"stop": {"training_iteration": 3}, **more.pop("run", {})}
    config = {"max_concurrent_trials": at_a_time, "reuse_actors": True, **more}
    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(list(range(trials))), "notes": str(path / "notes")},
        tune_config=tune.TuneConfig(**config),
        run_config=tune.RunConfig(name="e", storage_path=str(path), verbose=0, **settings),
    ).fit()


def notes(path: Any) -> list[list[str]]:
    return [line.split() for line in (path / "notes").read_text().splitlines()]


def words(path: Any) -> list[str]:
    return [line[3] for line in notes(path)]


def test_one_object_serves_all_trials(tmp_path):
    results = run(Reusable, tmp_path)
    assert [r.metrics["x"] for r in results] == [0, 1, 2, 3]
    assert [r.metrics["n"] for r in results] == [3, 3, 3, 3]
    assert [r.metrics["training_iteration"] for r in results] == [3, 3, 3, 3]
    assert words(tmp_path) == ["setup", "reset", "reset", "reset", "cleanup"]
    assert len({(pid, made) for pid, made, *_ in notes(tmp_path)}) == 1
    for result in results:
        name = os.path.basename(result.path)
        assert result.metrics["said"] == [name, name, 2]
        assert [int(i) for i in result.metrics_dataframe["training_iteration"]] == [1, 2, 3]


def test_two_at_a_time_are_two_objects(tmp_path):
    results = run(Reusable, tmp_path, at_a_time=2, trials=8)
    assert [r.metrics["x"] for r in results] == list(range(8))
    assert 1 <= words(tmp_path).count("setup") <= 2
    assert words(tmp_path).count("setup") == words(tmp_path).count("cleanup")
    assert words(tmp_path).count("setup") + words(tmp_path).count("reset") == 8


def test_it_is_not_done_unless_asked_for(tmp_path):
    run(Reusable, tmp_path, reuse_actors=None)
    assert words(tmp_path) == ["setup", "cleanup"] * 4
    assert len({pid for pid, *_ in notes(tmp_path)}) == 4


def test_an_object_that_refuses_is_replaced_by_one_in_a_process_of_its_own(tmp_path):
    results = run(Refusing, tmp_path, trials=3)
    assert [r.metrics["n"] for r in results] == [3, 3, 3]
    assert results.num_errors == 0
    assert words(tmp_path).count("setup") == 3 and words(tmp_path).count("cleanup") == 3
    assert len({r.metrics["pid"] for r in results}) == 3


def test_a_reset_that_raises_is_a_failure_of_the_trial(tmp_path):
    results = run(Raising, tmp_path, trials=2)
    assert results[0].error is None
    assert "no other configuration" in str(results[1].error)
    again = tmp_path / "again"
    again.mkdir()
    results = run(Raising, again, trials=2, run={"failure_config": tune.FailureConfig(max_failures=1)})
    assert results.num_errors == 0  # tried again, in a fork of its own


def test_an_object_of_a_trial_that_failed_is_not_used_again(tmp_path):
    class Failing(Reusable):
        def step(self):
            if self.config["x"] == 1 and self.n == 1:
                raise RuntimeError("fails")
            return super().step()

    results = run(Failing, tmp_path, trials=3)
    assert [r.error is None for r in results] == [True, False, True]
    assert words(tmp_path) == ["setup", "reset", "cleanup", "setup", "cleanup"]


def test_paused_trials_go_on_in_whatever_object_there_is(tmp_path):
    results = run(
        Reusable, tmp_path, trials=9, metric="x", mode="max",
        scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3, type="promotion"),
        run={"stop": None},
    )
    assert results[8].metrics["n"] == 9
    assert all(r.metrics["n"] == r.metrics["training_iteration"] for r in results)
    assert words(tmp_path).count("setup") == 1


def test_a_population_is_the_same_with_and_without(tmp_path):
    found = []
    for reuse in (True, False):
        path = tmp_path / str(reuse)
        path.mkdir()
        results = tune.Tuner(
            Growing,
            param_space={"rate": tune.grid_search([0.1, 0.2, 0.5, 0.9])},
            tune_config=tune.TuneConfig(
                metric="total", mode="max", max_concurrent_trials=2, reuse_actors=reuse,
                scheduler=PopulationBasedTraining(
                    time_attr="training_iteration", perturbation_interval=2, synch=True, seed=3,
                    hyperparam_mutations={"rate": tune.uniform(0, 1)},
                ),
            ),
            run_config=tune.RunConfig(
                name="e", storage_path=str(path), verbose=0, stop={"training_iteration": 8},
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, num_to_keep=2),
            ),
        ).fit()
        assert results.num_errors == 0
        found.append([(r.config["rate"], r.metrics["total"], r.metrics["drawn"]) for r in results])
    assert found[0] == found[1]


class Growing(tune.Trainable):
    def setup(self, config):
        self.total = 0.0

    def step(self):
        import random

        self.total += self.config["rate"]
        return {"total": self.total, "drawn": random.random() if self.iteration == 0 else 0}

    def save_checkpoint(self, directory):
        with open(os.path.join(directory, "total"), "w") as file:
            file.write(repr(self.total))

    def load_checkpoint(self, directory):
        with open(os.path.join(directory, "total")) as file:
            self.total = float(file.read())

    def reset_config(self, new_config):
        self.total = 0.0
        return True


def test_a_worker_that_is_killed_while_it_waits_is_nobodys_failure(tmp_path):
    class Waiting(Reusable):
        def step(self):
            while self.config["x"] == 1 and not (tmp_path / "killed").exists():
                time.sleep(0.01)
            return super().step()

    class Kill(tune.Callback):
        """Its launch has ended when it is told of the end, so the process waits for another."""

        def on_trial_complete(self, iteration, trials, trial, **info):
            if trial.config["x"] == 0:
                os.kill(trial.last_result["pid"], signal.SIGKILL)
                (tmp_path / "killed").touch()

    results = run(Waiting, tmp_path, at_a_time=2, trials=2, run={"callbacks": [Kill()]})
    assert results.num_errors == 0
    assert [r.metrics["n"] for r in results] == [3, 3]


def test_each_trials_output_and_directory_are_its_own(tmp_path, monkeypatch):
    class Printing(Reusable):
        def step(self):
            print("trial", self.config["x"])
            os.system("echo program")
            with open("here", "a") as file:
                file.write(str(self.config["x"]))
            return super().step()

    monkeypatch.chdir(tmp_path)
    results = run(
        Printing, tmp_path, trials=3, chdir_to_trial_dir=True, run={"log_to_file": True}
    )
    assert words(tmp_path).count("setup") == 1
    for x, result in enumerate(results):
        with open(os.path.join(result.path, "stdout")) as file:
            assert sorted(file.read().splitlines()) == ["program"] * 3 + [f"trial {x}"] * 3
        with open(os.path.join(result.path, "here")) as file:
            assert file.read() == str(x) * 3


def test_a_step_that_is_left_in_the_middle_ends_the_worker(tmp_path):
    class Slow(Reusable):
        save_checkpoint = tune.Trainable.save_checkpoint

        def step(self):
            time.sleep(0.1 if self.n < 2 else 600)
            return super().step()

    began = time.monotonic()
    results = run(Slow, tmp_path, trials=1, time_budget_s=5)
    assert time.monotonic() - began < 120
    assert results[0].metrics["n"] == 2
    assert words(tmp_path) == ["setup", "cleanup"]


def test_cleanup_that_hangs_does_not_hold_up_the_end(tmp_path):
    class Hanging(Reusable):
        def cleanup(self):
            super().cleanup()
            time.sleep(600)

    began = time.monotonic()
    results = run(Hanging, tmp_path, trials=2)
    assert [r.metrics["n"] for r in results] == [3, 3]
    assert time.monotonic() - began < 120
    pid = int(notes(tmp_path)[0][0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_no_answer_is_refused():
    with pytest.raises(ValueError, match="reuse_actors"):
        tune.TuneConfig(reuse_actors="yes")
