"""The checkpoints of trainers: who writes what, and whose are refused on the way back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Dict, Tuple

from . import _tree
from ._arguments import PathLike
from .errors import Mismatch
from .manager import CheckpointManager

if TYPE_CHECKING:
    from .trainer import Trainer

log = logging.getLogger("cairn")


class TrainersRepository(CheckpointManager):
    """The trainers' checkpoints: trainer 0 writes the model, each trainer its own arguments."""

    _may_grow = ("optimizer", "state")

    def __init__(self, directory: PathLike, **options: Any) -> None:
        self.position: Tuple[int, int] = (0, 0)
        super().__init__(directory, participant="trainer", naming="serial", **options)

    def _layout(self) -> _tree.Layout:
        return super()._layout()._replace(own="args", common=True, plain="model")

    def _state_files(self) -> Dict[str, str]:
        epoch, step = self.position
        return {"epoch_id": f"{epoch}\n", "step_id": f"{step}\n"}


class Refused(Exception):
    """The checkpoint as a whole, whatever else of it fits; with the Mismatch to raise."""


class OwnArguments(_tree.Stateful):
    """A trainer's own arguments, as a restore brings them back. Those of another training are refused
    before anything is changed."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.loaded: Dict[str, Any] = {}

    def cairn_save(self) -> Any:
        # Asked for where no tree of Python values is stored.
        raise Refused(_not_a_trainers("the checkpoint"))

    def cairn_template(self, stored: _tree.Stored) -> Any:
        args = stored.skeleton()  # type: ignore[attr-defined]
        if not isinstance(args, dict) or not {"trainer", "epoch", "step", "global_step"} <= set(args):
            raise Refused(_not_a_trainers(stored.where))
        # Those from before do not say how many there were; a trainer without a part was none of them.
        count = args.get("trainers", self._trainer._num_trainers)
        if count == self._trainer._num_trainers and args["trainer"] == self._trainer._trainer_id:
            return None
        what = (
            f"restore {stored.where}: it was saved by {count} trainers, and there are "
            f"{self._trainer._num_trainers} now"
            if count != self._trainer._num_trainers
            else f"restore {stored.where}: it has no part of trainer {self._trainer._trainer_id}"
        )
        if self._trainer._strict:
            raise Refused(
                Mismatch(
                    f"{what}. Nothing was changed. Start as many, or give strict=False: the model and "
                    "the counts of epochs and steps are then restored, each trainer's own state is not"
                )
            )
        log.warning("%s: each trainer's own state starts anew", what)
        return None

    def cairn_load(self, state: Any) -> None:
        self.loaded = dict(state)
        mine = (self._trainer._num_trainers, self._trainer._trainer_id)
        if (state.get("trainers", mine[0]), state["trainer"]) != mine:
            for name in ("rng", "epoch_rng", "reader", "generators", "epoch_generators"):
                self.loaded[name] = None


def _not_a_trainers(where: str) -> Mismatch:
    return Mismatch(
        f"restore {where}: it was not saved by a cairn.Trainer of Python. Nothing was changed; train "
        "in another checkpoint_dir"
    )


def other_training(error: Mismatch) -> Mismatch:
    """Says what a Trainer's user can do about it; there is no rename and no skip here."""
    names = [*error.missing, *error.unexpected, *error.mismatched]
    what, _, _ = str(error).partition(" Nothing was changed")
    if "args" in error.missing:
        advice = "It was not saved by a Trainer: train in another checkpoint_dir"
    elif names and all(name.startswith(("optimizer", "state/")) for name in names):
        advice = (
            "It was saved with another optimizer or state: give what was given then, or train in "
            "another checkpoint_dir"
        )
    else:
        advice = (
            "It is the checkpoint of another model: train this one in another checkpoint_dir; "
            "cairn.io.load_params takes what fits over"
        )
    return Mismatch(
        f"{what} Nothing was changed. {advice}", error.missing, error.unexpected, error.mismatched
    )
