"""The examples of the Core API, without a master: run, stopped, killed, started again."""

import os
import pathlib
import signal
import subprocess
import sys
import uuid

import pytest
from children import command_line

import cairn

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "core_api"
TIMEOUT = 120


def start(command, folder, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
    env["PYTHONPATH"] = os.path.dirname(os.path.dirname(cairn.__file__))
    return subprocess.Popen(
        command, cwd=folder, env={**env, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def python(name, seconds="0.001"):
    return [sys.executable, str(EXAMPLES / name), seconds]


def end(process):
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    return out, err


def checkpoints_command(kind, seconds="0.001"):
    if kind == "python":
        return python("2_checkpoints.py", seconds)
    return [os.path.join(os.path.dirname(command_line()), "core_api_checkpoints"), seconds]


def test_0_start(tmp_path):
    assert "trained to x = 100" in end(start(python("0_start.py"), tmp_path))[0]


def test_1_metrics(tmp_path):
    _, err = end(start(python("1_metrics.py"), tmp_path))
    assert "training metrics at step 30: {'x': 30}" in err
    assert "validation metrics at step 100: {'x': 100}" in err


def test_3_hpsearch_without_a_master_is_one_trial(tmp_path):
    assert end(start(python("3_hpsearch.py"), tmp_path))[0] == "increment_by = 1, x = 100\n"


@pytest.mark.parametrize("kind", ["python", "cpp"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_2_checkpoints_goes_on_after_a_stop_and_after_a_kill(tmp_path, kind, how):
    process = start(checkpoints_command(kind, "0.1"), tmp_path)
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines == [f"{n} steps, x = {n}\n" for n in (10, 20, 30)]
    process.send_signal(how)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 0), err
    seen = [line.split()[0] for line in (lines + out.splitlines())]
    out, _ = end(start(checkpoints_command(kind), tmp_path))
    again = [line.split()[0] for line in out.splitlines()]
    # Nothing that was said is lost; a kill may hit between a checkpoint and its line.
    assert int(again[0]) in (int(seen[-1]) + 10, int(seen[-1]) + 20)
    assert out.splitlines()[-1] == "100 steps, x = 100"
    # A training that is finished has nothing to do.
    assert end(start(checkpoints_command(kind), tmp_path))[0] == ""


def distributed_command(kind, seconds):
    if kind == "python":
        return python("4_distributed.py", seconds)
    return [os.path.join(os.path.dirname(command_line()), "core_api_distributed"), seconds]


def variables_of(launcher, rank, size, chief):
    if launcher == "cairn":
        return {
            "CAIRN_CHIEF": chief, "CAIRN_WORLD_SIZE": str(size), "CAIRN_RANK": str(rank),
            "CAIRN_LOCAL_RANK": str(rank), "CAIRN_LOCAL_SIZE": str(size),
            "CAIRN_LAUNCH_KEY": "a secret",
        }  # fmt: skip
    if launcher == "torchrun below a run":
        return {**variables_of("cairn", 0, 1, chief), **variables_of("torchrun", rank, size, "none")}
    if launcher == "srun":
        return {
            "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(rank),
            "SLURM_STEP_TASKS_PER_NODE": str(size), "SLURM_JOB_ID": chief, "SLURM_STEP_ID": "0",
        }  # fmt: skip
    if launcher == "torchrun":
        return {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": chief,
        }  # fmt: skip
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "PMIX_NAMESPACE": chief,
    }  # fmt: skip


def ranks(folder, seconds="0.001", kinds=("python", "python"), launcher="cairn"):
    chief = f"file:{folder}/chief-{uuid.uuid4()}"
    return [
        start(
            distributed_command(kind, seconds), folder, CAIRN_STORAGE=str(folder / "run"),
            **variables_of(launcher, rank, len(kinds), chief),
        )
        for rank, kind in enumerate(kinds)
    ]  # fmt: skip


MIXTURES = [("python", "python"), ("cpp", "cpp"), ("python", "cpp"), ("cpp", "python")]


@pytest.mark.parametrize("kinds", MIXTURES)
def test_4_distributed_goes_on_after_a_rank_was_killed(tmp_path, kinds):
    chief, worker = ranks(tmp_path, "0.1", kinds)
    assert chief.stdout.readline() == "10 steps, x = 30 of 2 ranks\n"
    worker.kill()
    worker.communicate(timeout=TIMEOUT)
    out, err = chief.communicate(timeout=TIMEOUT)
    done = 10 * (1 + len(out.splitlines()))
    assert chief.returncode != 0 and "rank 1 is gone" in err
    # Again, with the languages of the two changed over.
    chief, worker = ranks(tmp_path, kinds=kinds[::-1])
    out, _ = end(chief)
    end(worker)
    assert out.splitlines()[-1] == "100 steps, x = 300 of 2 ranks"
    # A kill may hit between a checkpoint and its line.
    expected = [f"{n} steps, x = {3 * n} of 2 ranks" for n in (done + 10, done + 20)]
    assert out.splitlines()[0] in expected
    assert cairn.verify(tmp_path / "run").ok


@pytest.mark.parametrize("kinds", MIXTURES[1:])
@pytest.mark.parametrize("launcher", ["torchrun", "torchrun below a run", "mpi", "srun"])
def test_4_distributed_in_cpp_by_the_variables_of_other_launchers(tmp_path, kinds, launcher):
    chief, *workers = ranks(tmp_path, "0", (*kinds, "cpp"), launcher)
    out, _ = end(chief)
    for worker in workers:
        end(worker)
    assert out.splitlines()[-1] == "100 steps, x = 600 of 3 ranks"


@pytest.mark.parametrize("kinds", MIXTURES[1:])
def test_4_distributed_stops_all_ranks_when_rank_0_is_told(tmp_path, kinds):
    chief, worker = ranks(tmp_path, "0.1", kinds)
    assert chief.stdout.readline() == "10 steps, x = 30 of 2 ranks\n"
    chief.send_signal(signal.SIGTERM)
    out, _ = end(chief)
    end(worker)
    assert "100 steps" not in out
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as reader:
        steps = 10 * (1 + len(out.splitlines()))
        assert reader.latest().step == steps
        assert sorted(reader.restore(id=reader.latest().id).files) == ["rank_0", "rank_1"]
