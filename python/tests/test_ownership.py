"""Who may write into a directory, and what the others are told."""

import os
import re
import subprocess

import numpy as np
import pytest
from children import Child, command_line, run

import cairn

HOLD = """
m = cairn.CheckpointManager(sys.argv[1])
m.save(1, {"x": 1}, blocking=True)
print("open")
input()
try:
    m.save(2, {"x": 2}, blocking=True)
    print("saved")
except cairn.Fenced as error:
    print("fenced")
"""


def test_the_same_command_adopts_its_directory(directory):
    with cairn.CheckpointManager(directory) as m:
        job = m.job
        m.save(1, {"x": 1}, blocking=True)
    with cairn.CheckpointManager(directory) as m:
        assert m.job == job and m.generation == 2
        assert m.restore().state == {"x": 1}


def test_another_jobs_directory_is_refused_and_the_owner_named(directory):
    with cairn.CheckpointManager(directory, job="alice's run") as m:
        m.save(1, {}, blocking=True)
    with pytest.raises(cairn.OwnedByAnotherJob, match="alice's run"):
        cairn.CheckpointManager(directory, job="bob's run")
    with cairn.CheckpointManager(directory, job="alice's run") as m:
        assert m.latest().step == 1


def test_a_second_writer_is_refused_and_the_first_named(directory):
    child = Child(HOLD, directory)
    child.expect("open")
    with pytest.raises(cairn.Unavailable, match=rf"\b{child.pid}\b"):
        cairn.CheckpointManager(directory)
    child.tell()
    child.expect("saved")
    assert child.end()[0] == 0


def test_a_second_writer_in_the_same_process_is_refused(directory):
    with cairn.CheckpointManager(directory):
        with pytest.raises(cairn.Unavailable, match=rf"\b{os.getpid()}\b"):
            cairn.CheckpointManager(directory)
    cairn.CheckpointManager(directory).close()


def test_takeover_fences_the_old_writer_out(directory):
    child = Child(HOLD, directory)
    child.expect("open")
    with cairn.CheckpointManager(directory, takeover=True) as m:
        assert m.restore().step == 1
        child.tell()
        child.expect("fenced")
        m.save(5, {"x": 5}, blocking=True)
        assert [i.step for i in m.list()] == [1, 5]


def test_the_directory_is_free_after_a_kill(directory):
    child = Child(HOLD, directory)
    child.expect("open")
    child.kill()
    with cairn.CheckpointManager(directory) as m:
        assert m.restore().step == 1


def test_a_reader_beside_a_writer_sees_what_is_committed(directory):
    child = Child(HOLD, directory)
    child.expect("open")
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert m.restore().step == 1
        child.tell()
        child.expect("saved")
        assert m.restore().step == 2
        assert m.generation == 0


@pytest.mark.parametrize("call", [lambda m: m.save(1, {}), lambda m: m.delete(m.latest().id)])
def test_a_reader_may_not_write(directory, call):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {}, blocking=True)
    with cairn.CheckpointManager(directory, read_only=True) as m:
        with pytest.raises(cairn.Error, match="read"):
            call(m)
        assert m.latest().step == 0


def test_a_reader_makes_nothing(directory):
    with pytest.raises(cairn.NotFound):
        cairn.CheckpointManager(directory, read_only=True)
    assert not os.path.exists(directory)


def test_a_closed_manager_refuses_everything(directory):
    m = cairn.CheckpointManager(directory)
    m.close()
    m.close()
    for call in (m.list, m.latest, m.restore, m.wait, lambda: m.save(0, {})):
        with pytest.raises(cairn.Error, match="closed"):
            call()


def test_a_dropped_manager_gives_up_its_directory(directory):
    cairn.CheckpointManager(directory).save(1, {"w": np.ones(1000)})
    with cairn.CheckpointManager(directory) as m:
        assert m.latest().step == 1


def test_an_error_inside_the_block_is_the_one_that_is_shown(directory):
    with pytest.raises(ZeroDivisionError), cairn.CheckpointManager(directory) as m:
        m.save(1, {"x": 1})
        raise ZeroDivisionError
    assert cairn.load(directory) == {"x": 1}


# Busy ----------


def test_a_save_is_skipped_while_one_is_in_flight(gated_bucket):
    gate, _ = gated_bucket
    w = np.ones(1 << 20)
    with cairn.CheckpointManager("s3://copies/run", on_busy="skip") as m:
        gate.hold("up", w.nbytes // 2)  # so far does the first one get
        first = m.save(1, {"w": w}, lazy=True)
        second = m.save(2, {"x": 2})
        with pytest.raises(cairn.Cancelled):
            second.wait()
        assert second.done() and not first.done()
        gate.release()
        assert first.wait().step == 1
        m.wait()
        assert m.save(3, {"x": 3}).wait().step == 3
        m.wait()
        assert [i.step for i in m.list()] == [1, 3]


def test_a_save_waits_for_the_one_in_flight(directory):
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        handles = [m.save(step, {"w": np.full(1 << 20, step)}) for step in range(5)]
        assert [h.wait().step for h in handles] == list(range(5))
        assert [i.step for i in m.list()] == list(range(5))


# Several ranks ----------

RANK = """
import json
directory, rank, world, phase = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rows = 12 // world
lo = rank * rows
m = cairn.CheckpointManager(directory, rank=rank, world_size=world)
shard = cairn.Shard(np.zeros((rows, 4)), (12, 4), (lo, 0))
z = cairn.Shard(np.zeros(rows, np.complex64), (12,), (lo,))
own = np.zeros(3)
same = np.zeros(2)
epoch = None
given = {"w": shard, "z": z, "mine": own, "same": cairn.Replicated(same), "epoch": None}
restored = m.restore(given)
if restored is not None:
    expected = np.arange(48.0).reshape(12, 4)[lo:lo + rows]
    assert (shard.array == expected).all(), shard.array
    assert (z.array == np.arange(lo, lo + rows) * (1 + 2j)).all(), z.array
    assert same.tolist() == [5.0, 6.0]
    assert given["epoch"] == 9
    print("own", own.tolist())
shard.array[:] = np.arange(48.0).reshape(12, 4)[lo:lo + rows]
z.array[:] = np.arange(lo, lo + rows) * (1 + 2j)
own[:] = 100 + rank
same[:] = [5, 6]
given["epoch"] = 9
m.save(int(phase), given, blocking=True)
m.close()
print("saved")
"""


def all_ranks(directory, world, phase):
    children = [Child(RANK, directory, rank, world, phase) for rank in range(world)]
    ends = [child.end() for child in children]
    for status, _, err in ends:
        assert status == 0, err
    return [out.split("\n") for _, out, _ in ends]


def test_two_ranks_then_one_then_three(directory):
    assert all_ranks(directory, 2, 1) == [["saved", ""], ["saved", ""]]
    # Everyone gets its own arrays back; a rank that was not there gets those of the first.
    assert all_ranks(directory, 2, 2) == [
        ["own [100.0, 100.0, 100.0]", "saved", ""],
        ["own [101.0, 101.0, 101.0]", "saved", ""],
    ]
    assert all_ranks(directory, 1, 3) == [["own [100.0, 100.0, 100.0]", "saved", ""]]
    assert all_ranks(directory, 3, 4) == [["own [100.0, 100.0, 100.0]", "saved", ""]] * 3
    whole = cairn.load(directory)
    assert whole["w"].tolist() == np.arange(48.0).reshape(12, 4).tolist()
    assert whole["z"].tolist() == [k * (1 + 2j) for k in range(12)]


FEW_ROWS = """
directory, rank, world, phase = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
whole = np.arange(6.0).reshape(2, 3)
lo, hi = min(rank, 2), min(rank + 1, 2) if rank + 1 < world else 2
m = cairn.CheckpointManager(directory, rank=rank, world_size=world)
state = {
    "w": cairn.Shard(np.zeros((hi - lo, 3)), (2, 3), (lo, 0)),
    "none": cairn.Shard(np.zeros((0, 3)), (0, 3), (0, 0)),
}
if phase > 1:
    m.restore(state)
    assert state["w"].array.tolist() == whole[lo:hi].tolist(), state["w"].array
state["w"].array[:] = whole[lo:hi]
m.save(phase, state, blocking=True)
m.close()
"""


def test_more_ranks_than_rows(directory):
    for phase, world in enumerate((4, 3, 1, 5), 1):
        children = [Child(FEW_ROWS, directory, rank, world, phase) for rank in range(world)]
        for child in children:
            status, _, err = child.end()
            assert status == 0, err
        found = cairn.load(directory)
        assert found["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert found["none"].shape == (0, 3)
    assert cairn.verify(directory).ok


def test_what_is_replicated_is_written_once(directory):
    run_two = """
    m = cairn.CheckpointManager(sys.argv[1], rank=int(sys.argv[2]), world_size=2)
    big = np.ones(1 << 20)
    m.save(1, {"r": cairn.Replicated(big)}, blocking=True)
    m.close()
    """
    children = [Child(run_two, directory, rank) for rank in (0, 1)]
    for child in children:
        status, _, err = child.end()
        assert status == 0, err
    info = cairn.CheckpointManager(directory, read_only=True).latest()
    assert 8 << 20 <= info.bytes < 9 << 20
    assert cairn.load(directory)["r"].sum() == 1 << 20


def test_a_rank_that_does_not_save_is_named(directory):
    rank0 = Child(
        """
        m = cairn.CheckpointManager(sys.argv[1], rank=0, world_size=2, deadline=1.0)
        try:
            m.save(1, {"x": 1}, blocking=True)
        except cairn.Timeout as error:
            print("timeout", error)
        print([i.step for i in m.list()])
        """, directory)  # fmt: skip
    rank1 = Child(
        """
        m = cairn.CheckpointManager(sys.argv[1], rank=1, world_size=2)
        print("joined")
        input()
        os._exit(0)
        """, directory)  # fmt: skip
    rank1.expect("joined")
    _, out, err = rank0.end()
    rank1.tell()
    assert re.search(r"^timeout .*rank_1.*\n\[\]$", out, re.MULTILINE), (out, err)


def test_a_rank_that_never_comes_is_named(directory):
    with pytest.raises(cairn.Timeout, match="rank_1"):
        cairn.CheckpointManager(directory, rank=0, world_size=2, join_deadline=0.5)


def test_a_rank_alone_is_told_about_private_directories(directory):
    with pytest.raises(cairn.Error, match="private"):
        cairn.CheckpointManager(directory, rank=1, world_size=2, join_deadline=0.5)


def test_private_directories_are_merged_by_the_command_line(tmp_path):
    for rank in (0, 1):
        whole = np.arange(8.0)
        piece = cairn.Shard(whole[rank * 4 : rank * 4 + 4], (8,), (rank * 4,))
        directory = tmp_path / f"trainer_{rank}"
        with cairn.CheckpointManager(
            directory, job="split", rank=rank, world_size=2, private=True
        ) as m:
            m.save(7, {"w": piece}, blocking=True)
    merged = tmp_path / "merged"
    subprocess.run(
        [command_line(), "checkpoint", "merge", str(merged),
         str(tmp_path / "trainer_0"), str(tmp_path / "trainer_1")],
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    assert cairn.load(merged)["w"].tolist() == list(range(8))


@pytest.mark.parametrize(
    ("array", "shape", "offset"),
    [(np.zeros(2), (3,), (2,)), (np.zeros(2), (3, 3), (0,)), (np.zeros(2), (-1,), (0,)),
     ("text", (1,), (0,)), (np.zeros(2), ("a",), (0,)), (np.zeros(2), (4,), (-1,))],
    ids=str,
)  # fmt: skip
def test_a_shard_outside_of_its_array_is_refused(array, shape, offset):
    with pytest.raises(cairn.Invalid):
        cairn.Shard(array, shape, offset)


def test_children_run_the_package_under_test():
    assert run("print(cairn.__file__)").strip() == cairn.__file__


SHARDS = """
rank, shards = int(sys.argv[2]), eval(sys.argv[3])
table = cairn.EmbeddingTable("words", 2, optimizer=cairn.optimizers.SGD(0.1), shards=shards)
with cairn.CheckpointManager(sys.argv[1], rank=rank, world_size=2) as m:
    try:
        print(m.save(1, {}, tables=[table]).wait().step)
    except cairn.Error as error:
        print(error)
"""


def test_two_ranks_with_the_same_shards_of_a_table_commit_nothing(directory):
    """Rows of one key by two ranks are no state that could be restored."""
    ranks = [Child(SHARDS, directory, rank, (0, 1024)) for rank in range(2)]
    outputs = [rank.end()[1] for rank in ranks]
    assert '"words"' in outputs[0] and "shards=" in outputs[0]
    assert "given up" in outputs[1]
    with cairn.CheckpointManager(directory, read_only=True) as reader:
        assert reader.list() == []
    ranks = [Child(SHARDS, directory, rank, (512 * rank, 512 * rank + 512)) for rank in range(2)]
    assert [rank.end()[1] for rank in ranks] == ["1\n", "1\n"]


@pytest.mark.parametrize("kind", ["full", "cumulative"])
def test_private_parts_with_the_same_shards_are_not_merged(tmp_path, kind):
    places = [str(tmp_path / f"rank_{rank}") for rank in range(2)]
    for rank, place in enumerate(places):
        table = cairn.EmbeddingTable("words", 2, optimizer=cairn.optimizers.SGD(0.1))
        table.assign([1, 2], np.ones((2, 2)))
        with cairn.CheckpointManager(
            place, job="split", rank=rank, world_size=2, private=True
        ) as manager:
            manager.save(1, {}, tables=[table]).wait()
            manager.save(2, {}, tables=[table], kind=kind).wait()
    merge = [command_line(), "checkpoint", "merge", str(tmp_path / "all"), *places]
    done = subprocess.run(merge, capture_output=True, text=True)
    assert done.returncode == 1
    assert '"words"' in done.stderr and "shards=" in done.stderr
    assert not list((tmp_path / "all").glob("checkpoint_*"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 1 << 40},
        {"participant": None},
        {"run": -1},
        {"order": np.array([1, 2])},
        {"naming": ["step"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arguments_of_a_wrong_kind_are_named(directory, wrong):
    with pytest.raises(cairn.Invalid, match=next(iter(wrong))):
        cairn.CheckpointManager(directory, **wrong)
    assert not os.path.exists(directory)


@pytest.mark.parametrize("wrong", [{"files": [1]}, {"files": [None]}, {"kind": None}, {"kind": 5}])
def test_arguments_of_a_save_of_a_wrong_kind_are_named(directory, wrong):
    with cairn.CheckpointManager(directory) as m:
        with pytest.raises(cairn.Invalid, match=next(iter(wrong))):
            m.save(1, {}, **wrong)
        assert m.list() == []


def test_a_relative_directory_stays_where_it_was_when_the_program_goes_elsewhere(
    tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with cairn.CheckpointManager("run") as m:
        m.save(1, {"x": 1}, blocking=True)
        monkeypatch.chdir("elsewhere")
        path = m.save(2, {"x": 2}, blocking=True).wait().path
        assert m.restore().step == 2 and os.path.isdir(path)
        assert m.directory == str(tmp_path / "run")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_dots_behind_a_link_lead_where_they_lead_for_everybody(tmp_path, monkeypatch):
    (tmp_path / "disk" / "v3").mkdir(parents=True)
    (tmp_path / "current").symlink_to(tmp_path / "disk" / "v3")
    monkeypatch.chdir(tmp_path)
    for where in ("current/../runs", str(tmp_path / "current" / ".." / "runs")):
        with cairn.CheckpointManager(where) as m:
            m.save(1, {"x": 1}, blocking=True)
            assert m.directory == str(tmp_path / "disk" / "runs")
        assert (tmp_path / "disk" / "runs" / "cairn.json").is_file()
        assert cairn.verify(where).ok
        with cairn.CheckpointManager(tmp_path / "other") as m:
            assert m.restore(path=f"{where}/checkpoint_000001").step == 1
        assert cairn.load(f"{where}/checkpoint_000001") == {"x": 1}
    assert not (tmp_path / "runs").exists()
    for name in ("runs..old", "..runs", "runs/..x/y.."):
        with cairn.CheckpointManager(f"current/../{name}") as m:
            assert m.directory == str(tmp_path / "disk" / name)
    for plain, found in (("a/../b", "b"), ("..x/b", "..x/b"), ("b..", "b.."), ("./b//c/.", "b/c")):
        with cairn.CheckpointManager(plain) as m:
            assert m.directory == str(tmp_path / found)
    with cairn.CheckpointManager("b/..") as m:
        assert m.directory == str(tmp_path)


def test_a_directory_that_is_moved_while_it_is_open_is_named(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(1, {"w": np.ones(3)}, blocking=True)
        os.rename(directory, f"{directory}-elsewhere")
        with pytest.raises(cairn.NotFound, match=f"{directory}.*moved or removed"):
            m.save(2, {"w": np.ones(3)}, blocking=True).wait()
    assert cairn.load(f"{directory}-elsewhere")["w"].sum() == 3
