"""Full checkpoints and increments of a sparse model, as DeepRec's users know them.

    python examples/incremental_session.py [--dir DIR] [--steps 60] [--estimator]

Kill it whenever you like and start the same command again: it goes on, and ends with the values of
a run that nobody disturbed (--kill-at N lets it kill itself). An embedding of 30 x 4 numbers lies in
4 partitions; ids come as i % 10; Adagrad has a rate of 0.1 and accumulators that begin with 1.
Times are shorter than in production: a full checkpoint every 3 s, an increment every second.
"""

import argparse
import os
import signal
import time

import numpy as np

import cairn

ROWS, DIM, PARTITIONS = 30, 4, 4


def partition_of(row):
    """(partition, row in it): the first partitions have a row more when it does not come out."""
    size, longer = divmod(ROWS, PARTITIONS)
    if row < longer * (size + 1):
        return row // (size + 1), row % (size + 1)
    row -= longer * (size + 1)
    return longer + row // size, row % size


class Model:
    """loss = sum(2 * embedding(id)); its gradient is 2 for each number of the id's row."""

    def __init__(self):
        self.parts = [
            cairn.EmbeddingTable(
                f"a/part_{i}",
                DIM,
                initializer=cairn.initializers.Constant(1.0),
                optimizer=cairn.optimizers.Adagrad(0.1, initial_accumulator_value=1.0),
            )
            for i in range(PARTITIONS)
        ]
        self.dense = [np.ones((8 if i < 2 else 7, DIM), np.float32) for i in range(PARTITIONS)]

    def train(self, row):
        part, inside = partition_of(row)
        loss = float(2 * self.parts[part].lookup([inside]).sum())
        self.parts[part].apply_gradients([inside], np.full((1, DIM), 2.0, np.float32))
        return loss

    def values(self):
        """The whole embedding, rows that were never used included."""
        out = np.ones((ROWS, DIM), np.float32)
        for row in range(ROWS):
            part, inside = partition_of(row)
            out[row] = self.parts[part].lookup([inside], create=False)
        return out


def run_session(model, options, step):
    with cairn.train.MonitoredTrainingSession(
        checkpoint_dir=options.dir,
        save_checkpoint_secs=options.full_secs,
        save_incremental_checkpoint_secs=options.increment_secs,
        tables=model.parts,
        state={"b": model.dense},
    ) as sess:
        if sess.restored is not None:
            print(f"goes on at step {sess.global_step}: the newest is {sess.restored.info.kind}")
        while sess.global_step < options.steps:
            loss = sess.run(step)
            print(f"step {sess.global_step:3} loss {loss:.6f}", flush=True)


def run_estimator(model, options, step):
    def model_fn(features, labels, mode, params):
        scaffold = cairn.train.Scaffold(
            saver=cairn.train.Saver(sharded=True, incremental_save_restore=True),
            incremental_save_restore=True,
        )
        hook = cairn.train.CheckpointSaverHook(
            checkpoint_dir=params["model_dir"],
            save_secs=options.full_secs,
            scaffold=scaffold,
            incremental_save_secs=options.increment_secs,
        )
        return cairn.train.EstimatorSpec(
            mode, train_op=step, training_chief_hooks=[hook], scaffold=scaffold
        )

    def input_fn():
        while True:
            yield None, None

    estimator = cairn.train.Estimator(
        model_fn,
        options.dir,
        {"model_dir": options.dir},
        tables=model.parts,
        state={"b": model.dense},
    )
    estimator.train(input_fn, max_steps=options.steps)
    if estimator.last_loss is None:  # this process had no step to do
        print(f"step {estimator.global_step:3}, as it was: nothing was left to do")
    else:
        print(f"step {estimator.global_step:3} loss {estimator.last_loss:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="incremental-session")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sleep", type=float, default=0.1, help="seconds of a step")
    parser.add_argument("--full-secs", type=float, default=3)
    parser.add_argument("--increment-secs", type=float, default=1)
    parser.add_argument("--estimator", action="store_true", help="through an Estimator")
    parser.add_argument("--kill-at", type=int, help="end like a power cut before this step")
    options = parser.parse_args()
    model = Model()

    def step(global_step):
        if global_step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(options.sleep)
        return model.train(global_step % 10)

    (run_estimator if options.estimator else run_session)(model, options, step)
    print("values", " ".join(f"{v:.6f}" for v in model.values()[:10, 0]))


if __name__ == "__main__":
    main()
