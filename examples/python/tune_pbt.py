"""Population based training of a small torch network: trials that do badly go on from a better one's checkpoint,
with hyperparameters near its. Kill it at any moment and start it again: it goes on.

    python examples/python/tune_pbt.py [DIRECTORY]
"""

import os
import sys

import torch

from cairn import tune
from cairn.tune.schedulers import PopulationBasedTraining


def spirals(n=400):
    """Two arms that a straight line cannot tell apart."""
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(n, generator=generator) * 6
    arm = torch.arange(n) % 2
    angle = t + arm * torch.pi
    x = torch.stack([t * angle.cos(), t * angle.sin()], 1) / 6
    return x, arm


class Net(tune.Trainable):
    def setup(self, config):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.x, self.y = spirals()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 32),
            torch.nn.Tanh(),
            torch.nn.Linear(32, 32),
            torch.nn.Tanh(),
            torch.nn.Linear(32, 2),
        )
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=config["lr"], momentum=config["momentum"]
        )

    def step(self):
        for _ in range(20):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.net(self.x), self.y)
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            accuracy = (self.net(self.x).argmax(1) == self.y).float().mean()
        return {"loss": loss.item(), "accuracy": accuracy.item()}

    def save_checkpoint(self, directory):
        torch.save(
            {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()},
            os.path.join(directory, "state.pt"),
        )

    def load_checkpoint(self, directory):
        state = torch.load(os.path.join(directory, "state.pt"), weights_only=True)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:  # the optimizer's state has the donor's
            group["lr"], group["momentum"] = self.config["lr"], self.config["momentum"]


def main(directory="runs", iterations=30):
    tuner = tune.Tuner(
        Net,
        param_space={"lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0.0, 0.95)},
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=4,
            seed=1,
            max_concurrent_trials=2,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=5,
                hyperparam_mutations={
                    "lr": tune.loguniform(1e-3, 1),
                    "momentum": tune.uniform(0.0, 0.95),
                },
                seed=1,
            ),
        ),
        run_config=tune.RunConfig(
            name="pbt",
            storage_path=directory,
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_at_end=True),
            verbose=0,
        ),
    )
    results = tuner.fit()
    for result in results:
        print(f"{result.trial_id}: accuracy {result.metrics['accuracy']:.3f} with {result.config}")
    best = results.get_best_result()
    print(f"best: {best.metrics['accuracy']:.3f} in {best.checkpoint.path}")
    return results


if __name__ == "__main__":
    main(*sys.argv[1:2])
