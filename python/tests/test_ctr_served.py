"""The click-through example that is served while it trains, with both sides killed."""

import os
import pathlib
import re
import subprocess
import sys

import cairn

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 9


def test_the_example_serves_while_it_trains(tmp_path):
    command = [sys.executable, "examples/ctr/serve.py", "--seconds", str(SECONDS), "--directory", str(tmp_path)]
    environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(cairn.__file__).parents[1]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    for killed in ("training", "server"):
        assert f"the {killed} is killed, and started again" in done.stdout
    assert "answers made of two versions: 0" in done.stdout
    versions, last, answers = map(int, re.search(r"(\d+) versions up to step (\d+) in (\d+)", done.stdout).groups())
    steps = [int(line.split()[1]) for line in done.stdout.splitlines() if re.match(r" +\d+ +\d+ ", line)]
    killed_at = steps[SECONDS // 3]
    assert versions >= 4 and answers > 100 and last > killed_at, done.stdout + logs
    first, end = map(float, re.search(r"first ([\d.]+), last ([\d.]+)", done.stdout).groups())
    assert end > first, done.stdout
