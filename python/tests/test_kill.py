"""SIGKILL at random moments: what was acknowledged is there, bit for bit."""

import random
import time

import numpy as np
from children import Child

import cairn

KILLS = 20
SEED = 6364136223846793005

WRITER = """
m = cairn.CheckpointManager(sys.argv[1], keep_last=None)
restored = m.restore()
step = 0 if restored is None else restored.step + 1
print("from", step)
while True:
    # Sizes differ, so that kills meet all parts of a save.
    state = {"w": np.random.default_rng(step).random(1000 * (1 + step % 40)), "step": step,
             "frozen": np.arange(200_000), "list": [step, {"deep": (step,)}]}
    handle = m.save(step, state, metrics={"step": step})
    state["w"][:] = -1
    handle.wait()
    print("ack", step)
    step += 1
"""


def assert_is_step(restored, step):
    state = restored.state
    expected = np.random.default_rng(step).random(1000 * (1 + step % 40))
    assert state["w"].tobytes() == expected.tobytes()
    assert state["frozen"].tobytes() == np.arange(200_000).tobytes()
    assert (state["step"], state["list"]) == (step, [step, {"deep": (step,)}])
    assert restored.metrics == {"step": step}


def test_every_acknowledged_step_survives_random_kills(directory):
    r = random.Random(SEED)
    acknowledged = []
    for _ in range(KILLS):
        child = Child(WRITER, directory)
        first = child.line()
        assert first.startswith("from "), child.end()
        # Never behind what was acknowledged. Steps may have become durable unheard.
        assert int(first.split()[1]) > max(acknowledged, default=-1)
        heard = [child.line() for _ in range(r.randrange(4))]
        time.sleep(r.random() * 0.03)  # the moment of the kill, not a synchronisation
        heard += child.kill().split("\n")
        acknowledged += [int(line.split()[1]) for line in heard if line.startswith("ack ")]
        with cairn.CheckpointManager(directory, read_only=True) as m:
            latest = m.restore()
        if latest is None:
            assert not acknowledged
        else:
            assert latest.step >= max(acknowledged, default=0)
            assert_is_step(latest, latest.step)
    assert len(acknowledged) >= KILLS
    assert acknowledged == sorted(set(acknowledged))
    with cairn.CheckpointManager(directory) as m:
        stored = {info.step for info in m.list()}
        assert stored >= set(acknowledged)
        for step in stored:
            assert_is_step(m.restore(step=step), step)
    assert cairn.verify(directory).ok


def test_a_killed_overwrite_by_save_leaves_one_of_the_two_whole(tmp_path):
    path = str(tmp_path / "model")
    cairn.save(path, {"n": 0, "w": np.zeros(300_000)})
    r = random.Random(SEED)
    last = 0
    for _ in range(8):
        child = Child(
            """
        n = cairn.load(sys.argv[1])["n"]
        print("from", n)
        while True:
            n += 1
            cairn.save(sys.argv[1], {"n": n, "w": np.full(300_000, float(n))})
            print(n)
        """,
            path,
        )
        assert int(child.line().split()[1]) >= last
        heard = [child.line() for _ in range(r.randrange(3))]
        time.sleep(r.random() * 0.1)
        heard = [int(line) for line in heard + child.kill().split("\n") if line]
        state = cairn.load(path)
        assert state["w"].min() == state["w"].max() == state["n"]
        assert state["n"] >= max(heard, default=last)
        last = state["n"]
    assert last > 0
