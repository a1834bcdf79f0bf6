#!/usr/bin/env python3
"""Runs the benchmarks and compares their figures with the targets.

    bench/run.py BUILD_DIR [--only save,restore] [--rounds 5] [--size 2GiB] [--quick]

Every figure is a ratio against a baseline measured in the same run, round robin. Rounds in which
others used more than half a core are left out. Prints a table; writes bench.json and bench.png into
bench/out/. Restores are cold, so the caches are dropped, which needs root. What could not be measured is named at the end,
and the exit status is 1 then.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from figures import checkpoints, models, serving, tables, trials
from report import Table, plot
from rounds import NotBuilt, Runner

HERE = Path(__file__).resolve().parent
BENCHMARKS = {
    "save": checkpoints.save,
    "first": checkpoints.first,
    "blocked": checkpoints.blocked,
    "restore": checkpoints.restore,
    "small": checkpoints.small,
    "memory": checkpoints.memory,
    "names": checkpoints.names,
    "unchanged": checkpoints.unchanged,
    "matmul": checkpoints.matmul,
    "load_vars": models.load_vars,
    "prune": models.prune,
    "predict": models.predict,
    "serving": serving.serving,
    "tables": tables.tables,
    "core": trials.core,
    "reports": trials.reports,
    "pause_told": trials.pause_told,
}
NOT_BUILT = (
    "libonnx or OpenVINO was not there at the build: scripts/setup build and scripts/venv test "
    "install them, then scripts/build release"
)
NEED_ROOT = ("restore", "small", "names", "load_vars")


def parse_size(text):
    match = re.fullmatch(r"(\d+)\s*([KMGT]i?B?|B)?", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (like 2GiB or 256MiB)")
    power = " KMGT".index((match.group(2) or " ")[0].upper().replace("B", " "))
    return int(match.group(1)) * 1024**power


def machine(directory):
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory": memory,
        "file_system": kind,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path, help="a build directory with bin/cairn_bench")
    parser.add_argument("--only", default="", help=f"some of: {','.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, help="undisturbed rounds of each (default 5)")
    parser.add_argument("--size", type=parse_size, help="of the state (default 2GiB)")
    parser.add_argument("--quick", action="store_true", help="small and short: does it all work?")
    parser.add_argument(
        "--max-others",
        type=float,
        default=0.5,
        help="cores that others may use in a round that counts",
    )
    parser.add_argument("--threads", type=int, default=0, help="that copy (default: all cores)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=HERE / "out",
        help="on the disk to measure; all is written below cairn-bench/ in it",
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.size = options.size or parse_size("128MiB" if options.quick else "2GiB")
    chosen = [name for name in options.only.split(",") if name] or list(BENCHMARKS)
    unknown = set(chosen) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    program = options.build / "bin" / "cairn_bench"
    if not program.exists():
        parser.error(f"{program} is not there; build it first (make bench does)")
    left_out = {}  # why → what
    if os.geteuid() != 0:
        left_out["only root can drop the caches"] = [n for n in chosen if n in NEED_ROOT]
        chosen = [name for name in chosen if name not in NEED_ROOT]

    out = HERE / "out"
    out.mkdir(exist_ok=True)
    options.directory = options.directory / "cairn-bench"  # a folder of our own: it is removed
    options.directory.mkdir(parents=True, exist_ok=True)
    runner = Runner(program, options)
    table = Table()
    facts = machine(options.directory)
    try:
        for name in chosen:
            try:
                BENCHMARKS[name](runner, table)
            except NotBuilt:
                left_out.setdefault(NOT_BUILT, []).append(name)
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)
    if table.rows:
        show(table, runner, options, facts, out)
    for why, names in left_out.items():
        if names:
            print(f"bench/run.py: left out: {', '.join(names)} ({why})", file=sys.stderr)
    return 1 if any(left_out.values()) else 0


def show(table, runner, options, facts, out):
    print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory'] / 2**30:.0f} GiB, "
        f"{facts['file_system']}, Linux {facts['kernel']}; state of "
        f"{options.size / 2**20:.0f} MiB; rounds with more than {options.max_others:g} cores "
        "taken by others are left out\n"
    )
    table.print()
    record = {
        "machine": facts,
        "options": {
            "size": options.size,
            "rounds": options.rounds,
            "quick": options.quick,
            "max_others": options.max_others,
            "threads": options.threads,
        },
        "results": table.rows,
        "measurements": runner.measurements,
        "facts": runner.facts,
    }
    (out / "bench.json").write_text(json.dumps(record, indent=1) + "\n")
    drawn = plot(table, out / "bench.png")
    print(f"written: {out / 'bench.json'}" + (f", {out / 'bench.png'}" if drawn else ""))


if __name__ == "__main__":
    sys.exit(main())
