"""Fixtures of the tests of the Python package."""

import signal

import numpy as np
import pytest

import cairn

# Shells start what runs in the background with SIGINT ignored, and programs keep it that way; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
