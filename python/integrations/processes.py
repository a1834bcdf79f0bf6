"""Processes of their own for trainings that are killed."""

import multiprocessing
import os
import signal
from pathlib import Path

# Importing these libraries takes seconds: processes are forked from one that has them, and which
# does not see what pytest adds to sys.path.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["lightning_run", "huggingface_run"])


def run_in_process(function, *arguments):
    """Runs a function; True when its process was killed with SIGKILL, False when it ended well."""
    process = _forks.Process(target=function, args=arguments)
    process.start()
    process.join(timeout=300)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("the process did not end")
    assert process.exitcode in (0, -signal.SIGKILL)  # its error is on stderr
    return process.exitcode != 0
