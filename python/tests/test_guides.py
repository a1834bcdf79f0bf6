"""Every block of code in these pages runs, in order, as a reader would run it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAGES = [
    "core_api.md",
    "distributed_checkpoint.md",
    "from_torch_save.md",
    "import.md",
    "inference.md",
    "incremental_checkpoints.md",
    "parameter_servers.md",
    "save_load.md",
    "searching.md",
    "tables.md",
]
GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def run_page(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```", (GUIDES / name).read_text(), re.M | re.S)
    assert blocks
    names = {"__name__": "__main__"}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, name, "exec"), names)
            continue
        for line in text.splitlines():
            words = shlex.split(line)
            assert words[:3] == ["python", "-m", "cairn"], line
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=120, env=os.environ)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page, tmp_path, monkeypatch):
    torch.save({"model": {"w": torch.ones(3)}, "epoch": 3}, tmp_path / "model.pt")
    run_page(page, tmp_path, monkeypatch)
