"""An experiment that asks Optuna, beside a program that does so itself."""

import optuna
import pytest

from cairn import tune
from cairn.tune.search import OptunaSearch

SPACE = {
    "x": tune.uniform(-5, 5),
    "deep": {"kind": tune.choice(["a", "b"]), "constant": 1},
    "layers": tune.randint(0, 5),
}
REVERSED = {
    "layers": SPACE["layers"],
    "deep": {"constant": 1, "kind": SPACE["deep"]["kind"]},
    "x": SPACE["x"],
}


def loss(x, kind, layers):
    return (x - 2) ** 2 + (kind == "b") + layers


def f(config):
    tune.report({"loss": loss(config["x"], config["deep"]["kind"], config["layers"])})


def directly(number):
    """As somebody would write it who reads SPACE."""
    tried = []

    def objective(trial):
        tried.append(
            (
                trial.suggest_float("x", -5, 5),
                trial.suggest_categorical("deep/kind", ["a", "b"]),
                trial.suggest_int("layers", 0, 4),
            )
        )
        return loss(*tried[-1])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3)).optimize(objective, n_trials=number)
    return tried


def tuner(path, number, space=SPACE, own=False):
    sampler = {"sampler": optuna.samplers.TPESampler(seed=3)} if own else {"seed": 3}
    return tune.Tuner(
        f,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=number, max_concurrent_trials=1,
            search_alg=OptunaSearch(**sampler),
        ),
        run_config=tune.RunConfig(name="e", storage_path=str(path), verbose=0),
    )  # fmt: skip


def tried(results):
    return [(r.config["x"], r.config["deep"]["kind"], r.config["layers"]) for r in results]


@pytest.mark.parametrize("own", [False, True])
def test_it_tries_what_optuna_called_directly_tries(tmp_path, own):
    assert tried(tuner(tmp_path, 14, own=own).fit()) == directly(14)


def test_it_goes_on_in_the_same_order_without_being_told_the_space_again(tmp_path):
    tuner(tmp_path, 11).fit()
    assert tried(tune.Tuner.extend(str(tmp_path / "e"), f, num_samples=14).fit()) == directly(14)


def test_it_goes_on_in_the_same_order_when_the_program_was_reordered(tmp_path):
    tuner(tmp_path, 11).fit()
    again = tune.Tuner.extend(str(tmp_path / "e"), f, num_samples=14, param_space=REVERSED)
    assert tried(again.fit()) == directly(14)
