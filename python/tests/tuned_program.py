"""The program whose tuner and trials are killed in tests, and what is asked of it."""

import os
import subprocess
import sys
import time

from cairn import tune
from cairn.tune.result import read_reports

# Of each case; `make torture` has more, with other seeds.
KILLS = int(os.environ.get("CAIRN_TUNE_KILLS", "1"))

# What the killed programs run: deterministic, with checkpoints at every second iteration.
PROGRAM = '''
import os, sys, time
from cairn import tune

def told():
    """A report was answered: it is on record."""
    if "TOLD" in os.environ:
        with open(os.environ["TOLD"], "a") as file:
            file.write("report\\n")

def pass_gate(iteration):
    """From the fifth iteration on a trial waits for the file that GATE names, if it names one."""
    while iteration >= 4 and "GATE" in os.environ and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.01)

def train(config):
    checkpoint = tune.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"i": 0, "x": 0.0}
    pace = float(os.environ.get("PACE", "0.01"))
    while state["i"] < 12:
        pass_gate(state["i"])
        time.sleep(pace)
        state["i"] += 1
        state["x"] = state["x"] * 0.5 + config["lr"] * state["i"]
        saved = tune.Checkpoint.from_dict(state) if state["i"] % 2 == 0 else None
        tune.report({"x": state["x"], "i": state["i"]}, checkpoint=saved)
        told()

class Klass(tune.Trainable):
    def setup(self, config):
        self.x, self.i = 0.0, 0
    def step(self):
        if self.i > 0:
            told()
        pass_gate(self.i)
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


def write_program(directory):
    path = directory / "tuned_program.py"
    path.write_text(PROGRAM)
    return str(path)


def start(program, directory, which="train", pace="0.01", told=None, gate=None):
    """Args:
    told: a file that gets a line for each report that is on record.
    gate: a file that the trials wait for after four iterations.
    """
    env = {**os.environ, "PACE": pace}
    if told is not None:
        env["TOLD"] = str(told)
    if gate is not None:
        env["GATE"] = str(gate)
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
    """As is promised of what is below a tuner that died. The time is counted in looks of 20 ms: while the machine stands
    still, or has others to serve, it passes for nobody."""
    for _ in range(round(seconds / 0.02)):
        if not any(alive(p) for p in pids):
            return
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


def wait_for(condition, seconds=120):
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
