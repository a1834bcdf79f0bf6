"""One of two trainers on a shared directory: two_trainers.py DIRECTORY RECORD TRAINER [STEPS].

With STEPS it makes so many of its 100 steps and waits for its end."""

import random
import signal
import sys

import numpy as np

import cairn


def main():
    directory, record, trainer_id = sys.argv[1], sys.argv[2], int(sys.argv[3])
    held_after = int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize
    made = 0
    random.seed(trainer_id)
    np.random.seed(trainer_id)
    # Both trainers compute the same model (the gradients of both, from one stream); each draws
    # random numbers of its own besides.
    model = {"w": np.zeros(1000), "m": np.zeros(1000)}
    shared = np.random.Generator(np.random.PCG64(1))

    def step(model, batch):
        own = np.random.rand()
        gradient = shared.standard_normal(1000) + batch - model["w"]
        model["m"] += 0.1 * (gradient - model["m"])
        model["w"] += 0.01 * model["m"]
        return {"loss": float(np.abs(gradient).mean()), "own": own}

    config = cairn.CheckpointConfig(directory, step_interval=2)
    trainer = cairn.Trainer(
        model,
        step,
        checkpoint_config=config,
        trainer_id=trainer_id,
        num_trainers=2,
        state={"shared": shared},
    )
    with open(record, "a") as out:

        def handler(event):
            nonlocal made
            if isinstance(event, cairn.EndStepEvent):
                m = event.metrics
                out.write(f"{event.epoch}/{event.step} {m['loss']!r} {m['own']!r}\n")
                out.flush()
                made += 1
                while made == held_after:
                    signal.pause()

        trainer.train(5, lambda epoch: [float(epoch + i) for i in range(20)], handler)


if __name__ == "__main__":
    main()
