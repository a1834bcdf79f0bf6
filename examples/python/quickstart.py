"""Trains a small torch model. Kill it whenever you like and start it again: it goes on.

    python examples/python/quickstart.py [DIRECTORY]
"""

import sys

import torch

import cairn
import cairn.torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(4096, 8)
loader = cairn.torch.Loader(data, batch_size=32, seed=1)


def step(model, batch):
    loss = ((model(batch) - batch.sum(dim=1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}


def show(event):
    if isinstance(event, cairn.EndStepEvent) and event.step % 32 == 0:
        print(f"epoch {event.epoch} step {event.step:3d} loss {event.metrics['loss']:.6f}", flush=True)


directory = sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart"
config = cairn.CheckpointConfig(directory, step_interval=50)
trainer = cairn.Trainer(model, step, optimizer=optimizer, checkpoint_config=config)
summary = trainer.train(num_epochs=10, reader=loader, event_handler=show)
print(f"{summary.global_step} steps in all, {summary.steps} of them now")
