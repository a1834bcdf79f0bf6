"""Signals, the end of the interpreter, forks and threads: with real processes."""

import glob
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from children import Child, run

import cairn

# A rank that never saves holds up the other's save for as long as a test needs.
SLOW_PAIR = """
directory, rank = sys.argv[1], int(sys.argv[2])
m = cairn.CheckpointManager(directory, rank=rank, world_size=2, deadline=120)
"""


def slow_rank_one(directory):
    """Rank 1 joins, and saves when it is told."""
    return Child(
        SLOW_PAIR
        + """
print("joined")
input()
m.save(1, {"x": 1}, blocking=True)
m.close()
""",
        directory,
        1,
    )


def until(condition):
    """Looks again and again until the condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Ctrl-C ----------


def test_ctrl_c_ends_a_wait_and_the_save_goes_on(directory):
    waiting = Child(
        SLOW_PAIR
        + """
handle = m.save(1, {"x": 1})
try:
    print("saving")
    handle.wait()
except KeyboardInterrupt:
    print("interrupted", handle.done())
handle.wait()
print("durable")
m.close()
""",
        directory,
        0,
    )
    slow = slow_rank_one(directory)
    slow.expect("joined")
    waiting.expect("saving")
    waiting.interrupt()
    waiting.expect("interrupted False")
    slow.tell()
    waiting.expect("durable")
    assert waiting.end()[0] == 0 and slow.end()[0] == 0
    assert cairn.load(directory) == {"x": 1}


@pytest.mark.parametrize("call", ["m.wait()", "m.save(2, {})", "m.restore()", "m.close()"])
def test_ctrl_c_ends_every_call_that_waits_for_a_save(directory, call):
    waiting = Child(
        SLOW_PAIR
        + f"""
handle = m.save(1, {{"x": 1}})
try:
    print("saving")
    {call}
except KeyboardInterrupt:
    print("interrupted")
print(handle.wait().step)
os._exit(0)
""",
        directory,
        0,
    )
    slow = slow_rank_one(directory)
    slow.expect("joined")
    waiting.expect("saving")
    waiting.interrupt()
    waiting.expect("interrupted")
    slow.tell()
    waiting.expect("1")
    slow.end()


def test_ctrl_c_ends_a_save_that_waits_for_the_word_of_rank_0(directory):
    skipping = SLOW_PAIR.replace("deadline=120", 'deadline=120, on_busy="skip"')
    waiting = Child(
        skipping
        + """
handle = m.save(1, {"x": 1})
try:
    print("saving")
    m.save(2, {"x": 2})
except KeyboardInterrupt:
    print("interrupted")
print(handle.wait().step)
m.close()
""",
        directory,
        1,
    )
    slow = Child(
        skipping
        + """
print("joined")
input()
m.save(1, {"x": 1}, blocking=True)
m.close()
""",
        directory,
        0,
    )
    slow.expect("joined")
    waiting.expect("saving")
    waiting.interrupt()
    waiting.expect("interrupted")
    slow.tell()
    waiting.expect("1")
    assert waiting.end()[0] == 0 and slow.end()[0] == 0


def test_ctrl_c_in_a_blocking_save_loses_nothing(directory):
    waiting = Child(
        SLOW_PAIR
        + """
try:
    print("saving")
    m.save(1, {"w": np.ones(1 << 16)}, blocking=True)
except KeyboardInterrupt:
    print("interrupted")
m.close()
print("closed")
""",
        directory,
        0,
    )
    slow = slow_rank_one(directory)
    slow.expect("joined")
    waiting.expect("saving")
    until(lambda: glob.glob(directory + "/generations/*/attempts/1.json"))
    waiting.interrupt()
    waiting.expect("interrupted")
    slow.tell()
    waiting.expect("closed")
    assert slow.end()[0] == 0
    assert cairn.load(directory)["w"].sum() == 1 << 16


def test_ctrl_c_ends_an_opening_that_waits_for_ranks(directory):
    child = Child(
        """
    try:
        print("opening")
        cairn.CheckpointManager(sys.argv[1], rank=0, world_size=2, join_deadline=100)
    except KeyboardInterrupt:
        print("interrupted")
    """,
        directory,
    )
    child.expect("opening")
    started = time.monotonic()
    child.interrupt()
    child.expect("interrupted")
    assert child.end()[0] == 0
    assert time.monotonic() - started < 30


def test_ctrl_c_ends_a_restore(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {f"w{i}": np.ones(1 << 20) for i in range(24)}, blocking=True)
    child = Child(
        """
    m = cairn.CheckpointManager(sys.argv[1], read_only=True)
    given = {f"w{i}": np.zeros(1 << 20) for i in range(24)}
    try:
        print("restoring")
        while True:
            m.restore(given)
    except KeyboardInterrupt:
        print("interrupted")
    m.restore(given)
    print(all(w.all() for w in given.values()))
    """,
        directory,
    )
    child.expect("restoring")
    child.interrupt()
    child.expect("interrupted")
    child.expect("True")
    assert child.end()[0] == 0


def test_a_signal_handler_that_does_not_raise_ends_nothing(directory):
    waiting = Child(
        SLOW_PAIR
        + """
signal.signal(signal.SIGINT, lambda *_: print("handled"))
handle = m.save(1, {"x": 1})
print("saving")
print(handle.wait().step)
m.close()
""",
        directory,
        0,
    )
    slow = slow_rank_one(directory)
    slow.expect("joined")
    waiting.expect("saving")
    waiting.interrupt()
    waiting.expect("handled")
    slow.tell()
    waiting.expect("1")
    slow.end()


# The end of the interpreter ----------


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError('bang')", "del m"])
@pytest.mark.parametrize("lazy", [False, True], ids=["copied", "lazy"])
def test_a_save_in_flight_at_the_end_is_durable(directory, end, lazy):
    Child(
        f"""
    m = cairn.CheckpointManager(sys.argv[1])
    m.save(1, {{"w": np.arange(1 << 21)}}, lazy={lazy})
    {end}
    """,
        directory,
    ).end()
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert m.restore().state["w"].tolist() == list(range(1 << 21))


def test_a_failure_at_the_end_is_printed(directory):
    child = Child(
        """
    m = cairn.CheckpointManager(sys.argv[1], rank=0, world_size=2, deadline=0.5)
    m.save(1, {"x": 1})
    print("leaving")
    """,
        directory,
    )
    other = Child(SLOW_PAIR + 'print("joined"); input(); os._exit(0)', directory, 1)
    other.expect("joined")
    status, out, err = child.end()
    other.tell()
    assert status == 0 and out == "leaving\n"
    assert directory in err and "rank_1" in err


def test_a_failure_of_a_dropped_manager_is_printed(directory):
    child = Child(
        """
    m = cairn.CheckpointManager(sys.argv[1], rank=0, world_size=2, deadline=0.5)
    m.save(1, {"x": 1})
    del m
    gc.collect()
    print("dropped")
    """,
        directory,
    )
    other = Child(SLOW_PAIR + 'print("joined"); input(); os._exit(0)', directory, 1)
    other.expect("joined")
    status, out, err = child.end()
    other.tell()
    assert status == 0 and out == "dropped\n"
    assert "rank_1" in err


def test_daemon_threads_may_still_save_at_the_end(directory):
    status, _, err = Child(
        """
    m = cairn.CheckpointManager(sys.argv[1])
    def work():
        step = 0
        while True:
            step += 1
            m.save(step, {"w": np.full(1 << 16, step)})
    threading.Thread(target=work, daemon=True).start()
    while m.latest() is None:
        time.sleep(0.01)
    """,
        directory,
    ).end()
    assert status == 0, err
    assert cairn.verify(directory).ok


# Forks ----------


def test_a_fork_is_told_and_the_parent_goes_on(directory):
    out = run(
        """
    m = cairn.CheckpointManager(sys.argv[1])
    handle = m.save(1, {"w": np.ones(1 << 21)})
    pid = os.fork()
    if pid == 0:
        calls = [lambda: m.save(2, {}), m.restore, m.list, m.latest, m.wait, handle.wait, handle.guard]
        told = 0
        for call in calls:
            try:
                call()
            except cairn.Error as error:
                told += "fork" in str(error)
        m.close()
        del m, handle
        gc.collect()
        print("child", told == len(calls))
        sys.exit(7)
    _, status = os.waitpid(pid, 0)
    print("parent", os.waitstatus_to_exitcode(status))
    print(handle.wait().step, m.save(2, {"x": 2}).wait().step)
    m.close()
    """,
        directory,
    )
    assert out.split("\n") == ["child True", "parent 7", "1 2", ""]
    assert cairn.verify(directory).ok


def test_a_fork_reads_through_a_manager_of_its_own(directory):
    out = run(
        """
    m = cairn.CheckpointManager(sys.argv[1])
    m.save(1, {"x": 5}, blocking=True)
    pid = os.fork()
    if pid == 0:
        with cairn.CheckpointManager(sys.argv[1], read_only=True) as reader:
            print(reader.restore().state)
        os._exit(0)
    os.waitpid(pid, 0)
    m.close()
    """,
        directory,
    )
    assert out == "{'x': 5}\n"


def test_a_fork_that_outlives_its_parent_holds_no_lock(directory):
    parent = Child(
        """
    m = cairn.CheckpointManager(sys.argv[1])
    m.save(1, {"x": 5}, blocking=True)
    pid = os.fork()
    if pid == 0:
        os.close(1); os.close(2)
        sys.stdin.readline()
        os._exit(0)
    print(pid)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    """,
        directory,
    )
    child_pid = int(parent.line())
    parent.wait()
    try:
        assert os.path.exists(f"/proc/{child_pid}")
        with cairn.CheckpointManager(directory) as m:
            assert m.restore().state == {"x": 5}
    finally:
        parent.tell()
        parent.end()


def _work_in_a_pool(number):
    return number * number


def test_multiprocessing_by_fork_beside_a_manager(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"w": np.ones(1 << 20)})
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_work_in_a_pool, range(10)) == [n * n for n in range(10)]
        m.save(2, {"x": 2}, blocking=True)
        assert m.restore().step == 2


# Threads ----------


def turns_of_another_thread(call):
    """How often another thread could run while the call ran."""
    turns = 0
    begun, over = threading.Event(), threading.Event()

    def count():
        nonlocal turns
        begun.set()
        while not over.wait(0.001):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    begun.wait()
    call()
    over.set()
    thread.join()
    return turns


@pytest.mark.parametrize("what", ["save", "blocking", "restore", "verify"])
def test_other_threads_run_during_long_calls(directory, what):
    state = {"w": np.ones(30 << 20)}  # 240 MB
    with cairn.CheckpointManager(directory, keep_last=1) as m:
        m.save(0, state, blocking=True)
        call = {
            "save": lambda: m.save(1, state),
            "blocking": lambda: m.save(1, state, blocking=True),
            "restore": lambda: m.restore(state),
            "verify": lambda: cairn.verify(directory),
        }[what]
        # A call that held the GIL would give it away once or twice. On a busy machine a thread may
        # be late: one good round is enough.
        for _ in range(10):
            if turns_of_another_thread(call) >= 8:
                return
            m.wait()
    pytest.fail("no other thread ran")


DAEMON = """
import sys, threading, numpy as np, cairn
table = cairn.EmbeddingTable("u", 8, initializer=cairn.initializers.Constant(0.0),
                             optimizer=cairn.optimizers.SGD(0.1))
manager = cairn.CheckpointManager(sys.argv[1])
ids, w = np.arange(200_000), np.ones(500_000)
begun = threading.Barrier(3)

def look_up():
    begun.wait()
    while True:
        table.lookup(ids)

def save():
    begun.wait()
    step = 0
    while True:
        step += 1
        manager.save(step, {"w": w}).wait()

for work in (look_up, save):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
table.lookup(ids)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_daemon_thread_in_a_call_does_not_abort_the_end(directory, attempt):
    ended = subprocess.run(
        [sys.executable, "-c", DAEMON, directory], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr


def test_a_fork_may_step_an_optimizer_that_was_saved(directory):
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"optimizer": optimizer, "weight": weight}, lazy=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                weight.grad = torch.ones(2)
                optimizer.step()
                code = 0 if weight.tolist() == [0.5, 0.5] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        m.wait()
