"""What a master gives to the processes of a trial: limits, slots, and word that they should stop, to each rank by itself."""

import pytest
from master_process import running_master

RANKS = """
import time
import cairn

with cairn.core.init(preempt_mode=cairn.core.PreemptMode.WorkersAskMaster) as ctx:
    rank = ctx.distributed.rank
    assert not ctx.preempt.should_preempt()
    ctx.distributed.barrier()
    if rank == 0:
        ctx.train.report_training_metrics(steps_completed=1, metrics={"x": 1})
    while not ctx.preempt.should_preempt():  # nobody asks another rank
        time.sleep(0.01)
    print(f"rank {rank} was told")
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as master:
        yield master


def create(master, directory, config):
    (directory / "config.yaml").write_text(config)
    return master.cli_json("e", "create", directory / "config.yaml", directory)["id"]


def lines_of(master, experiment):
    page = master.get(f"/api/v1/trials/{master.trial_of(experiment)['id']}/logs?limit=1000")
    return [line["text"] for line in page["lines"]]


def test_each_process_has_the_limits_of_the_config(master, tmp_path):
    limits = "limits: {memory: 1GiB, open_files: 321, nice: 4}"
    command = 'ulimit -v; ulimit -n; nice; python3 -c "bytearray(2 << 30)" 2>&1 | tail -n 1'
    config = f"entrypoint: [sh, -c, '{command}']\nresources: {{{limits}}}\nmax_restarts: 0\n"
    experiment = create(master, tmp_path, config)
    assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
    memory, files, nice, last = lines_of(master, experiment)
    assert (memory, files, last) == (str(1 << 20), "321", "MemoryError")
    assert int(nice) >= 4


def test_a_run_whose_time_is_over_has_failed_and_says_so(master, tmp_path):
    config = "entrypoint: sleep 1000\nresources: {limits: {wall_time: 300ms}}\nkill_grace: 1s\nmax_restarts: 1\n"
    experiment = create(master, tmp_path, config)
    failed = master.wait_state(experiment, "COMPLETED", "ERROR")
    trial = master.trial_of(experiment)
    assert failed["state"] == "ERROR" and trial["restarts"] == 2, "it was tried once more"
    assert "its time was over" in trial["message"]


def test_slots_can_be_handed_on_as_devices(master, tmp_path):
    """The line of docs/guides/core_api.md."""
    show = "python3 -c 'import os; print(os.environ[\"CUDA_VISIBLE_DEVICES\"])'"
    config = f"entrypoint: |-\n  env CUDA_VISIBLE_DEVICES=$CAIRN_SLOTS {show}\nresources: {{slots_per_trial: 2}}\n"
    experiment = create(master, tmp_path, config)
    assert master.wait_state(experiment, "COMPLETED", "ERROR")["state"] == "COMPLETED"
    assert lines_of(master, experiment) == ["0,1", "0,1"]


def test_each_rank_is_told_by_the_master_in_workers_ask_master(master, tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    experiment = create(master, tmp_path, "entrypoint: python3 train.py\nresources: {slots_per_trial: 2}\nmax_restarts: 0\n")
    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
    master.wait(f"/api/v1/trials/{trial}/metrics", lambda answer: answer["metrics"])
    master.post(f"/api/v1/experiments/{experiment}/pause")
    assert master.wait_state(experiment, "PAUSED", "ERROR", "COMPLETED")["state"] == "PAUSED"
    logs = master.wait(f"/api/v1/trials/{trial}/logs?limit=1000", lambda page: len(page["lines"]) == 2)["lines"]
    assert sorted(line["text"] for line in logs) == ["rank 0 was told", "rank 1 was told"]
