"""Doctests run in a directory of their own: their examples name files as a reader would."""

import pytest


@pytest.fixture(autouse=True)
def directory_of_an_example(request):
    if isinstance(request.node, pytest.DoctestItem):
        where = request.getfixturevalue("tmp_path")
        request.getfixturevalue("monkeypatch").chdir(where)
