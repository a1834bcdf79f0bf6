"""Tuners that end at each step of what they do. The kills of `make torture SUITE=tune`: what counts as hit, and that steps which were not are
named."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from test_tune_schedulers import PROGRAM, outcome, start
from tune_kills import STEPS, last_event, never_hit, note_kill
from tuned_program import assert_gone, children_of

TORTURE = pathlib.Path(__file__).parent / "tune_torture"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A program, and what comes out of it when nobody disturbs it."""
    directory = tmp_path_factory.mktemp("calm")
    program = directory / "scheduled_program.py"
    program.write_text(PROGRAM)
    return program, outcome(start(program, directory, "pbt"))


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_it_comes_to_the_same_end(calm, tmp_path, monkeypatch, step):
    """At the step itself, and not by chance (src/trial/kill_point.h): when it is taken and not yet durable, and when it is durable and nobody was told."""
    program, undisturbed = calm
    for when in ("taken", "durable"):
        monkeypatch.setenv("CAIRN_KILL_AT", f"{when}:{step}:1")
        process = start(program, tmp_path, "pbt")
        below = children_of(process.pid)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == -signal.SIGKILL, said
        assert_gone(below)
        if when == "durable":
            assert last_event(tmp_path / "pbt" / "events") == step
    monkeypatch.delenv("CAIRN_KILL_AT")
    assert outcome(start(program, tmp_path, "pbt")) == undisturbed


def test_steps_are_hit_by_whoever_is_killed():
    assert never_hit({}) == list(STEPS)
    assert never_hit({"seeds": 3, "kills": 7, "pbt killed after paused": 1}) == [
        step for step in STEPS if step != "paused"
    ]
    assert never_hit({f"tuner killed after {step}": 1 for step in STEPS}) == []


def test_a_kill_is_noted_with_what_is_on_record(tmp_path, monkeypatch):
    journal = tmp_path / "e" / "events"
    journal.mkdir(parents=True)
    assert last_event(journal) == "nothing"
    (journal / "000001.journal").write_bytes(
        b'cjf1 {"body":{"what":"opened"},"kind":"note","run":0} cjf1 {"body":{},"kind":"report","run":1}'
    )
    (journal / "000002.journal").write_bytes(b"")
    monkeypatch.setenv("CAIRN_TUNE_KILL_LOG", str(tmp_path / "log"))
    note_kill("tuner", tmp_path / "e")
    assert (tmp_path / "log").read_text() == "tuner killed after report\n"


@pytest.mark.parametrize("kills, fails", [(999, False), (1000, True)])
def test_many_kills_that_miss_a_step_are_a_failure(tmp_path, kills, fails):
    state = tmp_path / "state.json"
    hit = {f"tuner killed after {step}": 1 for step in STEPS if step != "paused"}
    state.write_text(json.dumps({"seeds": 12, "kills": kills, **hit}))
    environment = {**os.environ, "CAIRN_TORTURE_STATE": str(state), "CAIRN_TORTURE_SECONDS": "0"}
    environment.pop("CAIRN_TUNE_SEED", None)
    done = subprocess.run([sys.executable, TORTURE], env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) == fails
    assert ("struck after: paused" in done.stderr) == fails
