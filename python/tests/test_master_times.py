"""When things started and how long they ran: what waits for slots, rests or is without a master does not grow older."""

import time

from master_process import running_master

# Runs until the gate with the number of its run is there.
SCRIPT = """
import os, sys, time
import cairn

with cairn.core.init() as context:
    gate = os.path.join(os.environ["GATES"], f"{os.environ['CAIRN_TRIAL_ID']}.{os.environ['CAIRN_RUN_ID']}")
    while not os.path.exists(gate):
        if context.preempt.should_preempt():
            sys.exit(0)
        time.sleep(0.02)
"""
CONFIG = "entrypoint: python3 train.py\nmax_restarts: 2\n"


class Gates:
    def __init__(self, master, directory):
        self.master = master
        self.directory = directory
        directory.mkdir()
        (directory / "train.py").write_text(SCRIPT)
        (directory / "config.yaml").write_text(CONFIG + f"environment: {{variables: {{GATES: {directory}}}}}\n")

    def create(self):
        made = self.master.cli_json("e", "create", self.directory / "config.yaml", self.directory)
        return made["id"], self.master.trial_of(made["id"])["id"]

    def open(self, trial, run):
        (self.directory / f"{trial}.{run}").touch()


def times(row):
    return row["started"], row["running_since"], row["duration"]


def test_waits_pauses_and_a_master_that_is_away_do_not_count(tmp_path):
    with running_master(tmp_path / "master", slots=1) as master:
        gates = Gates(master, tmp_path / "code")
        first, first_trial = gates.create()
        master.wait_state(first, "RUNNING")
        second, trial = gates.create()
        waiting = master.wait(
            f"/api/v1/trials/{trial}/runs", lambda answer: len(answer["runs"]) == 1
        )["runs"][0]
        assert waiting["started"] is None and waiting["live"] and waiting["submitted"] > 0
        assert times(master.get(f"/api/v1/experiments/{second}")) == (None, None, None)
        assert times(master.get(f"/api/v1/trials/{trial}")) == (None, None, None)

        before = time.time()
        gates.open(first_trial, 1)
        master.wait_state(first, "COMPLETED")
        master.wait_state(second, "RUNNING")
        run = master.get(f"/api/v1/trials/{trial}/runs")["runs"][0]
        assert run["submitted"] < before <= run["started"] <= time.time()
        for path in (f"/api/v1/experiments/{second}", f"/api/v1/trials/{trial}"):
            row = master.get(path)
            assert row["started"] == row["running_since"] == run["started"]
            assert 0 <= row["duration"] <= time.time() - run["started"]
        assert "ran for" in master.cli("e", "show", second).stdout

        # A pause: what it ran stays as it is.
        master.post(f"/api/v1/experiments/{second}/pause")
        master.wait_state(second, "PAUSED")
        paused = master.get(f"/api/v1/experiments/{second}")
        assert paused["running_since"] is None and paused["duration"] == paused["ran"] > 0
        assert master.get(f"/api/v1/experiments/{second}")["duration"] == paused["duration"]

        # The master is away while the process ends: the launcher says when it did.
        master.post(f"/api/v1/experiments/{second}/activate")
        master.wait_state(second, "RUNNING")
        again = master.get(f"/api/v1/trials/{trial}/runs")["runs"][1]
        processes = master.processes(trial)
        master.kill()
        gates.open(trial, 2)
        while any(map(alive, processes)):
            time.sleep(0.05)
        ended = time.time()
        time.sleep(2)  # nothing is waited for: this is what must not count
        master.start()
        done = master.wait_state(second, "COMPLETED")
        assert done["started"] == run["started"]
        runs = master.get(f"/api/v1/trials/{trial}/runs")["runs"]
        assert runs[1]["started"] == again["started"] and runs[1]["ended"] < ended + 1
        ran = sum(one["ended"] - one["started"] for one in runs)
        assert abs(done["duration"] - ran) < 0.01 and done["running_since"] is None


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
