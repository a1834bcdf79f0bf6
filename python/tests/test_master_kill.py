"""kill -9 of the master, of trials, of both, by a seeded script: what was acknowledged stays, and every trial ends where it should.

Each kill of the master by the script is aimed at one step of the trial protocol: what the engine wrote down last (docs/format/events.md).
Which step it hit is read from the database that it left, and counted. One round on each database; `make torture SUITE=master_kill` goes on
for CAIRN_TORTURE_SECONDS with seeds that were not tried yet.

Aimed from outside, a kill hits a step by luck. So the master is also told to end by itself at each of them (src/trial/kill_point.h): when an
event is taken and not yet durable, and when it is durable and nobody was told.
"""

import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time

import pytest
from master_process import ENDED, EXAMPLES, PATIENCE_SECONDS, Refused, postgresql, running_master

WHOLE = [(step, step) for step in range(10, 101, 10)]
EXPERIMENTS = 3
STRIKES = 5
PAUSES = ("pause_requested", "preempt_acknowledged", "activated")
RESTARTS = ("run_exited", "run_started", "run_ready")
STEPS = ("checkpoint_started", "checkpoint_completed", "report", *RESTARTS, *PAUSES)
DEAF = "deaf"
BEGAN = "run_began"  # a note
EVERY_STEP = ("trial_created", *STEPS, BEGAN, "cancel_requested", "kill_requested", "signalled")
AIM_SECONDS = 2
ANOTHER_TRY_SECONDS = 20
# Fewer kills than so many for each step may miss one by chance.
ENOUGH_KILLS = 20 * len(STEPS)
NEWEST = "SELECT kind FROM (SELECT seq, kind FROM events UNION ALL SELECT seq, 'report' FROM reports) AS all_events ORDER BY seq DESC LIMIT 1"


def newest_step(master):
    """The kind of the last event in the database."""
    if master.database:
        words = ["psql", "-At", "-c", NEWEST, master.database]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    path = master.directory / "data" / "cairn.db"
    if master.process.poll() is None:
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
            return database.execute(NEWEST).fetchone()[0]
    # Of a killed one only a copy is opened: SQLite would tidy up what the next master has to find.
    with tempfile.TemporaryDirectory() as directory:
        for file in path.parent.glob("cairn.db*"):
            shutil.copy(file, directory)
        with contextlib.closing(sqlite3.connect(os.path.join(directory, path.name))) as database:
            return database.execute(NEWEST).fetchone()[0]


class Script:
    """Does something to the master or its trials, and checks after each that nothing that was seen is gone."""

    def __init__(self, master, seed):
        self.master = master
        self.random = random.Random(seed)
        self.seen = {}  # trial: reports that an answer has shown
        self.counts = {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

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
            self.kill_master(self.random.choice(STEPS), self.random.choice(experiments))
        if kind == "pause":
            self.pause(self.random.choice(experiments), self.random.uniform(0, 0.2))
        self.count(kind)

    def pause(self, experiment, seconds):
        for action in ("pause", "activate"):
            try:
                self.master.post(f"/api/v1/experiments/{experiment}/{action}")
            except Refused as refused:
                assert refused.status in (409, 412), refused
                return
            time.sleep(seconds)

    def kill_master(self, aim, experiment):
        """When it has written that step down, or after a while."""
        away = self.random.uniform(0, 0.3)
        between = self.random.uniform(0, 0.02 if aim == "activated" else 0.2)

        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException):  # it is killed meanwhile
                self.pause(experiment, between)

        if aim in RESTARTS:
            for pid in self.master.processes(self.trial(experiment)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        asking = threading.Thread(target=ask)
        if aim in PAUSES:
            asking.start()
        deadline = time.monotonic() + AIM_SECONDS
        while newest_step(self.master) != aim and time.monotonic() < deadline:
            time.sleep(0.001)
        self.master.kill()
        hit = newest_step(self.master)
        print(f"the master was killed after {hit} (aimed at {aim})", flush=True)
        self.count(f"killed after {hit}")
        if aim in PAUSES:
            asking.join()
        time.sleep(away)
        self.master.start()

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


class NotCreated(Exception):
    """The master ended before it answered."""


class Victims:
    """Brings about each step of the protocol in a master that ends at it."""

    def __init__(self, master):
        self.master = master

    def create(self, entrypoint, *changes):
        """The new experiment's id. Not looked up as the newest one: commands that a master left unanswered try again at the next."""
        command = ("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--json")
        for change in (f"entrypoint={entrypoint}", "max_restarts=1000", *changes):
            command += ("--config", change)
        created = self.master.cli(*command, check=False)
        if created.returncode != 0:
            raise NotCreated(created.stderr)
        return json.loads(created.stdout)["id"]

    def ask(self, experiment, action):
        self.master.post(f"/api/v1/experiments/{experiment}/{action}")

    def running(self):
        """An experiment whose process trains; it takes a while."""
        experiment = self.create("python3 2_checkpoints.py 0.05")
        self.master.wait_state(experiment, "RUNNING", *ENDED)
        return experiment

    def bring_about(self, step, process):
        """Until that master has ended. A busy machine may let a training end before it is asked to pause: then the next one is."""
        while process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException, Refused, NotCreated):  # it ends meanwhile
                self.try_once(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ANOTHER_TRY_SECONDS)

    def try_once(self, step):
        if step not in (*PAUSES, "run_exited", "cancel_requested", "kill_requested", "signalled"):
            self.create("python3 2_checkpoints.py 0.001")
        elif step == "signalled":  # it does not hear that it is to stop
            deaf = self.create("sleep 600", f"name={DEAF}", "preemption_timeout=1", "kill_grace=1")
            self.master.wait_state(deaf, "STARTING", *ENDED)  # one that waits has nobody to signal
            self.ask(deaf, "cancel")
        else:
            experiment = self.running()
            if step == "run_exited":
                for pid in self.master.processes(self.master.trial_of(experiment)["id"]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            elif step in PAUSES:
                self.ask(experiment, "pause")
                self.master.wait_state(experiment, "PAUSED", *ENDED)
                self.ask(experiment, "activate")
            else:
                self.ask(experiment, "cancel" if step == "cancel_requested" else "kill")


def end_at(master, victims, when, step):
    """The master ends by itself at the step, and nothing after it is on record."""
    master.start(patient=False, CAIRN_KILL_AT=f"{when}:{step}:1")
    helper = threading.Thread(target=victims.bring_about, args=(step, master.process))
    helper.start()
    try:
        assert master.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    except BaseException:
        print(f"the master did not end at {when} {step}; it said:", *master.said[-30:], sep="\n", flush=True)
        print(master.cli("e", "ls", check=False).stdout, flush=True)
        raise
    master._reader.join()
    if when == "durable":
        assert newest_step(master) == ("note" if step == BEGAN else step)
    return helper


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_at_every_step(tmp_path, database):
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgresql()).url if database == "postgresql" else None
        master = stack.enter_context(running_master(tmp_path, database=url, slots=2 * len(EVERY_STEP)))
        master.stop()
        victims, helpers = Victims(master), []
        for when in ("taken", "durable"):
            for step in EVERY_STEP:
                helpers.append(end_at(master, victims, when, step))
        master.start()
        for helper in helpers:
            helper.join()
        experiments = master.get("/api/v1/experiments?limit=1000")["experiments"]
        experiments = [experiment for experiment in experiments if experiment["name"] != DEAF]
        assert len(experiments) >= len(EVERY_STEP)
        for experiment in experiments:
            with contextlib.suppress(Refused):
                master.post(f"/api/v1/experiments/{experiment['id']}/activate")
        for experiment in experiments:
            state = master.wait_state(experiment["id"], "COMPLETED", "ERROR", "CANCELED")["state"]
            reports = master.reports(master.trial_of(experiment["id"])["id"])
            assert state != "ERROR" and reports == (WHOLE if state == "COMPLETED" else WHOLE[: len(reports)])


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
    hits = {step: counts.get(f"{database} killed after {step}", 0) for step in STEPS}
    print(f"steps of the protocol at which the master was killed ({database}): {hits}", flush=True)
    if sum(hits.values()) >= ENOUGH_KILLS:
        assert all(hits.values()), "a step that no kill hit proves nothing"
