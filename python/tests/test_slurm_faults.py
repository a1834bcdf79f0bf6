"""Seeded fault scenarios on a real Slurm: whatever is cancelled, requeued, preempted, killed or away, trials end with the golden numbers.

Each round does everything once, in a random order, to trials that are chosen at random. `make torture SUITE=slurm_faults` goes on for
CAIRN_TORTURE_SECONDS with seeds that were not tried yet; CAIRN_SEED names one.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import threading
import time

from master_process import EXAMPLES, running_master
from slurm_cluster import running_slurm

WHOLE = [(step, step) for step in range(10, 101, 10)]
TRIALS = 2  # at a time
STEP_SECONDS = 0.1
CONTROLLER_AWAY_SECONDS = 10
# Two runs of a trial may be seen at once for as long as the shim of a lost one takes to see that it was given up.
OVERLAP_SECONDS = 5
ROUND_SECONDS = 420


class Watch:
    """Looks all the time which runs of each trial live."""

    def __init__(self, master):
        self.master = master
        self.trials = set()
        self.overlaps = {}  # (trial, runs): first and last time seen
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.over = threading.Event()

    def look(self):
        while not self.over.wait(0.2):
            for trial in list(self.trials):
                runs = {int(variables["CAIRN_RUN_ID"]) for _, variables in living(self.master, trial)}
                if len(runs) > 1:
                    now = time.monotonic()
                    first, _ = self.overlaps.get((trial, frozenset(runs)), (now, now))
                    self.overlaps[(trial, frozenset(runs))] = (first, now)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def living(master, trial):
    """Pids and environments of the ranks of a trial."""
    found = []
    for pid in master.processes(trial):
        with contextlib.suppress(OSError):
            text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            variables = dict(variable.split("=", 1) for variable in text.split("\0") if "=" in variable)
            if "CAIRN_RUN_ID" in variables and "SLURM_JOB_ID" in variables:
                found.append((pid, variables))
    return found


class Round:
    def __init__(self, master, slurm, seed):
        self.master = master
        self.slurm = slurm
        self.random = random.Random(seed)
        self.deadline = time.monotonic() + ROUND_SECONDS
        self.experiments = {}  # id: trial
        self.struck = {}  # trial: reports at the last strike

    # What happens.

    def scancel(self, pid, variables):
        self.slurm.run("scancel", job_of(variables), check=False)

    def requeue(self, pid, variables):
        """By somebody with the right to; jobs of trials say that they are not to be."""
        job = job_of(variables)
        self.slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1", check=False)
        self.slurm.run("scontrol", "requeue", job, check=False)

    def preempt(self, pid, variables):
        node = variables["SLURMD_NODENAME"]
        urgent = self.slurm.submit(
            "-p", "high", "--exclusive", f"--nodelist={node}", "-o", "/dev/null", script="#!/bin/sh\nsleep 1\n"
        )
        self.slurm.until("the urgent job is done", lambda: self.slurm.state(urgent) == "COMPLETED")

    def node(self, pid, variables):
        """slurmd is killed, and stays away until Slurm has noticed, or comes back at once. What runs needs no slurmd: it may also end
        before Slurm notices, which takes minutes after a restart of the controller."""
        node = variables["SLURMD_NODENAME"]
        self.slurm.kill(f"slurmd.{node}")
        if self.random.random() < 0.7:
            self.slurm.until(
                "the node is given up", lambda: self.state_of(node).startswith("down") or not pathlib.Path(f"/proc/{pid}").exists()
            )
        self.slurm.start(f"slurmd.{node}")
        self.slurm.until("the node is back", lambda: self.state_of(node) in ("idle", "mix", "alloc", "comp"))

    def controller(self, pid, variables):
        # A step that cannot say that it ended is killed after a minute, and its node closed.
        self.slurm.until("nothing is ending", lambda: not self.slurm.jobs("-t", "COMPLETING"))
        self.slurm.until_saved()
        self.slurm.kill("slurmctld")
        time.sleep(CONTROLLER_AWAY_SECONDS)  # the fault itself
        self.slurm.start("slurmctld")
        self.slurm.until("it answers", lambda: self.slurm.run("scontrol", "ping", check=False).find("is UP") >= 0)

    def kill_master(self, pid, variables):
        """The next one speaks to Slurm in another way, perhaps."""
        self.master.kill()
        if self.random.random() < 0.5:
            os.environ["CAIRN_SLURMRESTD"] = f"unix:{self.slurm.directory}/rest.sock"
        else:
            os.environ.pop("CAIRN_SLURMRESTD", None)
        time.sleep(self.random.uniform(0, 1))
        self.master.start()

    def rank(self, pid, variables):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def shim(self, pid, variables):
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)

    FAULTS = (scancel, requeue, preempt, node, controller, kill_master, rank, shim)

    # Around it.

    def state_of(self, node):
        return self.slurm.run("sinfo", "-h", "-n", node, "-p", "low", "-o", "%t").strip().rstrip("*")

    def create(self):
        words = ["resources.launcher=slurm", f"entrypoint=python3 2_checkpoints.py {STEP_SECONDS}", "max_restarts=1000"]
        config = [word for pair in words for word in ("--config", pair)]
        experiment = self.master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, *config)["id"]
        page = self.master.wait(f"/api/v1/experiments/{experiment}/trials", lambda answer: answer["total"] == 1)
        self.experiments[experiment] = page["trials"][0]["id"]

    def victim(self, watch):
        """A rank of a trial that has gone on since it was last struck."""
        while True:
            assert time.monotonic() < self.deadline, "no trial goes on: " + self.describe()
            for experiment, trial in self.experiments.items():
                if self.master.get(f"/api/v1/experiments/{experiment}")["state"] == "COMPLETED":
                    watch.trials.discard(trial)
            while len(watch.trials) < TRIALS:
                self.create()
                watch.trials.add(list(self.experiments.values())[-1])
            trials = sorted(watch.trials)
            self.random.shuffle(trials)
            for trial in trials:
                reports = len(self.master.reports(trial))
                if self.struck.get(trial, 0) < reports < len(WHOLE) - 1 and (ranks := living(self.master, trial)):
                    self.struck[trial] = reports
                    return ranks[0]
            time.sleep(0.05)  # it tells when it is asked

    def describe(self):
        runs = {trial: self.master.get(f"/api/v1/trials/{trial}/runs")["runs"][-2:] for trial in self.experiments.values()}
        return json.dumps(runs, indent=1) + self.slurm.run("squeue", "-t", "all") + self.slurm.run("sinfo", "-N")

    def run(self):
        faults = list(self.FAULTS)
        self.random.shuffle(faults)
        done = []
        with Watch(self.master) as watch:
            try:
                for fault in faults:
                    pid, variables = self.victim(watch)
                    time.sleep(self.random.uniform(0, 3 * STEP_SECONDS))  # anywhere in its steps
                    done.append(fault.__name__)
                    fault(self, pid, variables)
                for experiment, trial in self.experiments.items():
                    self.check(experiment, trial)
                for (trial, runs), (first, last) in watch.overlaps.items():
                    assert last - first < OVERLAP_SECONDS, f"runs {sorted(runs)} of trial {trial} lived together"
                self.slurm.until("no job is left", lambda: not self.slurm.jobs())
                assert not [pid for trial in self.experiments.values() for pid in self.master.processes(trial)]
            except Exception as error:
                raise AssertionError(f"after {done}: {error}\n{self.describe()}") from error
        return done

    def check(self, experiment, trial):
        left = max(1, self.deadline - time.monotonic())
        ended = self.master.wait(f"/api/v1/experiments/{experiment}", lambda e: e["state"] in ("COMPLETED", "ERROR", "CANCELED"), left)
        assert ended["state"] == "COMPLETED", self.master.get(f"/api/v1/trials/{trial}")
        assert self.master.reports(trial) == WHOLE, "nothing is lost, nothing is doubled"
        assert self.master.reports(trial, "validation") == [(100, 100)]
        by = [report["run_id"] for report in self.master.get(f"/api/v1/trials/{trial}/metrics?group=training")["metrics"]]
        assert by == sorted(by), "no run reported after a later one had begun"
        page = self.master.get(f"/api/v1/trials/{trial}/checkpoints?limit=1000")
        steps = sorted(checkpoint["steps_completed"] for checkpoint in page["checkpoints"])
        assert steps == [step for step, _ in WHOLE], "each checkpoint once"


def job_of(variables):
    """As scancel knows it."""
    if "SLURM_ARRAY_JOB_ID" in variables:
        return "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format(**variables)
    return variables["SLURM_JOB_ID"]


def test_fault_script(tmp_path, monkeypatch):
    seconds = float(os.environ.get("CAIRN_TORTURE_SECONDS", 0))
    monkeypatch.setenv("CAIRN_SLURM_LIFE_SECONDS", str(seconds + 3 * ROUND_SECONDS))
    monkeypatch.setenv("CAIRN_SLURMRESTD", "")
    monkeypatch.delenv("CAIRN_SLURMRESTD")  # as it was, in the end
    with running_slurm() as slurm:
        slurm.start("slurmrestd")
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))  # the master's, and the command line's
        with running_master(tmp_path) as master:
            if seconds > 0:
                torture(master, slurm, seconds)
            else:
                seed = int(os.environ.get("CAIRN_SEED", time.time_ns() % 1_000_000))
                print(f"CAIRN_SEED={seed}")
                Round(master, slurm, seed).run()


def torture(master, slurm, seconds):
    path = pathlib.Path(os.environ["CAIRN_TORTURE_STATE"])
    counts = json.loads(path.read_text()) if path.exists() else {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seed = counts["seeds"] = counts.get("seeds", 0) + 1
        print(f"seed {seed}", flush=True)
        for fault in Round(master, slurm, seed).run():
            counts[fault] = counts.get(fault, 0) + 1
        path.write_text(json.dumps(counts))
