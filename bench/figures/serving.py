"""Serving that follows training."""

import statistics

from rounds import Case, rate, seconds


def serving(runner, table):
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
