"""The package beside others that bring their own copies of the same libraries."""

import importlib.util
import itertools

import pytest
from children import run

BESIDE = [name for name in ("torch", "grpc", "paddle", "ray") if importlib.util.find_spec(name)]
USE = """
import numpy as np, tempfile
with cairn.CheckpointManager(tempfile.mkdtemp()) as m:
    m.save(1, {"w": np.ones(1000)}, blocking=True)
    assert m.restore().state["w"].sum() == 1000
print("fine")
"""


@pytest.mark.parametrize("order", list(itertools.permutations([*BESIDE, "cairn"])), ids=" ".join)
def test_imports_in_any_order(order):
    code = "\n".join(f"import {name}" for name in order)
    # The preamble of a child imports cairn first; here the order is what counts.
    program = (
        f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {code + USE!r}],"
        " capture_output=True, text=True))"
    )
    assert "stdout='fine\\n'" in run(program)


def test_the_package_does_not_import_torch():
    assert run("print('torch' in sys.modules, 'ml_dtypes' in sys.modules)") == "False False\n"


def test_what_brings_other_libraries_is_loaded_when_it_is_used():
    program = "print('cairn._ps' in sys.modules, cairn.ps.Client.__name__, 'cairn._ps' in sys.modules)"
    assert run(program) == "False Client True\n"
