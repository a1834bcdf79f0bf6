"""Trainer.train on parameter servers: the loop, and how it goes back with the job."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional

import numpy as np

from ._epoch_reader import EpochReader
from ._random import random_state, set_random_state
from ._stop_signals import StopSignals
from ._train_events import TrainSummary
from ._training_run import TrainingRun
from ._wording import a_type
from .errors import Invalid, Mismatch
from .ps import RolledBack
from .trainer import Trainer

__all__ = ["ServerRun", "from_plain", "is_tensor", "to_plain"]


class ServerRun(TrainingRun):
    """One call of train. The servers save; each step's end carries this trainer's position."""

    def __init__(
        self,
        trainer: Trainer,
        reader: EpochReader,
        handler: Optional[Callable[[Any], Any]],
        signals: StopSignals,
    ) -> None:
        super().__init__(trainer, None, reader, handler, signals)
        self._first_rng = random_state() if trainer._rng else None

    def train(self, num_epochs: int) -> TrainSummary:
        while True:
            try:
                summary = super().train(num_epochs)
                if self._trainer._own_client:
                    self._trainer.client.close()
                return summary
            except RolledBack:
                # A process of the job was lost. Where the servers went back to is where this trainer
                # goes on: client.step and client.state are of there.
                self._end_iteration()

    def _restore(self) -> Optional[Dict[str, Any]]:
        trainer = self._trainer
        trainer.global_step = trainer.client.step
        state = trainer.client.state
        if state is None:
            self._position = (0, -1)
            if self._first_rng is not None:
                set_random_state(self._first_rng)
            return None
        try:
            args: Dict[str, Any] = from_plain(state)
            self._position = (int(args["epoch"]), int(args["step"]))
        except (KeyError, TypeError, ValueError):
            raise Mismatch(
                f"what the servers keep of trainer {trainer.client.trainer_id}, of step "
                f"{trainer.client.step}, was left by another program than a Trainer: where that was in "
                "its data is not known. Go on with that program, or begin a job in a directory of its "
                "own (--load takes the parameters along)"
            ) from None
        return args

    def _end_step(self) -> None:
        self._trainer.client.end_step(to_plain(self._arguments(), "state"))

    def _is_due(self, epoch: int, step: int) -> bool:
        return False


def to_plain(value: Any, where: str) -> Any:
    """As JSON holds it; arrays, tuples and bytes are marked."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Invalid(f"{where}: keys must be strings")
        return {"dict": {key: to_plain(item, f"{where}/{key}") for key, item in value.items()}}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.generic):
        return to_plain(value.item(), where)
    kind = "array"
    if is_tensor(value):
        kind, value = "tensor", value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy has not
            bits = value.contiguous().flatten().view(_torch().int16).numpy()
            return {kind: ["bfloat16", list(value.shape), bits.tobytes().hex()]}
        try:
            value = value.numpy()
        except (TypeError, RuntimeError):
            raise Invalid(
                f"{where}: a tensor of {value.dtype} cannot be part of a trainer's position"
            ) from None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {kind: [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    raise Invalid(f"{where}: {a_type(value)} cannot be part of a trainer's position")


def from_plain(value: Any) -> Any:
    """The inverse of to_plain."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(from_plain(item) for item in content)
    if kind == "dict":
        return {key: from_plain(item) for key, item in content.items()}
    if kind == "bytes":
        return bytes.fromhex(content)
    dtype, shape, data = content
    if dtype == "bfloat16":
        bits = np.frombuffer(bytes.fromhex(data), dtype=np.int16).copy()
        return _torch().from_numpy(bits).view(_torch().bfloat16).reshape(shape)
    array = np.frombuffer(bytes.fromhex(data), dtype=dtype).reshape(shape).copy()
    return array if kind == "array" else _torch().from_numpy(array)


def is_tensor(value: Any) -> bool:
    """Of torch; parameters are too."""
    torch = sys.modules.get("torch")  # who has not imported it has none
    return torch is not None and isinstance(value, torch.Tensor)


def _torch() -> Any:
    import torch

    return torch
