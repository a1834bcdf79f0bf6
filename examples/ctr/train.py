"""One trainer of a click-through model on parameter servers; `cairn ps run` starts it.

    cairn ps run --servers 2 --trainers 2 --dir runs/ctr --incremental-secs 5 -- python examples/ctr/train.py

With --export the first trainer also writes what `cairn serve` needs, once.

A factorization machine on synthetic days of data whose ids are skewed: few are seen all the time,
most hardly ever. The data of a step is a pure function of (step, trainer), so that a step that has
to be repeated after a loss is the same step.
"""

import argparse
import hashlib
import json
import os
import time

import numpy as np

import cairn
import cairn.ps

FIELDS = 8
FACTORS = 8
BATCH = 256
STEPS_OF_A_DAY = 60


def clicks(step, trainer, count=BATCH):
    """Ids of `count` impressions and whether they were clicked."""
    rng = np.random.default_rng([step, trainer, 7])
    ids = (rng.zipf(1.3, size=(count, FIELDS)) % 20000).astype(np.int64)
    # Another part of the id space for each field; what is popular shifts from day to day.
    ids += np.arange(FIELDS) * 1_000_000 + (step // STEPS_OF_A_DAY) * 37
    taste = np.sin(ids * 0.7).sum(axis=1) + np.cos(ids[:, 0] * ids[:, 1] % 11)
    labels = (rng.random(count) < 1 / (1 + np.exp(-taste))).astype(np.float32)
    return ids, labels


def predict(rows, bias):
    """The probability of a click, and what the gradients need. Rows: a weight, then factors."""
    weights, factors = rows[..., 0], rows[..., 1:]
    total = factors.sum(axis=1)
    pairs = 0.5 * (total**2 - (factors**2).sum(axis=1)).sum(axis=1)
    score = bias + weights.sum(axis=1) + pairs
    return 1 / (1 + np.exp(-score)), total, factors


def train_step(step, trainer, table, bias):
    ids, labels = clicks(step, trainer)
    rows = table.lookup(ids)
    probability, total, factors = predict(rows, bias.pull()[0])
    error = (probability - labels)[:, None] / BATCH
    gradient = np.empty_like(rows)
    gradient[..., 0] = error
    gradient[..., 1:] = error[:, :, None] * (total[:, None, :] - factors)
    table.apply_gradients(ids, gradient.reshape(-1, rows.shape[-1]))
    bias.push([error.sum()])


def auc(labels, scores):
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positive = labels > 0.5
    count = positive.sum()
    return (ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(labels) - count))


def evaluate(table, bias, steps):
    """AUC on data that nobody trained on, and a digest of everything that was learned."""
    ids, labels = clicks(steps, 10_000, count=20_000)
    probability, _, _ = predict(table.lookup(ids, create=False), bias.pull()[0])
    digest = hashlib.sha256(bias.pull().tobytes())
    for key, row in sorted(table.rows().items()):
        digest.update(repr((key, row)).encode())
    return float(auc(labels, probability)), digest.hexdigest()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=4 * STEPS_OF_A_DAY)
    arguments.add_argument("--pause", type=float, default=0, help="seconds after each step")
    arguments.add_argument("--export", default="", help="trainer 0 exports the model there, once")
    arguments.add_argument("--output", default="", help="trainer 0 writes its result there")
    options = arguments.parse_args()

    client = cairn.ps.Client()
    table = client.table(
        "features",
        1 + FACTORS,
        optimizer=cairn.optimizers.Adagrad(0.05),
        initializer=cairn.initializers.Normal(0.0, 0.05),
    )
    bias = client.dense("bias", np.zeros(1), optimizer=cairn.optimizers.SGD(0.1))
    chief = client.trainer_id == 0
    if chief and options.export and not os.path.exists(options.export):
        from model import export

        export(options.export, table, client)
    if client.step > 0 and chief:
        print(f"goes on from step {client.step}", flush=True)
    completed = time.monotonic()
    lost = None
    while True:
        step = client.step
        try:
            if step < options.steps:
                train_step(step, client.trainer_id, table, bias)
                client.end_step({"next_step": step + 1})
                completed = time.monotonic()
                time.sleep(options.pause)
                if chief:
                    print(f"step {step}", flush=True)
                if lost is not None and step >= lost[0]:
                    print("recovered " + json.dumps(lost[1] | {"seconds": completed - lost[2]}))
                    lost = None
                continue
            client.barrier()
            result = evaluate(table, bias, options.steps)
            client.barrier()
            break
        except cairn.ps.RolledBack as back:
            # A process of the job was lost: what this trainer has to forget is in the step's number.
            if chief:
                print(f"went back from step {step} to {back.step}", flush=True)
                repeated = {"killed_at": step, "restored": back.step, "repeated": step - back.step}
                lost = (step, repeated, completed)
    if chief:
        print(f"AUC {result[0]:.6f}, learned {result[1][:16]}", flush=True)
        if options.output:
            with open(options.output + ".new", "w", encoding="utf-8") as out:
                json.dump({"auc": result[0], "learned": result[1]}, out)
            os.replace(options.output + ".new", options.output)
    client.close()


if __name__ == "__main__":
    main()
