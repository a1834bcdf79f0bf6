"""Runs benchmarks of cairn_bench and keeps the rounds in which nobody else used the machine."""

import json
import statistics
import subprocess
import sys


class NotBuilt(Exception):
    """The program has no such benchmark: what it needs was not there when it was built."""


class Runner:
    """Calls cairn_bench and keeps the lines that it prints."""

    def __init__(self, program, options):
        self.program = program
        self.options = options
        self.measurements = []
        self.facts = []

    def run(self, name, variant="", size=None, rounds=None, first_round=0, program=None):
        rounds = rounds or self.options.rounds
        command = [
            str(program or self.program),
            name,
            "--directory",
            str(self.options.directory),
            "--bytes",
            str(size or self.options.size),
            "--rounds",
            str(rounds),
            "--max-rounds",
            str(rounds if self.options.quick else 3 * rounds),
            "--max-others",
            str(self.options.max_others),
            "--threads",
            str(self.options.threads),
        ]
        if variant:
            command += ["--variant", variant]
        print(f"  {name} {variant}".rstrip(), file=sys.stderr, flush=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                row = json.loads(line)
                if "fact" in row:
                    self.facts.append(row)
                else:
                    row["round"] += first_round
                    self.measurements.append(row)
        if process.returncode == 2:
            raise NotBuilt(name)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed (exit {process.returncode})")

    def fact(self, what, name):
        for row in self.facts:
            if row["what"] == what and row["fact"] == name:
                return row["value"]
        return None


class Case:
    """The undisturbed rounds of one benchmark: {contender: [row, ...]}, index = round."""

    def __init__(self, runner, what):
        by_round = {}
        for row in runner.measurements:
            if row["what"] == what:
                by_round.setdefault(row["round"], {})[row["contender"]] = row
        self.total = len(by_round)
        limit = runner.options.max_others
        kept = [r for r in by_round.values() if all(x["others"] <= limit for x in r.values())]
        self.disturbed = not kept
        self.rounds = kept or list(by_round.values())

    def values(self, contender, figure):
        return [figure(r[contender]) for r in self.rounds]

    def fastest(self, contenders):
        return max(contenders, key=lambda c: statistics.median(self.values(c, rate)))

    def ratios(self, ours, theirs, figure):
        return [figure(r[ours]) / figure(r[theirs]) for r in self.rounds]

    def conditions(self):
        rows = [row for r in self.rounds for row in r.values()]
        return {
            "rounds": len(self.rounds),
            "rounds_run": self.total,
            "disturbed": self.disturbed,
            "load": statistics.median(row["load"] for row in rows),
            "others": max(row["others"] for row in rows),
        }


def rate(row):
    return row["bytes"] / row["seconds"]


def seconds(row):
    return row["seconds"]


def gigabytes(case, contender):
    return statistics.median(case.values(contender, rate)) / 1e9
