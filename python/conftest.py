"""What holds for tests and doctests alike.

Doctests run in a directory of their own: their examples name files as a reader would.
"""

import gc

import pytest

import cairn


@pytest.fixture(autouse=True)
def directory_of_an_example(request):
    if isinstance(request.node, pytest.DoctestItem):
        where = request.getfixturevalue("tmp_path")
        request.getfixturevalue("monkeypatch").chdir(where)


@pytest.fixture(autouse=True)
def no_tables_of_tests_before():
    """Whoever names no tables has all that live, also those that an error of the test before holds in a circle."""
    if cairn.tables():
        gc.collect()
