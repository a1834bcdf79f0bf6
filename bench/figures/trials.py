"""What trials and the Core API cost a training."""

import json
import os
import statistics
import subprocess
from pathlib import Path

from rounds import Case, rate, seconds

HERE = Path(__file__).resolve().parents[1]


def core(runner, table):
    """The Core API and the launcher: what they cost a training."""
    runner.run("preempt")
    table.add(
        "should_preempt() in C++",
        [1e6 * runner.fact("preempt", "seconds_a_call")],
        at_most=1,
        unit=" us",
    )
    python = HERE.parent / ".venv/test/bin/python"
    if python.exists():
        path = os.pathsep.join([str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")])
        asked = subprocess.run(
            [str(python), str(HERE / "preempt.py")],
            env=dict(os.environ, PYTHONPATH=path),
            stdout=subprocess.PIPE,
            text=True,
        )
        if asked.returncode not in (0, 2):
            raise SystemExit(f"preempt.py failed (exit {asked.returncode})")
        runner.facts += [json.loads(line) for line in asked.stdout.splitlines()]
    for name, what, limit in (
        ("ChiefOnly", "should_preempt() in Python, ChiefOnly", 1),
        ("WorkersAskMaster", "should_preempt() in Python, WorkersAskMaster", 1),
        ("workers_ask_chief", "should_preempt() in Python, WorkersAskChief, 2 ranks", None),
    ):
        value = runner.fact("preempt_python", name)
        if value is not None:
            table.add(what, [1e6 * value], at_most=limit, unit=" us")
    runner.run("launch", rounds=max(runner.options.rounds, 10))
    case = Case(runner, "launch")
    plain = statistics.median(case.values("fork and exec", seconds))
    for contender, what in (
        ("trial", "submitting a C++ trial to its first line"),
        ("launcher", "launch to first line"),
    ):
        ours = case.values(contender, seconds)
        above = zip(ours, case.values("fork and exec", seconds))
        table.add(
            f"{what}, above fork and exec",
            [1e3 * (mine - theirs) for mine, theirs in above],
            at_most=100,
            unit=" ms",
            detail=f"{1e3 * statistics.median(ours):.1f} ms, fork and exec {1e3 * plain:.1f} ms",
            conditions=case.conditions(),
        )


def reports(runner, table):
    runner.run("reports", "quick" if runner.options.quick else "")
    case = Case(runner, "reports")
    ours = statistics.median(case.values("cairn", rate))
    syncs = statistics.median(case.values("cairn", lambda row: row["syncs"]))
    table.add(
        "durable reports, 16 connections: of appending the same with the same syncs",
        case.ratios("cairn", "append", rate),
        at_least=0.3,
        detail=f"{ours:,.0f} reports/s, {syncs:.0f} syncs a round",
        conditions=case.conditions(),
    )


def pause_told(runner, table):
    runner.run("pause_told")
    median = runner.fact("pause_told", "p50") * 1e3
    table.add(
        "pause request to process told, p99",
        [runner.fact("pause_told", "p99") * 1e3],
        at_most=200,
        unit=" ms",
        detail=f"median {median:.1f} ms",
    )
