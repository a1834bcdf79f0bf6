"""The kills of `make torture SUITE=tune`: what counts as hit, and that steps which were not are named."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from tune_kills import STEPS, last_event, never_hit, note_kill

TORTURE = pathlib.Path(__file__).parent / "tune_torture"


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
