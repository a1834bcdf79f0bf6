"""tune.py DIRECTORY: trials of a tuner as jobs of Ray. DIRECTORY is shared by the nodes. Kill it; the same command goes on."""

import sys

from cairn import tune


def train(config):
    checkpoint = tune.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < 20:
        step += 1
        loss = (config["lr"] - 0.01) ** 2 + 1 / step
        tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


tuner = tune.Tuner(
    train,
    param_space={"lr": tune.grid_search([0.001, 0.01, 0.1])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=3),
    run_config=tune.RunConfig(
        name="on-ray",
        storage_path=sys.argv[1],
        launcher="ray",
        resources={"num_cpus": 1},  # and "address", "token_file", where RAY_API_SERVER_ADDRESS and RAY_AUTH_TOKEN do not say it
    ),
)
print("best", tuner.fit().get_best_result().config)
