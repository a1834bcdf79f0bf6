"""Experiments that are killed, moved, damaged, interrupted; and go on."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from tune_kills import note_kill, wait_for_a_step
from tuned_program import (
    KILLS,
    assert_gone,
    children_of,
    curves,
    expected,
    reports,
    restore,
    start,
    wait_for,
    write_program,
)

import cairn
from cairn import tune


@pytest.fixture
def program(tmp_path):
    return write_program(tmp_path)


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
        wait_for_a_step(generator, directory / "e", 0.5)
        below = children_of(process.pid)
        if target in ("tuner", "both"):
            if target == "both":
                for pid in below[1:]:
                    _kill(pid)
            _kill(process.pid)
            process.wait()
            assert_gone(below)
            process.stdout.close()
            note_kill(target, directory / "e")
        else:
            below = below[:1] if target == "zygote" else below[1:]
            for _ in range(min(KILLS, 8)):
                for pid in below:
                    _kill(pid)
                if below:  # at the end there is nobody left
                    note_kill(target, directory / "e")
                assert_gone(below)
                wait_for_a_step(generator, directory / "e", 0.3)
                below = children_of(process.pid)[:1] if target == "zygote" else children_of(process.pid)[1:]
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


def _die_before_the_report_of(iteration, flag):
    """Once: the checkpoint is committed, and nobody was told of it."""
    from cairn.tune.session import Session

    send = Session._send

    def dies(session, result, kept):
        if result["training_iteration"] == iteration and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return send(session, result, kept)

    Session._send = dies


class Unreported(tune.Trainable):
    def setup(self, config):
        _die_before_the_report_of(config["at"], config["flag"])
        self.n = 0

    def step(self):
        self.n += 1
        return {"n": self.n, "done": self.config["ends"] == "done" and self.n == 4}

    def save_checkpoint(self, directory):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"]


def unreported(config):
    _die_before_the_report_of(config["at"], config["flag"])
    checkpoint = tune.get_checkpoint()
    n = checkpoint.to_dict()["n"] if checkpoint else 0
    while n < 9:
        n += 1
        ends = {"done": True} if config["ends"] == "done" and n == 4 else {}
        tune.report({"n": n, **ends}, checkpoint=tune.Checkpoint.from_dict({"n": n}))


@pytest.mark.parametrize("ends", ["stop", "done"])
@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("trainable", [Unreported, unreported])
def test_a_report_that_is_made_up_for_is_answered_too(tmp_path, trainable, at, ends):
    """Killed between the last checkpoint and its report, the trial has ended with that."""
    results = tune.Tuner(
        trainable,
        param_space={"at": at, "flag": str(tmp_path / "flag"), "ends": ends},
        run_config=tune.RunConfig(
            storage_path=tmp_path, name="e", verbose=0,
            stop={"training_iteration": 4} if ends == "stop" else None,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1 if trainable is Unreported else 0),
        ),
    ).fit()  # fmt: skip
    assert os.path.exists(tmp_path / "flag")
    assert [r["n"] for r in results[0].results] == [1, 2, 3, 4] and results[0].error is None
    # Also the one that nobody reported is among its checkpoints, wherever they are.
    assert [c.to_dict()["n"] for c in results[0].checkpoints] == [1, 2, 3, 4]
    (tmp_path / "e").rename(tmp_path / "moved")
    [moved] = tune.Tuner.restore(tmp_path / "moved", trainable).get_results()
    assert [c.to_dict()["n"] for c in moved.checkpoints] == [1, 2, 3, 4]
    assert all(c.path.startswith(str(tmp_path / "moved")) for c in moved.checkpoints)


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


def test_the_results_on_record_are_there_without_running_anything(tmp_path):
    sometimes, marker = failing(tmp_path)
    fitted = tune.Tuner(
        sometimes,
        param_space={"fails": tune.grid_search([False, True])},
        tune_config=tune.TuneConfig(metric="it", mode="max"),
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    )
    with pytest.raises(RuntimeError, match="before fit"):
        fitted.get_results()
    before = [(r.config, r.results) for r in fitted.fit()]
    (tmp_path / "e").rename(tmp_path / "moved")
    tuner = tune.Tuner.restore(tmp_path / "moved", sometimes, resume_errored=True)
    known = tuner.get_results()
    assert [(r.config, r.results) for r in known] == before and known.num_errors == 1
    assert known.get_best_result().metrics["it"] == 2
    assert known[1].checkpoint.path.startswith(str(tmp_path / "moved"))
    marker.unlink()
    assert [r.metrics["it"] for r in tuner.fit()] == [2, 3]
    assert [r.metrics["it"] for r in tuner.get_results()] == [2, 3]


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


def _the_usual(path, trainable):
    """As programs begin that are started again and again."""
    if tune.Tuner.can_restore(path):
        return tune.Tuner.restore(path, trainable)
    run = tune.RunConfig(storage_path=path.parent, name=path.name, verbose=0)
    return tune.Tuner(trainable, param_space={"x": 1}, run_config=run)


@pytest.mark.parametrize("stage", ["made", "opened"])
def test_killed_before_the_first_note_the_same_command_begins_anew(tmp_path, stage):
    def f(config):
        tune.report({"x": config["x"]})

    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from cairn import _native\n"
        "os.makedirs(sys.argv[1] + '/events')\n"
        "if sys.argv[2] == 'opened': opened = _native.Tuner.open(sys.argv[1], True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "e"
    ended = subprocess.run([sys.executable, script, path, stage])
    assert ended.returncode == -signal.SIGKILL and (path / "events").is_dir()
    assert not tune.Tuner.can_restore(path)
    [result] = _the_usual(path, f).fit()
    assert result.metrics["x"] == 1
    assert [r.trial_id for r in _the_usual(path, f).fit()] == [result.trial_id]


def test_an_experiment_whose_fit_was_refused_begins_anew(tmp_path, monkeypatch):
    lock = threading.Lock()

    def bad(config):
        lock.acquire()

    def f(config):
        tune.report({"x": config["x"]})

    bad.__qualname__ = bad.__name__ = "f"
    path = tmp_path / "e"
    with pytest.raises(TypeError, match="cannot be handed"):
        _the_usual(path, bad).fit()
    assert not path.exists()
    monkeypatch.delenv("CAIRN_TOKEN", raising=False)
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, master="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="CAIRN_TOKEN"):
        tune.Tuner(f, run_config=run).fit()
    assert not path.exists()
    assert [r.metrics["x"] for r in _the_usual(path, f).fit()] == [1]


def test_trials_without_a_record_are_an_error_after_an_opening_too(tmp_path):
    def f(config):
        tune.report({"x": config["x"]})

    path = tmp_path / "e"
    _the_usual(path, f).fit()
    shutil.rmtree(path / "events")
    cairn._native.Tuner.open(str(path), True).close()
    assert tune.Tuner.can_restore(path)
    with pytest.raises(cairn.Corruption):
        _the_usual(path, f)
    with pytest.raises(cairn.Corruption, match="f_00000"):
        run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
        tune.Tuner(f, param_space={"x": 1}, run_config=run).fit()


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
    process = start(program, directory, gate=tmp_path / "never")
    wait_for(lambda: _checkpoints(directory / "e") >= 2)  # two trials were chosen, and wait
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
    beside = tmp_path / "beside"  # another one has begun

    def f(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        for i in range(start, 20):
            tune.report({"i": i}, checkpoint=tune.Checkpoint.from_dict({"i": i + 1}))
            while i == 3 and os.path.exists(marker):
                if config["x"] == 2:
                    beside.write_text("")
                if config["x"] == 1 and os.path.exists(beside):
                    raise RuntimeError("fails")
                time.sleep(0.01)

    tuner = tune.Tuner(
        f,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(max_concurrent_trials=3),
        run_config=tune.RunConfig(
            storage_path=tmp_path,
            name="e",
            verbose=0,
            failure_config=tune.FailureConfig(fail_fast=True),
        ),
    )
    results = tuner.fit()
    assert "fails" in str(results[0].error) and results[1].metrics["i"] == 3
    marker.unlink()
    results = tune.Tuner.restore(tmp_path / "e", f, resume_errored=True).fit()
    assert [[m["i"] for m in reports(r)] for r in results] == [list(range(20))] * 3


def test_ctrl_c_saves_and_what_was_interrupted_goes_on(program, tmp_path):
    directory = tmp_path / "store"
    gate = tmp_path / "gate"
    process = start(program, directory, "class", gate=gate)
    wait_for(lambda: _checkpoints(directory / "e") == 2)  # one of each trial that runs
    below = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    while "trials save and pause" not in (line := process.stdout.readline()):
        assert line, "it ended"
    gate.write_text("")
    output = process.communicate(timeout=120)[0]
    assert "KeyboardInterrupt" in output
    assert_gone(below)
    native = cairn._native.Tuner.open(str(directory / "e"), False)
    for trial in native.trials(False):
        if trial["status"] == "PAUSED":
            newest = trial["checkpoints"][-1]["steps_completed"]
            assert newest == trial["iteration"]  # checkpoint at the end
    native.close()
    output = start(program, directory, "class").communicate(timeout=120)[0]
    assert "DONE" in output
    assert curves(restore(directory / "e", "class").fit()) == expected()


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
