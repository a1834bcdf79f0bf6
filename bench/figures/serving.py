"""Serving that follows training."""

import statistics

from rounds import Case, rate, seconds


def serving(runner, table):
    """A served model of 16 floats a row, and increments of 10,000 rows."""
    runner.run("serving_lookup")
    case = Case(runner, "serving_lookup")
    table.add(
        "serving: p99 of 64 ids during updates / without",  # a model that follows / that does not
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
    # Resident memory: rows, lists, what is read through, and the graph that is compiled.
    runner.run("serving_memory")
    table.add(
        "serving: memory of an update of half the rows / its bytes",
        [runner.fact("serving_memory", "half")],
        at_most=1.5,
        detail=f"{runner.fact('serving_memory', 'half_weights'):.2f} x its keys and weights alone",
    )
    table.add(
        "serving: memory of an increment of 10,000 rows / its bytes",
        [runner.fact("serving_memory", "steady")],
        at_most=1.5,
        detail="of a server that has taken some; the median of five",
    )
    table.add(
        "serving: memory of the first of them / its bytes",
        [runner.fact("serving_memory", "small")],
        detail=f"{runner.fact('serving_memory', 'rows'):.2f} x when the graph is not compiled anew",
    )
    runner.run("serving_freshness")
    for name, most in (("p50", 50), ("p99", 300)):
        table.add(
            f"serving: commit to visible, {name}",
            [1000 * runner.fact("serving_freshness", name)],
            at_most=most,
            unit=" ms",
        )
    table.add(
        "serving: commit to visible, new full of 1 million rows",
        [1000 * runner.fact("serving_freshness", "full")],
        unit=" ms",
    )
    runner.run("serving_predict_asked")
    case = Case(runner, "serving_predict_asked")
    table.add(
        "serving: p99 of predicting 64 during updates / without",
        case.ratios("updating", "still", seconds),
        detail=f"{1e6 * statistics.median(case.values('updating', seconds)):.0f} us",
        conditions=case.conditions(),
    )
    runner.run("serving_predict")
    case = Case(runner, "serving_predict")
    table.add(
        "serving: predict of 64 / OpenVINO with the embeddings at hand",
        case.ratios("cairn", "openvino", seconds),
        at_most=1.3,
        conditions=case.conditions(),
    )
