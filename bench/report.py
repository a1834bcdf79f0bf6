"""Figures beside their targets: as a table and as a plot."""

import statistics
import sys


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


def plot(table, path):
    """Draws it; whether there is a picture now."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib: no plot (scripts/setup bench installs it)", file=sys.stderr)
        return False
    rows = [row for row in table.rows if row["target"]][::-1]
    if not rows:
        return False
    figure, axes = pyplot.subplots(figsize=(10, 0.4 * len(rows) + 1.5))
    for y, row in enumerate(rows):
        # As a share of the target, turned so that more is better.
        share = lambda value, row=row: (
            value / row["at_least"]
            if row["at_least"] is not None
            else (row["at_most"] + 1e-9) / max(value, 1e-9)
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
    return True
