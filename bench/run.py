#!/usr/bin/env python3
"""Runs the benchmarks and compares their figures with the targets.

    bench/run.py BUILD_DIR [--only save,restore] [--rounds 5] [--size 2GiB] [--quick]

Every figure is a ratio against a baseline measured in the same run, round robin. Rounds in which
others used more than half a core are left out. Prints a table; writes bench.json and bench.png into
bench/out/. Restores are cold, so the caches are dropped, which needs root.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHAPES = ("uniform", "mix", "gpt2")
SHAPE_TEXT = {
    "uniform": "64 equal tensors",
    "mix": "mix with 1,000 x 64 KiB",
    "gpt2": "GPT-2's shapes",
}
BENCHMARKS = (
    "save",
    "first",
    "blocked",
    "restore",
    "small",
    "memory",
    "names",
    "unchanged",
    "matmul",
    "load_vars",
    "prune",
    "predict",
    "serving",
    "tables",
    "core",
    "reports",
    "pause_told",
)
NEED_ROOT = ("restore", "small", "names", "load_vars")


def parse_size(text):
    match = re.fullmatch(r"(\d+)\s*([KMGT]i?B?|B)?", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (like 2GiB or 256MiB)")
    power = " KMGT".index((match.group(2) or " ")[0].upper().replace("B", " "))
    return int(match.group(1)) * 1024**power


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


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, values, at_least=None, at_most=None, unit="", detail="", conditions=None):
        """`values` are one per round; the median is judged."""
        measured = statistics.median(values)
        verdict = "reported"
        target = ""
        if at_least is not None:
            verdict = "pass" if measured >= at_least else "MISS"
            target = f">= {at_least:g}{unit}"
        elif at_most is not None:
            verdict = "pass" if measured <= at_most else "MISS"
            target = f"<= {at_most:g}{unit}"
        self.rows.append(
            {
                "what": what,
                "target": target,
                "at_least": at_least,
                "at_most": at_most,
                "measured": measured,
                "least": min(values),
                "most": max(values),
                "unit": unit,
                "verdict": verdict,
                "detail": detail,
                **(conditions or {}),
            }
        )

    def print(self):
        head = (
            "what",
            "target",
            "measured",
            "spread",
            "verdict",
            "rounds",
            "load",
            "others",
            "beside it",
        )
        lines = [head]
        for row in self.rows:
            unit = row["unit"]
            rounds = ""
            if "rounds" in row:
                rounds = f"{row['rounds']}/{row['rounds_run']}"
                rounds += " disturbed" if row["disturbed"] else ""
            lines.append(
                (
                    row["what"],
                    row["target"],
                    f"{row['measured']:.3g}{unit}",
                    f"{row['least']:.3g} - {row['most']:.3g}"
                    if row["least"] != row["most"]
                    else "",
                    row["verdict"],
                    rounds,
                    f"{row['load']:.1f}" if "load" in row else "",
                    f"{row['others']:.2f}" if "others" in row else "",
                    row["detail"],
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        for number, line in enumerate(lines):
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
            if number == 0:
                print("  ".join("-" * width for width in widths))
        judged = [row for row in self.rows if row["verdict"] != "reported"]
        passed = sum(row["verdict"] == "pass" for row in judged)
        print(f"\n{passed} of {len(judged)} targets reached")


def gigabytes(case, contender):
    return statistics.median(case.values(contender, rate)) / 1e9


def judge_save(runner, table):
    for shape in SHAPES:
        runner.run("save", shape)
        case = Case(runner, f"save/{shape}")
        conditions = case.conditions()
        raw = case.fastest(("raw direct", "raw buffered"))
        rates = f"{gigabytes(case, 'cairn new'):.2f} GB/s, {raw} {gigabytes(case, raw):.2f}"
        table.add(
            f"durable save, {SHAPE_TEXT[shape]}: rate / raw",
            case.ratios("cairn new", raw, rate),
            at_least=0.95,
            detail=rates,
            conditions=conditions,
        )
        over = gigabytes(case, "raw overwrite")
        faster = over > gigabytes(case, raw)
        detail = f"{gigabytes(case, 'cairn recycled'):.2f} GB/s, raw overwrite {over:.2f}"
        table.add(
            f"recycled files, {SHAPE_TEXT[shape]}: rate / raw new",
            case.ratios("cairn recycled", raw, rate),
            at_least=1.2 if faster else None,
            detail=detail + ("" if faster else "; overwriting is not faster here"),
            conditions=conditions,
        )


def judge_first(runner, table):
    for number in range(runner.options.rounds):  # a process each: the arena is cold
        runner.run("first", "uniform", rounds=1, first_round=number)
    case = Case(runner, "first/uniform")
    blocked = statistics.median(case.values("cairn first", lambda row: row["blocked"]))
    table.add(
        "first save of a process: rate / raw",
        case.ratios("cairn first", "raw direct", rate),
        detail=f"blocked for {blocked:.2f} s",
        conditions=case.conditions(),
    )


def judge_blocked(runner, table):
    runner.run("blocked")
    case = Case(runner, "blocked")
    detail = f"memcpy {gigabytes(case, 'memcpy'):.1f} GB/s"
    table.add(
        "blocked by a save: time / memcpy",
        case.ratios("cairn", "memcpy", seconds),
        at_most=1.15,
        detail=detail,
        conditions=case.conditions(),
    )
    table.add(
        "blocked by a lazy save: time / memcpy",
        case.ratios("cairn lazy", "memcpy", seconds),
        at_most=0.1,
        detail=detail,
        conditions=case.conditions(),
    )


def judge_restore(runner, table):
    for shape in SHAPES:
        runner.run("restore", shape)
        case = Case(runner, f"restore/{shape}")
        raw = case.fastest(("raw direct", "raw buffered"))
        table.add(
            f"cold restore, {SHAPE_TEXT[shape]}: rate / raw",
            case.ratios("cairn", raw, rate),
            at_least=0.9,
            detail=f"{gigabytes(case, 'cairn'):.2f} GB/s, {raw} {gigabytes(case, raw):.2f}",
            conditions=case.conditions(),
        )


def judge_small(runner, table):
    count = 1_000 if runner.options.quick else 10_000
    runner.run("small", size=count * 4096)
    for direction in ("save", "restore"):
        case = Case(runner, f"small/{direction}")
        times = [
            statistics.median(case.values(c, seconds)) * 1e3 for c in ("cairn", "raw buffered")
        ]
        table.add(
            f"{count:,} tensors of 4 KiB, {direction}: rate / one file",
            case.ratios("cairn", "raw buffered", rate),
            at_least=0.7,
            detail=f"{times[0]:.1f} ms, one buffered file {times[1]:.1f} ms",
            conditions=case.conditions(),
        )


def judge_memory(runner, table):
    for variant in ("background", "low_memory"):
        runner.run("memory", variant)
        what = f"memory/{variant}"
        above = runner.fact(what, "above")
        if variant == "background":
            table.add(
                "peak memory above the state, non-blocking: / state",
                [above / runner.fact(what, "state")],
                at_most=1.05,
            )
        else:
            table.add(
                "peak memory above the state, low_memory", [above / 2**20], at_most=128, unit=" MiB"
            )


def judge_names(runner, table):
    count = 100_000 if runner.options.quick else 1_000_000
    runner.run("names", "make", size=count * 64)
    runner.run("names", "open", size=count * 64)
    detail = f"saving them took {runner.fact('names', 'save_seconds'):.1f} s"
    table.add(
        f"{count:,} names, cold: list, open, restore one",
        [runner.fact("names", "seconds")],
        at_most=1,
        unit=" s",
        detail=detail,
    )
    table.add(
        f"{count:,} names: peak memory",
        [runner.fact("names", "peak_memory") / 2**20],
        at_most=1024,
        unit=" MiB",
    )
    shutil.rmtree(runner.options.directory / "names", ignore_errors=True)


def judge_unchanged(runner, table):
    runner.run("unchanged")
    case = Case(runner, "unchanged")
    baseline = case.fastest(("baseline", "baseline, hashed on all cores"))
    detail = f"against memcpy + XXH3 + raw write ({baseline})"
    table.add(
        "95 % unchanged, blocking: time / baseline",
        case.ratios("cairn", baseline, seconds),
        at_most=1.3,
        detail=detail,
        conditions=case.conditions(),
    )
    table.add(
        "95 % unchanged, in the background: time / baseline",
        case.ratios("cairn in the background", baseline, seconds),
        at_most=1.3,
        detail=detail,
        conditions=case.conditions(),
    )


def judge_matmul(runner, table):
    runner.run("matmul")
    case = Case(runner, "matmul")
    raw = case.fastest(("raw direct", "raw buffered"))
    table.add(
        "matmul on all cores during a save / before",
        case.values("cairn", lambda row: row["during"] / row["before"]),
        at_least=0.85,
        conditions=case.conditions(),
    )
    table.add(
        "that save's rate / raw",
        case.ratios("cairn", raw, rate),
        at_least=0.9,
        detail=f"{gigabytes(case, 'cairn'):.2f} GB/s, {raw} {gigabytes(case, raw):.2f}",
        conditions=case.conditions(),
    )


def judge_load_vars(runner, table):
    for variant in ("cold", "warm"):
        runner.run("load_vars", variant)
        case = Case(runner, f"load_vars/{variant}")
        # The same guarantee: everything verified before the first byte changes.
        table.add(
            f"load_params, {variant}: of an atomic restore",
            case.ratios("load_params", "restore atomic", rate),
            at_least=0.95,
            detail=f"{gigabytes(case, 'load_params'):.2f} GB/s",
            conditions=case.conditions(),
        )
        table.add(
            f"load_params, {variant}: of a restore that verifies as it fills",
            case.ratios("load_params", "restore", rate),
            conditions=case.conditions(),
        )


def judge_reports(runner, table):
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


def judge_pause_told(runner, table):
    runner.run("pause_told")
    median = runner.fact("pause_told", "p50") * 1e3
    table.add(
        "pause request to process told, p99",
        [runner.fact("pause_told", "p99") * 1e3],
        at_most=200,
        unit=" ms",
        detail=f"median {median:.1f} ms",
    )


def judge_prune(runner, table):
    runner.run("prune")
    case = Case(runner, "prune")
    table.add(
        "cutting a graph of 20,000 nodes, seconds",
        case.values("prune", seconds),
        at_most=0.5,
        unit="s",
        conditions=case.conditions(),
    )


def judge_predict(runner, table):
    for rows in ("1", "64"):
        runner.run("predict", rows)
        case = Case(runner, f"predict/{rows}")
        table.add(
            f"program.run, batch of {rows}: time of OpenVINO's own",
            case.ratios("cairn", "openvino", seconds),
            at_most=1.05,
            conditions=case.conditions(),
        )


def judge_serving(runner, table):
    """A served model of 16 floats a row, and increments of 10,000 rows."""
    runner.run("serving_lookup")
    case = Case(runner, "serving_lookup")
    table.add(
        "serving: p99 of 64 ids during updates / without",
        case.ratios("updating", "still", seconds),
        at_most=1.3,
        detail=f"{1e6 * statistics.median(case.values('updating', seconds)):.1f} us",
        conditions=case.conditions(),
    )
    runner.run("serving_apply")
    case = Case(runner, "serving_apply")
    table.add(
        "serving: rate of updates / of inserts into a table",
        case.ratios("apply", "inserts", rate),
        at_least=0.5,
        detail=f"{statistics.median(case.values('apply', rate)) / 1e6:.2f} million rows/s",
        conditions=case.conditions(),
    )
    table.add(
        "serving: memory of an update / its keys and weights",
        [runner.fact("serving_memory", "delta")],
        at_most=1.5,
    )
    runner.run("serving_freshness")
    for name, most in (("p50", 50), ("p99", 300)):
        table.add(
            f"serving: commit to visible, {name}",
            [1000 * runner.fact("serving_freshness", name)],
            at_most=most,
            unit=" ms",
        )
    runner.run("serving_predict")
    case = Case(runner, "serving_predict")
    table.add(
        "serving: predict of 64 / OpenVINO with the embeddings at hand",
        case.ratios("cairn", "openvino", seconds),
        at_most=1.3,
        conditions=case.conditions(),
    )


def judge_tables(runner, table):
    """Sparse tables of about the size asked for: 12 million rows are 1.7 GiB."""
    runner.run("table_updates")
    case = Case(runner, "table_updates")
    table.add(
        "table: lookup + update, plain map / ours",
        case.ratios("plain", "cairn", seconds),
        at_least=0.8,
        conditions=case.conditions(),
    )
    table.add(
        "table: updates of 2 threads / 1",
        [2 * x for x in case.ratios("cairn", "two threads", seconds)],
        at_least=1.7,
        conditions=case.conditions(),
    )
    # Two programs that take turns: one was compiled without tracking.
    runner.measurements = [row for row in runner.measurements if row["what"] != "table_updates"]
    untracked = runner.program.with_name("cairn_bench_untracked")
    for i in range(runner.options.rounds):
        runner.run("table_updates", "tracking", rounds=1, first_round=i)
        runner.run("table_updates", "tracking", rounds=1, first_round=i, program=untracked)
    case = Case(runner, "table_updates")
    table.add(
        "table: cost of tracking",
        [x - 1 for x in case.ratios("cairn", "untracked", seconds)],
        at_most=0.03,
        conditions=case.conditions(),
    )
    runner.run("table_stall")
    case = Case(runner, "table_stall")
    table.add(
        "table: stall of a cut / copy of the changed rows",
        case.ratios("cut", "copy", seconds),
        at_most=0.001,
        detail=f"{1e6 * statistics.median(case.values('cut', seconds)):.0f} us",
        conditions=case.conditions(),
    )
    runner.run("table_latency")
    near, far = (runner.fact("table_latency", name) for name in ("near", "far"))
    table.add(
        "table: p99.9 of a batch near cuts / far",
        [near / far],
        at_most=1.5,
        detail=f"{1e6 * near:.0f} us, far {1e6 * far:.0f} us",
    )
    runner.run("table_increment")
    case = Case(runner, "table_increment")
    raw = case.fastest(("raw direct", "raw buffered"))
    table.add(
        "table: durable increment's rate / raw",
        case.ratios("increment", raw, rate),
        at_least=0.7,
        conditions=case.conditions(),
    )
    table.add(
        "table: updates while an increment is written / before",
        case.values("beside", lambda row: row["during"] / row["before"]),
        at_least=0.8,
        conditions=case.conditions(),
    )
    table.add("table: increment's bytes / rows", [runner.fact("table_bytes", "exact")], at_most=1.1)
    table.add(
        "table: the same with 8 bits", [runner.fact("table_bytes", "quantized")], at_most=0.45
    )
    runner.run("table_restore")
    case = Case(runner, "table_restore")
    table.add(
        "table: restore of a full + 10 increments / plain map",
        case.ratios("restore", "plain", seconds),
        at_most=1.5,
        conditions=case.conditions(),
    )
    runner.run("table_memory")
    table.add(
        "table: memory of a row above its content",
        [runner.fact("table_memory", "overhead")],
        at_most=48,
        unit=" B",
    )


def judge_core(runner, table):
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
    launched, plain = (
        statistics.median(case.values(c, seconds)) for c in ("launcher", "fork and exec")
    )
    table.add(
        "launch to first line of user code, above fork and exec",
        [
            1e3 * (ours - theirs)
            for ours, theirs in zip(
                case.values("launcher", seconds), case.values("fork and exec", seconds)
            )
        ],
        at_most=100,
        unit=" ms",
        detail=f"{1e3 * launched:.1f} ms, fork and exec {1e3 * plain:.1f} ms",
        conditions=case.conditions(),
    )


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


def plot(table, path):
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib: no plot", file=sys.stderr)
        return
    rows = [row for row in table.rows if row["target"]][::-1]
    if not rows:
        return
    figure, axes = pyplot.subplots(figsize=(10, 0.4 * len(rows) + 1.5))
    for y, row in enumerate(rows):
        # As a share of the target, turned so that more is better.
        share = lambda value, row=row: (
            value / row["at_least"]
            if row["at_least"] is not None
            else row["at_most"] / max(value, 1e-9)
        )
        ends = sorted((share(row["least"]), share(row["most"])))
        middle = share(row["measured"])
        colour = "tab:green" if row["verdict"] == "pass" else "tab:red"
        axes.barh(y, min(middle, 3), color=colour, alpha=0.7)
        axes.plot([min(e, 3) for e in ends], [y, y], color="black", linewidth=1)
        axes.text(
            0.02,
            y,
            f"{row['measured']:.3g}{row['unit']} (target {row['target']})",
            va="center",
            fontsize=7,
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=7)
    axes.set_xlim(0, 3)
    axes.set_xlabel("measured as a share of the target (right of 1: reached; cut off at 3)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


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
    if os.geteuid() != 0:
        left_out = [name for name in chosen if name in NEED_ROOT]
        chosen = [name for name in chosen if name not in NEED_ROOT]
        if left_out:
            print(f"left out, as caches can only be dropped by root: {', '.join(left_out)}")

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
                globals()[f"judge_{name}"](runner, table)
            except NotBuilt:
                print(f"left out, as libonnx or OpenVINO was not there at the build: {name}")
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)

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
    plot(table, out / "bench.png")
    print(f"written: {out / 'bench.json'}, {out / 'bench.png'}")


if __name__ == "__main__":
    main()
