"""Runs one contender: reads commands (JSON lines) from stdin, answers on stdout.

worker.py NAME COUNT BYTES_EACH SEED
"""

import json
import os
import sys
import threading
import time

import contenders
import numpy as np


def make_state(count, nbytes, seed):
    rng = np.random.default_rng(seed)
    return {f"t{i:05d}": rng.random(nbytes // 4, dtype=np.float32) for i in range(count)}


def touch(nbytes):
    """Makes the host give the guest its memory back before anything is timed."""
    block = np.empty(nbytes, dtype=np.uint8)
    block[::4096] = 1
    del block


class Matmul:
    """A loop on all cores; counts its rounds."""

    def __init__(self):
        self.rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        import torch

        a, b = torch.rand(512, 512), torch.rand(512, 512)
        while not self._stop.is_set():
            torch.mm(a, b)
            self.rounds += 1

    def rate(self, seconds):
        before, begun = self.rounds, time.perf_counter()
        time.sleep(seconds)
        return (self.rounds - before) / (time.perf_counter() - begun)

    def __enter__(self):
        self._thread.start()
        self.rate(0.5)
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def answer(contender, command):
    what, path = command["do"], command.get("path")
    if what == "save":
        contender.refresh()
        touch(command["touch"])
        begun = time.perf_counter()
        contender.save(path)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "digest": digest(contender.arrays)}
    if what == "load":
        touch(command["touch"])
        begun = time.perf_counter()
        loaded = contender.load(path)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "digest": digest(loaded)}
    if what == "async":
        contender.refresh()
        touch(command["touch"])
        begun = time.perf_counter()
        handle = contender.begin(path, command.get("lazy", False))
        blocked = time.perf_counter() - begun
        contender.finish(handle)
        return {"blocked": blocked, "seconds": time.perf_counter() - begun}
    if what == "matmul":
        with Matmul() as loop:
            before = loop.rate(2.0)
            contender.refresh()
            begun = time.perf_counter()
            handle = contender.begin(path)
            # A training step waits here: what that costs is "blocked". From now on both work.
            rounds, returned = loop.rounds, time.perf_counter()
            contender.finish(handle)
            ended = time.perf_counter()
            during = (loop.rounds - rounds) / (ended - returned)
        return {"before": before, "during": during, "seconds": ended - begun}
    if what == "memcpy":
        source = list(contender.arrays.values())
        target = [np.empty_like(a) for a in source]
        for _ in range(2):
            begun = time.perf_counter()
            for a, b in zip(source, target):
                np.copyto(b, a)
            seconds = time.perf_counter() - begun
        return {"seconds": seconds}
    if what == "change":
        for array in contender.arrays.values():
            array += 1
        return {}
    raise ValueError(what)


def digest(arrays):
    """A number that differs when bytes do."""
    total = 0
    for name in sorted(arrays):
        view = np.ascontiguousarray(arrays[name]).view(np.uint32)
        total = (total * 31 + int(view.sum(dtype=np.uint64))) % (1 << 61)
    return total


def main():
    name, count, nbytes, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print do not disturb the answers
    contender = contenders.ALL[name](make_state(count, nbytes, seed))
    print(
        json.dumps({"version": contender.version(), "digest": digest(contender.arrays)}),
        file=out,
        flush=True,
    )
    for line in sys.stdin:
        try:
            reply = answer(contender, json.loads(line))
        except Exception as error:  # the driver decides what a failure means
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
