"""Fixtures of the tests of the Python package."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import cairn

# Shells start what runs in the background with SIGINT ignored, and programs keep it that way; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "fresh_process: forks, so that no other test may come before")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A process that used torch's autograd can fork no more processes that do: tests that fork get an
    interpreter of their own, whatever ran in this one before."""
    if pyfuncitem.get_closest_marker("fresh_process") is None or "CAIRN_FRESH" in os.environ:
        return None
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # A directory of its own: pytest closes the one that all of its runs share to other users, and
    # PostgreSQL, as one of them, may be working below it.
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"]
        # When it hangs, it says where before this process is ended for the same reason.
        with contextlib.suppress(ValueError):
            limit = float(os.environ.get("PYTEST_TIMEOUT") or pyfuncitem.config.getini("timeout"))
            command += [f"--timeout={0.9 * limit:g}"]
        command += [f"--basetemp={directory}/tests", pyfuncitem.nodeid]
        done = subprocess.run(
            command,
            cwd=pyfuncitem.config.rootpath,
            env={**environment, "CAIRN_FRESH": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return True


def pytest_terminal_summary(terminalreporter):
    """What tests want to be known though they passed: record_property("said at the end", text)."""
    for text in sorted(
        {
            text
            for reports in terminalreporter.stats.values()
            for report in reports
            for name, text in getattr(report, "user_properties", ())
            if name == "said at the end"
        }
    ):
        terminalreporter.write_line(text)


@pytest.fixture
def directory(tmp_path):
    """A path for a repository that does not exist yet."""
    return str(tmp_path / "run")


@pytest.fixture
def round_trip(directory):
    """Saves a state and brings it back in new memory, as a new process would."""

    def go(state):
        with cairn.CheckpointManager(directory) as m:
            m.save(0, state, blocking=True)
        with cairn.CheckpointManager(directory, read_only=True) as m:
            return m.restore().state

    return go


@pytest.fixture
def rng():
    return np.random.default_rng(20240607)


@pytest.fixture
def gated_bucket(tmp_path, monkeypatch):
    """A real S3 server behind a gate: (the gate, a client that goes past it). s3://copies is empty."""
    import boto3
    import s3_server
    from gate import Gate

    server = s3_server.Server(tmp_path)
    gate = Gate(server.port)
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
    client = boto3.client("s3", endpoint_url=server.url)
    client.create_bucket(Bucket="copies")
    yield gate, client
    gate.close()
    server.stop()
