"""Search spaces, searchers, schedulers and stoppers, by their Python names."""

import math
import random

import numpy
import optuna
import pytest
from tune_population import Population

import cairn
from cairn import tune
from cairn.tune import schedulers, search, search_space, stoppers
from cairn.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from cairn.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch, Searcher
from cairn.tune.search_policy import SearchPolicy
from cairn.tune.stoppers import FunctionStopper, MaximumIterationStopper, Stopper


def configs(space, num_samples=1, **options):
    searcher = BasicVariantGenerator(**{"random_state": 1, **options})
    searcher.set_search_properties(None, None, space, num_samples=num_samples)
    out = []
    while isinstance(config := searcher.suggest(str(len(out))), dict):
        out.append(config)
    assert config == Searcher.FINISHED
    return out


# --- spaces -----------------------------------------------------------------------------------------


def test_every_domain_is_drawn_within_its_bounds():
    space = {
        "uniform": search_space.uniform(-1, 1),
        "quniform": search_space.quniform(0, 1, 0.25),
        "loguniform": search_space.loguniform(1e-4, 1e-1),
        "qloguniform": search_space.qloguniform(0.5, 8, 0.5),
        "randint": search_space.randint(0, 3),
        "qrandint": search_space.qrandint(0, 12, 4),
        "lograndint": search_space.lograndint(1, 1000),
        "qlograndint": search_space.qlograndint(2, 64, 2),
        "within": search_space.qlograndint(1, 10, 2),  # as Ray's documentation has it
        "randn": search_space.randn(5, 0.1),
        "qrandn": search_space.qrandn(0, 10, 2),
        "nested": {"choice": search_space.choice(["a", [1, 2], None]), "plain": (1, 2)},
    }
    for config in configs(space, 200):
        assert -1 <= config["uniform"] < 1
        assert config["quniform"] in (0, 0.25, 0.5, 0.75, 1)
        assert 1e-4 <= config["loguniform"] < 1e-1
        assert 0.5 <= config["qloguniform"] <= 8 and (config["qloguniform"] * 2).is_integer()
        assert config["randint"] in (0, 1, 2)
        assert config["qrandint"] in (0, 4, 8, 12)
        assert 1 <= config["lograndint"] < 1000
        assert config["qlograndint"] in range(2, 65, 2)
        assert config["within"] in (2, 4, 6, 8, 10)
        assert 4 < config["randn"] < 6
        assert config["qrandn"] % 2 == 0
        assert config["nested"]["choice"] in ("a", [1, 2], None)
        assert config["nested"]["plain"] == [1, 2]


def test_grids_times_samples_and_points_first():
    space = {"a": search_space.grid_search([1, 2]), "b": search_space.uniform(0, 1)}
    got = configs(space, 3, points_to_evaluate=[{"b": 0.5}])
    assert [c["a"] for c in got] == [1, 2] * 3
    assert [c["b"] for c in got[:2]] == [0.5, 0.5]
    assert len({c["b"] for c in got[2:]}) == 4
    assert got == configs(space, 3, points_to_evaluate=[{"b": 0.5}])
    assert got != configs(space, 3, points_to_evaluate=[{"b": 0.5}], random_state=2)
    with pytest.raises(ValueError, match="'?typo'?|typo"):
        configs(space, 1, points_to_evaluate=[{"typo": 1}])


def test_a_function_sees_the_other_hyperparameters():
    space = {
        "lr": search_space.uniform(1, 2),
        "nested": {"x": search_space.grid_search([10, 20])},
        "twice": search_space.sample_from(lambda spec: spec.config.four / 2),
        "four": search_space.sample_from(lambda spec: spec["lr"] * 4),
        "sum": search_space.sample_from(lambda spec: spec.config.nested.x + spec.config["lr"]),
        "none": search_space.sample_from(lambda: 7),
        "drawn": search_space.sample_from(lambda: search_space.randint(0, 5)),
    }
    for config in configs(space, 2):
        assert config["four"] == config["lr"] * 4
        assert config["twice"] == config["four"] / 2
        assert config["sum"] == config["nested"]["x"] + config["lr"]
        assert config["none"] == 7
        assert config["drawn"] in range(5)


def test_functions_that_draw_get_the_same_numbers_for_the_same_seed():
    space = {"a": search_space.sample_from(lambda: random.random() + float(numpy.random.rand()))}
    random.seed(5)
    expected = random.random()
    random.seed(5)
    got = configs(space, 4)
    assert random.random() == expected  # the user's own generator was left alone
    assert got == configs(space, 4)
    assert len({c["a"] for c in got}) == 4


def test_the_generator_of_the_program_seeds_a_search_that_has_no_seed():
    before = numpy.random.get_state()
    try:
        numpy.random.seed(1234)
        first = [BasicVariantGenerator().seed for _ in range(2)]
        numpy.random.seed(1234)
        assert [BasicVariantGenerator().seed for _ in range(2)] == first
        assert first[0] != first[1]
    finally:
        numpy.random.set_state(before)
    assert BasicVariantGenerator().seed not in first


def test_functions_that_wait_for_each_other_are_named():
    space = {
        "a": search_space.sample_from(lambda spec: spec.config.b),
        "b": search_space.sample_from(lambda spec: spec.config.a),
    }
    with pytest.raises(ValueError, match="wait for each other: a, b"):
        configs(space)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: search_space.uniform(1, 0), "below upper"),
        (lambda: search_space.loguniform(0, 1), "above 0"),
        (lambda: search_space.quniform(0, 1, 0.3), "multiple"),
        (lambda: search_space.randint(0.5, 2), "an integer"),
        (lambda: search_space.choice([]), "at least one"),
        (lambda: search_space.choice("abc"), "a list"),
        (lambda: search_space.grid_search(3), "a list"),
        (lambda: search_space.sample_from(3), "a function"),
        (lambda: search_space.loguniform(1, 2, base=1), "base"),
        (lambda: configs({"a": object()}), "cannot be recorded"),
        (lambda: configs({"a": {"b": search_space.choice(["x", "NaN"])}}), "the text 'NaN' stands for"),
        (lambda: configs({"a": search_space.sample_from(lambda _: "-Infinity")}), "the text '-Infinity' stands for"),
        (lambda: configs({1: 2}), "text as keys"),
        (lambda: configs({"a": search_space.choice([{"grid_search": [1]}])}), "inside of a choice"),
        (lambda: BasicVariantGenerator(random_state="x"), "random_state"),
        (lambda: BasicVariantGenerator(max_concurrent=-1), "max_concurrent"),
    ],
)
def test_mistakes_in_a_space_are_value_errors(make, part):
    with pytest.raises(ValueError, match=part):
        make()


# --- searchers --------------------------------------------------------------------------------------


def test_a_limiter_holds_back():
    inner = BasicVariantGenerator(random_state=1)
    limiter = ConcurrencyLimiter(inner, max_concurrent=2)
    limiter.set_search_properties(
        None, None, {"x": search_space.grid_search([1, 2, 3])}, num_samples=1
    )
    assert limiter.suggest("a") == {"x": 1}
    assert limiter.suggest("b") == {"x": 2}
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", None)
    assert limiter.suggest("c") == {"x": 3}
    limiter.on_trial_complete("b", None)
    assert limiter.suggest("d") == Searcher.FINISHED
    with pytest.raises(ValueError, match="max_concurrent"):
        ConcurrencyLimiter(inner, max_concurrent=0)


def test_what_a_searcher_raises_comes_through_a_limiter():
    class Broken(Searcher):
        def suggest(self, trial_id):
            raise KeyError("out of ideas")

    with pytest.raises(KeyError, match="out of ideas"):
        ConcurrencyLimiter(Broken(), max_concurrent=1).suggest("a")


OPTUNA_SPACE = {
    "x": search_space.uniform(-5, 5),
    "lr": search_space.loguniform(1e-5, 1e-1),
    "n": search_space.randint(1, 10),
    "q": search_space.quniform(0, 1, 0.25),
    "kind": search_space.choice(["a", "b"]),
    "constant": 3,
    "inner": {"m": search_space.choice([[1], [2, 3]])},
}


def optuna_loss(config):
    return (
        (config["x"] - 2) ** 2
        + config["lr"]
        + config["n"] * 0.1
        + (config["kind"] == "b")
        + len(config["inner"]["m"])
    )


def test_optuna_answers_as_when_it_is_called_directly():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    floats, ints = optuna.distributions.FloatDistribution, optuna.distributions.IntDistribution
    categories = optuna.distributions.CategoricalDistribution
    searcher = OptunaSearch(metric="loss", mode="min", seed=42)
    searcher.set_search_properties(None, None, OPTUNA_SPACE, num_samples=30)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=42), direction="minimize")
    direct = {  # in the order of the space, which is the one that people write suggest_… in
        "x": floats(-5, 5),
        "lr": floats(1e-5, 1e-1, log=True),
        "n": ints(1, 9),
        "q": floats(0, 1, step=0.25),
        "kind": categories(["a", "b"]),
        "inner/m": categories(["[1]", "[2, 3]"]),
    }
    for i in range(30):
        config = searcher.suggest(str(i))
        trial = study.ask(direct)
        assert config["constant"] == 3
        assert {k: config[k] for k in ("x", "lr", "n", "q", "kind")} == {
            k: trial.params[k] for k in ("x", "lr", "n", "q", "kind")
        }
        assert str(config["inner"]["m"]) == trial.params["inner/m"]
        searcher.on_trial_complete(str(i), {"loss": optuna_loss(config)})
        study.tell(trial, optuna_loss(config))
    assert searcher.study.best_params == study.best_params


@pytest.mark.parametrize("seeded", [True, False])
def test_optunas_state_comes_from_the_record(seeded):

    def make(description=None):
        own = None if seeded else OptunaSearch(sampler=optuna.samplers.TPESampler())
        return SearchPolicy(
            OPTUNA_SPACE, metric="loss", mode="min", num_samples=25, search_alg=own,
            description={"searcher": description} if seeded and description else None,
        )  # fmt: skip

    first = OptunaSearch(seed=3)
    policy = (
        SearchPolicy(OPTUNA_SPACE, metric="loss", mode="min", num_samples=25, search_alg=first)
        if seeded
        else make()
    )
    score = lambda name, trial: {"loss": optuna_loss(trial["config"]) / trial["iteration"]}  # noqa: E731
    population = Population(policy, score, iterations=3)
    for step in range(75):
        assert population.step()
        if step in (0, 7, 31, 60):
            population.restart(make(policy.describe()["searcher"]))
    population.run()
    assert len(population.trials) == 25
    if seeded:
        whole = Population(
            SearchPolicy(OPTUNA_SPACE, metric="loss", mode="min", num_samples=25, search_alg=OptunaSearch(seed=3)),
            score, iterations=3,
        ).run()  # fmt: skip
        assert population.trials == whole.trials
    study = population.policy._searcher.study
    told = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    assert {t.params["x"] for t in told} == {t["config"]["x"] for t in population.trials.values()}


def test_optuna_takes_points_failures_and_nan():
    searcher = OptunaSearch(
        metric="loss", mode="min", seed=1, points_to_evaluate=[{"x": 1.5, "y": 0.5}]
    )
    searcher.set_search_properties(
        None, None, {"x": search_space.uniform(0, 2), "y": search_space.uniform(0, 1)}
    )
    assert searcher.suggest("a") == {"x": 1.5, "y": 0.5}
    searcher.suggest("b")
    searcher.suggest("c")
    searcher.on_trial_result("a", {"loss": 3.0, "training_iteration": 1})
    searcher.on_trial_result("a", {"loss": 3.0, "training_iteration": 1})
    searcher.on_trial_complete("a", {"loss": 2.0})
    searcher.on_trial_complete("b", None, error=True)
    searcher.on_trial_complete("c", {"loss": math.nan})
    searcher.on_trial_complete("c", {"loss": 1.0})
    states = [t.state for t in searcher.study.trials]
    assert states == [optuna.trial.TrialState.COMPLETE] + [optuna.trial.TrialState.FAIL] * 2
    assert searcher.study.trials[0].intermediate_values == {1: 3.0}


@pytest.mark.parametrize(
    ("space", "part"),
    [
        ({"a": {"grid_search": [1, 2]}}, "grid_search"),
        ({"a": search_space.randn()}, "randn"),
        ({"a": search_space.sample_from(lambda: 1)}, "sample_from"),
        ({"a": search_space.choice([{"b": search_space.uniform(0, 1)}, 2])}, "inside of a choice"),
    ],
)
def test_what_optuna_cannot_search_is_refused(space, part):
    with pytest.raises(ValueError, match=part):
        OptunaSearch(metric="m", mode="min").set_search_properties(None, None, space)


def test_optuna_rounds_integers_to_multiples_too():
    search = OptunaSearch(metric="loss", mode="min", seed=1)
    search.set_search_properties(None, None, {"x": tune.qrandint(1, 10, 3)})
    assert {search.suggest(str(i))["x"] for i in range(30)} == {3, 6, 9}


def test_optuna_needs_a_metric():
    searcher = OptunaSearch()
    searcher.set_search_properties(None, None, {"x": search_space.uniform(0, 1)})
    with pytest.raises(ValueError, match="metric and mode"):
        searcher.suggest("a")
    with pytest.raises(ValueError, match="mode"):
        OptunaSearch(metric="m", mode="smallest")


# --- schedulers -------------------------------------------------------------------------------------


def score_of(name, trial):
    number = int(name.rsplit("_", 1)[1])
    lr = trial["config"].get("lr", 1)
    return {
        "score": math.sin(number) + trial["iteration"] * 0.05 + 0.1 * math.log10(lr),
        "time_total_s": trial["iteration"],
    }


SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=9, reduction_factor=3),
    "asha brackets": lambda: ASHAScheduler(max_t=9, reduction_factor=2, brackets=2, seed=4),
    "asha promotion": lambda: ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
    "median": lambda: MedianStoppingRule(grace_period=2, min_samples_required=2),
    "median soft": lambda: MedianStoppingRule(grace_period=2, min_time_slice=2, hard_stop=False),
    "pbt": lambda: PopulationBasedTraining(
        perturbation_interval=3,
        hyperparam_mutations={"lr": search_space.loguniform(0.1, 10)},
        seed=1,
    ),
    "pbt synch": lambda: PopulationBasedTraining(
        perturbation_interval=3, hyperparam_mutations={"lr": [0.1, 1, 10]}, synch=True, seed=1
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_restart_at_every_step_changes_nothing(name):
    space = {"lr": search_space.loguniform(0.1, 10)}

    def policy(description=None):
        return SearchPolicy(
            space, metric="score", mode="max", num_samples=9, scheduler=None if description else SCHEDULERS[name](),
            description=description, seed=7,
        )  # fmt: skip

    whole = Population(policy(), score_of, places=3).run()
    assert all(trial["ended"] for trial in whole.trials.values())
    assert len(whole.trials) == 9
    restarted = Population(policy(), score_of, places=3)
    description = restarted.policy.describe()
    while restarted.step():
        restarted.restart(policy(description))
    assert restarted.events == whole.events
    assert restarted.trials == whole.trials


def test_pbt_draws_by_the_seed_of_the_experiment_unless_it_has_one():
    def events(seed, own=None):
        scheduler = PopulationBasedTraining(
            perturbation_interval=3,
            hyperparam_mutations={"lr": search_space.loguniform(0.1, 10)},
            seed=own,
        )
        policy = SearchPolicy(
            {"x": 1}, metric="score", mode="max", num_samples=6, scheduler=scheduler, seed=seed
        )
        return Population(policy, score_of, places=3).run().events

    assert events(7) == events(7) != events(8)
    assert events(7, own=1) == events(8, own=1)


@pytest.mark.parametrize(
    "config, part",
    [
        ({"a": {"b": "NaN"}}, "'a/b': the text 'NaN' stands for"),
        ({"a": ["-Infinity"]}, "'a/0': the text '-Infinity' stands for"),
        ({"a": search_space.uniform(0, 1)}, "Says.suggest must return values"),
        ({"a": object()}, "cannot be recorded"),
    ],
)
def test_what_a_searcher_may_not_suggest(config, part):
    class Says(Searcher):
        def suggest(self, trial_id):
            return config

    with pytest.raises(ValueError, match=part):
        SearchPolicy(search_alg=Says()).suggest("a")


def test_asha_stops_as_the_table_says():
    policy = SearchPolicy({"x": search_space.grid_search([1, 2, 3])}, metric="loss", mode="min",
                          scheduler=ASHAScheduler(max_t=8, reduction_factor=2))  # fmt: skip
    for name in "abc":
        policy.suggest(name)
    rows = [("a", 1, 5.0, None), ("b", 1, 6.0, ("stop", False)), ("c", 1, 5.5, None), ("c", 2, math.nan, None),
            ("a", 2, 1.0, None), ("a", 8, 0.5, ("stop", False))]  # fmt: skip
    for name, iteration, loss, expected in rows:
        assert (
            policy.on_result(name, {"loss": loss, "training_iteration": iteration}) == expected
        ), (name, iteration)


def test_functions_explore_too():
    def explore(config):
        return {**config, "explored": config.get("explored", 0) + 1}

    policy = SearchPolicy(
        {"lr": search_space.uniform(0, 1)}, metric="score", mode="max", num_samples=4, seed=3,
        scheduler=PopulationBasedTraining(
            perturbation_interval=2, custom_explore_fn=explore, seed=5, resample_probability=1.0,
            hyperparam_mutations={"lr": lambda: random.uniform(5, 6), "added": search_space.randint(1, 4)},
        ),
    )  # fmt: skip
    population = Population(policy, score_of, places=4)
    while population.step():
        assert all("added" in trial["config"] for trial in population.trials.values())
    log = policy.take_log()
    explored = [t["config"] for t in population.trials.values() if "explored" in t["config"]]
    assert log and explored
    assert all(5 <= config["lr"] <= 6 for config in explored)
    assert policy.describe()["scheduler"] == {"class": "PopulationBasedTraining"}
    with pytest.raises(ValueError, match="give scheduler again"):
        SearchPolicy({}, metric="score", mode="max", description=policy.describe())


def test_a_scheduler_of_ones_own():
    class StopBad(TrialScheduler):
        def __init__(self):
            self.seen = []

        def on_trial_add(self, tune_controller, trial):
            self.seen.append(("add", trial.trial_id, trial.config["x"]))

        def on_trial_result(self, tune_controller, trial, result):
            assert trial in tune_controller.get_live_trials()
            if result["training_iteration"] == 2 and result["score"] < 0.5:
                return TrialScheduler.STOP
            return (
                TrialScheduler.PAUSE
                if result["training_iteration"] == 1
                else TrialScheduler.CONTINUE
            )

        def on_trial_complete(self, tune_controller, trial, result):
            self.seen.append(("complete", trial.trial_id, result["training_iteration"]))

        def choose_trial_to_run(self, tune_controller):
            waiting = [t for t in tune_controller.get_trials() if t.status in ("PENDING", "PAUSED")]
            return max(waiting, key=lambda t: t.config["x"], default=None)

    scheduler = StopBad()
    policy = SearchPolicy({"x": search_space.grid_search([0, 1, 2])}, scheduler=scheduler)
    population = Population(
        policy, lambda name, trial: {"score": trial["config"]["x"]}, places=1, iterations=4
    ).run()
    assert {name: len(trial["results"]) for name, trial in population.trials.items()} == {
        "trial_00000": 2, "trial_00001": 4, "trial_00002": 4}  # fmt: skip
    assert ("complete", "trial_00000", 2) in scheduler.seen

    class Odd(TrialScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return "EXPLODE"

    policy = SearchPolicy({}, scheduler=Odd())
    policy.suggest("a")
    with pytest.raises(ValueError, match="EXPLODE"):
        policy.on_result("a", {"training_iteration": 1})


def test_a_subclass_of_asha_may_say_more():
    class Patient(ASHAScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            action = super().on_trial_result(tune_controller, trial, result)
            return self.CONTINUE if trial.config["x"] == 2 else action

    policy = SearchPolicy(
        {"x": search_space.grid_search([1, 2])},
        metric="score",
        mode="max",
        scheduler=Patient(max_t=8),
    )
    policy.suggest("a")
    policy.suggest("b")
    assert policy.on_result("a", {"score": 5, "training_iteration": 1}) is None
    assert policy.on_result("b", {"score": 1, "training_iteration": 1}) is None
    assert policy.describe()["scheduler"] == {"class": "Patient"}


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: ASHAScheduler(mode="maximum"), "mode"),
        (lambda: ASHAScheduler(max_t=0), "max_t"),
        (lambda: ASHAScheduler(grace_period=200), "grace_period"),
        (lambda: ASHAScheduler(reduction_factor=1), "reduction_factor"),
        (lambda: ASHAScheduler(brackets=9), "brackets"),
        (lambda: ASHAScheduler(type="promote"), "promotion"),
        (lambda: MedianStoppingRule(min_samples_required=0), "min_samples_required"),
        (lambda: PopulationBasedTraining(), "hyperparam_mutations"),
        (lambda: PopulationBasedTraining(hyperparam_mutations={"a": 3}), "a list, a domain"),
        (
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": [1]}, quantile_fraction=0.7),
            "quantile_fraction",
        ),
        (
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": {"grid_search": [1]}}),
            "the list itself",
        ),
        (lambda: PopulationBasedTraining(hyperparam_mutations=[1]), "must be a dict"),
        (lambda: PopulationBasedTraining(custom_explore_fn=3), "custom_explore_fn"),
        (lambda: schedulers.HyperBandScheduler(), "ASHAScheduler"),
        (lambda: schedulers.create_scheduler("best"), "no scheduler is called"),
        (lambda: SearchPolicy({}, scheduler=3), "TrialScheduler"),
        (lambda: SearchPolicy({}, search_alg=3), "Searcher"),
        (lambda: SearchPolicy({}, scheduler=ASHAScheduler()).suggest("a"), "name metric and mode"),
        (
            lambda: SearchPolicy(
                {}, metric="a", mode="min", scheduler=ASHAScheduler(metric="b", mode="min")
            ),
            "one place",
        ),
    ],
)
def test_mistakes_in_schedulers_are_value_errors(make, part):
    with pytest.raises(ValueError, match=part):
        make()


# --- stoppers and the policy ------------------------------------------------------------------------


def test_stoppers_by_their_names():
    assert stoppers.as_stopper(None)("t", {}) is False
    bounds = stoppers.as_stopper({"acc": 0.9, "nested/n": 3})
    assert bounds("t", {"acc": 0.5, "nested": {"n": 3}}) is True
    assert bounds("t", {"acc": 0.5, "nested": {"n": 2}}) is False
    with pytest.raises(ValueError, match="nested/n"):
        bounds("t", {"acc": 1})
    function = stoppers.as_stopper(lambda trial_id, result: result["x"] > 1)
    assert isinstance(function, FunctionStopper)
    assert function("t", {"x": 2}) is True
    plateau = stoppers.TrialPlateauStopper("loss", num_results=2, grace_period=2)
    assert [plateau("t", {"loss": loss}) for loss in (1.0, 0.5, 0.5)] == [False, False, True]
    best = stoppers.ExperimentPlateauStopper("loss", top=2)
    assert [best("t", {"loss": loss}) for loss in (1.0, 1.0)] == [False, True]
    assert best.stop_all()
    assert stoppers.TimeoutStopper(0).stop_all()
    assert not stoppers.TimeoutStopper(1000).stop_all()
    combined = stoppers.as_stopper([{"acc": 1}, MaximumIterationStopper(2)])
    assert [combined("t", {"acc": 0}) for _ in range(2)] == [False, True]
    again = stoppers.from_description(combined.describe())
    assert [again("t", {"acc": 0}) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: stoppers.as_stopper(3), "stop must be"),
        (lambda: stoppers.as_stopper({"a": "b"}), "must be a number"),
        (lambda: stoppers.as_stopper(lambda: True), "two arguments"),
        (lambda: FunctionStopper(4), "a function"),
        (lambda: MaximumIterationStopper(0), "max_iter"),
        (lambda: stoppers.TrialPlateauStopper("m", metric_threshold=3), "mode"),
        (lambda: stoppers.ExperimentPlateauStopper("m", top=1), "top"),
        (lambda: stoppers.TimeoutStopper(-1), "timeout"),
        (lambda: stoppers.CombinedStopper(3), "not a Stopper"),
    ],
)
def test_mistakes_in_stoppers_are_value_errors(make, part):
    with pytest.raises(ValueError, match=part):
        make()


def test_the_metric_of_the_experiment_is_checked():
    policy = SearchPolicy({}, metric="val/acc", mode="max")
    policy.suggest("a")
    with pytest.raises(ValueError, match="'val/acc'.*it has"):
        policy.on_result("a", {"training_iteration": 1, "val": {}})
    with pytest.raises(ValueError, match="'high'"):
        policy.on_result("a", {"training_iteration": 1, "val": {"acc": "high"}})
    assert policy.on_result("a", {"training_iteration": 1, "val": {"acc": 0}}) is None


def test_a_stopper_of_ones_own_ends_everything():
    class Enough(Stopper):
        count = 0

        def __call__(self, trial_id, result):
            self.count += 1
            return False

        def stop_all(self):
            return self.count >= 5

    policy = SearchPolicy({}, num_samples=-1, stop=Enough())
    population = Population(policy, lambda name, trial: {}, iterations=2).run()
    assert sum(len(trial["results"]) for trial in population.trials.values()) == 5


def test_time_budget_and_searchers_of_ones_own():
    class Fixed(Searcher):
        def suggest(self, trial_id):
            return {"x": trial_id}

    policy = SearchPolicy({"y": 1}, num_samples=2, search_alg=Fixed(), time_budget_s=1000)
    assert policy.suggest("a") == {"x": "a", "y": 1}
    assert policy.suggest("b") == {"x": "b", "y": 1}
    assert policy.suggest("c") is None
    assert not policy.stop_all()
    with pytest.raises(ValueError, match="does not take a param_space"):
        SearchPolicy({"y": search_space.uniform(0, 1)}, search_alg=Fixed())
    assert isinstance(
        search.from_description(ConcurrencyLimiter(BasicVariantGenerator(), 2).describe()),
        ConcurrencyLimiter,
    )
    assert issubclass(cairn.errors.Invalid, ValueError)


def test_optuna_may_be_asked_by_a_function(tmp_path):
    """As Optuna itself with the same seed; killed in the middle it goes on as if it was not."""
    def define(trial):
        x = trial.suggest_float("x", -5, 5)
        if trial.suggest_categorical("kind", ["plain", "deep"]) == "deep":
            trial.suggest_int("layers", 1, 4)
        return {"constant": 7, "seen": x > 0}

    def loss(config):
        return config["x"] ** 2 + config.get("layers", 0)

    def search(trials, replay=()):
        made = tune.search.OptunaSearch(define, metric="loss", mode="min", seed=3)
        made.set_search_properties(None, None, {})
        configs = []
        for name, config in replay:
            made.on_trial_replayed(name, config)
            made.on_trial_complete(name, {"loss": loss(config)})
        for number in range(len(replay), trials):
            config = made.suggest(str(number))
            made.on_trial_complete(str(number), {"loss": loss(config)})
            configs.append(config)
        return [config for _, config in replay] + configs

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3))
    study.optimize(lambda trial: define(trial) and loss(trial.params), n_trials=20)
    whole = search(20)
    drawn = [
        {k: v for k, v in config.items() if k not in ("constant", "seen")} for config in whole
    ]
    assert drawn == [trial.params for trial in study.trials]
    assert all(config["constant"] == 7 for config in whole)
    again = search(20, [(str(i), config) for i, config in enumerate(whole[:12])])
    assert again == whole

    def train(config):
        tune.report({"loss": loss(config)})

    results = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            num_samples=3, max_concurrent_trials=1,
            search_alg=tune.search.OptunaSearch(define, metric="loss", mode="min", seed=3),
        ),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()  # fmt: skip
    assert [result.config for result in results] == whole[:3]


def test_optuna_refuses_a_function_that_returns_something_else():
    made = tune.search.OptunaSearch(lambda trial: 3, metric="loss", mode="min")
    made.set_search_properties(None, None, {})
    with pytest.raises(ValueError, match="must return a dict or None"):
        made.suggest("a")
    with pytest.raises(ValueError, match="not a function"):
        tune.search.OptunaSearch(lambda trial: None, points_to_evaluate=[{"x": 1}], evaluated_rewards=[2])
