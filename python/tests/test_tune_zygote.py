"""The process that workers are forked from, and what a tuner that is killed leaves behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from tuned_program import assert_gone, children_of

from cairn import tune

# Importing it takes as long as `hold` is there, but for the tuner.
SLOW = """
import os, time
if os.environ.get("TUNER") != str(os.getpid()):
    open("importing", "w").close()
    while os.path.exists("hold"):
        time.sleep(0.01)

def f(config):
    return {"x": 1}
"""

PROGRAM = """
import os, sys
os.environ["TUNER"] = str(os.getpid())
sys.path.insert(0, os.getcwd())
import slow
from cairn import tune
tune.Tuner(slow.f, run_config=tune.RunConfig(storage_path="store", name="e", verbose=0)).fit()
"""


def wait_for(found, seconds=60.0):
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def importing(tmp_path):
    """A tuner whose zygote is busy importing the trainable."""
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    (tmp_path / "hold").touch()
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env)
    wait_for((tmp_path / "importing").exists)
    yield process
    (tmp_path / "hold").unlink()
    process.kill()
    process.wait()


def test_it_ends_with_its_tuner_also_while_it_imports(importing):
    below = children_of(importing.pid)
    assert below
    importing.kill()
    importing.wait()
    assert_gone(below)


def test_it_goes_on_when_it_has_imported(importing, tmp_path):
    (tmp_path / "hold").unlink()
    assert importing.wait(60) == 0
    (tmp_path / "hold").touch()
    assert tune.Result.from_path(str(tmp_path / "store" / "e" / "f_00000")).metrics["x"] == 1


def test_sockets_of_the_dead_are_removed_by_the_next(importing, tmp_path):
    below = children_of(importing.pid)
    for pid in [*below, importing.pid]:  # nobody is left who could clear up
        os.kill(pid, signal.SIGKILL)
    importing.wait()
    [left] = os.listdir(tmp_path / "tmp")
    os.utime(tmp_path / "tmp" / left, (0, 0))  # as after a while
    (tmp_path / "hold").unlink()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, check=True, timeout=120)
    (tmp_path / "hold").touch()
    assert os.listdir(tmp_path / "tmp") == []
