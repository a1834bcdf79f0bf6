"""The example of incremental training, which checks itself."""

import os
import re
import subprocess
import sys

import cairn

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


def test_the_days_of_the_example(tmp_path):
    data, models = str(tmp_path / "data"), str(tmp_path / "models")
    make = [sys.executable, "examples/data/make_ctr_days.py", data]
    subprocess.run(make, cwd=ROOT, check=True)
    command = [sys.executable, "examples/python/ctr_days.py", data, models]
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(cairn.__file__)))
    out = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert "bit for bit the unbroken training" in out
    both, alone = map(float, re.search(r"both days ([\d.]+), day 2 alone ([\d.]+)", out).groups())
    assert both > alone > 0.5
    assert "changed head: head/w: stored F32 [16,1], wanted F32 [16,3]" in out
