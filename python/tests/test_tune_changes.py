"""Going on with an experiment with other settings than it was made with."""

import os

import pytest

import cairn
from cairn import tune
from cairn.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from cairn.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch


def test_a_changed_space_is_told_and_the_same_one_is_not(tmp_path, recwarn):
    def one(config):
        tune.report({"x": config["x"]})

    def fit(**space):
        tuner = tune.Tuner(
            one, param_space=space, run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
        )
        return [r.config["x"] for r in tuner.fit()]

    space = {
        "x": tune.grid_search([1, 2]),
        "bound": float("nan"),
        "deep": {"lr": tune.loguniform(1e-3, 1), "f": tune.sample_from(lambda spec: 1)},
        "pair": (1, 2.0),
    }
    assert fit(**space) == fit(**space) == [1, 2]
    assert not recwarn.list
    with pytest.warns(UserWarning, match="other values of 'bound', 'x' than the experiment in .*/e was"):
        assert fit(**{**space, "x": 7, "bound": 1.0}) == [1, 2]


def one(config):
    tune.report({"x": config["x"]})


def fit(tmp_path, **config):
    tuner = tune.Tuner(
        one,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="x", mode="max", **config),
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    )
    return [r.metrics["x"] for r in tuner.fit()]


def pbt(**options):
    return PopulationBasedTraining(
        time_attr="training_iteration", hyperparam_mutations={"x": tune.uniform(0, 1)}, **options
    )


class OwnAsha(ASHAScheduler):
    pass


SCHEDULERS = [
    (ASHAScheduler(max_t=10), ASHAScheduler(max_t=20), "max_t=20 instead of 10"),
    (ASHAScheduler(max_t=10), ASHAScheduler(max_t=10, type="promotion"), "promote=True instead of False"),
    (ASHAScheduler(max_t=10), MedianStoppingRule(), "median instead of asha"),
    (ASHAScheduler(max_t=10), OwnAsha(max_t=10), "OwnAsha instead of asha"),
    (OwnAsha(max_t=10), ASHAScheduler(max_t=10), "asha instead of OwnAsha"),
    (pbt(), pbt(quantile_fraction=0.5), "quantile_fraction=0.5 instead of 0.25"),
    (pbt(seed=1), pbt(seed=2), "seed=2 instead of 1"),
    (None, ASHAScheduler(), "asha instead of fifo"),
]


@pytest.mark.parametrize("first, second, change", SCHEDULERS, ids=[c for _, _, c in SCHEDULERS])
def test_another_scheduler_is_refused_and_says_what_differs(tmp_path, first, second, change):
    done = fit(tmp_path, scheduler=first)
    with pytest.raises(ValueError, match=f"scheduler is another one .*/e was made with .{change}.*leave scheduler out"):
        fit(tmp_path, scheduler=second)
    again = None if first is None or first.describe() else type(first)(max_t=10)
    assert fit(tmp_path, scheduler=again) == done


SEARCHERS = [
    ({"search_alg": BasicVariantGenerator(random_state=1)}, {"search_alg": BasicVariantGenerator(random_state=2)}),
    ({"seed": 1}, {"seed": 2}),
    ({}, {"seed": 2}),
    (
        {"search_alg": ConcurrencyLimiter(OptunaSearch(seed=1), 2)},
        {"search_alg": ConcurrencyLimiter(OptunaSearch(seed=2), 2)},
    ),
    ({"search_alg": OptunaSearch(seed=1)}, {"search_alg": BasicVariantGenerator(random_state=1)}),
]


@pytest.mark.parametrize("first, second", SEARCHERS)
def test_another_search_is_refused(tmp_path, first, second):
    done = fit(tmp_path, **first)
    with pytest.raises(ValueError, match="search_alg is another one .*/e was made with .*leave search_alg out"):
        fit(tmp_path, **second)
    assert fit(tmp_path) == done


@pytest.mark.parametrize(
    "config",
    [
        lambda: {"scheduler": ASHAScheduler(max_t=10, seed=3)},
        lambda: {"scheduler": "asha"},
        lambda: {"scheduler": pbt()},
        lambda: {"scheduler": pbt(perturbation_factors=(1.5, 0.5)), "seed": 5},
        lambda: {"scheduler": OwnAsha(max_t=9)},
        lambda: {"scheduler": MedianStoppingRule(grace_period=1)},
        lambda: {"scheduler": FIFOScheduler()},
        lambda: {"search_alg": BasicVariantGenerator(points_to_evaluate=[{"x": 0.5}])},
        lambda: {"search_alg": OptunaSearch(points_to_evaluate=[{"x": 0.5}]), "seed": 1},
        lambda: {"search_alg": ConcurrencyLimiter(OptunaSearch(), 2)},
    ],
)
def test_the_same_settings_go_on_whatever_was_made_up_for_them(tmp_path, config):
    assert fit(tmp_path, **config()) == fit(tmp_path, **config())


def test_restore_refuses_another_scheduler_before_anything_runs(tmp_path):
    fit(tmp_path, scheduler=ASHAScheduler(max_t=10))
    with pytest.raises(ValueError, match="max_t=20 instead of 10"):
        tune.Tuner.restore(
            tmp_path / "e",
            one,
            tune_config=tune.TuneConfig(metric="x", mode="max", scheduler=ASHAScheduler(max_t=20)),
        )
    assert tune.Tuner.restore(tmp_path / "e", one).fit().get_best_result().metrics["x"] > 0


class Adds(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        return {"x": self.n * self.config["by"]}

    def save_checkpoint(self, directory):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"]


def test_an_extension_may_have_a_scheduler_that_lets_trials_go_further(tmp_path):
    def asha(max_t):
        # One at a time: two at once pass their rungs in whatever order they come.
        return tune.TuneConfig(
            metric="x",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=max_t, reduction_factor=2),
        )

    tune.Tuner(
        Adds,
        param_space={"by": tune.grid_search([2, 1])},
        tune_config=asha(4),
        run_config=tune.RunConfig(
            storage_path=tmp_path, name="e", verbose=0, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)
        ),
    ).fit()

    def extended():
        tuner = tune.Tuner.extend(tmp_path / "e", Adds, stop={"training_iteration": 7}, tune_config=asha(8))
        return [[r["training_iteration"] for r in result.results] for result in tuner.fit()]

    first, second = extended()
    assert first == [1, 2, 3, 4, 5, 6, 7], "the old one would have stopped it at 4"
    assert second[-1] < 7, "the new one stops it"
    assert extended() == [first, second], "the same command again adds nothing"
    again = tune.Tuner.restore(tmp_path / "e", Adds).fit()
    assert [len(result.results) for result in again] == [7, len(second)]


def test_a_space_that_is_left_out_is_the_one_on_record(tmp_path):
    def f(config):
        tune.report({"x": config["x"]})
        if config["x"] > 2 and os.path.exists(tmp_path / "broken"):
            raise RuntimeError("not yet")

    def go(space):
        run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
        return tune.Tuner(f, param_space=space, run_config=run)

    (tmp_path / "broken").write_text("")
    grid = {"x": tune.grid_search([1, 2, 3, 4])}
    assert go(grid).fit().num_errors == 2
    (tmp_path / "broken").unlink()
    assert [r.config["x"] for r in go(None).fit()] == [1, 2, 3, 4]
    for again in (lambda: go({}).fit(), lambda: tune.Tuner.restore(tmp_path / "e", f, param_space={})):
        with pytest.raises(ValueError, match="leave param_space out"):
            again()
    assert [r.config["x"] for r in tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()] == [1, 2, 3, 4]


def test_a_class_is_no_function_of_the_same_name(tmp_path):
    def Same(config):
        tune.report({"x": 1})

    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tune.Tuner(Same, run_config=run).fit()

    class Same(tune.Trainable):  # noqa: F811
        def step(self):
            return {"x": 1, "done": True}

    with pytest.raises(ValueError, match="a function that is called 'Same', and this is a class"):
        tune.Tuner.restore(tmp_path / "e", Same)


def _fails_at_first(tmp_path):
    flag = tmp_path / "flag"
    flag.write_text("")

    def f(config):
        start = tune.get_checkpoint()
        first = start.to_dict()["i"] if start else 0
        for i in range(first + 1, first + 5):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i}))
        if flag.exists():
            raise RuntimeError("x")

    return f, flag


def test_what_a_run_config_leaves_out_is_as_recorded(tmp_path):
    f, flag = _fails_at_first(tmp_path)
    run = tune.RunConfig(
        storage_path=tmp_path,
        name="e",
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        failure_config=tune.FailureConfig(max_failures=1),
        host="here",
        launch_dir=tmp_path / "launches",
    )
    [result] = tune.Tuner(f, run_config=run).fit()
    assert result.error is not None and len(result.best_checkpoints) == 2
    flag.unlink()
    again = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True, run_config=tune.RunConfig(verbose=0))
    [result] = again.fit()
    assert result.error is None and len(result.best_checkpoints) == 2
    recorded = cairn._native.Tuner.read_description(str(tmp_path / "e"))["run_config"]
    assert recorded["failure_config"]["max_failures"] == 1
    assert recorded["checkpoint_config"]["num_to_keep"] == 2
    known = tune.Tuner.restore(tmp_path / "e", f)._run
    assert known.failure_config.max_failures == 1


def test_where_jobs_and_the_master_are_is_recorded(tmp_path):
    def f(config):
        tune.report({"x": 1})

    run = tune.RunConfig(
        storage_path=tmp_path, name="e", verbose=0, host="here", launch_dir=tmp_path / "launches"
    )
    tune.Tuner(f, run_config=run).fit()
    known = tune.Tuner.restore(tmp_path / "e", f)._run
    assert (known.host, known.launch_dir, known.master) == ("here", str(tmp_path / "launches"), None)


def test_another_number_of_failures_is_refused(tmp_path):
    f, _ = _fails_at_first(tmp_path)
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tune.Tuner(f, run_config=run).fit()
    more = tune.RunConfig(
        storage_path=tmp_path, name="e", verbose=0, failure_config=tune.FailureConfig(max_failures=10)
    )
    for again in (
        lambda: tune.Tuner(f, run_config=more).fit(),
        lambda: tune.Tuner.restore(tmp_path / "e", f, resume_errored=True, run_config=more),
    ):
        with pytest.raises(ValueError, match="max_failures=10.*made with 0"):
            again()


def test_another_number_of_checkpoints_counts_for_trials_that_go_on(tmp_path):
    f, flag = _fails_at_first(tmp_path)
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    [result] = tune.Tuner(f, run_config=run).fit()
    assert len(result.best_checkpoints) == 4
    flag.unlink()
    fewer = tune.RunConfig(verbose=0, checkpoint_config=tune.CheckpointConfig(num_to_keep=1))
    [result] = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True, run_config=fewer).fit()
    assert result.error is None and result.metrics["i"] == 8
    assert [m["i"] for _, m in result.best_checkpoints] == [8]
