import pytest


@pytest.fixture
def directory(tmp_path):
    """A path that does not exist yet."""
    return tmp_path / "checkpoints"
