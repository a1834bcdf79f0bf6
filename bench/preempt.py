#!/usr/bin/env python3
"""What should_preempt() costs a training loop in Python: figures as lines of JSON, as cairn_bench's.

    bench/preempt.py            in one process, and with two ranks in WorkersAskChief
"""

import json
import os
import subprocess
import sys
import tempfile
import time

CALLS = 200_000
ASKED_OF_CHIEF = 2_000


def say(name, value):
    print(json.dumps({"what": "preempt_python", "fact": name, "value": value}), flush=True)


def seconds_a_call(ctx, calls):
    ask = ctx.preempt.should_preempt
    began = time.perf_counter()
    for _ in range(calls):
        ask()
    return (time.perf_counter() - began) / calls


def main():
    try:
        from cairn import core
    except ImportError:
        return 2  # the package is not built here
    if "CAIRN_RANK" in os.environ:
        with core.init() as ctx:
            ctx.distributed.barrier()
            cost = seconds_a_call(ctx, ASKED_OF_CHIEF)
            if ctx.distributed.is_chief:
                say("workers_ask_chief", cost)
        return 0
    for mode in (core.PreemptMode.ChiefOnly, core.PreemptMode.WorkersAskMaster):
        with tempfile.TemporaryDirectory() as folder:
            with core.init(storage=folder, preempt_mode=mode) as ctx:
                say(mode.name, min(seconds_a_call(ctx, CALLS) for _ in range(5)))
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__],
                env=dict(
                    os.environ, CAIRN_RANK=str(rank), CAIRN_WORLD_SIZE="2", CAIRN_LOCAL_SIZE="2",
                    CAIRN_LOCAL_RANK=str(rank), CAIRN_CHIEF=f"file:{folder}/chief",
                    CAIRN_CHIEF_TOKEN="a secret", CAIRN_STORAGE=f"{folder}/run",
                ),
            )
            for rank in range(2)
        ]  # fmt: skip
        return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
