"""Step 3: hyperparameters, so that one config gives many trials and the master tells which is best.

    cairn experiment create 3_hpsearch.yaml . -f            # ten trials with increments of their own
    cairn experiment create 3_hpsearch_adaptive.yaml . -f   # those that fall behind are stopped early
    python 3_hpsearch.py                                    # one of them, by hand

Each trial is a process of its own that is paused, killed and resumed as in step 2.
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
            # What the searcher compares: the metric that the config names.
            ctx.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})
            ctx.train.report_progress(steps_completed / 100)
            metadata = {"steps_completed": steps_completed}
            with ctx.checkpoint.store_path(metadata) as (path, _):
                save_state(x, steps_completed, trial_id, path)
            if ctx.preempt.should_preempt():
                return
    print(f"increment_by = {increment_by}, x = {x}", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    info = cairn.get_cluster_info()
    trial_id = info.trial.trial_id if info is not None else "local"
    hparams = info.trial.hparams if info is not None else {"increment_by": 1}
    with cairn.core.init() as ctx:
        main(ctx, ctx.latest_checkpoint, trial_id, increment_by=hparams["increment_by"])
