"""The blocks of code in the adapters' pages run, in order, as a reader would run them."""

import re
from pathlib import Path

import mlflow
import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["lightning.md", "huggingface.md", "mlflow_wandb.md"])
def test_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    blocks = re.findall(r"^```python\n(.*?)^```", (GUIDES / page).read_text(), re.M | re.S)
    assert blocks
    for _ in range(2):  # started again, it goes on
        names = {"__name__": "__main__"}
        for text in blocks:
            exec(compile(text, page, "exec"), names)
