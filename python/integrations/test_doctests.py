"""The examples of the adapters, which `make test` passes over: their libraries are not in its environment."""

import doctest
import importlib

import pytest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["huggingface", "lightning", "mlflow", "wandb"])
def test_the_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)  # which lets transformers print a line about it
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    module = importlib.import_module(f"cairn.integrations.{name}")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        (tmp_path / test.name).mkdir()
        monkeypatch.chdir(tmp_path / test.name)
        runner.run(test)
    assert runner.tries and not runner.failures
