"""Step 2: checkpoints, so that the training can be paused, killed, resumed, and continued as new.

    python 2_checkpoints.py          # stop it with Ctrl-C or kill -9, and start it again

A trial that is paused or killed goes on at its step. A new trial that begins with the checkpoint of
another one keeps the weight and counts its steps from 0: the trial's id, which is stored beside the
weight, tells the two apart.
"""

import logging
import os
import sys
import time

import cairn


def save_state(x, steps_completed, trial_id, checkpoint_directory):
    with open(os.path.join(checkpoint_directory, "checkpoint"), "w") as f:
        f.write(f"{x},{steps_completed},{trial_id}")


def load_state(trial_id, checkpoint_directory):
    with open(os.path.join(checkpoint_directory, "checkpoint")) as f:
        x, steps_completed, stored_trial_id = f.read().split(",")
    if stored_trial_id == str(trial_id):
        return int(x), int(steps_completed)
    # Another trial's: its weight, and steps of our own.
    return int(x), 0


def main(ctx, latest_checkpoint, trial_id, increment_by):
    x = 0
    starting_batch = 0
    if latest_checkpoint is not None:
        with ctx.checkpoint.restore_path(latest_checkpoint) as path:
            x, starting_batch = load_state(trial_id, path)

    for batch in range(starting_batch, 100):
        x += increment_by
        steps_completed = batch + 1
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0.1)
        if steps_completed % 10 == 0:
            ctx.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
            metadata = {"steps_completed": steps_completed}
            with ctx.checkpoint.store_path(metadata) as (path, _):
                save_state(x, steps_completed, trial_id, path)
            print(f"{steps_completed} steps, x = {x}", flush=True)
            if ctx.preempt.should_preempt():
                return
    ctx.train.report_validation_metrics(steps_completed=100, metrics={"x": x})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    # The lower layers are given values: they run with and without a master.
    info = cairn.get_cluster_info()
    trial_id = info.trial.trial_id if info is not None else "local"
    with cairn.core.init() as ctx:
        main(ctx, ctx.latest_checkpoint, trial_id, increment_by=1)
