#!/usr/bin/env python3
"""What launches on Slurm cost beside sbatch alone, on a real Slurm of this machine.

    bench/slurm.py BUILD_DIR [--rounds 15] [--launches 200] [--seconds 10] [--json FILE]

start: from the call to the user's first line, launches and plain sbatch in turn, medians. Slurm's scheduler begins jobs about once a second
here, which both wait for. follow: processor time of the launcher, and calls of Slurm's programs, while launches wait in Slurm's queue.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import cluster_starts

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    options = cluster_starts.parse(__doc__, rounds=15)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cairn-slurm-", dir="/tmp"))
    slurm = subprocess.Popen(
        ["/usr/bin/python3", ROOT / "tests/services/slurm/one-machine-slurm", directory / "slurm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if slurm.stdout.readline() != "READY\n":
            raise SystemExit("bench/slurm.py: Slurm did not start")
        command = cluster_starts.command(options, "slurm_bench", directory)
        environment = {**os.environ, "SLURM_CONF": str(directory / "slurm" / "slurm.conf")}
        found = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    finally:
        slurm.stdin.close()
        slurm.wait()
        shutil.rmtree(directory, ignore_errors=True)
    programs = f", Slurm's programs {found['programs_percent']:.2f} %"
    cluster_starts.judge(options, found, "sbatch alone", found["sbatch_ms"], programs, "calls")


if __name__ == "__main__":
    main()
