"""What the tests of Slurm and of Ray ask of a cluster alike: an experiment of a master, a tuner, a job with servers."""

import json
import os
import pathlib
import signal
import subprocess
import sys

from master_process import EXAMPLES, ROOT
from test_ps_run import CAIRN, TRAIN, undisturbed

PYTHON = str(ROOT / "python")
SHIM = str(pathlib.Path(os.environ.get("CAIRN_BIN_DIR", "build/dev/bin")).resolve() / "cairn-shim")
SCRIPT = "2_checkpoints"
WHOLE = [(step, step) for step in range(10, 101, 10)]
PATIENCE_SECONDS = 180


class Tutorial:
    """The tutorial's experiment as jobs of a cluster, for a master that runs."""

    def __init__(self, master, launcher):
        self.master = master
        self.launcher = launcher

    def create(self, *flags, seconds="0.02", restarts=0, **resources):
        """Its id and its trial's."""
        words = [f"resources.launcher={self.launcher}", f"entrypoint=python3 {SCRIPT}.py {seconds}", f"max_restarts={restarts}"]
        words += [f"resources.{key}={value}" for key, value in resources.items()]
        config = [word for pair in words for word in ("--config", pair)]
        experiment = self.master.cli_json("e", "create", EXAMPLES / f"{SCRIPT}.yaml", EXAMPLES, *config, *flags)["id"]
        page = self.master.wait(f"/api/v1/experiments/{experiment}/trials", lambda answer: answer["total"] == 1)
        return experiment, page["trials"][0]["id"]

    def refused(self, setting):
        """What is said of a config with this setting."""
        config = ["--config", f"resources.launcher={self.launcher}", "--config", setting]
        done = self.master.cli("e", "create", EXAMPLES / f"{SCRIPT}.yaml", EXAMPLES, *config, check=False)
        assert done.returncode != 0
        return done.stderr + done.stdout

    def until_reported(self, trial, count):
        self.master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: len(answer["metrics"]) >= count)

    def ended(self, experiment, state="COMPLETED"):
        waited = self.master.cli("e", "wait", experiment, "--or-paused", check=False)
        assert waited.stdout.split() == [experiment, state]

    def completed(self, experiment, trial):
        self.ended(experiment)
        assert self.master.reports(trial) == WHOLE, "nothing is lost, nothing is doubled"

    def resume_modes(self, trial):
        return [run["resume_mode"] for run in self.master.get(f"/api/v1/trials/{trial}/runs")["runs"]]

    def queued(self, trial, reason):
        """Its entry in the cluster's queue, once that says why."""

        def found(answer):
            return [entry for entry in answer["queue"] if entry["trial"] == trial and reason in entry.get("reason", "")]

        [entry] = found(self.master.wait("/api/v1/cluster", found))
        assert entry["launcher"] == self.launcher and entry["state"] in ("QUEUED", "STARTING")
        return entry

    def pauses_and_goes_on(self, cluster, experiment, trial):
        self.master.cli("e", "pause", experiment)
        self.ended(experiment, "PAUSED")
        cluster.until("no job is left", lambda: not cluster.jobs())
        before = self.master.reports(trial)
        assert before == WHOLE[: len(before)] and 3 <= len(before) < 10
        self.master.cli("e", "activate", experiment)
        self.completed(experiment, trial)
        assert "100 steps, x = 100" in self.master.cli("e", "logs", experiment).stdout

    def environment_of(self, trial):
        """Of its only process."""
        (process,) = self.master.processes(trial)
        return pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")


TUNING = """
import json, os, sys, time
from cairn import tune

where, seconds, run_config = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])

def train(config):
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    with open(os.path.join(where, "starts"), "a") as file:
        job = os.environ.get("SLURM_JOB_ID") or os.environ["CAIRN_LAUNCH_KEY"]
        if "SLURM_ARRAY_JOB_ID" in os.environ:  # as scancel knows it
            job = os.environ["SLURM_ARRAY_JOB_ID"] + "_" + os.environ["SLURM_ARRAY_TASK_ID"]
        file.write(f"{config['x']} {step} {job}\\n")
    while step < 12:
        time.sleep(seconds)
        step += 1
        tune.report({"score": step * config["x"]}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

tuner = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1, 2, 3])},
    tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=3),
    run_config=tune.RunConfig(name="e", storage_path=where, verbose=0, **run_config),
)
for result in tuner.fit():
    print("ended", result.config["x"], result.metrics["score"], len(result.metrics_dataframe))
"""


class Tuning:
    """A tuner of three trials as jobs of a cluster. The same command again goes on."""

    def __init__(self, directory, seconds, run_config, **variables):
        self.directory = directory
        self._command = [sys.executable, str(directory / "experiment.py"), str(directory), str(seconds), json.dumps(run_config)]
        self._variables = variables

    def begin(self):
        (self.directory / "experiment.py").write_text(TUNING)
        return subprocess.Popen(
            self._command,
            env={**os.environ, "PYTHONPATH": PYTHON, "CAIRN_SHIM": SHIM, **self._variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def starts(self, x=None):
        """(x, first step, job) of each start of a trial."""
        path = self.directory / "starts"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(at), int(step), job) for at, step, job in lines if x in (None, int(at))]

    def is_found_again(self, cluster):
        """The tuner is killed, its jobs go on, and the next tuner takes them over."""
        process = self.begin()
        cluster.until("all trials run", lambda: len(self.starts()) == 3)
        jobs = sorted(job for _, _, job in self.starts())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(cluster.jobs()) == 3, "they go on without it"
        self.ended(self.begin())
        assert sorted(job for _, _, job in self.starts()) == jobs, "none was started again"
        cluster.until("no job is left", lambda: not cluster.jobs())

    def goes_on_from_a_checkpoint(self, cluster, end_job):
        """`end_job` ends the job of the second trial."""
        process = self.begin()
        cluster.until("it has saved", lambda: any(self.directory.glob("e/train_00001/checkpoint_*")))
        end_job()
        self.ended(process)
        (_, first, job), (_, second, other) = self.starts(x=2)
        assert first == 0 < second and job != other
        cluster.until("no job is left", lambda: not cluster.jobs())

    @staticmethod
    def ended(process):
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, out + err
        lines = sorted(line for line in out.splitlines() if line.startswith("ended"))
        assert lines == [f"ended {x} {12 * x} 12" for x in (1, 2, 3)], "every result, each once"


class ServerJob:
    """`cairn ps run` with its processes on a cluster; what they say is read line by line."""

    def __init__(self, launcher, directory, command, *flags, **variables):
        self.repository = directory / "repository"
        words = [CAIRN, "ps", "run", "--launcher", launcher, "--servers", "2", "--trainers", "2"]
        words += ["--dir", self.repository, "--full-secs", "0", *flags, "--", *command]
        self.process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, "PYTHONPATH": PYTHON, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def until(self, wanted):
        """Reads on until a line says so."""
        for line in self.process.stdout:
            self.said += line
            if wanted(line):
                return line
        raise AssertionError(self.said)

    def until_step(self, number):
        def reached(line):
            words = line.split()
            return words[:2] == ["[trainer_0]", "step"] and int(words[2]) >= number

        self.until(reached)

    def end(self):
        self.said += self.process.communicate(timeout=PATIENCE_SECONDS)[0]
        return self.process.returncode


def server_training(directory, steps):
    """The command of test_ps_run's trainers, and where they write what they learned."""
    script = directory / "train.py"
    script.write_text(TRAIN)
    return [sys.executable, script, steps, directory / "rows.json"], directory / "rows.json"


def servers_survive(cluster, launcher, directory, flags, end_server, **variables):
    """A job of which one server's job is ended, and which is then killed itself and started again: what it learns is what an
    undisturbed one does. `end_server(job)` ends the job of server 1."""
    for name in "ab":
        (directory / name).mkdir()
    expected = undisturbed(directory / "a", 60)
    flags = ["--full-steps", "20", "--incremental-steps", "5", *flags]
    command, output = server_training(directory / "b", 60)
    job = ServerJob(launcher, directory / "b", command, *flags, WAITS_AT="18", **variables)
    job.until_step(17)
    end_server(job)
    job.until(lambda line: line.startswith("[ps_1] lost: "))
    pathlib.Path(f"{output}.go").touch()
    job.until_step(25)
    # Then the whole of it: its processes do not outlive it.
    job.process.kill()
    job.process.communicate()
    cluster.until("no job is left", lambda: not cluster.jobs())
    again = ServerJob(launcher, directory / "b", command, *flags, **variables)
    assert again.end() == 0, again.said
    begun = int(again.said.split("[trainer_0] begin ")[1].split()[0])
    assert begun >= 20, "from a checkpoint"
    assert json.loads(output.read_text()) == expected
    cluster.until("no job is left", lambda: not cluster.jobs())
