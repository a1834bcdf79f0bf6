"""What a Trainer tells of its training: events on the way, a summary at the end."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "EndEpochEvent",
    "EndStepEvent",
    "TrainSummary",
]


@dataclasses.dataclass(frozen=True)
class BeginEpochEvent:
    """An epoch begins; or goes on with `step`, after a resume inside of it.

    The event comes then too, so that a handler can make again what it keeps in memory for an epoch.
    What it changes in the state (the model, the optimizer, `state`, rows of tables) is put back: the
    checkpoint was saved changed.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.BeginEpochEvent):
    ...         print("epoch", event.epoch)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(2, [1.0], handler)
    epoch 0
    epoch 1
    """

    epoch: int
    step: int = 0


@dataclasses.dataclass(frozen=True)
class EndEpochEvent:
    """All steps of an epoch are done.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.EndEpochEvent):
    ...         print("validate after epoch", event.epoch)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(1, [1.0, 2.0], handler)
    validate after epoch 0
    """

    epoch: int


@dataclasses.dataclass(frozen=True)
class BeginStepEvent:
    """A step begins.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.BeginStepEvent):
    ...         print(event.epoch, event.step)
    >>> summary = cairn.Trainer({}, lambda model, batch: None).train(1, [1.0, 2.0], handler)
    0 0
    0 1
    """

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class EndStepEvent:
    """A step is done; `metrics` is what it returned.

    >>> import cairn
    >>> def handler(event):
    ...     if isinstance(event, cairn.EndStepEvent):
    ...         print(event.step, event.metrics)
    >>> summary = cairn.Trainer({}, lambda model, batch: {"loss": batch}).train(1, [0.5, 0.25], handler)
    0 {'loss': 0.5}
    1 {'loss': 0.25}
    """

    epoch: int
    step: int
    metrics: Any


@dataclasses.dataclass(frozen=True)
class TrainSummary:
    """What one call of train did.

    Attributes:
        steps: made by this call.
        global_step: made in all.
        resumed_from: the checkpoint it went on from, or None.
        saves: checkpoints saved by this call.
        stall_seconds: that training waited for saves.
        stopped: True when stop() or a signal ended it.

    >>> import os, numpy as np, cairn
    >>> def run(epochs):
    ...     trainer = cairn.Trainer({"w": np.zeros(2)}, lambda model, batch: None,
    ...                             checkpoint_config=cairn.CheckpointConfig("runs/a", step_interval=2))
    ...     return trainer.train(epochs, [1.0] * 4)
    >>> first, second = run(1), run(3)
    >>> first.steps, first.resumed_from, first.stopped
    (4, None, False)
    >>> second.steps, second.global_step, second.resumed_from is not None
    (8, 12, True)
    """

    steps: int
    global_step: int
    resumed_from: Optional[str]
    saves: int
    stall_seconds: float
    stopped: bool
