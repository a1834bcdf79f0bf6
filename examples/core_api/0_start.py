"""Step 0: a training script that knows nothing of Cairn. The "model" is a number that grows.

    python 0_start.py
"""

import logging
import sys
import time


def main(increment_by):
    x = 0
    for batch in range(100):
        x += increment_by
        steps_completed = batch + 1
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
        logging.info("x is now %d", x)
        if steps_completed == 100:
            print(f"trained to x = {x}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    main(increment_by=1)
