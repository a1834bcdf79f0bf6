"""CONTRIBUTING.md names programs, tests, targets and files that are there."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from children import command_line

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BUILD = Path(command_line()).parents[1]
# What stands for <name>, by the words around it.
NAMES = {"store": "s3", "optimizer": "adagrad", "table": "adagrad", "fuzz": "manifest"}


def filled(text):
    """With a name that there is in the place of <name>."""
    if "<name>" not in text:
        return text
    return text.replace("<name>", next(name for word, name in NAMES.items() if word in text))


def commands():
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S):
        for line in block.splitlines():
            for command in filled(line).split("&&"):
                yield shlex.split(command, comments=True)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_names_what_is_there(words):
    while re.match(r"[A-Z_]+=", words[0]):  # for this command alone
        words = words[1:]
    program = words[0]
    if program == "ctest" and "-R" in words:
        listed = subprocess.run(
            ["ctest", "--test-dir", str(BUILD), "-N", "-R", words[words.index("-R") + 1]],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        assert "Total Tests: 0" not in listed, listed
    elif program == "cmake" and "--target" in words:
        target = words[words.index("--target") + 1]
        subprocess.run(["ninja", "-C", str(BUILD), "-n", target], check=True, capture_output=True, timeout=60)
    elif program == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M)
    elif program.startswith("build/dev/"):
        found = BUILD / Path(program).relative_to("build/dev")
        assert found.is_file()
        if len(words) > 1 and words[1].startswith("--gtest_filter"):
            cases = subprocess.run([found, words[1], "--gtest_list_tests"], capture_output=True, text=True, check=True)
            assert "  " in cases.stdout, f"{words[1]} chooses nothing"
    elif "/" in program:
        if not program.startswith("build/"):  # of another preset
            assert (ROOT / program).is_file()
        for word in words[1:]:
            if re.fullmatch(r"[\w/]+\.py|fuzz/corpus/\w+", word):
                assert (ROOT / word).exists()
    else:
        assert program in ("cmake", "ctest"), words


def test_the_commands_of_make_are_there():
    named = re.findall(r"^\| `make ([a-z-]+)", PAGE, re.M)
    assert len(named) >= 7
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_the_files_it_names_are_there():
    named = {filled(name) for name in re.findall(r"`((?:src|python|scripts|include|fuzz|tests|cmake|docs)/[^`\s]*)`", PAGE)}
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
