"""RunConfig(log_to_file=…): what trials print, in files of their directories."""

import os
import subprocess
import sys

import pytest
from children import run

from cairn import tune


def fit(trainable, tmp_path, log_to_file, **more):
    run_config = tune.RunConfig(
        storage_path=tmp_path, name="e", verbose=0, log_to_file=log_to_file, **more
    )
    return tune.Tuner(trainable, run_config=run_config).fit()


def read(result, name):
    with open(os.path.join(result.path, name)) as file:
        return file.read()


def talks(config):
    """Fails once; in all ways that a program has to write."""
    start = tune.get_checkpoint()
    again = start is not None
    print("second" if again else "first")
    print("warned", file=sys.stderr)
    os.write(1, b"from a library\n")
    subprocess.run(["sh", "-c", "echo from a program"], check=True)
    if not again:
        tune.report({"i": 0}, checkpoint=tune.Checkpoint.from_dict({"i": 0}))
        raise RuntimeError("once")
    tune.report({"i": 1})


class Talks(tune.Trainable):
    def setup(self, config):
        self.n = 0
        print("setup")

    def step(self):
        self.n += 1
        print("step", self.n)
        print("warned", self.n, file=sys.stderr)
        if self.n == 2 and self.iteration == 1 and not os.path.exists(f"{self.logdir}/failed"):
            open(f"{self.logdir}/failed", "w").close()
            raise RuntimeError("once")
        return {"n": self.n, "done": self.n == 2}

    def save_checkpoint(self, directory):
        return {"n": self.n}

    def load_checkpoint(self, checkpoint):
        self.n = checkpoint["n"]
        print("loaded", self.n)


RETRIED = {"failure_config": tune.FailureConfig(max_failures=1)}


def test_a_function_that_is_retried_goes_on_in_the_same_files(tmp_path):
    [result] = fit(talks, tmp_path, True, **RETRIED)
    assert result.error is None
    rest = ["from a library", "from a program"]
    assert read(result, "stdout").splitlines() == ["first", *rest, "second", *rest]
    errors = read(result, "stderr")
    assert errors.count("warned\n") == 2 and "RuntimeError: once" in errors


def test_a_class_that_is_retried_goes_on_in_the_same_files(tmp_path):
    saves = tune.CheckpointConfig(checkpoint_frequency=1)
    [result] = fit(Talks, tmp_path, True, checkpoint_config=saves, **RETRIED)
    assert result.error is None and result.metrics["n"] == 2
    assert read(result, "stdout").splitlines() == [
        "setup", "step 1", "step 2", "setup", "loaded 1", "step 2"
    ]  # fmt: skip
    assert read(result, "stderr").count("warned 2\n") == 2


def test_one_name_takes_both_in_order(tmp_path):
    [result] = fit(talks, tmp_path, "logs/all.txt", **RETRIED)
    lines = read(result, "logs/all.txt").splitlines()
    assert lines[:4] == ["first", "warned", "from a library", "from a program"]
    assert lines[-4:] == ["second", "warned", "from a library", "from a program"]
    assert not os.path.exists(os.path.join(result.path, "stdout"))


@pytest.mark.parametrize("pair", [("out", "err"), ["out", "err"]])
def test_two_names_take_one_each(tmp_path, pair):
    [result] = fit(talks, tmp_path, pair, **RETRIED)
    assert "first\n" in read(result, "out") and "warned\n" not in read(result, "out")
    assert "warned\n" in read(result, "err") and "first\n" not in read(result, "err")


def test_what_a_killed_worker_printed_is_there(tmp_path):
    def f(config):
        print("before the end")
        os.kill(os.getpid(), 9)

    [result] = fit(f, tmp_path, True)
    assert "signal 9" in str(result.error) and read(result, "stdout") == "before the end\n"


def test_no_files_without_it(tmp_path):
    [result] = fit(talks, tmp_path, False, **RETRIED)
    assert not {"stdout", "stderr"} & set(os.listdir(result.path))


PROGRAM = """
from cairn import tune
def f(config):
    print("seen")
    tune.report({{"a": 1}})
run = tune.RunConfig(storage_path={where!r}, name="e", verbose=0, log_to_file={given!r})
tune.Tuner(f, run_config=run).fit()
"""


@pytest.mark.parametrize("given", [False, True])
def test_what_is_printed_is_also_seen_where_the_tuner_prints(tmp_path, given):
    assert run(PROGRAM.format(where=str(tmp_path), given=given)) == "seen\n"


def test_a_restored_experiment_goes_on_with_its_files(tmp_path):
    [result] = fit(talks, tmp_path, ("out", "err"))
    assert "once" in str(result.error)
    [result] = tune.Tuner.restore(tmp_path / "e", talks, resume_errored=True).fit()
    assert result.error is None
    printed = [line for line in read(result, "out").splitlines() if "from" not in line]
    assert printed == ["first", "second"]


@pytest.mark.parametrize(
    "wrong",
    [1, None, 3.5, b"out", "", "..", "a/../../b", "/tmp/out", "logs/", "a\0b", ("out",), ("a", "b", "c"),
     ("out", None), ("out", ""), {"out", "err"}, {"out": "err"}],
)  # fmt: skip
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValueError, match="log_to_file"):
        tune.RunConfig(log_to_file=wrong)


@pytest.mark.parametrize("taken", ["result.json", "checkpoint_000001", "cairn.json", "generations/x"])
def test_names_of_what_the_trial_keeps_are_refused(taken):
    with pytest.raises(ValueError, match=f"log_to_file.*{taken}"):
        tune.RunConfig(log_to_file=("out", taken))


def test_a_bucket_has_no_files_to_append_to():
    tuner = tune.Tuner(
        talks, run_config=tune.RunConfig(storage_path="s3://bucket/e", log_to_file=True)
    )
    with pytest.raises(ValueError, match="log_to_file.*s3://bucket/e"):
        tuner.fit()


def test_a_file_that_cannot_be_made_is_the_error_of_the_trial(tmp_path):
    def f(config):
        tune.report({"a": 1})

    [result] = fit(f, tmp_path, ("out/x", "out"))
    assert "IsADirectoryError" in str(result.error) and "/out'" in str(result.error)
