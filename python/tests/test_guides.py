"""Every block of code in these pages runs, in order, as a reader would run it."""

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from children import command_line

PAGES = [
    "checkpoint_manager.md",
    "coming_from.md",
    "core_api.md",
    "distributed_checkpoint.md",
    # It forks processes that train.
    pytest.param("exact_resume.md", marks=pytest.mark.fresh_process),
    "from_torch_save.md",
    "import.md",
    "inference.md",
    "incremental_checkpoints.md",
    "parameter_servers.md",
    "quickstart.md",
    "save_load.md",
    "searching.md",
    "serving.md",
    "tables.md",
    "tuning.md",
    "../../README.md",
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
            words = shlex.split(line, comments=True)
            if words[:1] == ["cairn"]:
                command = [command_line(), *words[1:]]
            else:
                assert words[:3] == ["python", "-m", "cairn"], line
                command = [sys.executable, *words[1:]]
            subprocess.run(command, check=True, timeout=120, env=os.environ)
    return names


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page, tmp_path, monkeypatch):
    torch.set_num_threads(1)  # several spin while they wait for each other, beside other tests for minutes
    torch.save({"model": {"w": torch.ones(3)}, "epoch": 3}, tmp_path / "model.pt")
    run_page(page, tmp_path, monkeypatch)


def test_what_one_writes_instead_is_there(tmp_path, monkeypatch):
    """coming_from.md: the right columns name calls, their arguments, commands and flags that exist."""
    names = run_page("coming_from.md", tmp_path, monkeypatch)
    names["client"] = names["program"] = None
    names["estimator"] = names["cairn"].train.Estimator
    rows = re.findall(r"^\| .* \| (.*) \|$", (GUIDES / "coming_from.md").read_text(), re.M)
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row)]
    checked = [span for span in spans if check_command(span) or check_call(span, names)]
    assert len(checked) > 90, checked


def check_command(span):
    words = span.split()
    if words[0] != "cairn":
        return False
    flags = [word for word in words if word.startswith("--")]
    command = words[1 : words.index(flags[0])] if flags else words[1:]
    told = subprocess.run(
        [command_line(), *command, "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert [flag for flag in flags if flag not in told] == [], span
    return True


def check_call(span, names):
    """Resolves a.b.c, and binds the arguments of a.b.c(x, y=…)."""
    if span.startswith("from cairn"):
        exec(span, {})
        return True
    if not re.match(r"(cairn|tune|air|ctx|scope|sess|table|estimator)\.", span):
        return False
    call = ast.parse(re.sub(r"…|(?<==)(?=[,)])", "...", span), mode="eval").body
    resolve = call.func if isinstance(call, ast.Call) else call
    found = eval(compile(ast.Expression(resolve), span, "eval"), names)
    if isinstance(call, ast.Call):
        arguments = [ast.unparse(one) for one in call.args]
        owner = inspect.isfunction(found) and isinstance(eval(span.split(".")[0], names), type)
        inspect.signature(found).bind(
            *([None] if owner else []), *arguments, **{word.arg: None for word in call.keywords}
        )
    return True
