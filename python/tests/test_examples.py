"""The programs that the guides name: run, killed, run again."""

import re

from example_runs import end, kill_after, losses, quickstart_killed_and_started_again, start

import cairn


def test_the_quickstart_goes_on_after_a_kill(tmp_path):
    quickstart_killed_and_started_again(tmp_path)


def test_a_loop_of_ones_own_goes_on_after_a_kill(tmp_path):
    said = end(start("numpy_loop.py", tmp_path / "calm"))
    calm = losses(said)
    assert said.startswith("a fresh start\n") and len(calm) == 20
    # A save waits for the one before: when step 200 is said, that of step 100 is there.
    killed = kill_after(start("numpy_loop.py", tmp_path / "killed"), "step  200")
    with cairn.CheckpointManager(tmp_path / "killed", read_only=True) as reader:
        step = reader.latest().step
    assert step >= 100
    said = end(start("numpy_loop.py", tmp_path / "killed"))
    assert said.startswith(f"going on after step {step}\n")
    assert {**losses(killed), **losses(said)} == calm
    assert end(start("numpy_loop.py", tmp_path / "calm")) == "going on after step 2000\n"


def test_serving_follows_a_training_that_is_killed(tmp_path):
    said = end(start("serving.py", "--seconds", 6, "--directory", tmp_path))
    assert "the trainer is killed, and started again" in said
    table = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+)$", said, re.M)
    assert [int(row[0]) for row in table] == list(range(6)), said
    killed, after = map(int, re.search(r"served step (\d+) when it was killed, step (\d+) at the end", said).groups())
    assert 0 <= killed < after, said
    assert said.endswith("0 updates refused\n"), said
