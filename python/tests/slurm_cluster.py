"""A real Slurm for tests: a controller and two nodes on the loopback (tests/services/slurm)."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAM = pathlib.Path(__file__).parents[2] / "tests/services/slurm/one-machine-slurm"
PATIENCE_SECONDS = 90


class Slurm:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.conf = self.directory / "slurm.conf"

    def run(self, *words, check=True, **more):
        finished = subprocess.run(
            [str(word) for word in words],
            text=True,
            env={**os.environ, "SLURM_CONF": str(self.conf)},
            timeout=PATIENCE_SECONDS,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )
        assert not check or finished.returncode == 0, f"{words}: {finished.stdout}{finished.stderr}"
        return finished.stdout

    def submit(self, *flags, script):
        """The id of a new job."""
        return self.run("sbatch", "--parsable", *flags, input=script).strip()

    def jobs(self, *flags):
        return self.run("squeue", "-h", "-r", "-o", "%i", *flags).split()

    def state(self, job):
        return self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job).strip()

    def until(self, what, predicate, patience=PATIENCE_SECONDS):
        deadline = time.monotonic() + patience
        while not (answer := predicate()):
            assert time.monotonic() < deadline, f"in vain: {what}\n" + self.run("squeue", "-t", "all")
            time.sleep(0.05)  # it tells when it is asked
        return answer

    def until_idle(self):
        self.until("the nodes are idle", lambda: self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split() == ["idle"] * 2)

    def kill(self, daemon):
        """slurmctld, slurmd.n1, slurmd.n2 or slurmrestd."""
        pid = int((self.directory / f"{daemon}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        self.until(f"{daemon} is gone", lambda: not pathlib.Path(f"/proc/{pid}").exists())

    def until_saved(self):
        """Until the controller has written down the jobs that are there. One that forgot a job would give its number to another,
        and Slurm would close the node over that."""
        before = time.time_ns()
        for job in self.jobs():
            self.run("scontrol", "update", f"JobId={job}", "Comment=saved", check=False)
        state = self.directory / "state/job_state"
        self.until("the controller has saved its state", lambda: state.exists() and state.stat().st_mtime_ns > before)

    def start(self, daemon):
        subprocess.run([self.directory / "start", daemon], check=True)


@contextlib.contextmanager
def running_slurm():
    # A short name: munge's socket lies there.
    directory = tempfile.mkdtemp(prefix="cairn-slurm-", dir="/tmp")
    process = subprocess.Popen(
        ["/usr/bin/python3", PROGRAM, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = process.stdout.readline()
        assert said == "READY\n", "there is no Slurm to test with: " + said + process.stdout.read()
        yield Slurm(directory)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
        shutil.rmtree(directory, ignore_errors=True)
