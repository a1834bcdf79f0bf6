"""One of two trainers on a shared directory: two_trainers.py DIRECTORY RECORD TRAINER."""

import random
import sys

import numpy as np

import cairn


def main():
    directory, record, trainer_id = sys.argv[1], sys.argv[2], int(sys.argv[3])
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
            if isinstance(event, cairn.EndStepEvent):
                m = event.metrics
                out.write(f"{event.epoch}/{event.step} {m['loss']!r} {m['own']!r}\n")
                out.flush()

        trainer.train(3, lambda epoch: [float(epoch + i) for i in range(20)], handler)


if __name__ == "__main__":
    main()
