"""Incremental training on one machine: today's training goes on where yesterday's ended.

    python3 examples/data/make_ctr_days.py data/ctr
    python examples/python/ctr_days.py data/ctr models/ctr

A click model learns day 1 and saves its persistables. Next day the same program is built and initialised, loads them, and
learns day 2. The result is, bit for bit, that of learning both days without a break. Then two warm starts: with a changed
head, which is left out of the load by name, and with another optimizer, whose slots are its own.
"""

import os
import sys

import numpy as np

import cairn
from cairn import initializers, io

FIELDS, IDS, WIDTH = 4, 1000, 4
SLOT = "_accumulator"


def read_day(data, day):
    path = os.path.join(data, f"day_{day}.txt")
    if not os.path.exists(path):
        raise SystemExit(f"{path} is not there; make it with examples/data/make_ctr_days.py")
    table = np.loadtxt(path, dtype=np.int64)
    return table[:, 1:] + np.arange(FIELDS) * IDS, table[:, 0].astype(np.float32)


class Program:
    """The click model: an embedding for each id, and a head over the embeddings of a row."""

    def __init__(self, head_width=1, optimizer="adagrad"):
        self.scope = cairn.Scope()
        self.optimizer = optimizer
        declare = self.scope.parameter
        embedding = initializers.Normal(0, 0.1)
        declare("embedding", np.zeros((FIELDS * IDS, WIDTH), np.float32), embedding)
        declare("head/w", np.zeros((FIELDS * WIDTH, head_width), np.float32), initializers.Normal(0, 0.3))
        declare("head/b", np.zeros(1, np.float32), 0.0)
        if optimizer == "adagrad":
            for variable in self.scope.vars("parameter"):
                self.scope.persistable(variable.name + SLOT, np.zeros(variable.shape, np.float32), 0.1)
        self.scope.persistable("step", np.int64(0), 0)
        self.scope.persistable("learning_rate", np.float32(0), 0.1)

    def predict(self, ids):
        scope = self.scope
        rows = scope["embedding"][ids].reshape(len(ids), -1)
        return rows, 1 / (1 + np.exp(-(rows @ scope["head/w"]).mean(1) - scope["head/b"][0]))

    def learn(self, ids, labels):
        scope = self.scope
        rows, clicked = self.predict(ids)
        error = scope.temporary("error", (clicked - labels) / np.float32(len(ids)))
        head = scope["head/w"]
        per_column = np.broadcast_to(error[:, None] / np.float32(head.shape[1]), (len(ids), head.shape[1]))
        gradient = np.zeros_like(scope["embedding"])
        np.add.at(gradient, ids, (per_column @ head.T).reshape(len(ids), FIELDS, WIDTH))
        self.update("head/w", rows.T @ per_column)
        self.update("head/b", error.sum(keepdims=True))
        self.update("embedding", gradient)
        scope["step"][...] += 1
        scope.end_iteration()

    def update(self, name, gradient):
        rate = self.scope["learning_rate"] * np.float32(10)
        if self.optimizer == "adagrad":
            slot = self.scope[name + SLOT]
            slot += gradient * gradient
            gradient = gradient / np.sqrt(slot)
            rate = self.scope["learning_rate"]
        self.scope[name] -= rate * gradient

    def train(self, data, days, batch=64):
        for day in days:
            ids, labels = read_day(data, day)
            for at in range(0, len(ids), batch):
                self.learn(ids[at : at + batch], labels[at : at + batch])
        return self

    def auc(self, data, day):
        ids, labels = read_day(data, day)
        order = np.argsort(self.predict(ids)[1], kind="stable")
        ranks = np.empty(len(order))
        ranks[order] = np.arange(1, len(order) + 1)
        positives = labels.sum()
        return (ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (
            positives * (len(labels) - positives)
        )


def same(a, b):
    names = [v.name for v in a.scope.vars("persistable")]
    return all(a.scope[n].tobytes() == b.scope[n].tobytes() for n in names)


def main(data, models):
    def fresh(**options):
        program = Program(**options)
        program.scope.initialize(seed=7)
        return program

    unbroken = fresh().train(data, [1, 2])

    first = fresh().train(data, [1])
    saved = io.save_persistables(os.path.join(models, "day_1"), first.scope)
    print(f"day 1: saved {len(saved.names)} variables, {saved.bytes} bytes")
    second = fresh()
    io.load_persistables(os.path.join(models, "day_1"), second.scope)
    second.train(data, [2])
    if not same(unbroken, second):
        raise SystemExit("day 1, save, load, day 2 is not the unbroken training")
    print("day 1, save, load, day 2: bit for bit the unbroken training")

    alone = fresh().train(data, [2])
    print(f"AUC on day 3: both days {second.auc(data, 3):.4f}, day 2 alone {alone.auc(data, 3):.4f}")
    if second.auc(data, 3) <= alone.auc(data, 3):
        raise SystemExit("two days are no better than one")

    # A changed head: refused as it stands, loaded when it is left out by name.
    wider = fresh(head_width=3)
    try:
        io.load_persistables(os.path.join(models, "day_1"), wider.scope)
        raise SystemExit("another head was accepted")
    except cairn.Mismatch as error:
        print(f"changed head: {error.mismatched[0]}")
    loaded = io.load_persistables(
        os.path.join(models, "day_1"), wider.scope, skip=["head/w", "head/w" + SLOT]
    )
    wider.train(data, [2])
    cold = fresh(head_width=3).train(data, [2])
    print(
        f"changed head, left out by name: {len(loaded.names)} of {len(saved.names)} variables loaded; AUC "
        f"{wider.auc(data, 3):.4f}, without them {cold.auc(data, 3):.4f}"
    )

    # Another optimizer has no use for the slots: the parameters alone, on purpose.
    plain = fresh(optimizer="sgd")
    io.load_params(os.path.join(models, "day_1"), plain.scope)
    plain.train(data, [2])
    cold = fresh(optimizer="sgd").train(data, [2])
    print(
        f"another optimizer, parameters alone: AUC {plain.auc(data, 3):.4f}, without them "
        f"{cold.auc(data, 3):.4f}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
