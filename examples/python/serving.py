"""Serving that follows training, end to end: a trainer in a process of its own saves increments every second and is
killed half-way; a model follows its repository; a client asks all the time and looks how good the answers are.

    python examples/python/serving.py [--seconds 20] [--directory DIR]

Needs the extra `predict` (OpenVINO) and onnx. Prints for each second what is served: its step, how old it is, how long
requests take, and the AUC of the served predictions on clicks that were never trained on.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import TensorProto, helper

import cairn

USERS, ITEMS, DIM = 2000, 500, 8


def clicks(rng, count):
    """Made-up clicks: users and items have hidden tastes, which decide."""
    hidden = np.random.default_rng(7)
    tastes_u, tastes_i = hidden.normal(size=(USERS, 4)), hidden.normal(size=(ITEMS, 4))
    users, items = rng.integers(0, USERS, count), rng.integers(0, ITEMS, count)
    logits = 1.5 * np.sum(tastes_u[users] * tastes_i[items], axis=1)
    return users, items, (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def tables():
    small = cairn.initializers.Uniform(-0.3, 0.3)
    rate = cairn.optimizers.Adagrad(0.3)
    return [
        cairn.EmbeddingTable(name, DIM, initializer=small, optimizer=rate)
        for name in ("users", "items")
    ]


def program():
    """score = sigmoid(sum(user * item * weight) + bias)"""
    rows = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", DIM])
        for n in ("user", "item")
    ]
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("Mul", ["user", "item"], ["both"]),
        helper.make_node("MatMul", ["both", "weight"], ["sum"]),
        helper.make_node("Add", ["sum", "bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.ones((DIM, 1), np.float32), "weight"),
        onnx.numpy_helper.from_array(np.zeros(1, np.float32), "bias"),
    ]
    graph = helper.make_graph(nodes, "ctr", rows, [score], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def train(directory):
    """Trains for ever. Started again it goes on where the last checkpoint was."""
    users, items = tables()
    state = {"weight": np.ones((DIM, 1), np.float32), "bias": np.zeros(1, np.float32)}

    def step(number):
        u, i, label = clicks(np.random.default_rng(number), 512)
        rows_u, rows_i = users.lookup(u), items.lookup(i)
        logit = (rows_u * rows_i) @ state["weight"] + state["bias"]
        error = 1 / (1 + np.exp(-logit)) - label[:, None]
        scaled = error * state["weight"].T
        users.apply_gradients(u, scaled * rows_i)
        items.apply_gradients(i, scaled * rows_u)
        state["weight"] -= 0.05 * ((rows_u * rows_i).T @ error) / len(label)
        state["bias"] -= 0.05 * error.mean()
        time.sleep(0.005)  # a training step that takes a while

    with cairn.train.MonitoredTrainingSession(
        os.path.join(directory, "run"),
        save_checkpoint_secs=15,
        save_incremental_checkpoint_secs=1,
        tables=[users, items],
        state=state,
    ) as session:
        if not os.path.exists(os.path.join(directory, "export")):
            cairn.train.export_saved_model(
                os.path.join(directory, "export"),
                ["user", "item"],
                ["score"],
                program(),
                tables={"user": users, "item": items},
                save_incr_model=True,
            )
        while True:
            session.run(step)


def auc(score, label):
    order = np.argsort(score, kind="stable")
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    positive = label.sum()
    return (ranks[label == 1].sum() - positive * (positive + 1) / 2) / (
        positive * (len(label) - positive)
    )


def start(directory):
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--train", "--directory", directory]
    )


def serve(directory, seconds):
    trainer = start(directory)
    try:
        while not os.path.exists(os.path.join(directory, "export", "1", "cairn.json")):
            time.sleep(0.05)
        users, items, label = clicks(np.random.default_rng(10**6), 4000)
        ask = {"user": users[:64], "item": items[:64]}
        with cairn.serving.Model(
            os.path.join(directory, "export"), os.path.join(directory, "run"), require_version=False
        ) as model:
            while model.stats()["updates"] == 0:
                time.sleep(0.01)
            begun, killed = time.monotonic(), None
            freshness, step = [], model.version().step
            print(
                f"{'second':>6} {'step':>6} {'updates':>8} {'p50 us':>8} {'p99 us':>8} {'AUC':>6}"
            )
            for second in range(seconds):
                times = []
                while not times or time.monotonic() < begun + second + 1:
                    at = time.perf_counter()
                    model.predict(ask)
                    times.append(time.perf_counter() - at)
                    if model.version().step != step:
                        step = model.version().step
                        committed = model.stats()["newest_committed"]
                        freshness.append(time.time() - committed)
                if killed is None and second >= seconds // 2:
                    killed = step
                    trainer.send_signal(signal.SIGKILL)
                    trainer.wait()
                    print("       the trainer is killed, and started again")
                    trainer = start(directory)
                score = model.predict({"user": users, "item": items})["score"][:, 0]
                p50, p99 = np.percentile(times, [50, 99]) * 1e6
                updates = model.stats()["updates"]
                print(
                    f"{second:>6} {step:>6} {updates:>8} {p50:>8.0f} {p99:>8.0f} {auc(score, label):>6.3f}"
                )
            deadline = time.monotonic() + 60
            while model.version().step <= killed and time.monotonic() < deadline:
                time.sleep(0.01)  # the trainer starts, on a machine that has other things to do
            print(f"served step {killed} when it was killed, step {model.version().step} at the end")
            refused = model.stats()["refused"]
            print(
                f"{len(freshness)} new versions seen; from the beginning of a save to its being served: median "
                f"{np.median(freshness) * 1000:.0f} ms; {refused} updates refused"
            )
    finally:
        trainer.kill()
        trainer.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--directory", default=None, help="of export and repository; a new one unless named"
    )
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.directory)
    elif options.directory:
        serve(options.directory, options.seconds)
    else:
        with tempfile.TemporaryDirectory() as directory:
            serve(directory, options.seconds)


if __name__ == "__main__":
    main()
