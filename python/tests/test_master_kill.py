"""kill -9 of the master, of trials, of both, by a seeded script: what was acknowledged stays, and every trial ends where it should.

One round on each database; `make torture SUITE=master_kill` goes on for CAIRN_TORTURE_SECONDS with seeds that were not tried yet.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import time

import pytest
from master_process import EXAMPLES, Refused, postgresql, running_master

WHOLE = [(step, step) for step in range(10, 101, 10)]
EXPERIMENTS = 3
STRIKES = 5


class Script:
    """Does something to the master or its trials, and checks after each that nothing that was seen is gone."""

    def __init__(self, master, seed):
        self.master = master
        self.random = random.Random(seed)
        self.seen = {}  # trial: reports that an answer has shown
        self.counts = {}

    def look(self):
        for trial in self.master.wait("/api/v1/trials?limit=1000", lambda page: True)["trials"]:
            now = self.master.reports(trial["id"])
            assert now == WHOLE[: len(now)], f"trial {trial['id']}"
            before = self.seen.get(trial["id"], [])
            # Fewer only when a run went back to a checkpoint: every report here is followed by one.
            assert len(now) >= len(before) - 1, f"trial {trial['id']} lost reports: {before} then {now}"
            self.seen[trial["id"]] = now

    def do(self, experiments):
        kind = self.random.choice(["master", "master", "trial", "trial", "both", "pause"])
        living = [pid for e in experiments for pid in self.master.processes(self.trial(e))]
        if kind in ("trial", "both") and living:
            for pid in self.random.sample(living, self.random.randint(1, len(living))):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if kind in ("master", "both"):
            self.master.kill()
            time.sleep(self.random.uniform(0, 0.3))
            self.master.start()
        if kind == "pause":
            experiment = self.random.choice(experiments)
            for action in ("pause", "activate"):
                try:
                    self.master.post(f"/api/v1/experiments/{experiment}/{action}")
                except Refused as refused:
                    assert refused.status in (409, 412), refused
                    break
                time.sleep(self.random.uniform(0, 0.2))
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def trial(self, experiment):
        return self.master.trial_of(experiment)["id"]


def round_of(master, seed):
    """One round; what was done how often."""
    script = Script(master, seed)
    command = ("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES)
    changes = ("--config", "entrypoint=python3 2_checkpoints.py 0.02", "--config", "max_restarts=1000")
    experiments = [master.cli_json(*command, *changes)["id"] for _ in range(EXPERIMENTS)]
    for experiment in experiments:
        master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)
    for _ in range(STRIKES):
        time.sleep(script.random.uniform(0.1, 0.8))
        script.do(experiments)
        script.look()
    for experiment in experiments:
        state = "PAUSED"
        while state == "PAUSED":  # a pause that came after its activation is none of the script's business
            with contextlib.suppress(Refused):
                master.post(f"/api/v1/experiments/{experiment}/activate")
            state = master.wait_state(experiment, "COMPLETED", "PAUSED", "ERROR", "CANCELED")["state"]
        trial = script.trial(experiment)
        assert state == "COMPLETED", master.get(f"/api/v1/trials/{trial}")
        assert master.reports(trial) == WHOLE, "the result is the one of an undisturbed run"
        assert master.reports(trial, "validation") == [(100, 100)]
        page = master.get(f"/api/v1/trials/{trial}/checkpoints?limit=1000")
        steps = sorted(checkpoint["steps_completed"] for checkpoint in page["checkpoints"])
        assert steps == [step for step, _ in WHOLE], "each checkpoint once"
    return script.counts


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_fault_script(tmp_path, database):
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgresql()).url if database == "postgresql" else None
        master = stack.enter_context(running_master(tmp_path, database=url, slots=EXPERIMENTS))
        if "CAIRN_TORTURE_SECONDS" in os.environ:
            torture(master, database)
        else:
            print(round_of(master, 11))


def torture(master, database):
    path = pathlib.Path(os.environ["CAIRN_TORTURE_STATE"])
    counts = json.loads(path.read_text()) if path.exists() else {}
    deadline = time.monotonic() + float(os.environ["CAIRN_TORTURE_SECONDS"]) / 2
    while time.monotonic() < deadline:
        seed = counts[f"{database} seeds"] = counts.get(f"{database} seeds", 0) + 1
        print(f"seed {seed}", flush=True)
        for kind, count in round_of(master, seed).items():
            counts[f"{database} {kind}"] = counts.get(f"{database} {kind}", 0) + count
        path.write_text(json.dumps(counts))
