"""A training loop of one's own with NumPy: save and restore around it.

    python examples/python/numpy_loop.py [DIRECTORY]
"""

import sys

import numpy as np

import cairn

rng = np.random.default_rng(0)
state = {"w": np.zeros(1000), "momentum": np.zeros(1000), "rng": rng, "step": 0}
target = np.random.default_rng(1).standard_normal(1000)

with cairn.CheckpointManager(sys.argv[1] if len(sys.argv) > 1 else "runs/numpy") as manager:
    restored = manager.restore(state)  # None the first time; fills the arrays and the generator
    print("a fresh start" if restored is None else f"going on after step {restored.step}")
    while state["step"] < 2000:
        gradient = state["w"] - target + 0.1 * rng.standard_normal(1000)
        state["momentum"] = 0.9 * state["momentum"] + gradient
        state["w"] -= 0.01 * state["momentum"]
        state["step"] += 1
        if state["step"] % 100 == 0:
            loss = float(np.square(state["w"] - target).mean())
            manager.save(state["step"], state, metrics={"loss": loss})
            print(f"step {state['step']:4d} loss {loss:.6f}", flush=True)
