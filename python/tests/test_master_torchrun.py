"""Trials whose command is torchrun: one process for the master, several ranks of its own."""

import sys

from master_process import running_master

SCRIPT = """
import os, sys
from cairn import core

with core.init() as ctx:
    ranks = ctx.distributed
    assert ranks.allgather(ranks.rank) == [0, 1], ranks
    assert ctx.info.rank == ranks.rank and ctx.info.world_size == 2
    for step in range(1, 4):
        if ranks.is_chief:
            ctx.train.report_training_metrics(steps_completed=step, metrics={"x": step})
    with ctx.checkpoint.store_path({"steps_completed": 3}, shard=True) as (path, id):
        open(f"{path}/of_{ranks.rank}", "w").write(str(ranks.local_rank))
    with ctx.checkpoint.restore_path(id) as path:
        assert sorted(os.listdir(path)) == ["of_0", "of_1"]
"""

CONFIG = """
name: torchrun
entrypoint: {python} -m torch.distributed.run --standalone --nproc-per-node 2 train.py
max_restarts: 0
"""


def test_the_ranks_of_torchrun_are_the_ranks_of_the_trial(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    (code / "config.yaml").write_text(CONFIG.format(python=sys.executable))
    with running_master(tmp_path / "master") as master:
        made = master.cli_json("experiment", "create", code / "config.yaml", code)["id"]
        ended = master.wait_state(made, "COMPLETED", "CANCELED", "ERROR")
        trial = master.trial_of(made)["id"]
        assert ended["state"] == "COMPLETED", master.cli("t", "logs", trial).stdout
        assert master.reports(trial) == [(1, 1), (2, 2), (3, 3)]
        [checkpoint] = master.get(f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]
        assert checkpoint["steps_completed"] == 3
