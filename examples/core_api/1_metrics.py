"""Step 1: the script reports its metrics. Everything goes on inside of cairn.core.init().

    python 1_metrics.py
"""

import logging
import sys
import time

import cairn


def main(ctx, increment_by):
    x = 0
    for batch in range(100):
        x += increment_by
        steps_completed = batch + 1
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
        if steps_completed % 10 == 0:
            ctx.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
            ctx.train.report_progress(steps_completed / 100)
    ctx.train.report_validation_metrics(steps_completed=100, metrics={"x": x})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    with cairn.core.init() as ctx:
        main(ctx, increment_by=1)
