"""bench/run.py: what was not measured is not passed over."""

import subprocess
import sys

from example_runs import ROOT


def test_what_the_program_cannot_measure_is_an_error_that_names_it(tmp_path):
    program = tmp_path / "bin" / "cairn_bench"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 2\n")  # as one that was built without what it needs
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "bench/run.py", tmp_path, "--only", "prune,predict", "--quick", "--directory", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "left out: prune, predict (libonnx or OpenVINO was not there at the build" in done.stderr
    assert "scripts/venv test" in done.stderr
