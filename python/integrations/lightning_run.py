"""A small Lightning training that can kill itself; for test_lightning.py."""

import logging
import os
import signal
import warnings

import lightning.pytorch as pl
import torch

from cairn.integrations.lightning import CairnCallback, CairnCheckpointIO, Loader

STEPS = 20  # 4 epochs of 5


class Model(pl.LightningModule):
    def __init__(self, kill_at=None, settled=True):
        super().__init__()
        self.settled = settled
        self.save_hyperparameters({"width": 8})
        self.kill_at = kill_at
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, index):
        if self.kill_at is not None and self.global_step == self.kill_at:
            manager = self.trainer.strategy.checkpoint_io._manager
            if self.settled and manager is not None:  # else the save in flight is cut short
                manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]


def loader():
    data = torch.randn(20, 4, generator=torch.Generator().manual_seed(3))
    return Loader(data, batch_size=4, shuffle=True, seed=5)


def quiet():
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def trainer(**options):
    return pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def train(directory, out, kill_at, every, settled=True):
    """With the callback alone; the final weights go to `out`."""
    quiet()
    pl.seed_everything(1, verbose=False)
    model = Model(kill_at, settled)
    callback = CairnCallback(directory, every_n_steps=every)
    run = trainer(callbacks=[callback], enable_checkpointing=False)
    run.fit(model, loader(), ckpt_path=callback.latest())
    assert run.global_step == STEPS
    torch.save(model.state_dict(), out)


class KilledAtABatch(Model):
    """Dies at its n-th batch."""

    def training_step(self, batch, index):
        self.batches = getattr(self, "batches", 0) + 1
        if self.batches == self.kill_at:
            self.kill_at = self.global_step
        elif self.kill_at is not None:
            return self.net(batch).square().mean()
        return super().training_step(batch, index)


def train_accumulating(directory, out, kill_at, every):
    """Two batches for each step; the last of an epoch's five stands alone."""
    quiet()
    pl.seed_everything(1, verbose=False)
    model = KilledAtABatch(kill_at)
    callback = CairnCallback(directory, every_n_steps=every)
    run = trainer(callbacks=[callback], enable_checkpointing=False, accumulate_grad_batches=2)
    run.fit(model, loader(), ckpt_path=callback.latest())
    assert run.global_step == 4 * 3
    torch.save(model.state_dict(), out)


def train_with_plugin(directory, checkpoints, out, kill_at):
    """With the plugin under Lightning's own ModelCheckpoint, which saves each epoch."""
    quiet()
    pl.seed_everything(1, verbose=False)
    model = Model(kill_at)
    io = CairnCheckpointIO(directory)
    own = pl.callbacks.ModelCheckpoint(
        checkpoints, every_n_epochs=1, save_top_k=2, monitor="epoch", mode="max"
    )
    run = trainer(plugins=[io], callbacks=[own, CairnCallback(every_n_steps=1000)])
    run.fit(model, loader(), ckpt_path=io.latest())
    torch.save(model.state_dict(), out)


def train_together(directory, out, kill_at, rank, port):
    """One of two processes, each with dropout of its own, whose gradients are averaged."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0", GLOO_SOCKET_IFNAME="lo")
    quiet()
    pl.seed_everything(1 + rank, verbose=False)
    model = Model(kill_at)
    callback = CairnCallback(directory, every_n_steps=3)
    run = trainer(
        callbacks=[callback],
        enable_checkpointing=False,
        strategy="ddp",
        devices=2,
        use_distributed_sampler=False,
    )
    run.fit(model, loader(), ckpt_path=callback.latest())
    if rank == 0:
        torch.save(model.state_dict(), out)
