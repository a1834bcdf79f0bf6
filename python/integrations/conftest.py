import multiprocessing
import os
import signal
from pathlib import Path

import pytest

# Importing these libraries takes seconds: processes are forked from one that has them, and which does
# not see what pytest adds to sys.path.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["lightning_run", "huggingface_run"])


@pytest.fixture
def directory(tmp_path):
    """A path that does not exist yet."""
    return tmp_path / "checkpoints"


@pytest.fixture
def in_process():
    """in_process(function, *arguments) runs it in a process of its own; gives True when it was killed
    with SIGKILL, False when it ended well."""

    def run(function, *arguments):
        process = _forks.Process(target=function, args=arguments)
        process.start()
        process.join(timeout=300)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError("the process did not end")
        assert process.exitcode in (0, -signal.SIGKILL)  # its error is on stderr
        return process.exitcode != 0

    return run
