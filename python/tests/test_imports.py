"""The package beside others that bring their own copies of the same libraries.

`make test` tries those that are installed; `make test-integrations` has an environment with all of them, and names them in
CAIRN_BESIDE, so that one that is missing there is a failure.
"""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import run

MODEL = Path(__file__).resolve().parents[2] / "tests" / "compat" / "foreign" / "onnx_1" / "inline.onnx"
OTHERS = ("torch", "grpc", "paddle", "ray")
WANTED = os.environ.get("CAIRN_BESIDE", "").split()
THERE = [name for name in OTHERS if importlib.util.find_spec(name)]
# Checkpoints, then what brings gRPC and protobuf of ours: each does something.
USE = """
import numpy as np, tempfile
with cairn.CheckpointManager(tempfile.mkdtemp()) as m:
    m.save(1, {"w": np.ones(1000)}, blocking=True)
    assert m.restore().state["w"].sum() == 1000
import cairn.ps
directory = tempfile.mkdtemp()
server = cairn.ps.Server(directory, index=0, num_servers=1)
table = cairn.ps.Client(directory=directory, num_servers=1).table("t", 2, optimizer=cairn.optimizers.SGD(0.1))
table.assign([7], np.ones((1, 2)))
assert table.lookup([7]).tolist() == [[1.0, 1.0]]
server.stop()
saved = cairn.io.save_inference_model(tempfile.mkdtemp(), ["x"], ["y"], MODEL)
assert saved.nodes == 1
print("fine")
"""


def test_all_that_are_wanted_are_installed(record_property):
    missing = sorted(set(OTHERS) - set(THERE))
    record_property(
        "said at the end",
        f"imported beside cairn in any order: {', '.join(THERE) or 'nothing'}"
        + (f" (not installed here: {', '.join(missing)}; make test-integrations has them)" if missing else ""),
    )
    assert not set(WANTED) - set(THERE), f"install {sorted(set(WANTED) - set(THERE))} into {sys.prefix}"


@pytest.mark.parametrize("order", list(itertools.permutations([*THERE, "cairn"])), ids=" ".join)
def test_imports_in_any_order(order):
    code = "\n".join(f"import {name}" for name in order) + f"\nMODEL = {str(MODEL)!r}\n" + USE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["fine"]), done.stderr


def test_the_package_does_not_import_torch():
    assert run("print('torch' in sys.modules, 'ml_dtypes' in sys.modules)") == "False False\n"


def test_what_brings_other_libraries_is_loaded_when_it_is_used():
    program = "print('cairn._ps' in sys.modules, cairn.ps.Client.__name__, 'cairn._ps' in sys.modules)"
    assert run(program) == "False Client True\n"
