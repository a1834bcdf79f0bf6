#!/usr/bin/env python3
"""Speed of parameter servers on loopback, against baselines of the same run.

    bench/ps.py BUILD_DIR [--rounds 5] [--rows 5000000] [--only log,increment] [--json FILE]

Pull: the median of single pulls, over plain connections and over gRPC, against a raw TCP echo of the same bytes (8 out,
64 back for each row) with the same congestion control, round by round; "paced echo" is one with the machine's default,
which may space packets out in time. Rows: pull and push of
batches of 4,096 with Adagrad, two trainers and two servers against the same table called by two threads. Logs: the same
with update logs against without. Increment: the time of a batch while an increment of a seventh of 4 million rows is
written against before. Recovery:
from the start of a server to its first answered pull against reading the file into fresh memory and plain inserts.
Repeated: steps done again after a server was killed, against the steps between two increments.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ITEMS = ("pull", "rows", "log", "increment", "recovery", "repeated")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("build")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rows", type=int, default=5_000_000)
    arguments.add_argument("--json", default="")
    arguments.add_argument("--only", default="", help="some of: " + ",".join(ITEMS))
    options = arguments.parse_args()
    only = options.only.split(",") if options.only else list(ITEMS)
    unknown = sorted(set(only) - set(ITEMS))
    if unknown:
        arguments.error(f"--only: no item {', '.join(unknown)}; there are: {', '.join(ITEMS)}")
    programs = pathlib.Path(options.build) / "bin"
    environment = dict(os.environ, CAIRN_PROGRAM=str((programs / "cairn").resolve()))

    def run(*words):
        command = [str(programs / "ps_bench"), *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["rounds"]

    rows = []

    def judge(what, rounds, ours, theirs, at_most=None, at_least=None):
        ratios = [each[ours] / each[theirs] for each in rounds]
        if not ratios:
            rows.append({"what": what, "verdict": "no rounds"})
            return
        ratio = statistics.median(ratios)
        reached = (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)
        target = "reported"
        if at_most is not None or at_least is not None:
            target = f"<= {at_most}" if at_most is not None else f">= {at_least}"
        rows.append(
            {
                "what": what,
                "ratio": ratio,
                "spread": [min(ratios), max(ratios)],
                ours: statistics.median(each[ours] for each in rounds),
                theirs: statistics.median(each[theirs] for each in rounds),
                "target": target,
                "verdict": "pass" if reached else "FAIL",
            }
        )

    for count, target in ((16, 2.2), (1024, 1.8), (16384, 1.4)) if "pull" in only else ():
        pulls = run("pull", count, options.rounds)
        judge(f"pull of {count} rows", pulls, "pull", "echo", target)
        judge(f"pull of {count} rows, paced echo", pulls, "pull", "paced_echo")
        judge(f"pull of {count} rows by gRPC", pulls, "grpc", "echo")
    if "rows" in only:
        judge("rows/s", run("rows", options.rounds), "served", "in_process", at_least=0.35)
    if "log" in only:
        logs = run("log", options.rounds)
        judge("update log written", logs, "written", "off", at_least=0.85)
        judge("update log synced", logs, "synced", "off")
    if "increment" in only:
        judge("batch during increment", run("increment", options.rounds), "during", "before", 1.25)
    if "recovery" in only:
        with tempfile.TemporaryDirectory() as directory:
            recovery = run("recovery", options.rows, pathlib.Path(directory) / "repository")
        judge(f"recovery of {options.rows} rows", recovery, "recovered", "plain", 1.5)
    for recovery, target in (("exact", 1), ("log", 0)) if "repeated" in only else ():
        again = run("repeated", recovery, options.rounds)
        judge(f"work repeated, {recovery}", again, "repeated", "interval", target)

    load = os.getloadavg()[0]
    print(f"parameter servers, loopback, load average {load:.1f}")
    for row in rows:
        if "ratio" not in row:
            print(f"{row['what']:<34} {row['verdict']}")
            continue
        low, high = row["spread"]
        print(
            f"{row['what']:<34} {row['ratio']:7.2f} ({low:.2f} … {high:.2f})  target "
            f"{row['target']:<8} {row['verdict']}"
        )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
