#!/usr/bin/env python3
"""Speed of the master's record, on SQLite and on PostgreSQL.

    bench/catalog.py BUILD_DIR [--reports 8192] [--rounds 5] [--json FILE] [--directory DIR]

A PostgreSQL 15 is started for it (as the user postgres when run by root). append: durable reports in groups of 16 (16 connections that wait
for their answers), the catalog beside a program that inserts the same rows in the same transactions by the database's own library; round
robin, medians. list: a page of 50 of 10,000 experiments with 20,000 trials, by all sort orders and filters. series: 100,000 points of a
metric read as 1,000.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = pathlib.Path("/usr/lib/postgresql/15/bin")
PORT = 55433
GROUP = 16


class Postgres:
    """A server in a directory of its own, on loopback."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.databases = 0
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.user:
            shutil.chown(self.folder, "postgres", "postgres")
        self.call(
            "initdb",
            "-D",
            "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "--locale=C",
            "-E",
            "UTF8",
        )
        options = (
            f"-k {self.folder} -p {PORT} -c listen_addresses=127.0.0.1 -c shared_buffers=128MB"
        )
        self.call("pg_ctl", "-D", "data", "-w", "-s", "-l", "log", "-o", options, "start")

    def call(self, program, *arguments):
        subprocess.run(
            [*self.user, PROGRAMS / program, *arguments],
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def url(self):
        self.databases += 1
        name = f"bench{self.databases}"
        self.call("createdb", "-h", "127.0.0.1", "-p", str(PORT), "-U", "postgres", name)
        return f"postgresql://postgres@127.0.0.1:{PORT}/{name}"

    def stop(self):
        self.call("pg_ctl", "-D", "data", "-m", "fast", "-s", "stop")


class Sqlite:
    def __init__(self, folder):
        self.folder, self.databases = folder, 0

    def url(self):
        self.databases += 1
        return f"sqlite:{self.folder}/bench{self.databases}.db"

    def stop(self):
        pass


def busy_cpu():
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(x) for x in stat.readline().split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measure(program, database, options):
    def run(*arguments):
        before, began = busy_cpu(), time.monotonic()
        done = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        cores = (busy_cpu() - before) / (time.monotonic() - began)
        return {**json.loads(done.stdout), "cores_busy": cores, "load": os.getloadavg()[0]}

    return {
        "append": run("append", database.url(), options.reports, GROUP, options.rounds),
        "list": run("list", database.url(), 10_000, 500),
        "series": run("series", database.url(), 100_000, 20),
    }


def show(name, figures, reports):
    append = figures["append"]
    ratio = statistics.median(p / c for p, c in zip(append["plain"], append["catalog"]))
    rate = reports / statistics.median(append["catalog"])
    rows = [
        (f"{name}: durable reports in groups of {GROUP}, of inserting the same rows", ratio, "", 0.3, None,
         f"{rate:,.0f}/s"),
        (f"{name}: page of 50 of 10,000 experiments, p99", 1e3 * figures["list"]["p99"], " ms", None, 20,
         f"p50 {1e3 * figures['list']['p50']:.1f} ms"),
        (f"{name}: 100,000 points of a metric as 1,000, p99", 1e3 * figures["series"]["one"]["p99"], " ms", None, 50,
         f"three metrics {1e3 * figures['series']['all']['p50']:.1f} ms"),
    ]  # fmt: skip
    good = True
    for what, value, unit, at_least, at_most, detail in rows:
        met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        good = good and met
        target = f">= {at_least}" if at_least is not None else f"<= {at_most}{unit}"
        print(f"{'ok  ' if met else 'MISS'} {what:72} {value:8.2f}{unit:3} ({target}; {detail})")
    busy = ", ".join(f"{k} {v['cores_busy']:.1f}" for k, v in figures.items())
    print(f"     cores busy meanwhile: {busy}; load {figures['series']['load']:.1f}")
    return good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("build")
    parser.add_argument("--reports", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="on the disk that is measured")
    parser.add_argument("--json", default=str(ROOT / "bench/out/catalog.json"))
    options = parser.parse_args()
    program = str(pathlib.Path(options.build).resolve() / "bin/catalog_bench")
    good, results = True, {}
    for name, kind in (("SQLite", Sqlite), ("PostgreSQL", Postgres)):
        with tempfile.TemporaryDirectory(
            prefix="cairn-bench-catalog-", dir=options.directory
        ) as folder:
            os.chmod(folder, 0o755)
            database = kind(folder)
            try:
                results[name] = measure(program, database, options)
            finally:
                database.stop()
        good = show(name, results[name], options.reports) and good
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
