"""Experiments that are killed, moved, damaged, interrupted; and go on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import cairn
from cairn import tune
from cairn.tune.result import read_reports

# Of each case; `make torture` has more, with other seeds.
KILLS = int(os.environ.get("CAIRN_TUNE_KILLS", "1"))

# What the killed programs run: deterministic, with checkpoints at every second iteration.
PROGRAM = '''
import os, sys, time
from cairn import tune

def train(config):
    checkpoint = tune.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"i": 0, "x": 0.0}
    pace = float(os.environ.get("PACE", "0.01"))
    while state["i"] < 12:
        time.sleep(pace)
        state["i"] += 1
        state["x"] = state["x"] * 0.5 + config["lr"] * state["i"]
        saved = tune.Checkpoint.from_dict(state) if state["i"] % 2 == 0 else None
        tune.report({"x": state["x"], "i": state["i"]}, checkpoint=saved)

class Klass(tune.Trainable):
    def setup(self, config):
        self.x, self.i = 0.0, 0
    def step(self):
        time.sleep(float(os.environ.get("PACE", "0.01")))
        self.i += 1
        self.x = self.x * 0.5 + self.config["lr"] * self.i
        return {"x": self.x, "i": self.i}
    def save_checkpoint(self, d):
        return {"x": self.x, "i": self.i}
    def load_checkpoint(self, state):
        self.x, self.i = state["x"], state["i"]

def main(directory, which="train"):
    run = dict(storage_path=directory, name="e", verbose=0)
    if which == "train":
        trainable = train
    else:
        trainable = Klass
        run["stop"] = {"training_iteration": 12}
        run["checkpoint_config"] = tune.CheckpointConfig(
            checkpoint_frequency=3, checkpoint_at_end=True, num_to_keep=2)
    run["failure_config"] = tune.FailureConfig(max_failures=-1)
    tuner = tune.Tuner(trainable, param_space={"lr": tune.grid_search([0.1, 0.2, 0.3, 0.4])},
                       tune_config=tune.TuneConfig(max_concurrent_trials=2),
                       run_config=tune.RunConfig(**run))
    tuner._flags["summarize_after"] = 20
    return tuner.fit()

if __name__ == "__main__":
    main(*sys.argv[1:])
    print("DONE")
'''


def reports(result):
    return read_reports(os.path.join(result.path, "result.json"))


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "tuned_program.py"
    path.write_text(PROGRAM)
    return str(path)


def start(program, directory, which="train", pace="0.01"):
    env = {**os.environ, "PACE": pace}
    return subprocess.Popen(
        [sys.executable, program, str(directory), which],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        start_new_session=True,
    )


def children_of(pid):
    """All processes below a process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = open(f"/proc/{entry}/stat").read()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(entry))
    return [p for child in found for p in [child, *children_of(child)]]


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_gone(pids, seconds=5.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(alive(p) for p in pids):
        time.sleep(0.02)
    assert not [p for p in pids if alive(p)]


def curves(results):
    return {
        r.config["lr"]: [(m["training_iteration"], m["i"], m["x"]) for m in reports(r)] for r in results
    }


def expected():
    out = {}
    for lr in (0.1, 0.2, 0.3, 0.4):
        x, points = 0.0, []
        for i in range(1, 13):
            x = x * 0.5 + lr * i
            points.append((i, i, x))
        out[lr] = points
    return out


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)


def restore(directory, which="train", **options):
    namespace = {"__name__": "tuned_program"}
    exec(compile(PROGRAM, "tuned_program.py", "exec"), namespace)
    return tune.Tuner.restore(
        directory, namespace["train" if which == "train" else "Klass"], **options
    )


@pytest.mark.parametrize(
    "target,which",
    [("tuner", "class"), ("workers", "train"), ("zygote", "class"), ("both", "train")]
    if KILLS < 10
    else [(t, w) for t in ("tuner", "workers", "zygote", "both") for w in ("train", "class")],
)
def test_killed_at_random_the_results_are_those_of_an_undisturbed_run(
    program, tmp_path, target, which
):
    import random

    generator = random.Random(f"{target} {which} {os.environ.get('CAIRN_TUNE_SEED', '1')}")
    directory = tmp_path / "store"
    done = False
    for _ in range(min(KILLS, 8)):  # more than that and it never gets anywhere
        process = start(program, directory, which, pace="0.03")
        wait_for(lambda p=process: len(children_of(p.pid)) >= 2 or p.poll() is not None)
        time.sleep(generator.uniform(0.0, 0.5))
        below = children_of(process.pid)
        if target in ("tuner", "both"):
            if target == "both":
                for pid in below[1:]:
                    _kill(pid)
            _kill(process.pid)
            process.wait()
            assert_gone(below)
            process.stdout.close()
        elif target == "zygote":
            for pid in below[:1]:
                _kill(pid)
        else:
            for pid in below[1:]:
                _kill(pid)
        if target in ("workers", "zygote"):
            output = process.communicate(timeout=120)[0]
            assert "DONE" in output, output
            done = True
            break
    if not done:
        process = start(program, directory, which)
        output = process.communicate(timeout=120)[0]
        assert "DONE" in output, output
    tuner = restore(directory / "e", which)
    assert curves(tuner.fit()) == expected()


def test_a_killed_tuner_leaves_no_socket_behind(program, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, program, str(tmp_path / "store")], env={**env, "PACE": "0.1"}
    )
    wait_for(lambda: _checkpoints(tmp_path / "store" / "e") >= 1)
    below = children_of(process.pid)
    _kill(process.pid)
    process.wait()
    assert_gone(below)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("cairn-tune-")]


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_finished_trials_are_not_run_again_after_the_tuner_was_killed(program, tmp_path):
    directory = tmp_path / "store"
    process = start(program, directory, pace="0.02")
    journal = directory / "e" / "events"

    def ended():
        return sum(
            b'"what":"end"' in (journal / name).read_bytes()
            for name in os.listdir(journal)
            if name.endswith(".journal")  # others come and go
        ) if journal.exists() else 0

    wait_for(lambda: ended() >= 1)
    _kill(process.pid)
    process.wait()
    process.stdout.close()
    native = cairn._native.Tuner.open(str(directory / "e"), False)
    before = {t["trial"]: t["run"] for t in native.trials(False) if t["status"] == "TERMINATED"}
    native.close()
    assert before
    output = start(program, directory).communicate(timeout=60)[0]
    assert "DONE" in output
    native = cairn._native.Tuner.open(str(directory / "e"), False)
    after = {t["trial"]: t["run"] for t in native.trials(False)}
    native.close()
    assert {trial: after[trial] for trial in before} == before


def failing(tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("")
    path = str(marker)

    def sometimes(config):
        checkpoint = tune.get_checkpoint()
        state = checkpoint.to_dict() if checkpoint else {"it": 0}
        state["it"] += 1
        tune.report({"it": state["it"]}, checkpoint=tune.Checkpoint.from_dict(state))
        if config["fails"] and os.path.exists(path):
            raise RuntimeError("I am failing")
        state["it"] += 1
        tune.report({"it": state["it"]}, checkpoint=tune.Checkpoint.from_dict(state))

    return sometimes, marker


@pytest.mark.parametrize(
    "options,expected",
    [
        (dict(resume_errored=True), [2, 3, 2, 3]),
        (dict(restart_errored=True), [2, 2, 2, 2]),
        (dict(), [2, 1, 2, 1]),
    ],
)
def test_errored_trials_are_resumed_or_restarted(tmp_path, options, expected):
    sometimes, marker = failing(tmp_path)
    results = tune.Tuner(
        sometimes,
        param_space={"id": tune.grid_search([0, 1, 2, 3]), "fails": False},
        run_config=tune.RunConfig(storage_path=tmp_path, name="none", verbose=0),
    )
    results = tune.Tuner(
        sometimes,
        param_space={"n": 1, "fails": tune.grid_search([False, True, False, True])},
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    ).fit()
    assert [r.metrics["it"] for r in results] == [2, 1, 2, 1]
    assert [bool(r.error) for r in results] == [False, True, False, True]
    marker.unlink()
    results = tune.Tuner.restore(tmp_path / "e", sometimes, **options).fit()
    assert [r.metrics["it"] for r in results] == expected
    if options:
        assert not any(r.error for r in results)
    for result in results:
        with open(os.path.join(result.path, "result.json")) as file:
            logged = [json.loads(line)["training_iteration"] for line in file]
        with open(os.path.join(result.path, "progress.csv")) as file:
            rows = [int(row["training_iteration"]) for row in csv.DictReader(file)]
        each = list(range(1, result.metrics["training_iteration"] + 1))
        assert logged == rows == each, "each iteration stands in the logs once"


def test_names_continue_after_a_restore(tmp_path):
    sometimes, marker = failing(tmp_path)
    tune.Tuner(
        sometimes,
        param_space={"fails": True},
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    ).fit()
    marker.unlink()
    [result] = tune.Tuner.restore(tmp_path / "e", sometimes, resume_errored=True).fit()
    names = sorted(d for d in os.listdir(result.path) if d.startswith("checkpoint_"))
    assert names == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000003"]
    assert result.metrics["training_iteration"] == 3


def test_a_moved_experiment_goes_on_where_it_is_now(program, tmp_path):
    directory = tmp_path / "store"
    process = start(program, directory, pace="0.03")
    wait_for(lambda: _checkpoints(directory / "e") >= 2)
    _kill(process.pid)
    process.wait()
    process.stdout.close()
    moved = tmp_path / "elsewhere" / "renamed"
    os.makedirs(moved.parent)
    shutil.move(str(directory / "e"), moved)
    tuner = restore(moved)
    results = tuner.fit()
    assert curves(results) == expected()
    assert not (directory / "e").exists()  # also trials that were created afterwards are here
    assert all(r.path.startswith(str(moved)) for r in results)


def _checkpoints(directory):
    if not directory.exists():
        return 0
    return sum(
        name.startswith("checkpoint_") and (directory / trial / name / "manifest.json").exists()
        for trial in os.listdir(directory)
        if (directory / trial).is_dir()
        for name in os.listdir(directory / trial)
    )


def test_a_trial_may_change_the_files_it_goes_on_with(tmp_path):
    """They are copies: the checkpoint stays what it was, for the next failure."""

    def f(config):
        checkpoint = tune.get_checkpoint()
        if checkpoint is None:
            with tempfile.TemporaryDirectory() as path:
                with open(f"{path}/weights", "wb") as file:
                    file.write(b"a" * (1 << 20))
                tune.report({"starts": 0}, checkpoint=tune.Checkpoint.from_directory(path))
            raise RuntimeError("dies")
        starts = os.path.join(tune.get_trial_dir(), "starts")
        with open(starts, "a") as file:
            file.write("x")
        with checkpoint.as_directory() as path, open(f"{path}/weights", "r+b") as file:
            assert set(file.read()) == {ord("a")}
            file.seek(0)
            file.write(b"b" * (1 << 20))
        if os.path.getsize(starts) < 3:
            raise RuntimeError("dies again")
        tune.report({"starts": os.path.getsize(starts)})

    [result] = tune.Tuner(
        f,
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=3),
        ),
    ).fit()
    assert result.error is None and result.metrics["starts"] == 3


def test_a_partial_directory_is_no_checkpoint(tmp_path):
    def f(config):
        checkpoint = tune.get_checkpoint()
        partial = os.path.join(tune.get_trial_dir(), "checkpoint_000009")
        if checkpoint is None:
            tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_dict({"a": 1}))
            os.makedirs(os.path.join(partial, "__model__"))
            raise RuntimeError("dies")
        tune.report({"a": checkpoint.to_dict()["a"] + 1})

    [result] = tune.Tuner(
        f,
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.error is None and result.metrics["a"] == 2


@pytest.mark.parametrize("damage", ["missing", "empty", "flipped"])
def test_a_damaged_record_is_an_error_and_never_an_empty_config(tmp_path, damage):
    def f(config):
        return config["x"]

    tune.Tuner(
        f,
        param_space={"x": 1},
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    ).fit()
    journal = tmp_path / "e" / "events"
    if damage == "missing":
        shutil.rmtree(journal)
    for name in os.listdir(journal) if journal.exists() else ():
        if not name.endswith(".journal"):
            continue
        path = journal / name
        if damage == "empty":
            path.write_bytes(b"")
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0x40
            path.write_bytes(bytes(data))
    with pytest.raises(cairn.Error):
        tune.Tuner.restore(tmp_path / "e", f)
    with pytest.raises(cairn.Error):  # nor is it begun anew among what is there
        tune.Tuner(
            f,
            param_space={"x": 1},
            run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
        ).fit()
    assert tune.Tuner.can_restore(tmp_path / "e") == (damage != "missing")


def test_a_wrong_trainable_or_other_keys_are_refused(tmp_path):
    def f(config):
        return 1

    def g(config):
        return 1

    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tune.Tuner(f, param_space={"x": 1}, run_config=run).fit()
    assert tune.Tuner.can_restore(tmp_path / "e")
    assert not tune.Tuner.can_restore(tmp_path / "no")
    with pytest.raises(ValueError, match="'f'"):
        tune.Tuner.restore(tmp_path / "e", g)
    with pytest.raises(ValueError, match="'y'"):
        tune.Tuner.restore(tmp_path / "e", f, param_space={"y": 1})
    with pytest.raises(ValueError):
        tune.Tuner(f, param_space={"y": 1}, run_config=run).fit()


def test_unfinished_trials_that_are_not_resumed_hold_up_nobody(program, tmp_path):
    directory = tmp_path / "store"
    process = start(program, directory, pace="0.05")
    wait_for(lambda: _checkpoints(directory / "e") >= 2)
    _kill(process.pid)
    process.wait()
    process.stdout.close()
    results = restore(directory / "e", resume_unfinished=False).fit()
    states = [r.status for r in results]
    assert states[:2] == ["PAUSED", "PAUSED"]
    # And later they go on.
    assert curves(restore(directory / "e").fit()) == expected()


def test_fail_fast_leaves_the_others_resumable(tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("")

    def f(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        for i in range(start, 20):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            if config["x"] == 1 and i == 3 and os.path.exists(marker):
                raise RuntimeError("fails")
            time.sleep(0.05)

    tuner = tune.Tuner(
        f,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            name="e",
            verbose=0,
            failure_config=tune.FailureConfig(fail_fast=True),
        ),
    )
    results = tuner.fit()
    assert "fails" in str(results[0].error) and results[1].metrics["i"] < 19
    marker.unlink()
    results = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()
    assert [[m["i"] for m in reports(r)] for r in results] == [list(range(20))] * 3


def test_ctrl_c_saves_and_what_was_interrupted_goes_on(program, tmp_path):
    directory = tmp_path / "store"
    process = start(program, directory, "class", pace="0.05")
    wait_for(lambda: _checkpoints(directory / "e") >= 1)
    below = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert "KeyboardInterrupt" in output
    assert_gone(below)
    native = cairn._native.Tuner.open(str(directory / "e"), False)
    for trial in native.trials(False):
        if trial["status"] == "PAUSED":
            newest = trial["checkpoints"][-1]["steps_completed"]
            assert newest == trial["iteration"]  # checkpoint at the end
    native.close()
    output = start(program, directory, "class").communicate(timeout=60)[0]
    assert "DONE" in output
    assert curves(restore(directory / "e", "class").fit()) == expected()


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


def test_a_second_tuner_is_told_who_runs_the_experiment(tmp_path):
    class Asks(tune.Callback):
        told = None

        def on_trial_result(self, **_):
            with pytest.raises(cairn.Unavailable) as Asks.told:
                tune.Tuner.restore(tmp_path / "e", one)

    def one(config):
        tune.report({"x": 1})

    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, callbacks=[Asks()])
    tune.Tuner(one, run_config=run).fit()
    assert f"pid {os.getpid()}" in str(Asks.told.value)
    assert "wait until that has ended, or end it" in str(Asks.told.value)


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
