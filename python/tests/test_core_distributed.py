"""The Core API in several real processes."""

import signal
import socket
import threading

import numpy as np
import pytest
from core_processes import Ranks

import cairn
from cairn.core import DistributedContext, _distributed

SHARDED = """
with core.init() as ctx:
    rank = ctx.distributed.rank
    with ctx.checkpoint.store_path({"steps_completed": 4}, shard=True) as (path, id):
        open(f"{path}/of_{rank}", "w").write(str(rank))
        open(f"{path}/same", "w").write("equal everywhere")
    with ctx.checkpoint.restore_path(id) as path:
        print(id, sorted(os.listdir(path)), open(f"{path}/of_{1 - rank}").read())
"""


@pytest.mark.parametrize("kind", ["cairn", "torchrun", "torchrun below a run", "mpi", "srun"])
def test_ranks_meet_by_the_variables_of_each_launcher(tmp_path, kind):
    code = """
    with core.init() as ctx:
        d = ctx.distributed
        everyone = d.allgather({"rank": d.rank, "array": np.arange(d.rank + 1), "t": (1, b"x")})
        assert [e["rank"] for e in everyone] == [0, 1, 2]
        assert everyone[2]["array"].tolist() == [0, 1, 2] and everyone[0]["t"] == (1, b"x")
        assert d.broadcast("from 0" if d.rank == 0 else None) == "from 0"
        gathered = d.gather(d.rank)
        assert gathered == ([0, 1, 2] if d.rank == 0 else None)
        assert d.allgather_local(d.rank) == [0, 1, 2] and d.broadcast_local(d.rank) == 0
        print(d.rank, d.size, d.local_rank, d.cross_rank, d.cross_size)
    """
    outputs = Ranks(code, 3, tmp_path, kind=kind).outputs()
    assert outputs == ["0 3 0 0 1\n", "1 3 1 0 1\n", "2 3 2 0 1\n"]


@pytest.mark.parametrize("kind", ["torchrun", "torchrun below a run"])
def test_ranks_of_torch_meet_when_asked_for(tmp_path, kind):
    code = """
    with core.DistributedContext.from_torch_distributed() as ranks:
        print(ranks.rank, ranks.size, ranks.local_rank, ranks.allgather(ranks.rank))
    """
    outputs = Ranks(code, 2, tmp_path, kind=kind).outputs()
    assert outputs == ["0 2 0 [0, 1]\n", "1 2 1 [0, 1]\n"]


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE"])
def test_without_torchrun_there_are_no_ranks_of_torch(monkeypatch, missing):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv(missing)
    with pytest.raises(cairn.Invalid, match=f"{missing} is not set.*torchrun"):
        DistributedContext.from_torch_distributed()


def test_a_batch_script_of_slurm_is_one_process():
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    with DistributedContext.from_env(env) as ranks:
        assert (ranks.rank, ranks.size) == (0, 1)


@pytest.mark.parametrize(
    "per_node,node,size,expected", [("4", 0, 4, 4), ("2(x2),1", 1, 5, 2), ("2(x2),1", 2, 5, 1)]
)
def test_tasks_of_srun_know_their_neighbours(per_node, node, size, expected):
    env = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "CAIRN_CHIEF": "node0:5000",
    }
    assert _distributed._place_from(env).local_size == expected
    with pytest.raises(cairn.Invalid, match="SLURM_STEP_TASKS_PER_NODE"):
        _distributed._place_from({**env, "SLURM_STEP_TASKS_PER_NODE": "two"})


def test_a_sharded_checkpoint_has_the_files_of_all_ranks(tmp_path):
    outputs = Ranks(SHARDED, 2, tmp_path).outputs()
    words = [out.split(" ", 1) for out in outputs]
    assert words[0][0] == words[1][0]
    assert words[0][1] == "['of_0', 'of_1', 'same'] 1\n"
    assert words[1][1] == "['of_0', 'of_1', 'same'] 0\n"
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as reader:
        assert len(reader.list()) == 1 and reader.latest().id == words[0][0]
    assert cairn.verify(tmp_path / "run").ok
    # And the next start of the same command begins with it.
    again = "with core.init() as ctx: print(ctx.latest_checkpoint)"
    assert Ranks(again, 2, tmp_path).outputs() == [words[0][0] + "\n"] * 2


def test_checkpoints_of_the_chief_and_of_all_ranks_take_turns(tmp_path):
    code = """
    with core.init() as ctx:
        chief = ctx.distributed.rank == 0
        for step in range(6):
            if step % 2 == 0:
                with ctx.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
                    open(f"{path}/{ctx.distributed.rank}", "w").write(str(step))
            elif chief:
                with ctx.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    open(f"{path}/chief", "w").write(str(step))
    """
    Ranks(code, 2, tmp_path).outputs()
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as reader:
        assert [info.step for info in reader.list()] == [3, 4, 5]
        assert [sorted(reader.restore(id=info.id).files) for info in reader.list()] == [
            ["chief"], ["0", "1"], ["chief"],
        ]  # fmt: skip
    assert cairn.verify(tmp_path / "run").ok


def test_the_chief_deletes_and_scores_between_saves_of_all_ranks(tmp_path):
    code = """
    with core.init(keep_last=1, keep_best=1, score="good") as ctx:
        ids = []
        for step in range(5):
            with ctx.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, id):
                open(f"{path}/{ctx.distributed.rank}", "w").write(str(step))
            ids.append(id)
            if ctx.distributed.is_chief:
                ctx.train.report_validation_metrics(step, {"good": [0, 9, 1, 2, 3][step]})
                if step == 3:
                    ctx.checkpoint.delete(ids[1])
            ctx.distributed.barrier()
    """
    Ranks(code, 2, tmp_path).outputs()
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as reader:
        assert [info.step for info in reader.list()] == [4]
        assert len({info.generation for info in reader.list()}) == 1
    assert cairn.verify(tmp_path / "run").ok


def test_conflicting_files_are_refused_with_names_and_ranks(tmp_path):
    code = """
    with core.init() as ctx:
        rank = ctx.distributed.rank
        try:
            with ctx.checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
                open(f"{path}/weights", "w").write(f"of {rank}")
                if rank == 0:
                    open(f"{path}/dir", "w").write("a file")
                else:
                    os.mkdir(f"{path}/dir")
                    open(f"{path}/dir/x", "w").write("x")
        except cairn.Invalid as error:
            print(error)
        print(len(ctx.checkpoint.list()), os.path.exists(path))
    """
    for out in Ranks(code, 2, tmp_path).outputs():
        assert "'weights' has other content on rank 0 than on rank 1" in out
        assert "'dir' is a file of rank 0 and a directory of rank 1" in out
        assert out.endswith("0 False\n")


def test_metadata_is_merged_and_conflicts_are_refused_before_a_byte_is_written(tmp_path):
    code = """
    with core.init() as ctx:
        rank = ctx.distributed.rank
        mine = {"steps_completed": 3} if rank == 0 else {f"of_{rank}": rank}
        with ctx.checkpoint.store_path(mine, shard=True) as (path, id):
            pass
        print(sorted(ctx.checkpoint.get_metadata(id).items()))
        for metadata in ({"steps_completed": 3 + rank}, {"other": 1}):
            entered = False
            try:
                with ctx.checkpoint.store_path(metadata, shard=True):
                    entered = True
            except cairn.Invalid as error:
                print(entered, error)
    """
    for out in Ranks(code, 2, tmp_path).outputs():
        assert "[('of_1', 1), ('steps_completed', 3)]" in out
        assert "False the ranks do not agree: metadata 'steps_completed' is 3 on rank 0 and 4" in out
        assert "False metadata must hold 'steps_completed'" in out


def test_one_rank_that_raises_leaves_nothing_anywhere(tmp_path):
    code = """
    with core.init() as ctx:
        rank = ctx.distributed.rank
        try:
            with ctx.checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
                open(f"{path}/x{rank}", "w").write("x")
                if rank == 1:
                    raise RuntimeError("out of luck")
        except (RuntimeError, cairn.Error) as error:
            print(type(error).__name__, error)
        ctx.distributed.barrier()
        print(len(ctx.checkpoint.list()), [n for n in os.listdir(ctx.storage) if "staging" in n])
    """
    outputs = Ranks(code, 2, tmp_path).outputs()
    assert "Error rank 1 failed, so nothing is stored or read: RuntimeError: out of luck" in outputs[0]
    assert "RuntimeError out of luck" in outputs[1]
    assert all(out.endswith("0 []\n") for out in outputs)


def test_only_the_chief_stores_alone_and_reports(tmp_path):
    code = """
    with core.init() as ctx:
        if ctx.distributed.rank == 1:
            for call in (
                lambda: ctx.checkpoint.store_path({"steps_completed": 1}).__enter__(),
                lambda: ctx.train.report_training_metrics(1, {"a": 1}),
                lambda: ctx.checkpoint.delete("x"),
            ):
                try:
                    call()
                except cairn.Invalid as error:
                    print(error)
    """
    outputs = Ranks(code, 2, tmp_path).outputs()
    assert outputs[1].count("only rank 0 may") == 3


def test_states_of_several_ranks_are_one_checkpoint(tmp_path):
    code = """
    with core.init() as ctx:
        rank = ctx.distributed.rank
        piece = cairn.Shard(np.full(2, float(rank)), (4,), (2 * rank,))
        handle = ctx.checkpoint.save({"w": piece}, {"steps_completed": 9}, blocking=True)
        ctx.distributed.barrier()
        with cairn.CheckpointManager(ctx.storage, read_only=True) as reader:
            whole = np.zeros(4)
            reader.restore({"w": whole})
        print(whole.tolist(), handle.id == reader_id if (reader_id := ctx.checkpoint.list()[-1].id) else "")
    """
    assert Ranks(code, 2, tmp_path).outputs() == ["[0.0, 0.0, 1.0, 1.0] True\n"] * 2


def test_workers_ask_the_chief(tmp_path):
    code = """
    with core.init() as ctx:
        assert ctx.preempt.should_preempt() is False
        if ctx.distributed.rank == 0:
            signal.raise_signal(signal.SIGTERM)
        print(ctx.preempt.should_preempt())
    """
    assert Ranks(code, 2, tmp_path).outputs() == ["True\n"] * 2


def test_only_the_chief_asks_in_chief_only(tmp_path):
    code = """
    with core.init(preempt_mode=core.PreemptMode.ChiefOnly) as ctx:
        try:
            print(ctx.preempt.should_preempt())
        except cairn.Invalid as error:
            print("refused:", error)
    """
    outputs = Ranks(code, 2, tmp_path).outputs()
    assert outputs[0] == "False\n" and "ChiefOnly only rank 0" in outputs[1]


def test_each_asks_for_itself_in_workers_ask_master(tmp_path):
    code = """
    with core.init(preempt_mode=core.PreemptMode.WorkersAskMaster) as ctx:
        if ctx.distributed.rank == 1:
            signal.raise_signal(signal.SIGUSR1)
        print(ctx.preempt.should_preempt())
    """
    assert Ranks(code, 2, tmp_path).outputs() == ["False\n", "True\n"]


def test_a_rank_that_is_gone_is_named(tmp_path):
    code = """
    with core.init() as ctx:
        if ctx.distributed.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            ctx.distributed.gather(1)
        except cairn.Unavailable as error:
            print(error)
    """
    results = Ranks(code, 2, tmp_path).end()
    assert "rank 1 is gone" in results[0][1]
    assert results[1][0] == -signal.SIGKILL


def test_ranks_that_make_different_calls_are_told(tmp_path):
    code = """
    with core.init() as ctx:
        d = ctx.distributed
        try:
            d.gather(1) if d.rank == 0 else (d.gather(1), d.gather(2))
            d.gather(3) if d.rank == 1 else d.broadcast(1)
            d.gather(4)
        except cairn.Error as error:
            print(error)
    """
    results = Ranks(code, 2, tmp_path).end()
    assert "same calls in the same order" in "".join(out for _, out, _ in results)


def test_two_living_processes_of_one_rank_are_told(tmp_path):
    place = {"size": 3, "chief": f"file:{tmp_path / 'chief'}", "timeout": 30}
    told = []

    def chief():
        try:
            DistributedContext(rank=0, **place)
        except cairn.Error as error:
            told.append(str(error))

    def twin():
        try:
            DistributedContext(rank=1, **place).close()
        except cairn.Error:
            pass  # the chief has given up

    threads = [threading.Thread(target=chief)]
    threads += [threading.Thread(target=twin, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join()
    assert "two living processes came as rank 1 of 3" in told[0]


def test_a_rank_zero_whose_place_was_taken_is_told_and_leaves_the_other_alone(tmp_path, monkeypatch):
    path = tmp_path / "chief"
    write = _distributed._write_address

    def and_another_one_too(to, text):
        write(to, text)
        write(to, "127.0.0.1:1 other")

    monkeypatch.setattr(_distributed, "_write_address", and_another_one_too)
    with pytest.raises(cairn.Unavailable, match="another living process took rank 0's place"):
        DistributedContext(rank=0, size=2, chief=f"file:{path}", timeout=0.3)
    assert path.read_text() == "127.0.0.1:1 other"


def test_a_second_rank_zero_at_the_same_port_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(cairn.Unavailable, match="Is it a second rank 0"):
            DistributedContext(rank=0, size=2, chief=address, token="t", timeout=5)


def test_a_stranger_without_the_token_changes_nothing(tmp_path):
    path = tmp_path / "chief"
    made = {}

    def chief():
        made["chief"] = DistributedContext(
            rank=0, size=2, chief=f"file:{path}", token="secret", timeout=30
        )

    thread = threading.Thread(target=chief)
    thread.start()
    while not path.exists():
        pass
    host, port = path.read_text().split()[0].split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
    with pytest.raises(cairn.Timeout, match="rank 0 was not found"):
        DistributedContext(rank=1, size=2, chief=f"file:{path}", token="wrong", timeout=0.3)
    worker = DistributedContext(rank=1, size=2, chief=f"file:{path}", token="secret", timeout=30)
    thread.join()
    results = []
    other = threading.Thread(target=lambda: results.append(worker.allgather("b")))
    other.start()
    assert made["chief"].allgather("a") == ["a", "b"]
    other.join()
    assert results == [["a", "b"]]
    worker.close()
    made["chief"].close()
    assert not path.exists()


def test_values_that_cannot_be_sent_are_refused_by_type():
    from cairn.core import _wire

    with pytest.raises(cairn.Invalid, match="object"):
        _wire.dumps({"a": [object()]})
    values = {"x": [1, 2.5, None, True, "é", b"\x00", (1, {2, 3})], 5: np.float32(1.5)}
    back = _wire.loads(_wire.dumps(values))
    assert back == {"x": values["x"], 5: 1.5}
    assert np.array_equal(_wire.loads(_wire.dumps(np.eye(2))), np.eye(2))
    mixed = {1, "a", None, (2, "b"), 2.5, b"c"}
    assert _wire.loads(_wire.dumps(mixed)) == mixed
    assert _wire.dumps({"b", 1}) == _wire.dumps({1, "b"})


def test_ranks_are_checked():
    for bad in ({"rank": 2, "size": 2}, {"rank": -1, "size": 1}, {"rank": 0, "size": 2}):
        with pytest.raises(cairn.Invalid):
            DistributedContext(**bad)
    with pytest.raises(cairn.Invalid, match="RANK"):
        _distributed._place_from({"RANK": "x", "WORLD_SIZE": "2"})
    with pytest.raises(cairn.Invalid, match="CAIRN_CHIEF"):
        _distributed._place_from(
            {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
        )
    far = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
           "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}  # fmt: skip
    place = _distributed._place_from(far)
    assert (place.rank, place.local_rank, place.chief) == (3, 1, "node0:29501")
