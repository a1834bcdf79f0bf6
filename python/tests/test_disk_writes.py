"""Options of how bytes get to a disk: disk_writes, pool_bytes, copy_threads."""

import os
import pathlib
import time

import numpy as np
import pytest
from children import Child

import cairn


def knows_direct(folder):
    try:
        os.close(os.open(folder / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


def open_data_files(pid, directory):
    """Of each data file that the process has open: whether it is past the kernel's cache."""
    found = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
            if target.startswith(directory) and ".safetensors" in target:
                info = pathlib.Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                found.append(bool(int(flags.split()[1], 8) & os.O_DIRECT))
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


@pytest.mark.parametrize("how", ["direct", "buffered"])
def test_an_option_fixes_how_files_are_written(tmp_path, how):
    if how == "direct" and not knows_direct(tmp_path):
        how = "buffered"  # as the engine does there
    directory = str(tmp_path / "runs")
    child = Child(
        """
    directory, how = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    w = np.random.default_rng(1).integers(0, 255, 16 << 20, np.uint8)
    with cairn.CheckpointManager(directory, disk_writes=how, keep_last=1, pool_bytes=0) as m:
        print("saving")
        step = 0
        while not ended.is_set():
            w[:] += 1
            m.save(step, {"w": w}, blocking=True)
            step += 1
    print("ended")
    """,
        directory,
        how,
    )
    child.expect("saving")
    seen = []
    deadline = time.monotonic() + 60
    # Until there is enough to judge by: it saves until it is told to end.
    while len(seen) < 30 or (how == "direct" and not any(seen)):
        assert time.monotonic() < deadline, seen
        seen += open_data_files(child.pid, directory)
    child.tell()
    child.expect("ended")
    assert child.end()[0] == 0
    assert any(seen) == (how == "direct")


@pytest.mark.parametrize("limit", [0, 3 << 20])
def test_no_more_of_removed_files_is_kept_than_allowed(tmp_path, limit):
    with cairn.CheckpointManager(tmp_path, keep_last=1, pool_bytes=limit) as m:
        for step in range(4):
            state = {name: np.full(2 << 20, step, np.uint8) for name in ("a", "b", "c")}
            m.save(step, state, blocking=True)
        m.wait()
        assert m.restore(state).step == 3
        pooled = [f for f in (tmp_path / "pool").rglob("*") if f.is_file()]
        assert sum(f.stat().st_size for f in pooled) <= limit


def test_any_number_of_threads_copies_the_same(tmp_path):
    w = np.arange(1 << 20)
    for threads in (1, 3):
        with cairn.CheckpointManager(tmp_path / str(threads), copy_threads=threads) as m:
            m.save(1, {"w": w}).wait()
            assert (m.restore().state["w"] == w).all()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"disk_writes": "fast"}, "disk_writes must be 'auto' or 'direct' or 'buffered'"),
        ({"disk_writes": None}, "disk_writes must be"),
        ({"pool_bytes": -1}, "pool_bytes must not be negative"),
        ({"pool_bytes": 0.5}, "pool_bytes must be an integer"),
        ({"copy_threads": 0}, "copy_threads must be at least 1"),
        ({"copy_threads": 1025}, "copy_threads must be between"),
        ({"copy_threads": 1 << 40}, "copy_threads must be between"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, given, message):
    with pytest.raises(cairn.Invalid, match=message):
        cairn.CheckpointManager(tmp_path / "runs", **given)
    assert not (tmp_path / "runs" / "cairn.json").exists()
