"""A training of two ranks that goes on where it was, whatever is killed: `cairn e create train.yaml .`"""

import os

import cairn

with cairn.core.init() as ctx:
    chief = ctx.distributed.rank == 0
    step, x = 0, 0
    if ctx.latest_checkpoint is not None:
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path, open(os.path.join(path, "state")) as file:
            step, x = map(int, file.read().split())
    while step < 100:
        step, x = step + 1, x + sum(ctx.distributed.allgather(1))  # a step of training, together
        if step % 10 == 0:
            if chief:
                ctx.train.report_training_metrics(steps_completed=step, metrics={"x": x})
                with ctx.checkpoint.store_path({"steps_completed": step}) as (path, _), open(os.path.join(path, "state"), "w") as file:
                    file.write(f"{step} {x}")
                print(f"{step} steps, x = {x}", flush=True)
            if ctx.preempt.should_preempt():
                break
