#!/usr/bin/env python3
"""What launches on Slurm cost beside sbatch alone, on a real Slurm of this machine.

    bench/slurm.py BUILD_DIR [--rounds 15] [--launches 200] [--seconds 10] [--json FILE]

start: from the call to the user's first line, launches and plain sbatch in turn, medians. Slurm's scheduler begins jobs about once a second
here, which both wait for. follow: processor time of the launcher, and calls of Slurm's programs, while launches wait in Slurm's queue.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST_OVER_MS = 300
MOST_CORE_PERCENT = 5
MOST_CALLS = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json")
    options = parser.parse_args()
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
        program = pathlib.Path(options.build) / "bin" / "slurm_bench"
        words = [program, directory, options.rounds, options.launches, options.seconds]
        environment = {**os.environ, "SLURM_CONF": str(directory / "slurm" / "slurm.conf")}
        found = json.loads(subprocess.run([str(word) for word in words], env=environment, check=True, stdout=subprocess.PIPE).stdout)
    finally:
        slurm.stdin.close()
        slurm.wait()
        shutil.rmtree(directory, ignore_errors=True)
    print(f"submit to user code   {found['start_ms']:8.0f} ms, sbatch alone {found['sbatch_ms']:.0f} ms: {found['over_ms']:+.0f} ms (at most +{MOST_OVER_MS})")
    print(
        f"{found['launches']} queued launches  {found['core_percent']:8.2f} % of a core (at most {MOST_CORE_PERCENT}), Slurm's programs "
        f"{found['programs_percent']:.2f} %; {found['calls_per_second']:.2f} calls a second (at most {MOST_CALLS})"
    )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found) + "\n")
    good = found["over_ms"] <= MOST_OVER_MS and found["core_percent"] <= MOST_CORE_PERCENT and found["calls_per_second"] <= MOST_CALLS
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
