"""Step 4: several processes. Each rank adds to its own part, all ranks write one checkpoint together.

    torchrun --nproc-per-node 2 4_distributed.py      # or any other launcher that sets ranks

The checkpoint is whole or not there: it needs the files of every rank.
"""

import logging
import os
import sys
import time

import cairn


def main(ctx, increment_by):
    rank, size = ctx.distributed.rank, ctx.distributed.size
    x = 0
    starting_batch = 0
    if ctx.latest_checkpoint is not None:
        starting_batch = ctx.checkpoint.get_metadata(ctx.latest_checkpoint)["steps_completed"]
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
            with open(os.path.join(path, f"rank_{rank}")) as f:
                x = int(f.read())

    for batch in range(starting_batch, 100):
        x += increment_by * (rank + 1)
        steps_completed = batch + 1
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
        if steps_completed % 10 == 0:
            everyone = ctx.distributed.gather(x)
            if ctx.distributed.is_chief:
                ctx.train.report_training_metrics(steps_completed, {"x": sum(everyone)})
            metadata = {"steps_completed": steps_completed}
            with ctx.checkpoint.store_path(metadata, shard=True) as (path, _):
                with open(os.path.join(path, f"rank_{rank}"), "w") as f:
                    f.write(str(x))
            if ctx.distributed.is_chief:
                print(f"{steps_completed} steps, x = {sum(everyone)} of {size} ranks", flush=True)
            if ctx.preempt.should_preempt():
                return


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    with cairn.core.init() as ctx:
        main(ctx, increment_by=1)
