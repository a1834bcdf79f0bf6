"""Variables by role, and graphs that predict."""

from rounds import Case, gigabytes, rate, seconds


def load_vars(runner, table):
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


def prune(runner, table):
    runner.run("prune")
    case = Case(runner, "prune")
    table.add(
        "cutting a graph of 20,000 nodes, seconds",
        case.values("prune", seconds),
        at_most=0.5,
        unit="s",
        conditions=case.conditions(),
    )


def predict(runner, table):
    for rows in ("1", "64"):
        runner.run("predict", rows)
        case = Case(runner, f"predict/{rows}")
        table.add(
            f"program.run, batch of {rows}: time of OpenVINO's own",
            case.ratios("cairn", "openvino", seconds),
            at_most=1.05,
            conditions=case.conditions(),
        )
