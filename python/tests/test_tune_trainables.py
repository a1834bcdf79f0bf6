"""Functions and classes as trials: what they report, save, and get back."""

import os
import pathlib
import shutil
import signal
import socket
import sys
import threading

import numpy as np
import pytest

import cairn
from cairn import tune
from cairn.tune.result import read_reports
from cairn.tune.stopper import MaximumIterationStopper


def fit(trainable, tmp_path, space=None, tune_config=None, **run):
    run.setdefault("verbose", 0)
    run.setdefault("name", "e")
    tuner = tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune_config,
        run_config=tune.RunConfig(storage_path=tmp_path, **run),
    )
    return tuner.fit()


def reports(result):
    return read_reports(os.path.join(result.path, "result.json"))


def directories(result):
    return sorted(d for d in os.listdir(result.path) if d.startswith("checkpoint_"))


class Counter(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        return {"n": self.n, "score": self.config.get("scores", [0] * 99)[self.n - 1]}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "n"), "w") as file:
            file.write(str(self.n))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "n")) as file:
            self.n = int(file.read())


def test_function_reports_and_the_usual_keys_are_there(tmp_path):
    def f(config):
        for i in range(3):
            tune.report({"loss": np.float32(0.5) * i, "nested": {"a": i}})

    [result] = fit(f, tmp_path, {"lr": 0.1})
    assert result.error is None
    assert result.config == {"lr": 0.1}
    metrics = result.metrics
    assert metrics["loss"] == 1.0 and metrics["nested"]["a"] == 2
    assert metrics["training_iteration"] == 3
    for key in ("time_total_s", "time_this_iter_s", "timestamp"):
        assert key in metrics, key
    assert metrics["hostname"] == os.uname().nodename
    assert metrics["pid"] not in (0, os.getpid())
    socket.inet_aton(metrics["node_ip"])


@pytest.mark.parametrize("value", [0, 0.0, 7, {"a": 0}])
def test_what_a_function_returns_is_its_result_also_zero(tmp_path, value):
    def f(config):
        return value

    [result] = fit(f, tmp_path)
    expected = value if isinstance(value, dict) else {"_metric": value}
    assert {k: result.metrics[k] for k in expected} == expected


def test_what_a_function_yields_are_its_results(tmp_path):
    def f(config):
        yield 0
        yield {"a": 1}
        yield 0.0

    [result] = fit(f, tmp_path)
    assert result.metrics["_metric"] == 0.0 and result.metrics["training_iteration"] == 3


class Spoils(tune.Trainable):
    """Keeps in its config what belongs to it."""

    def setup(self, config):
        config["deep"]["y"] = None
        self.config["model"] = object()

    def step(self):
        return {"n": self.iteration, "done": self.iteration == 1}

    def save_checkpoint(self, checkpoint_dir):
        return {}

    def load_checkpoint(self, state):
        pass


def spoils(config):
    config["deep"]["y"] = config["model"] = object()
    tune.report({"n": 1}, checkpoint=tune.Checkpoint.from_dict({}))


def test_keys_that_the_tuner_fills_are_its_own(tmp_path):
    def f(config):
        tune.report({"trial_id": 4, "config": 3, "date": "x", "training_iteration": 99, "a": 1})

    [result] = fit(f, tmp_path, {"x": 1})
    for metrics in (result.metrics, reports(result)[-1]):
        assert metrics["trial_id"] == "f_00000" and metrics["config"] == {"x": 1} and metrics["a"] == 1
        assert metrics["training_iteration"] == 1 and metrics["date"] != "x" and metrics["done"] in (True, False)


def test_an_error_in_any_letters_is_told(tmp_path):
    def f(config):
        raise OSError("no file \udcff\x00 é")

    [result] = fit(f, tmp_path)
    assert "OSError: no file \\udcff" in str(result.error) and str(result.error).rstrip().endswith("é")


@pytest.mark.parametrize("trainable", [Spoils, spoils])
def test_what_a_trainable_does_to_its_config_stays_with_it(tmp_path, trainable):
    every = {"checkpoint_frequency": 1} if trainable is Spoils else {}
    [result] = fit(
        trainable, tmp_path, {"deep": {"y": 1}}, checkpoint_config=tune.CheckpointConfig(**every)
    )
    assert result.error is None
    assert result.config == result.metrics["config"] == {"deep": {"y": 1}}
    with cairn.CheckpointManager(result.path, read_only=True) as reader:
        assert reader.latest().metadata["tune"]["config"] == {"deep": {"y": 1}}


def test_dict_checkpoint_comes_back_with_arrays_and_metadata(tmp_path):
    def f(config):
        c = tune.Checkpoint.from_dict({"w": np.arange(4.0), "name": "x", "b": b"raw", "n": {"k": [1, 2]}})
        c.set_metadata({"by": "me"})
        tune.report({"a": 1}, checkpoint=c)

    [result] = fit(f, tmp_path)
    got = result.checkpoint.to_dict()
    assert got["w"].tolist() == [0, 1, 2, 3] and got["name"] == "x" and got["b"] == b"raw"
    assert got["n"] == {"k": [1, 2]}
    assert result.checkpoint.get_metadata() == {"by": "me"}
    assert directories(result) == ["checkpoint_000001"]


def test_directory_checkpoint_comes_back(tmp_path):
    source = tmp_path / "mine"

    def f(config):
        os.makedirs(source / "deep")
        (source / "deep" / "file").write_text("hello")
        (source / "empty").mkdir()
        tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_directory(source))

    [result] = fit(f, tmp_path)
    with result.checkpoint.as_directory() as path:
        assert open(os.path.join(path, "deep", "file")).read() == "hello"
    target = result.checkpoint.to_directory(tmp_path / "out")
    assert sorted(os.listdir(target)) == ["deep", "empty"]
    assert os.listdir(os.path.join(target, "empty")) == []


def test_a_dict_that_cannot_be_stored_is_refused_by_key(tmp_path):
    def f(config):
        tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_dict({"fine": 1, "bad": object()}))

    [result] = fit(f, tmp_path)
    assert "bad" in str(result.error)


@pytest.mark.parametrize("kind", ["none", "dir", "inside", "dict"])
def test_load_gets_the_kind_that_save_gave(tmp_path, kind):
    class Kinds(Counter):
        def save_checkpoint(self, checkpoint_dir):
            if kind == "dict":
                return {"n": self.n}
            super().save_checkpoint(checkpoint_dir)
            return {"none": None, "dir": checkpoint_dir, "inside": os.path.join(checkpoint_dir, "n")}[kind]

        def load_checkpoint(self, checkpoint):
            if kind == "dict":
                assert isinstance(checkpoint, dict)
                self.n = checkpoint["n"]
            elif kind == "inside":
                assert os.path.isfile(checkpoint)
                self.n = int(open(checkpoint).read())
            else:
                super().load_checkpoint(checkpoint)

        def step(self):
            if self.n == 2 and not os.path.exists(tmp_path / "failed"):
                open(tmp_path / "failed", "w").close()
                raise RuntimeError("once")
            return super().step()

    [result] = fit(
        Kinds,
        tmp_path,
        stop={"training_iteration": 4},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        failure_config=tune.FailureConfig(max_failures=1),
    )
    assert result.error is None and result.metrics["n"] == 4
    assert [r["n"] for r in reports(result)] == [1, 2, 3, 4]


def test_a_path_outside_is_refused(tmp_path):
    class Outside(Counter):
        def save_checkpoint(self, checkpoint_dir):
            return str(tmp_path)

    [result] = fit(
        Outside,
        tmp_path,
        stop={"training_iteration": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
    )
    assert "ValueError" in str(result.error) and "not inside" in str(result.error)


@pytest.mark.parametrize(
    "config,expected",
    [
        (dict(checkpoint_frequency=2), [2, 4]),
        (dict(checkpoint_frequency=2, checkpoint_at_end=True), [2, 4, 5]),
        (dict(checkpoint_frequency=5, checkpoint_at_end=True), [5]),
        (dict(checkpoint_at_end=True), [5]),
        (dict(), []),
    ],
)
def test_periodic_checkpoints_and_the_one_at_the_end(tmp_path, config, expected):
    [result] = fit(
        Counter,
        tmp_path,
        stop={"training_iteration": 5},
        checkpoint_config=tune.CheckpointConfig(**config),
    )
    assert directories(result) == [f"checkpoint_{n:06}" for n in expected]


def test_manual_checkpoints(tmp_path):
    class Manual(Counter):
        def step(self):
            result = super().step()
            if self.n in (1, 3):
                result["should_checkpoint"] = True
            result["done"] = self.n == 4
            return result

    [result] = fit(Manual, tmp_path)
    assert directories(result) == ["checkpoint_000001", "checkpoint_000003"]
    assert result.metrics["training_iteration"] == 4


@pytest.mark.parametrize(
    "config",
    [dict(num_to_keep=0), dict(num_to_keep=-1), dict(checkpoint_score_order="best"), dict(checkpoint_frequency=-1)],
)
def test_checkpoint_config_refuses(config):
    with pytest.raises(ValueError):
        tune.CheckpointConfig(**config)


@pytest.mark.parametrize("config", [dict(checkpoint_frequency=1), dict(checkpoint_at_end=True)])
def test_functions_cannot_be_saved_from_outside(tmp_path, config):
    def f(config):
        pass

    with pytest.raises(ValueError, match="should_checkpoint"):
        tune.Tuner(f, run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(**config)))
    tune.Tuner(Counter, run_config=tune.RunConfig(checkpoint_config=tune.CheckpointConfig(**config)))


def scored(scores, tmp_path, **config):
    def f(config):
        for i, score in enumerate(config["scores"]):
            metrics = {"i": i, "n": {"s": score}}
            if score != "missing":
                metrics["score"] = score
            tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"i": i}))

    [result] = fit(
        f, tmp_path, {"scores": scores}, checkpoint_config=tune.CheckpointConfig(**config)
    )
    assert result.error is None, result.error
    return [int(d[-6:]) - 1 for d in directories(result)]


def test_keep_two_of_ten(tmp_path):
    assert scored(list(range(10)), tmp_path, num_to_keep=2) == [8, 9]


def test_the_best_stay_and_the_latest_too(tmp_path):
    keep = dict(num_to_keep=2, checkpoint_score_attribute="score")
    assert scored([3, 2, 1], tmp_path / "a", **keep) == [0, 1, 2]
    assert scored([3, 2, 1, 0], tmp_path / "b", **keep) == [0, 1, 3]


@pytest.mark.parametrize("order", ["max", "min"])
def test_nan_and_missing_scores_rank_below_every_number(tmp_path, order):
    keep = dict(num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order=order)
    assert scored([1.0, float("nan"), 2.0, "missing", float("nan")], tmp_path, **keep) == [0, 2, 4]


def test_a_budget_in_number_of_all_trials_together(tmp_path):
    def f(config):
        for i in range(4):
            tune.report({"s": 10 * config["a"] + i}, checkpoint=tune.Checkpoint.from_dict({}))

    results = fit(
        f, tmp_path, {"a": tune.grid_search([0, 1, 2])}, tune.TuneConfig(max_concurrent_trials=1),
        checkpoint_config=tune.CheckpointConfig(experiment_num_to_keep=2, checkpoint_score_attribute="s"),
    )  # fmt: skip
    kept = [[metrics["s"] for _, metrics in result.best_checkpoints] for result in results]
    assert kept == [[3], [13], [22, 23]], "the best two of all, and the latest of each"


def test_a_budget_in_bytes_of_all_trials_together(tmp_path):
    def f(config):
        for i in range(4):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"data": b"x" * 100_000}))

    results = fit(
        f,
        tmp_path,
        {"n": tune.grid_search([0, 1, 2])},
        tune.TuneConfig(max_concurrent_trials=1),
        checkpoint_config=tune.CheckpointConfig(experiment_max_bytes=450_000),
    )
    # One after the other: of four that fit, three are the latest of their trials.
    assert [len(result.best_checkpoints) for result in results] == [1, 1, 2]
    assert [len(directories(result)) for result in results] == [1, 1, 2]
    with pytest.raises(ValueError, match="experiment_max_bytes"):
        tune.CheckpointConfig(experiment_max_bytes=0)


@pytest.mark.parametrize("order,kept", [("min", [1, 2]), ("max", [0, 2])])
def test_nested_scores(tmp_path, order, kept):
    keep = dict(num_to_keep=1, checkpoint_score_attribute="n/s", checkpoint_score_order=order)
    assert scored([3, 1, 2], tmp_path, **keep) == kept


def test_integers_above_2_53_are_compared_exactly(tmp_path):
    big = 2**53
    keep = dict(num_to_keep=1, checkpoint_score_attribute="score")
    assert scored([big + 1, big, big - 5], tmp_path, **keep) == [0, 2]


@pytest.mark.parametrize("score", ["good", None])
def test_a_score_that_is_no_number_is_refused_at_the_report(tmp_path, score):
    def f(config):
        tune.report({"score": score}, checkpoint=tune.Checkpoint.from_dict({}))

    [result] = fit(
        f, tmp_path, checkpoint_config=tune.CheckpointConfig(checkpoint_score_attribute="score")
    )
    assert "'score'" in str(result.error) and repr(score) in str(result.error)
    assert directories(result) == []


def test_the_metric_must_be_in_every_result(tmp_path):
    def f(config):
        tune.report({"other": 1})

    [result] = fit(f, tmp_path, tune_config=tune.TuneConfig(metric="loss", mode="min"))
    assert "no metric \"loss\"" in str(result.error) and "\"other\"" in str(result.error)


@pytest.mark.parametrize("failures,allowed,ends_well", [(2, 2, True), (3, 2, False), (3, -1, True)])
def test_retries_start_from_the_newest_checkpoint(tmp_path, failures, allowed, ends_well):
    def f(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        runs = tmp_path / "runs"
        with open(runs, "a") as file:
            file.write(f"{start}\n")
        run = len(open(runs).readlines())
        for i in range(start, 6):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            if run <= failures and i == run:
                raise RuntimeError("again")

    [result] = fit(f, tmp_path, failure_config=tune.FailureConfig(max_failures=allowed))
    starts = [int(line) for line in open(tmp_path / "runs")]
    assert starts == [0, 2, 3, 4][: (failures if ends_well else allowed) + 1]
    assert (result.error is None) == ends_well
    if ends_well:
        assert [r["i"] for r in reports(result)] == list(range(6))
        assert directories(result) == [f"checkpoint_{n:06}" for n in range(1, 7)]


def test_a_retry_never_writes_into_the_directory_of_a_dead_attempt(tmp_path):
    def f(config):
        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            directory = os.path.join(tune.get_trial_dir(), "checkpoint_000001")
            os.makedirs(directory)  # what a killed writer may leave
            open(os.path.join(directory, "half"), "w").close()
            tune.report({"i": 0}, checkpoint=tune.Checkpoint.from_dict({"i": 1}))
            raise RuntimeError("dies")
        tune.report({"i": 1}, checkpoint=tune.Checkpoint.from_dict({"i": 2}))

    [result] = fit(f, tmp_path, failure_config=tune.FailureConfig(max_failures=1))
    assert result.error is None and result.metrics["i"] == 1
    assert os.listdir(os.path.join(result.path, "checkpoint_000001")) == ["half"]
    assert [c.to_dict()["i"] for c, _ in result.best_checkpoints] == [1, 2]


class Done(tune.Trainable):
    def step(self):
        return {"n": self.iteration + 1}


def never_says_it(config):
    for n in range(1, 9):
        tune.report({"n": n})


def says_it(config):
    for n in range(1, 9):
        tune.report({"n": n, "done": n == 3})


@pytest.mark.parametrize(
    "trainable,stop,ends",
    [
        (Done, {"done": True, "training_iteration": 4}, 4),
        (never_says_it, {"done": True, "n": 5}, 5),
        (says_it, {"done": True, "n": 5}, 3),
        (says_it, lambda trial_id, result: result["done"], 3),
    ],
)
def test_trials_are_stopped_by_done_as_in_rays_examples(tmp_path, trainable, stop, ends):
    run = tune.RunConfig(storage_path=tmp_path, verbose=0, stop=stop)
    [result] = tune.Tuner(trainable, run_config=run).fit()
    assert result.error is None and result.metrics["n"] == ends


def test_what_a_killed_run_was_removing_is_gone_at_the_end(tmp_path):
    """The next run may end without a checkpoint of its own, which would have swept."""

    def f(config):
        if tune.get_checkpoint() is None:
            for i in range(2):
                tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i}))
            # As a removal begins.
            os.unlink(os.path.join(tune.get_trial_dir(), "checkpoint_000001", "manifest.json"))
            os.kill(os.getpid(), signal.SIGKILL)
        tune.report({"i": 2})

    run = tune.RunConfig(
        storage_path=tmp_path, verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    )
    [result] = tune.Tuner(f, run_config=run).fit()
    assert result.error is None and result.metrics["i"] == 2
    left = [name for name in os.listdir(result.path) if name.startswith("checkpoint_")]
    assert left == ["checkpoint_000002"]


def test_a_deleted_newest_checkpoint_leaves_the_older_ones(tmp_path):
    import shutil

    def f(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        with open(tmp_path / "starts", "a") as file:
            file.write(f"{start}\n")
        for i in range(start, 4):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            if i == 2 and start == 0:
                shutil.rmtree(os.path.join(tune.get_trial_dir(), "checkpoint_000003"))
                raise RuntimeError("dies")

    [result] = fit(f, tmp_path, failure_config=tune.FailureConfig(max_failures=1))
    assert result.error is None
    assert open(tmp_path / "starts").read().split() == ["0", "2"]
    assert [r["i"] for r in reports(result)] == [0, 1, 2, 3]


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    def f(config):
        checkpoint = tune.get_checkpoint()
        start = int(checkpoint.to_dict()["i"][0]) if checkpoint else 0
        with open(tmp_path / "starts", "a") as file:
            file.write(f"{start}\n")
        for i in range(start, 4):
            state = {"i": np.full(1000, i + 1.0)}
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict(state))
            if i == 2 and start == 0:
                directory = os.path.join(tune.get_trial_dir(), "checkpoint_000003", "__model__")
                for name in os.listdir(directory):
                    if name.endswith(".safetensors"):
                        with open(os.path.join(directory, name), "r+b") as file:
                            file.seek(-8, os.SEEK_END)
                            file.write(b"\xff" * 8)
                raise RuntimeError("dies")

    [result] = fit(f, tmp_path, failure_config=tune.FailureConfig(max_failures=1))
    assert result.error is None, result.error
    assert open(tmp_path / "starts").read().split() == ["0", "2"]
    assert [r["i"] for r in reports(result)] == [0, 1, 2, 3]


def test_a_killed_worker_is_a_failure_that_is_retried(tmp_path):
    def f(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        for i in range(start, 3):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            if i == 0:
                os.kill(os.getpid(), 9)

    [result] = fit(f, tmp_path / "a", failure_config=tune.FailureConfig(max_failures=1))
    assert result.error is None and [r["i"] for r in reports(result)] == [0, 1, 2]
    [result] = fit(f, tmp_path / "b")
    assert "signal 9" in str(result.error)


def test_with_parameters_and_a_class(tmp_path):
    class WithData(tune.Trainable):
        def setup(self, config, data=None):
            self.data = data

        def step(self):
            return {"n": len(self.data), "done": True}

    [result] = fit(tune.with_parameters(WithData, data=list(range(1000))), tmp_path)
    assert result.metrics["n"] == 1000


def test_large_data_that_is_bound_to_a_trainable_is_there_in_moments(tmp_path):
    data = np.arange(128 << 20, dtype=np.uint8)

    def f(config, data):
        with open(f"/proc/{os.getppid()}/stat") as file:
            ticks = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
        tune.report({"sum": int(data[-1000:].sum()), "spent": ticks / os.sysconf("SC_CLK_TCK")})

    [result] = fit(tune.with_parameters(f, data=data), tmp_path)
    assert result.metrics["sum"] == int(data[-1000:].sum())
    assert result.metrics["spent"] < 6  # of the processor, by the process that all trials are forked from


def test_user_code_in_the_worker_may_not_hold_up_a_stop(tmp_path):
    def f(config):
        while True:
            try:
                tune.report({"a": 1})
            except Exception:
                pass

    [result] = fit(f, tmp_path, stop={"training_iteration": 3})
    assert result.error is None and result.metrics["training_iteration"] == 3


def test_a_trainable_that_cannot_be_imported_says_why(tmp_path):
    class Unpicklable:
        def __reduce__(self):
            return (_explode, ())

    thing = Unpicklable()

    def f(config):
        return thing

    [result] = fit(f, tmp_path)
    assert "cannot be made here" in str(result.error)


def _explode():
    raise RuntimeError("cannot be made here")


def test_a_trainable_that_cannot_be_handed_over_is_named(tmp_path):
    lock = threading.Lock()

    def f(config):
        with lock:
            tune.report({"a": 1})

    with pytest.raises(TypeError, match="'f' cannot be handed to workers.*lock.*inside of the trainable"):
        fit(f, tmp_path)


def test_a_process_that_ends_itself_is_told_with_its_code(tmp_path):
    def f(config):
        os._exit(4)

    [result] = fit(f, tmp_path)
    assert "the process ended with code 4" in str(result.error)


def test_fail_fast_raise(tmp_path):
    def f(config):
        raise RuntimeError("the reason")

    with pytest.raises(tune.TuneError, match="the reason"):
        fit(f, tmp_path, failure_config=tune.FailureConfig(fail_fast="raise"))


def test_errors_of_configuration():
    with pytest.raises(ValueError):
        tune.FailureConfig(max_failures=-2)
    with pytest.raises(ValueError):
        tune.FailureConfig(fail_fast="maybe")
    with pytest.raises(ValueError):
        tune.TuneConfig(mode="best")
    with pytest.raises(ValueError):
        tune.RunConfig(storage_path="a", local_dir="b")
    with pytest.raises(ValueError):
        tune.Tuner("not callable")
    with pytest.raises(ValueError, match="param_space must be a dict"):
        tune.Tuner(lambda config: None, param_space=[1])
    for wrong in (True, "3", float("nan"), 0, -1):
        with pytest.raises(ValueError, match="time_budget_s"):
            tune.TuneConfig(time_budget_s=wrong)
    with pytest.raises(ValueError, match="metric"):
        tune.TuneConfig(metric="")
    with pytest.raises(ValueError, match="num_samples.*64 bits"):
        tune.TuneConfig(num_samples=10**30)
    with pytest.raises(ValueError, match="num_to_keep.*64 bits"):
        tune.CheckpointConfig(num_to_keep=10**30)
    with pytest.raises(RuntimeError, match="inside of a trainable"):
        tune.report({"a": 1})


def test_a_refused_report_counts_for_nothing(tmp_path):
    def f(config):
        tune.report({"loss": 1})
        for refused in ({"x": 1}, {"loss": "text"}, {"loss": 2**70}, {"loss": 1, "a": b""}):
            with pytest.raises(ValueError):
                tune.report(refused, checkpoint=tune.Checkpoint.from_dict({"of": "a refused one"}))
        with pytest.raises(ValueError):
            tune.report({"loss": 7}, checkpoint=tune.Checkpoint.from_dict({"a": object()}))
        tune.report({"loss": 2})
        tune.report({"loss": 3}, checkpoint=tune.Checkpoint.from_dict({"of": "iteration 3"}))

    (result,) = fit(f, tmp_path, tune_config=tune.TuneConfig(metric="loss", mode="min"))
    assert result.error is None
    assert [(m["training_iteration"], m["loss"]) for m in reports(result)] == [(1, 1), (2, 2), (3, 3)]
    assert directories(result) == ["checkpoint_000003"]
    assert result.checkpoint.to_dict() == {"of": "iteration 3"}


def test_reports_of_several_threads_are_all_taken(tmp_path):
    def f(config):
        def report(thread):
            for number in range(10):
                tune.report({"thread": thread, "number": number})

        threads = [threading.Thread(target=report, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    (result,) = fit(f, tmp_path)
    taken = reports(result)
    assert [m["training_iteration"] for m in taken] == list(range(1, 41))
    made = [(thread, number) for thread in range(4) for number in range(10)]
    assert sorted((m["thread"], m["number"]) for m in taken) == made


def test_a_trainable_that_is_saved_by_hand_keeps_its_iteration():
    class Counting(tune.Trainable):
        def setup(self, config):
            self.n = 0

        def step(self):
            self.n += 1
            return {"n": self.n}

        def save_checkpoint(self, directory):
            return {"n": self.n}

        def load_checkpoint(self, checkpoint):
            self.n = checkpoint["n"]

    first = Counting(config={})
    first.train()
    first.train()
    second = Counting(config={})
    second.restore(first.save())
    result = second.train()
    assert (result["n"], result["training_iteration"]) == (3, 3)


def test_a_class_is_restored_from_a_committed_directory(tmp_path):
    [result] = fit(Counter, tmp_path, stop={"training_iteration": 3},
                   checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2))  # fmt: skip
    for path in (f"{result.path}/checkpoint_000002", pathlib.Path(result.path, "checkpoint_000002")):
        counter = Counter(config={})
        counter.restore(path)
        assert (counter.n, counter.training_iteration) == (2, 2)


def test_files_of_the_working_directory_do_not_stand_in_for_pythons_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("json", "select", "pickle", "cairn"):
        pathlib.Path(f"{name}.py").write_text("raise RuntimeError('not meant')\n")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    [result] = fit(lambda config: {"a": 1}, tmp_path)
    assert result.error is None and result.metrics["a"] == 1


class AsDict(Counter):
    def save_checkpoint(self, checkpoint_dir):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"]


@pytest.mark.parametrize("cls", [Counter, AsDict])
def test_a_checkpoint_that_was_copied_away_is_still_one(tmp_path, cls):
    config = tune.CheckpointConfig(checkpoint_frequency=1)
    [result] = fit(cls, tmp_path, stop={"training_iteration": 3}, checkpoint_config=config)
    bare = shutil.copytree(os.path.join(result.path, "checkpoint_000003"), tmp_path / "bare")
    for where in (str(bare), tune.Checkpoint.from_directory(bare)):
        trainable = cls({})
        trainable.restore(where)
        assert (trainable.iteration, trainable.n) == (3, 3)
    checkpoint = tune.Checkpoint.from_directory(bare)
    assert checkpoint.id == result.checkpoint.id
    if cls is AsDict:
        assert checkpoint.to_dict() == {"n": 3}
    else:
        assert os.listdir(checkpoint.to_directory()) == ["n"]


@pytest.mark.parametrize("cls", [Counter, AsDict])
def test_a_damaged_manifest_makes_no_directory_of_a_checkpoint(tmp_path, cls):
    config = tune.CheckpointConfig(checkpoint_frequency=1)
    [result] = fit(cls, tmp_path, stop={"training_iteration": 2}, checkpoint_config=config)
    directory = os.path.join(result.path, "checkpoint_000002")
    manifest = os.path.join(directory, "manifest.json")
    with open(manifest, "rb") as file:
        data = bytearray(file.read())
    data[len(data) // 2] ^= 1
    os.chmod(manifest, 0o644)
    with open(manifest, "wb") as file:
        file.write(data)
    with pytest.raises(cairn.Corruption, match="manifest.json"):
        tune.Checkpoint.from_directory(directory)
    with pytest.raises(cairn.Corruption):
        cls({}).restore(directory)


def test_a_function_goes_on_from_a_checkpoint_that_was_copied_away(tmp_path):
    def f(config):
        if "from" in config:
            checkpoint = tune.Checkpoint.from_directory(config["from"])
            tune.report({"i": checkpoint.to_dict()["i"] + 1}, checkpoint=checkpoint)
        else:
            tune.report({"i": 1}, checkpoint=tune.Checkpoint.from_dict({"i": 1}))

    [first] = fit(f, tmp_path)
    bare = shutil.copytree(os.path.join(first.path, "checkpoint_000001"), tmp_path / "bare")
    [second] = fit(f, tmp_path, {"from": str(bare)}, name="second")
    assert second.error is None and second.metrics["i"] == 2
    assert second.checkpoint.to_dict() == {"i": 1}


def test_a_manifest_of_another_program_is_a_file_as_any(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a page"}')
    assert tune.Checkpoint.from_directory(tmp_path).path == str(tmp_path)


def test_nothing_is_reported_after_a_stop_that_was_swallowed(tmp_path):
    def f(config):
        for i in range(1, 6):
            try:
                tune.report({"i": i})
            except BaseException:
                pass

    [result] = fit(f, tmp_path, stop={"training_iteration": 2})
    assert [r["i"] for r in result.results] == [1, 2] and result.error is None


@pytest.mark.parametrize("metrics", [{"a": "x\0"}, {"a\0": 1}, {"a": {"b": ["\0"]}}])
def test_a_nul_in_a_report_is_refused(tmp_path, metrics):
    def f(config):
        with pytest.raises(ValueError, match="holds a NUL"):
            tune.report(metrics)
        tune.report({"i": 1})

    [result] = fit(f, tmp_path)
    assert result.error is None and [r["i"] for r in result.results] == [1]


def test_a_trial_that_fails_right_after_a_report_keeps_no_more_than_it_may(tmp_path):
    def f(config):
        for i in range(6):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"w": b"x" * 1000}))
        raise RuntimeError("x")

    [result] = fit(f, tmp_path, checkpoint_config=tune.CheckpointConfig(num_to_keep=1))
    assert directories(result) == ["checkpoint_000006"]
    assert [metrics["i"] for _, metrics in result.best_checkpoints] == [5]


class Asked(tune.Stopper):
    """Of the user's own: decided in Python."""

    def __init__(self):
        self.results = []

    def __call__(self, trial_id, result):
        self.results.append(result["training_iteration"])
        return False


@pytest.mark.parametrize("more", [[], [Asked]], ids=["native", "python"])
def test_a_refused_report_is_counted_by_no_stopper(tmp_path, more):
    def f(config):
        for i in range(1, 10):
            for _ in range(3):
                with pytest.raises(ValueError, match="acc"):
                    tune.report({"x": 1})
            tune.report({"acc": 0.0, "i": i})

    own = [cls() for cls in more]
    stop = [*own, MaximumIterationStopper(5), {"acc": 1.0}]
    [result] = fit(f, tmp_path, stop=stop)
    assert [r["i"] for r in result.results] == [1, 2, 3, 4, 5] and result.error is None
    for one in own:
        assert one.results == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("more", [[], [Asked]], ids=["native", "python"])
@pytest.mark.parametrize("again", ["restart_errored", "resume_errored"])
def test_a_trial_that_begins_anew_is_counted_anew(tmp_path, more, again):
    flag = tmp_path / "flag"
    flag.write_text("")

    def f(config):
        for i in range(1, 100):
            tune.report({"i": i})
            if i == 3 and flag.exists():
                raise RuntimeError("x")

    def stop():
        return [*(cls() for cls in more), MaximumIterationStopper(5)]

    fit(f, tmp_path, stop=stop())
    flag.unlink()
    for _ in range(2):  # also of what is on record
        run = tune.RunConfig(verbose=0, stop=stop())
        tuner = tune.Tuner.restore(tmp_path / "e", f, run_config=run, **{again: True})
        [result] = tuner.fit()
        # One that is resumed without a checkpoint says again what is on record.
        assert len(result.results) == 5 and result.error is None
