"""The example of incremental training, which checks itself."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from children import command_line, run

import cairn

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


@pytest.fixture
def data(tmp_path):
    make = [sys.executable, "examples/data/make_ctr_days.py", str(tmp_path / "data")]
    subprocess.run(make, cwd=ROOT, check=True)
    return str(tmp_path / "data")


def test_the_days_of_the_example(tmp_path, data):
    models = str(tmp_path / "models")
    command = [sys.executable, "examples/python/ctr_days.py", data, models]
    environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(cairn.__file__)))
    out = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert "bit for bit the unbroken training" in out
    both, alone = map(float, re.search(r"both days ([\d.]+), day 2 alone ([\d.]+)", out).groups())
    assert both > alone > 0.5
    assert "changed head: head/w: stored F32 [16,1], wanted F32 [16,3]" in out
    starts = re.findall(r"AUC ([\d.]+), without them ([\d.]+)", out)
    assert len(starts) == 2 and all(float(warm) > float(cold) for warm, cold in starts)


DAY = """
sys.path.insert(0, sys.argv[1])
import ctr_days, zlib
data, models, days = sys.argv[2:5]
program = ctr_days.Program()
program.scope.initialize(seed=7)
if os.path.isdir(models):
    cairn.io.load_persistables(models, program.scope)
program.train(data, map(int, days.split(",")))
cairn.io.save_persistables(models, program.scope)
names = [v.name for v in program.scope.vars("persistable")]
print({name: zlib.crc32(program.scope[name].tobytes()) for name in names})
"""


def test_each_day_is_a_process_of_its_own(tmp_path, data):
    where = os.path.join(ROOT, "examples", "python")
    unbroken = run(DAY, where, data, tmp_path / "unbroken", "1,2,3")
    days = [run(DAY, where, data, tmp_path / "daily", number) for number in (1, 2, 3)]
    assert days[2] == unbroken and days[1] != unbroken


def test_python_goes_on_with_what_c_plus_plus_saved(tmp_path, data, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "examples", "python"))
    import ctr_days

    program = pathlib.Path(command_line()).with_name("ctr_days")
    said = subprocess.run(
        [program, data, tmp_path / "models"], check=True, capture_output=True, text=True
    ).stdout
    both = float(re.search(r"both days ([\d.]+)", said).group(1))
    ours = ctr_days.Program()
    ours.scope.initialize(seed=7)
    loaded = cairn.io.load_persistables(tmp_path / "models" / "day_1", ours.scope)
    assert len(loaded.names) == 8 and int(ours.scope["step"]) == 63
    np.testing.assert_allclose(ours.train(data, [2]).auc(data, 3), both, atol=5e-4)
