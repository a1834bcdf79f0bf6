"""Sparse tables."""

import statistics

from rounds import Case, rate, seconds


def tables(runner, table):
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
        for program in (None, untracked) if i % 2 == 0 else (untracked, None):
            runner.run("table_updates", "tracking", rounds=1, first_round=i, program=program)
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
        case.ratios("restore", case.fastest(("plain direct", "plain buffered")), seconds),
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
