"""Killed wherever it may be, a training ends as the undisturbed one, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo  # noqa: F401  optimizers import it: once here, not in every process

import cairn
import cairn.testing
import cairn.torch

KILLS = int(os.environ.get("CAIRN_TORCH_KILLS", "12"))


class Accumulating:
    """A training with all that makes resuming hard: dropout, Adam, a learning-rate schedule,
    shuffled data, gradients gathered over two batches."""

    def __init__(self):
        torch.manual_seed(11)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.05, total_steps=100
        )
        self.data = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
        self.progress = {"batches": 0}

    def step(self, model, batch):
        loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        (loss / 2).backward()
        self.progress["batches"] += 1
        if self.progress["batches"] % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.schedule.step()
        return {"loss": loss.item(), "lr": self.schedule.get_last_lr()[0]}


def make_torch(directory):
    training = Accumulating()
    loader = cairn.torch.Loader(training.data, batch_size=4, seed=7)
    trainer = cairn.Trainer(
        training.model,
        training.step,
        optimizer=training.optimizer,
        checkpoint_config=cairn.CheckpointConfig(directory, step_interval=3),
        state={
            "schedule": training.schedule,
            "progress": training.progress,
            "gradients": cairn.torch.Gradients(training.model),
        },
    )
    return trainer, 3, loader


def make_torch_with_a_plain_loader(directory):
    trainer, epochs, _ = make_torch(directory)
    data = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
    return trainer, epochs, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)


@pytest.mark.fresh_process
def test_torch_with_a_loader_that_seeks():
    report = cairn.testing.check_resume(make_torch, kills=KILLS, seed=1)
    assert report.kills == KILLS and report.repeated > 0


@pytest.mark.fresh_process
def test_torch_with_a_plain_shuffling_loader():
    report = cairn.testing.check_resume(make_torch_with_a_plain_loader, kills=KILLS, seed=2)
    assert report.kills == KILLS


@pytest.mark.fresh_process
def test_each_protocol_step_is_hit_once():
    points = cairn.testing.kill_points(make_torch)
    first = {}
    for point in points:
        first.setdefault(point.step, point)
    steps = set(first)
    assert {"open: fence", "open: seal", "save: write", "save: manifest", "acknowledge"} <= steps
    assert {"remove: note", "remove: manifest", "remove: files"} <= steps
    report = cairn.testing.check_resume(make_torch, points=list(first.values()))
    assert set(report.steps_hit) == steps


@pytest.mark.fresh_process
def test_a_training_that_does_not_save_its_randomness_is_found_out():
    def make(directory):
        trainer, epochs, loader = make_torch(directory)
        trainer._rng = False
        return trainer, epochs, loader

    with pytest.raises(AssertionError):
        cairn.testing.check_resume(make, kills=4, seed=3)


@pytest.mark.parametrize("kind", ["a table", "tracked arrays"])
def test_rows_that_do_not_come_back_are_found_out(kind):
    def make(directory, exact):
        table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0))
        weights = np.zeros((4, 2))
        tracked = cairn.RowTracked("r", {"weights": weights})

        def step(model, batch):
            model["w"] += batch
            drawn = model["w"] if exact else np.frombuffer(os.urandom(4), np.uint32)
            if kind == "a table":
                table.assign([int(batch), 7], np.full((2, 2), drawn))
            else:
                with tracked.changing([1]):
                    weights[1] = drawn

        config = cairn.CheckpointConfig(directory, step_interval=2)
        model, tables = {"w": np.zeros(1)}, [table if kind == "a table" else tracked]
        return cairn.Trainer(model, step, tables=tables, checkpoint_config=config), 2, [1.0, 2.0, 3.0]

    assert cairn.testing.check_resume(lambda directory: make(directory, True), kills=3).kills == 3
    with pytest.raises(AssertionError, match="the final models differ.*rows/"):
        cairn.testing.check_resume(lambda directory: make(directory, False), kills=3)


@pytest.mark.parametrize("ask", [cairn.testing.check_resume, cairn.testing.kill_points])
def test_a_training_that_saves_nothing_is_refused(ask):
    def make(directory):
        return cairn.Trainer({"w": np.zeros(1)}, lambda model, batch: None), 1, [1.0]

    with pytest.raises(cairn.Invalid, match="saves nothing.*checkpoint_config"):
        ask(make)


def test_torch_that_refuses_forks_is_told_from_a_training_that_fails():
    # What torch's engine raises in the child of a process in which it has started threads of its own.
    refusal = "Unable to handle autograd's threading in combination with fork-based multiprocessing."

    def make(directory, message):
        def step(model, batch):
            raise RuntimeError(message)

        return cairn.Trainer({"w": np.zeros(1)}, step), 1, [1]

    with pytest.raises(cairn.Invalid, match="in a Python process of its own"):
        cairn.testing.check_resume(lambda directory: make(directory, refusal), kills=1)
    with pytest.raises(cairn.Error, match="the training failed; its error is above"):
        cairn.testing.check_resume(lambda directory: make(directory, "out of memory"), kills=1)


TWO = Path(__file__).with_name("two_trainers.py")


def start(directory, record, trainer, *steps):
    return subprocess.Popen(
        [sys.executable, str(TWO), str(directory), str(record), str(trainer), *steps],
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(children):
    for child in children:
        try:
            _, errors = child.communicate(timeout=120)
        finally:
            child.kill()
        assert child.returncode == 0, errors


def losses(record):
    found = {}
    for line in record.read_text().splitlines():
        step, _, loss = line.partition(" ")
        assert found.setdefault(step, loss) == loss, f"step {step}"
    return found


def lines_of(record):
    return len(record.read_text().splitlines()) if record.exists() else 0


def wait_for_lines(record, count, children):
    """Until a trainer has made so many steps; False when it ended before."""
    end = time.monotonic() + 60
    while lines_of(record) < count:
        assert time.monotonic() < end, "no step was made"
        if any(child.poll() is not None for child in children):
            return False
        time.sleep(0.001)
    return True


def test_two_trainers_killed_again_and_again(tmp_path):
    undisturbed = [tmp_path / f"undisturbed-{i}" for i in range(2)]
    finish([start(tmp_path / "reference", undisturbed[i], i) for i in range(2)])
    records = [tmp_path / f"killed-{i}" for i in range(2)]
    choose = random.Random(5)
    kills = 0
    while kills < 10:
        # Eight steps at the most: ten times as many are not all, however late the kills come.
        children = [start(tmp_path / "killed", records[i], i, "8") for i in range(2)]
        alive = wait_for_lines(records[0], lines_of(records[0]) + choose.randint(1, 6), children)
        time.sleep(choose.uniform(0, 0.02))  # anywhere in a step or a save
        victims = [children[choose.randrange(2)]] if choose.random() < 0.5 else children
        for child in victims:
            child.send_signal(signal.SIGKILL)
        # What a supervisor does: when one is gone the other is ended too, and both start again.
        for child in children:
            child.kill()
            child.communicate()
        assert alive, "the training ended before it was killed often enough"
        kills += 1
    finish([start(tmp_path / "killed", records[i], i) for i in range(2)])
    for i in range(2):
        assert losses(records[i]) == losses(undisturbed[i])
    assert cairn.diff(tmp_path / "reference", tmp_path / "killed").same
