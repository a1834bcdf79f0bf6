"""Saves and restores of dense states."""

import shutil
import statistics

from rounds import Case, gigabytes, rate, seconds

SHAPES = ("uniform", "mix", "gpt2")
SHAPE_TEXT = {
    "uniform": "64 equal tensors",
    "mix": "mix with 1,000 x 64 KiB",
    "gpt2": "GPT-2's shapes",
}


def save(runner, table):
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


def first(runner, table):
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


def blocked(runner, table):
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


def restore(runner, table):
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


def small(runner, table):
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


def memory(runner, table):
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


def names(runner, table):
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


def unchanged(runner, table):
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


def matmul(runner, table):
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
