"""Callbacks after saves, and the line on a terminal."""

import contextlib
import logging
import os
import pty
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import cairn


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def test_a_callback_gets_the_figures_of_each_save(directory):
    records = []
    with cairn.CheckpointManager(directory, on_saved=records.append) as m:
        handles = [m.save(step, {"w": np.full(50_000, 1.0)}) for step in range(3)]
        m.wait()
        assert [r.step for r in records] == [0, 1, 2]
        infos = [h.wait() for h in handles]
    for record, info, handle in zip(records, infos, handles):
        assert record.ok and record.error is None
        assert (record.id, record.path, record.bytes) == (info.id, info.path, info.bytes)
        assert record.stall_seconds == handle.stall_seconds > 0
        assert record.durable_seconds == handle.durable_seconds > 0
        assert record.bytes_written == handle.bytes_written
        assert record.bytes_shared == handle.bytes_shared
    assert records[0].bytes_written > 400_000 and records[0].bytes_shared == 0
    assert records[2].bytes_shared >= 400_000  # nothing changed: linked


def test_a_failed_save_is_told_and_still_raised(directory):
    records = []
    m = cairn.CheckpointManager(directory, on_saved=records.append)
    m.save(1, {"x": 1}).wait()
    shutil.rmtree(directory)
    directory.write_text("in the way")
    m.save(2, {"x": 2})
    with pytest.raises(cairn.Error):  # the callback's look at it did not count as telling
        m.wait()
    with contextlib.suppress(cairn.Error):  # its directory is gone
        m.close()
    assert [(r.step, r.ok) for r in records] == [(1, True), (2, False)]
    assert isinstance(records[1].error, cairn.Error) and records[1].id == ""


def test_what_a_callback_raises_is_logged_and_the_others_are_called(directory, caplog):
    seen = []

    def fails(record):
        raise RuntimeError("the tracking server is down")

    with caplog.at_level(logging.ERROR, logger="cairn"):
        with cairn.CheckpointManager(directory, on_saved=fails) as m:
            m.add_callback(seen.append)
            m.save(1, {"x": 1})
            m.save(2, {"x": 1})
    assert [r.step for r in seen] == [1, 2]
    assert "the tracking server is down" in caplog.text


def test_a_callback_may_use_the_manager(directory):
    seen = []

    def callback(record):
        with m._lock:  # held by nobody who waits for this thread
            pass
        seen.append((record.step, [i.step for i in m.list()], threading.current_thread().name))
        m.pin(record.id)

    m = cairn.CheckpointManager(directory, keep_last=1, on_saved=callback)
    m.save(1, {"x": 1}, blocking=True)
    m.wait()
    m.save(2, {"x": 1})
    m.wait()
    assert [i.pinned for i in m.list()] == [True, True]
    m.close()
    assert [step for step, _, _ in seen] == [1, 2]
    assert threading.current_thread().name not in {name for _, _, name in seen}


def test_a_callback_may_close_the_manager(directory):
    closed = threading.Event()

    def callback(record):
        m.close()
        closed.set()

    m = cairn.CheckpointManager(directory, on_saved=callback)
    m.save(1, {"x": 1})
    assert closed.wait(30)
    with pytest.raises(cairn.Error):
        m.list()


def test_close_returns_after_the_callbacks(directory):
    seen = []
    m = cairn.CheckpointManager(directory, on_saved=seen.append)
    m.save(5, {"w": np.zeros(1000)})
    m.close()
    assert [r.step for r in seen] == [5]


def test_skipped_saves_are_told_as_cancelled(gated_bucket):
    gate, _ = gated_bucket
    records = []
    with cairn.CheckpointManager("s3://copies/run", on_busy="skip", on_saved=records.append) as m:
        big = {"w": np.ones(1 << 20)}
        gate.hold("up", big["w"].nbytes // 2)  # so far does the first one get
        m.save(1, big)
        m.save(2, big)
        gate.release()
        m.wait()
    assert [r.step for r in records] == [1, 2]
    assert records[0].ok and isinstance(records[1].error, cairn.Cancelled)


def test_a_trainer_passes_callbacks_on(directory):
    records = []

    def step(model, batch):
        model["w"] += batch

    config = cairn.CheckpointConfig(directory, step_interval=2)
    trainer = cairn.Trainer(
        {"w": np.zeros(3)}, step, checkpoint_config=config, callbacks=[records.append]
    )
    summary = trainer.train(1, [1.0] * 5)
    assert [r.step for r in records] == [1, 3, 5]
    assert len(records) == summary.saves


def test_wrong_callbacks_are_refused(directory):
    with pytest.raises(cairn.Invalid, match="callable"):
        cairn.CheckpointManager(directory, on_saved=3)
    with pytest.raises(cairn.Invalid, match="progress"):
        cairn.CheckpointManager(directory, progress="yes")


_SAVES = """
import numpy as np, sys, cairn, cairn.observe
cairn.observe._FIRST_LINE_AFTER = cairn.observe._BETWEEN_LINES = 0.001
options = {} if sys.argv[2] == "None" else {"progress": sys.argv[2] == "True"}
with cairn.CheckpointManager(sys.argv[1], **options) as m:
    m.save(40, {"w": np.ones(30_000_000)})
"""


def _on_a_terminal(directory, progress, terminal):
    """What a program that saves writes to stderr, a terminal or a pipe."""
    command = [sys.executable, "-c", _SAVES, str(directory), progress]
    if not terminal:
        return subprocess.run(
            command, stderr=subprocess.PIPE, timeout=120, check=True
        ).stderr.decode()
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert child.wait(timeout=120) == 0
    return text.decode()


def test_a_terminal_shows_one_line_that_is_gone_when_the_save_is_done(directory):
    text = _on_a_terminal(directory, "None", terminal=True)
    assert "\n" not in text
    lines = text.split("\r")
    assert lines[0] == "" and lines[-1] == "\x1b[K"  # the last thing written clears the line
    shown = [line for line in lines[1:-1]]
    assert shown
    for line in shown:
        assert line.startswith("saving step 40: ") and line.endswith("/240.0 MB\x1b[K"), line


def test_nothing_is_shown_where_there_is_no_terminal_or_no_wish(directory):
    assert _on_a_terminal(directory / "a", "None", terminal=False) == ""
    assert _on_a_terminal(directory / "b", "False", terminal=True) == ""
    assert "saving step 40" in _on_a_terminal(directory / "c", "True", terminal=False)


def test_amounts_read_well():
    from cairn.observe import _amount

    assert _amount(1_200_000_000, 2_000_000_000) == "1.2/2.0 GB"
    assert _amount(5, 10) == "5/10 B"
    assert _amount(2_500_000, 2_400_000) == "2.5/2.5 MB"  # headers come on top of the arrays
