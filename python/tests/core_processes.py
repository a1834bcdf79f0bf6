"""Real ranks of a trial: processes that run a piece of Python with the Core API."""

import os
import subprocess
import sys
import textwrap
import uuid

TIMEOUT = 120

PREAMBLE = """import os, signal, sys, time
import numpy as np
import cairn
from cairn import core
"""


class Ranks:
    """`size` processes that run `code`, with the variables of one launcher or another."""

    def __init__(self, code, size, folder, *args, kind="cairn"):
        self.processes = []
        chief = f"file:{folder}/chief-{uuid.uuid4()}"
        port = 20000 + uuid.uuid4().int % 20000
        for rank in range(size):
            env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
            env["CAIRN_STORAGE"] = f"{folder}/run"
            env.update(self._variables(kind, rank, size, chief, port))
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *map(str, args)],
                    env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
                )  # fmt: skip
            )

    @staticmethod
    def _variables(kind, rank, size, chief, port):
        if kind == "cairn":
            return {
                "CAIRN_RANK": str(rank), "CAIRN_WORLD_SIZE": str(size),
                "CAIRN_LOCAL_RANK": str(rank), "CAIRN_LOCAL_SIZE": str(size),
                "CAIRN_CHIEF": chief, "CAIRN_LAUNCH_KEY": "a secret",
            }  # fmt: skip
        if kind == "torchrun below a run":  # one process of Cairn's launcher, which is torchrun
            return {
                **Ranks._variables("cairn", 0, 1, chief, port),
                **Ranks._variables("torchrun", rank, size, "none", port),
            }  # fmt: skip
        if kind == "srun":
            return {
                "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank),
                "SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_TASKS_PER_NODE": str(size),
                "SLURM_NODEID": "0", "SLURM_JOB_ID": chief, "SLURM_STEP_ID": "0",
            }  # fmt: skip
        if kind == "torchrun":
            return {
                "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": chief,
            }  # fmt: skip
        return {
            "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "PMIX_NAMESPACE": chief,
        }  # fmt: skip

    def end(self):
        """[(exit status, output, errors)] in the order of the ranks."""
        results = []
        for process in self.processes:
            try:
                out, err = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                for other in self.processes:
                    other.kill()
                out, err = process.communicate()
                raise AssertionError(f"a rank did not end: {out!r} {err!r}") from None
            results.append((process.returncode, out, err))
        return results

    def outputs(self):
        """What the ranks printed; all of them ended well."""
        results = self.end()
        for status, _, err in results:
            assert status == 0, err
        return [out for _, out, _ in results]
