"""The programs of examples/python, run as a user runs them: with any interpreter that has the package."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
TIMEOUT = 300


def start(name, *args, python=sys.executable, environment=None):
    if environment is None:
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    return subprocess.Popen(
        [str(python), "-u", str(EXAMPLES / name), *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Torch's threads spin while they wait for each other: beside other tests that takes minutes.
        env={**environment, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def end(process):
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out + err
    return out


def kill_after(process, line):
    """Kills it (SIGKILL) when it has printed the line; gives all it printed."""
    said = ""
    while line not in said:
        more = process.stdout.readline()
        assert more, f"it ended and never said {line!r}:\n{said}{process.stderr.read()}"
        said += more
    process.kill()
    return said + process.communicate(timeout=TIMEOUT)[0]


def losses(said):
    """What it printed for each step: {"epoch 3 step  64": "0.123456"}."""
    return dict(re.findall(r"^(.*step +\d+) loss (\S+)$", said, re.M))


def quickstart_killed_and_started_again(directory, **how):
    """Also checks that what was printed is what an undisturbed run prints, digit by digit."""
    calm = losses(end(start("quickstart.py", directory / "calm", **how)))
    assert len(calm) == 40
    # It saves three times in an epoch, while it trains.
    killed = kill_after(start("quickstart.py", directory / "killed", **how), "epoch 6 step   0")
    assert "steps in all" not in killed
    said = end(start("quickstart.py", directory / "killed", **how))
    total, now = map(int, re.search(r"(\d+) steps in all, (\d+) of them now", said).groups())
    assert total == 1280 and 0 < now < total, said
    assert {**losses(killed), **losses(said)} == calm
    assert all(calm[step] == loss for step, loss in losses(killed).items())
