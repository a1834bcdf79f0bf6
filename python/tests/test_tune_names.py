"""The names that programs written for Ray Tune use, old and new; checks of trainables; imports."""

import io
import os
import random
import subprocess
import sys

import pytest

import cairn
from cairn import air, tune
from cairn.tune.utils import validate_save_restore


def test_the_names_of_2_3(tmp_path):
    def f(config):
        checkpoint = air.session.get_checkpoint()
        assert checkpoint is None
        for i in range(3):
            air.session.report({"i": i}, checkpoint=air.Checkpoint.from_dict({"i": i}))

    results = tune.Tuner(
        f,
        param_space={"x": tune.grid_search([1])},
        tune_config=tune.TuneConfig(metric="i", mode="max"),
        run_config=air.RunConfig(
            local_dir=str(tmp_path),
            name="e",
            verbose=0,
            checkpoint_config=air.CheckpointConfig(num_to_keep=1),
            failure_config=air.FailureConfig(max_failures=1),
        ),
    ).fit()
    best = results.get_best_result()
    assert best.metrics["i"] == 2 and best.checkpoint.to_dict() == {"i": 2}
    assert best.path.startswith(str(tmp_path / "e"))


def test_keyword_metrics_as_before_2_0(tmp_path):
    def f(config):
        tune.report(loss=1.0, acc=0.5)

    [result] = tune.Tuner(f, run_config=tune.RunConfig(storage_path=tmp_path, verbose=0)).fit()
    assert result.metrics["loss"] == 1.0 and result.metrics["acc"] == 0.5


def test_the_modules_that_programs_import_from():
    from cairn.air.checkpoint import Checkpoint
    from cairn.air.config import CheckpointConfig, FailureConfig, RunConfig
    from cairn.air.result import Result
    from cairn.air.session import get_checkpoint, report
    from cairn.tune.error import TuneError
    from cairn.tune.experiment import Trial
    from cairn.tune.progress_reporter import CLIReporter
    from cairn.tune.schedulers.async_hyperband import ASHAScheduler
    from cairn.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from cairn.tune.schedulers.pbt import PopulationBasedTraining
    from cairn.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler
    from cairn.tune.search.basic_variant import BasicVariantGenerator
    from cairn.tune.search.concurrency_limiter import ConcurrencyLimiter
    from cairn.tune.search.optuna import OptunaSearch
    from cairn.tune.search.searcher import Searcher
    from cairn.tune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper

    assert (Checkpoint, Result, RunConfig) == (tune.Checkpoint, tune.Result, tune.RunConfig)
    assert (CheckpointConfig, FailureConfig) == (tune.CheckpointConfig, tune.FailureConfig)
    assert (get_checkpoint, report) == (tune.get_checkpoint, tune.report)
    assert BasicVariantGenerator is tune.search.BasicVariantGenerator
    assert OptunaSearch is tune.search.OptunaSearch
    from cairn.tune.tune_config import TuneConfig

    assert (TuneError, Trial, TuneConfig) == (tune.TuneError, tune.Trial, tune.TuneConfig)
    assert CLIReporter is tune.CLIReporter
    for one in (ASHAScheduler, MedianStoppingRule, PopulationBasedTraining, FIFOScheduler, TrialScheduler):
        assert getattr(tune.schedulers, one.__name__) is one
    assert issubclass(ConcurrencyLimiter, Searcher) and Searcher is tune.search.Searcher
    assert CombinedStopper(MaximumIterationStopper(3), TrialPlateauStopper("x"))


def test_names_that_are_not_here_say_what_to_write():
    with pytest.raises(AttributeError, match="no run: use tune.Tuner"):
        tune.run  # noqa: B018
    with pytest.raises(AttributeError, match="no ExperimentAnalysis: use tune.Tuner.restore"):
        tune.ExperimentAnalysis  # noqa: B018
    with pytest.raises(AttributeError, match="no nonsense$"):
        tune.nonsense  # noqa: B018
    assert not hasattr(tune, "nonsense")


class Placed(tune.Trainable):
    def setup(self, config):
        with open(os.path.join(self.logdir, "notes"), "w") as file:
            file.write(self.trial_id)

    def step(self):
        return {"done": True}

    def save_checkpoint(self, directory):
        os.makedirs(os.path.join(directory, "empty"))

    def load_checkpoint(self, directory):
        pass


def test_a_class_knows_its_trial_from_the_start(tmp_path):
    run = tune.RunConfig(
        storage_path=tmp_path, name="e", verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
    )  # fmt: skip
    [result] = tune.Tuner(Placed, run_config=run).fit()
    assert open(os.path.join(result.path, "notes")).read() == result.metrics["trial_id"]
    assert result.metrics["pid"] not in (0, os.getpid())
    assert 0 <= result.metrics["time_since_restore"] <= result.metrics["time_total_s"]


def test_the_path_of_a_checkpoint_is_below_the_trial(tmp_path):
    def f(config):
        os.makedirs(tmp_path / "mine")
        (tmp_path / "mine" / "x").write_text("hello")
        tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_directory(tmp_path / "mine"))

    [result] = tune.Tuner(f, run_config=tune.RunConfig(storage_path=tmp_path, verbose=0)).fit()
    path = result.checkpoint.path
    assert path.startswith(result.path) and open(os.path.join(path, "x")).read() == "hello"
    with open(os.path.join(path, "x"), "w") as file:
        file.write("spoilt")
    with pytest.raises(cairn.Corruption):
        tune.Result.from_path(result.path).checkpoint.path  # noqa: B018


GETTERS = {
    "experiment_name": "e",
    "trial_name": "f_00000",
    "trial_id": "f_00000",
    "trial_resources": {"CPU": 2.0},
    "world_size": 1,
    "world_rank": 0,
    "local_rank": 0,
    "local_world_size": 1,
    "node_rank": 0,
}


@pytest.mark.parametrize("where", ["air.session", "tune.session", "tune.get_context()", "tune"])
def test_what_a_trial_asks_about_itself(tmp_path, where):
    """Under the names of 2.3, and those of later versions. A trial is one process: rank 0 of 1."""
    names = [n for n in GETTERS if where != "tune" or n.startswith(("trial", "experiment"))]

    def f(config):
        asked = eval(where, {"air": air, "tune": tune})
        told = {name: getattr(asked, f"get_{name}")() for name in names}
        tune.report({"told": told, "dir": asked.get_trial_dir()})

    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    [result] = tune.Tuner(tune.with_resources(f, {"cpu": 2}), run_config=run).fit()
    assert result.error is None
    assert result.metrics["told"] == {name: GETTERS[name] for name in names}
    assert result.metrics["dir"] == result.path


@pytest.mark.parametrize("name", [*GETTERS, "trial_dir", "checkpoint"])
def test_outside_of_a_trial_there_is_nothing_to_ask(name):
    with pytest.raises(RuntimeError, match="inside of a trainable"):
        getattr(air.session, f"get_{name}")()
    with pytest.raises(RuntimeError, match="inside of a trainable"):
        tune.get_context()


def test_home_is_known_wherever_an_experiment_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def f(config):
        tune.report({"a": 1})

    tune.Tuner(f, run_config=tune.RunConfig(storage_path="~/results", name="e", verbose=0)).fit()
    assert tune.Tuner.can_restore("~/results/e/") and not tune.Tuner.can_restore("~/results/f")
    assert len(tune.Tuner.restore("~/results/e", f).fit()) == 1
    assert len(tune.Tuner.extend("~/results/e", f, num_samples=2).fit()) == 2
    assert tune.Result.from_path("~/results/e/f_00000").metrics["a"] == 1


def test_resources_are_a_dict_and_stay_with_the_trainable(tmp_path):
    def f(config, data=None):
        tune.report({"n": len(data), "cpus": tune.get_trial_resources()["CPU"]})

    for name, trainable in {
        "first": tune.with_parameters(tune.with_resources(f, {"cpu": 2}), data=[1, 2, 3]),
        "last": tune.with_resources(tune.with_parameters(f, data=[1, 2, 3]), {"cpu": 2}),
    }.items():
        run = tune.RunConfig(storage_path=tmp_path, name=name, verbose=0)
        [result] = tune.Tuner(trainable, run_config=run).fit()
        assert (result.metrics["n"], result.metrics["cpus"]) == (3, 2), name
    with pytest.raises(ValueError, match="resources must be a dict such as .'cpu': 2., the same for all trials"):
        tune.with_resources(f, lambda config: {"cpu": 2})


def test_resources_of_ones_own_keep_their_names(tmp_path):
    def f(config):
        tune.report({"told": tune.get_trial_resources()})

    wanted = tune.with_resources(f, {"cpu": 2, "custom_resources": {"hdd": 80}})
    [result] = tune.Tuner(wanted, run_config=tune.RunConfig(storage_path=tmp_path, verbose=0)).fit()
    assert result.metrics["told"] == {"CPU": 2.0, "hdd": 80.0}


def test_keys_have_names():
    assert tune.result.SHOULD_CHECKPOINT == "should_checkpoint"
    assert {"training_iteration", "pid", "config"} < set(tune.result.AUTO_RESULT_KEYS)


def test_import_is_light():
    code = (
        "import sys, cairn.tune, cairn.air; "
        "print([m for m in ('torch', 'pandas', 'optuna', 'tensorboard', 'cloudpickle') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Sound(tune.Trainable):
    def setup(self, config):
        self.random = random.Random(config.get("seed", 1))
        self.n = 0

    def step(self):
        self.n += 1
        return {"n": self.n, "r": self.random.random()}

    def save_checkpoint(self, directory):
        with open(os.path.join(directory, "state"), "w") as file:
            file.write(repr((self.n, self.random.getstate())))

    def load_checkpoint(self, directory):
        with open(os.path.join(directory, "state")) as file:
            self.n, state = eval(file.read())
        self.random.setstate(state)


@pytest.mark.parametrize("use_object_store", [False, True])
def test_validate_accepts_a_sound_trainable(use_object_store):
    assert validate_save_restore(Sound, {"seed": 3}, use_object_store)


def test_validate_finds_a_load_that_does_nothing():
    class Lazy(Sound):
        def load_checkpoint(self, directory):
            pass

    with pytest.raises(ValueError, match="does not bring back"):
        validate_save_restore(Lazy)


def test_validate_finds_a_path_that_is_kept():
    class Stubborn(Sound):
        def save_checkpoint(self, directory):
            super().save_checkpoint(directory)
            return {"at": directory}

        def load_checkpoint(self, state):
            super().load_checkpoint(state["at"])

    with pytest.raises(ValueError, match="moved"):
        validate_save_restore(Stubborn)


def test_validate_finds_leftovers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Messy(Sound):
        def save_checkpoint(self, directory):
            open("leftover", "w").close()
            super().save_checkpoint(directory)

    with pytest.raises(ValueError, match="leftover"):
        validate_save_restore(Messy)


def test_validate_refuses_functions():
    with pytest.raises(ValueError):
        validate_save_restore(lambda config: None)


def test_a_sync_config_says_where_an_experiment_is(tmp_path):
    where = str(tmp_path / "uploads")
    run = air.RunConfig(
        name="e", local_dir=str(tmp_path / "local"), verbose=0, sync_config=tune.SyncConfig(upload_dir=where)
    )
    [result] = tune.Tuner(lambda config: {"a": 1}, run_config=run).fit()
    assert result.path.startswith(where) and not (tmp_path / "local").exists()
    assert tune.RunConfig(storage_path=where, sync_config=tune.SyncConfig(sync_period=60)).directory == where
    with pytest.raises(ValueError, match="two names of one thing"):
        tune.RunConfig(storage_path=where, sync_config=tune.SyncConfig(upload_dir=where))
    with pytest.raises(ValueError, match="syncer must be 'auto' or None"):
        tune.SyncConfig(syncer=object())
    with pytest.raises(ValueError, match="sync_config must be a SyncConfig"):
        tune.RunConfig(sync_config={"upload_dir": where})


def test_names_of_directories_are_not_made_by_others():
    with pytest.raises(ValueError, match="trial_dirname_creator: the directories of trials are called"):
        tune.TuneConfig(trial_dirname_creator=lambda trial: "mine")
    assert tune.TuneConfig(trial_dirname_creator=None).trial_dirname_creator is None


class Named(tune.Trainable):
    def setup(self, config):
        self.said = self.trial_name

    def step(self):
        return {"told": self.said, "done": True}


def named(config):
    tune.report({"told": tune.get_trial_name(), "told_too": tune.get_context().get_trial_name()})


@pytest.mark.parametrize("trainable", [named, Named])
def test_trials_have_the_names_that_a_function_gives_them(tmp_path, trainable):
    def name_of(trial):
        return f"{trial.trainable_name}-lr{trial.config['lr']}-{trial.trial_id[-1]}"

    class Seen(tune.Callback):
        names = []

        def on_trial_complete(self, trial, **info):
            self.names.append((str(trial), f"{trial}", trial.custom_trial_name, trial.trial_id))

    out = io.StringIO()
    run = tune.RunConfig(
        name="e", storage_path=str(tmp_path), callbacks=[Seen()], progress_reporter=tune.CLIReporter(file=out)
    )
    of = tune.TuneConfig(trial_name_creator=name_of)
    results = tune.Tuner(
        trainable, param_space={"lr": tune.grid_search([0.5, 0.25])}, tune_config=of, run_config=run
    ).fit()
    what = trainable.__name__
    names = [f"{what}-lr0.5-0", f"{what}-lr0.25-1"]
    assert [one.metrics["told"] for one in results] == names
    assert all(one.metrics.get("told_too", one.metrics["told"]) == one.metrics["told"] for one in results)
    # What a restart knows them by is as it was.
    ids = [f"{what}_00000", f"{what}_00001"]
    assert [os.path.basename(one.path) for one in results] == [one.metrics["trial_id"] for one in results] == ids
    assert sorted(Seen.names) == sorted((n, n, n, id) for n, id in zip(names, ids))
    assert all(f"{name} TERMINATED after 1" in out.getvalue() for name in names)
    again = tune.Tuner.restore(str(tmp_path / "e"), trainable).fit()
    assert [one.metrics["told"] for one in again] == names
    Seen.names.clear()


def test_a_name_that_is_no_text_ends_it_at_once(tmp_path):
    run = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    of = tune.TuneConfig(trial_name_creator=lambda trial: 3)
    with pytest.raises(ValueError, match="trial_name_creator.*named_00000.*3"):
        tune.Tuner(named, tune_config=of, run_config=run).fit()
    with pytest.raises(ValueError, match="trial_name_creator must be a function"):
        tune.TuneConfig(trial_name_creator="mine")


@pytest.mark.parametrize("chdir", [None, False, True])
def test_a_trial_works_in_its_directory_if_that_is_asked_for(tmp_path, monkeypatch, chdir):
    (tmp_path / "beside.py").write_text("answer = 42\n")
    (tmp_path / "data").write_text("data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")

    def f(config):
        import beside

        open("made", "w").close()
        base = os.environ.get("TUNE_ORIG_WORKING_DIR", "")
        data = open(os.path.join(base, "data")).read()
        tune.report({"cwd": os.getcwd(), "answer": beside.answer, "data": data})

    run = tune.RunConfig(storage_path="runs", name="e", verbose=0)
    tuner = tune.Tuner(f, tune_config=tune.TuneConfig(chdir_to_trial_dir=chdir), run_config=run)
    [result] = tuner.fit()
    assert result.error is None, result.error
    where = result.path if chdir else str(tmp_path)
    assert result.metrics["cwd"] == where and os.path.exists(f"{where}/made")
    assert (result.metrics["answer"], result.metrics["data"]) == (42, "data")
    assert bool(tune.Tuner.restore("runs/e", f)._tune.chdir_to_trial_dir) == bool(chdir)


def test_a_trial_in_a_bucket_has_no_directory_to_work_in():
    run = tune.RunConfig(storage_path="s3://bucket/e", verbose=0)
    config = tune.TuneConfig(chdir_to_trial_dir=True)
    with pytest.raises(ValueError, match="chdir_to_trial_dir: trials in s3://bucket/e"):
        tune.Tuner(lambda config: None, tune_config=config, run_config=run).fit()
