"""torch.distributed.checkpoint on a repository: gloo processes, other numbers of them, kills."""

import multiprocessing
import os
import signal
import uuid
import warnings
from pathlib import Path

import dcp_rank
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import cairn
from cairn.integrations.dcp import CairnReader, CairnWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

# The server of forks does not see what pytest adds to sys.path.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["dcp_rank"])


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def start(task, world, directory, tmp_path, *arguments):
    rendezvous = tmp_path / f"rendezvous-{uuid.uuid4()}"
    processes = [
        _forks.Process(
            target=dcp_rank.run,
            args=(task, rank, world, str(directory), str(rendezvous), *arguments),
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    return processes


def run(task, world, directory, tmp_path, *arguments):
    processes = start(task, world, directory, tmp_path, *arguments)
    try:
        for process in processes:
            process.join(timeout=120)
    finally:
        for process in processes:
            process.kill()
    assert [p.exitcode for p in processes] == [0] * world  # their errors are on stderr


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory):
    root = tmp_path_factory.mktemp("dcp")
    run("save", 2, root / "checkpoints", root)
    return root / "checkpoints"


def test_two_ranks_load_what_they_saved(saved_by_two, tmp_path):
    run("load_own", 2, saved_by_two, tmp_path)


def test_three_ranks_and_one_load_what_two_saved(saved_by_two, tmp_path):
    run("load", 3, saved_by_two, tmp_path)
    run("load", 1, saved_by_two, tmp_path)


def test_two_ranks_three_one_and_two_carry_one_state_on(tmp_path):
    """Each loads what the one before saved, changes it, and saves it in its own pieces."""
    directory = tmp_path / "checkpoints"
    run("save", 2, directory, tmp_path)
    for world, step, then in ((3, 20, 30), (1, 30, 40), (2, 40, 50)):
        run("carry_on", world, directory, tmp_path, step, then)
        files = (directory / f"checkpoint_{then:06}" / "__model__").glob("*.safetensors")
        assert {f.name.split("-")[0] for f in files} == {f"rank_{r}" for r in range(world)}
    assert cairn.verify(directory).ok
    rows = torch.arange(21, dtype=torch.float32).reshape(7, 3) * 0.5
    for step in (10, 20, 30, 40, 50):  # each of them is still whole
        path = directory / f"checkpoint_{step:06}"
        assert torch.equal(cairn.load(path)["model"]["rows"], rows + step)


def test_arrays_of_two_ranks_are_ordinary_arrays(saved_by_two):
    assert cairn.verify(saved_by_two).ok
    state = cairn.load(saved_by_two)
    assert state["lr"] == 2.5 and state["names"] == ["a", "b", 20]
    rows = torch.arange(21, dtype=torch.float32).reshape(7, 3) * 0.5 + 20
    assert torch.equal(state["model"]["rows"], rows)
    assert state["model"]["half"].dtype == torch.bfloat16
    assert isinstance(state["list"], list)
    # Each rank wrote its own rows and no others.
    files = sorted((saved_by_two / "checkpoint_000020" / "__model__").glob("*.safetensors"))
    assert [f.name for f in files] == ["rank_0-00001.safetensors", "rank_1-00001.safetensors"]
    for file, names in zip(files, ({"model/rows@0,0"}, {"model/rows@4,0"})):
        with open(file, "rb") as stream:
            header = stream.read(1 << 16)
        assert all(name.encode() in header for name in names), file


def test_a_manager_restores_what_ranks_saved(saved_by_two):
    rows = np.zeros((7, 3), np.float32)
    with cairn.CheckpointManager(saved_by_two, read_only=True) as m:
        m.restore({"model": {"rows": rows}}, strict=False)
    assert rows[6, 2] == 30


def test_async_saves_hold_the_state_of_the_call(tmp_path):
    run("asynchronous", 2, tmp_path / "checkpoints", tmp_path)
    run("load_own", 2, tmp_path / "checkpoints", tmp_path)


def test_fsdp_goes_on_with_as_many_ranks_and_with_one(tmp_path):
    run("fsdp_save", 2, tmp_path / "checkpoints", tmp_path)
    run("fsdp_resume", 2, tmp_path / "checkpoints", tmp_path)
    run("fsdp_resume", 1, tmp_path / "checkpoints", tmp_path)


def test_fsdp_goes_on_with_three_ranks_and_then_with_one(tmp_path):
    directory = tmp_path / "checkpoints"
    run("fsdp_begin", 2, directory, tmp_path)
    run("fsdp_carry_on", 3, directory, tmp_path, 3)
    run("fsdp_carry_on", 1, directory, tmp_path, 5)


@pytest.mark.parametrize(
    "rank, step", [(1, "save: write"), (0, "save: sync data"), (0, "save: manifest")]
)
def test_killed_in_a_save_the_one_before_is_loaded(tmp_path, rank, step):
    directory = tmp_path / "checkpoints"
    processes = start("killed", 2, directory, tmp_path, rank, step)
    try:
        processes[rank].join(timeout=120)
        assert processes[rank].exitcode == -signal.SIGKILL
    finally:
        for process in processes:  # as a scheduler does with the ranks that are left
            process.kill()
            process.join()
    run("load_ten", 1, directory, tmp_path)


# One process ----------


def save(directory, state, step=None, planner=None, **options):
    with CairnWriter(directory, **options) as writer:
        dcp.save(state, storage_writer=writer, checkpoint_id=step, planner=planner)


def load(directory, state, step=None, planner=None):
    reader = CairnReader(directory)
    dcp.load(state, storage_reader=reader, checkpoint_id=step, planner=planner)
    return reader


def test_modules_optimizers_and_values_come_back(directory):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "numbers": np.arange(3.0),
        "many": bytes(5000),
        "pair": (torch.ones(2), "x"),
        "empty": torch.zeros(0, 3),
        "complex": torch.tensor([1 + 2j]),
    }
    save(directory, state, "7")
    # As torch has it, names come from the state that is to be filled: values may be anything.
    found = {
        "model": torch.nn.Linear(3, 2).state_dict(),
        "optimizer": {
            "state": {
                k: {n: torch.zeros_like(t) for n, t in v.items()}
                for k, v in state["optimizer"]["state"].items()
            },
            "param_groups": [{k: None for k in state["optimizer"]["param_groups"][0]}],
        },
        "rng": torch.zeros_like(state["rng"]),
        "numbers": None,
        "many": None,
        "pair": None,
        "empty": torch.ones(0, 3),
        "complex": torch.zeros(1, dtype=torch.complex64),
    }
    reader = load(directory, found)
    assert reader.info.step == 7
    assert torch.equal(found["model"]["weight"], model.weight)
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(
        {
            "state": {int(k): v for k, v in found["optimizer"]["state"].items()},
            "param_groups": found["optimizer"]["param_groups"],
        }
    )
    exp_avg = again.state[model.weight]["exp_avg"]
    assert torch.equal(exp_avg, optimizer.state[model.weight]["exp_avg"])
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert torch.equal(found["rng"], state["rng"])
    assert np.array_equal(found["numbers"], state["numbers"]) and found["many"] == bytes(5000)
    assert torch.equal(found["pair"][0], torch.ones(2)) and found["pair"][1] == "x"
    assert found["complex"][0] == 1 + 2j


def test_nothing_on_disk_is_pickled(directory):
    save(directory, {"w": torch.ones(3), "values": {"a": [1, 2], "b": "text"}}, "1")
    for file in directory.rglob("*"):
        if file.is_file():
            assert b"\x80\x02}" not in file.read_bytes() and file.suffix not in (".pt", ".distcp")


def test_without_checkpoint_id_the_steps_are_counted(directory):
    with CairnWriter(directory) as writer:
        for number in range(3):
            dcp.save({"x": torch.tensor(number)}, storage_writer=writer)
        assert [i.step for i in writer.manager.list()] == [0, 1, 2]
    found = {"x": torch.tensor(-1)}
    load(directory, found)
    assert found["x"] == 2
    load(directory, found, "1")
    assert found["x"] == 1


def test_a_writer_can_be_closed_and_used_again(directory):
    writer = CairnWriter(directory)
    for step in ("1", "2"):
        dcp.save({"x": torch.ones(1)}, storage_writer=writer, checkpoint_id=step)
        writer.close()
    assert cairn.verify(directory).ok


def test_tensors_are_converted_to_the_targets_dtype(directory):
    save(directory, {"w": torch.arange(4, dtype=torch.float32)}, "1")
    found = {
        "w": torch.zeros(4, dtype=torch.bfloat16),
    }
    load(directory, found)
    assert found["w"].tolist() == [0, 1, 2, 3] and found["w"].dtype == torch.bfloat16


def test_non_contiguous_targets_are_filled(directory):
    save(directory, {"w": torch.arange(6.0).reshape(2, 3)}, "1")
    found = {"w": torch.zeros(3, 2).T}
    load(directory, found)
    assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_states_that_a_manager_saved_can_be_loaded(directory):
    model = torch.nn.Linear(3, 2)
    with cairn.CheckpointManager(directory) as m:
        m.save(5, {"model": model, "epoch": 3, "betas": [0.9, 0.99], "arrays": [torch.ones(2)]})
    found = {"model": torch.nn.Linear(3, 2), "epoch": 0, "betas": None, "arrays": [torch.zeros(2)]}
    load(directory, found)
    assert torch.equal(found["model"].weight, model.weight)
    assert (found["epoch"], found["betas"]) == (3, [0.9, 0.99])
    assert torch.equal(found["arrays"][0], torch.ones(2))


def test_planners_that_do_not_flatten(directory):
    state = {"w": torch.ones(2), "nested": {"a": 1, "b": {"c": 2}}}
    save(directory, state, "1", planner=DefaultSavePlanner(flatten_state_dict=False))
    found = {"w": torch.zeros(2), "nested": None}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load(directory, found, planner=planner)
    assert torch.equal(found["w"], state["w"]) and found["nested"] == state["nested"]


def test_planners_that_cache_their_plans(directory):
    with CairnWriter(directory) as writer:
        for step in range(3):
            planner = DefaultSavePlanner(enable_plan_caching=True)
            state = {"w": torch.full((2,), float(step)), "step": step}
            dcp.save(state, storage_writer=writer, checkpoint_id=str(step), planner=planner)
    found = {"w": torch.zeros(2), "step": None}
    load(directory, found)
    assert found["w"].tolist() == [2, 2] and found["step"] == 2


def test_whole_checkpoints_become_torch_save_files(directory, tmp_path):
    """torch's own reader of everything, whatever it is (dcp_to_torch_save)."""
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    save(directory, {"model": {"w": torch.ones(2)}, "list": [{"x": 1}, {"x": 2}], "n": [1, 2]}, "1")
    found = _load_state_dict_from_keys(storage_reader=CairnReader(directory))
    assert torch.equal(found["model"]["w"], torch.ones(2))
    assert found["list"] == [{"x": 1}, {"x": 2}] and found["n"] == [1, 2]


def test_a_damaged_newest_checkpoint_is_passed_over(directory):
    for step in ("1", "2"):
        save(directory, {"w": torch.full((3,), float(step))}, step)
    next((directory / "checkpoint_000002" / "__model__").glob("*.safetensors")).unlink()
    found = {"w": torch.zeros(3)}
    assert load(directory, found).info.step == 1
    assert found["w"].tolist() == [1, 1, 1]


def flip(directory, step):
    file = next((directory / f"checkpoint_{step:06}" / "__model__").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.unlink()  # it may be linked into other checkpoints
    file.write_bytes(data)


def test_a_newest_checkpoint_with_a_flipped_byte_is_passed_over(directory, caplog):
    for step in ("1", "2"):
        save(directory, {"w": torch.full((1000,), float(step)), "step": int(step)}, step)
    flip(directory, 2)
    found = {"w": torch.zeros(1000), "step": 0}
    assert load(directory, found).info.step == 1
    assert found["step"] == 1 and found["w"].unique().tolist() == [1]
    assert "passed over: step 2" in caplog.text
    with pytest.raises(CheckpointException, match="cairn.errors.Corruption"):
        load(directory, found, "2")


def test_all_ranks_pass_over_what_is_damaged(tmp_path):
    run("save", 2, tmp_path / "run", tmp_path)
    flip(tmp_path / "run", 20)
    run("load_ten", 2, tmp_path / "run", tmp_path)


def test_all_ranks_load_what_the_coordinator_saw(saved_by_two, tmp_path):
    run("load_late", 2, saved_by_two, tmp_path)


def test_an_older_checkpoint_of_another_state_is_refused_by_name(directory):
    save(directory, {"w": torch.ones(3)}, "1")
    save(directory, {"w": torch.ones(3), "more": torch.ones(1000)}, "2")
    flip(directory, 2)
    with pytest.raises(CheckpointException, match="there is no 'more' in it"):
        load(directory, {"w": torch.zeros(3), "more": torch.zeros(1000)})


def test_a_flipped_byte_is_noticed(directory):
    save(directory, {"w": torch.arange(1000.0)}, "1")
    flip(directory, 1)
    with pytest.raises(CheckpointException, match="cairn.errors.Corruption"):
        load(directory, {"w": torch.zeros(1000)})


def test_saves_are_told_to_callbacks(directory):
    records = []
    save(directory, {"w": torch.ones(1000)}, "4", on_saved=records.append)
    assert [(r.step, r.ok) for r in records] == [(4, True)]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda d: save(d, {"x": torch.ones(1)}, "runs/a"), "checkpoint_id is the step"),
        (lambda d: save(d, {"x": object()}, "1"), "x.*cannot be stored"),
        (lambda d: save(d, {"x": torch.ones(1)}, "1", rank=1), "process group's"),
        (lambda d: load(d, {"x": torch.ones(1)}), "has no checkpoint|no such directory"),
        (
            lambda d: dcp.save(
                {"x": torch.ones(1)}, storage_writer=CairnWriter(d), use_collectives=False
            ),
            "use_collectives",
        ),
    ],
)
def test_mistakes_are_named(directory, call, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((CheckpointException, cairn.Error), match=message):
            call(directory)


def test_missing_keys_and_other_shapes_are_refused(directory):
    save(directory, {"w": torch.ones(3)}, "1")
    with pytest.raises(CheckpointException, match="Missing key"):
        load(directory, {"v": torch.ones(3)})
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load(directory, {"w": torch.ones(4)})
