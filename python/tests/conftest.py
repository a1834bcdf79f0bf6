"""Fixtures of the tests of the Python package."""

import numpy as np
import pytest

import cairn


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
