"""Checks of trainables before an experiment is started."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from .result_keys import (
    DONE,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    TIMESTAMP,
    plain_result,
)
from .trainable import argument_of, checkpoint_of, is_class_trainable, make_trainable, name_of

__all__ = ["validate_save_restore"]

_STEPS = 3
# What differs from run to run, whatever the trainable does.
_CLOCKS = (TIME_THIS_ITER_S, TIME_TOTAL_S, TIMESTAMP, DONE, SHOULD_CHECKPOINT)


def validate_save_restore(
    trainable_cls: Any, config: Optional[Mapping[str, Any]] = None, use_object_store: bool = False
) -> bool:
    """Whether save_checkpoint and load_checkpoint of a class do what an experiment relies on.

    It trains three steps, saves, moves the checkpoint elsewhere, restores it into a new object, and
    compares what that reports next with what an uninterrupted object reports. The trainable must be
    deterministic (seed what is random in setup, and save its state).

    Args:
        trainable_cls: derived from Trainable.
        config: its hyperparameters.
        use_object_store: hand the checkpoint over as bytes, as a store without directories would.

    Raises:
        ValueError: says what is wrong.

    >>> from cairn import tune
    >>> class Good(tune.Trainable):
    ...     def setup(self, config): self.n = 0
    ...     def step(self):
    ...         self.n += 1
    ...         return {"n": self.n}
    ...     def save_checkpoint(self, directory): return {"n": self.n}
    ...     def load_checkpoint(self, state): self.n = state["n"]
    >>> validate_save_restore(Good)
    True
    """
    if not is_class_trainable(trainable_cls):
        raise ValueError("validate_save_restore takes a class that derives from tune.Trainable")
    name = name_of(trainable_cls)
    root = tempfile.mkdtemp(prefix="cairn-validate-")
    before = _cwd_files()
    made: List[Any] = []

    def new() -> Any:
        place = os.path.join(root, f"logs_{len(made)}")
        os.makedirs(place)
        made.append(make_trainable(trainable_cls, config or {}, "validated", place))
        return made[-1]

    try:
        through = new()
        straight = [_values(through.train()) for _ in range(2 * _STEPS)]
        first = new()
        again = [_values(first.train()) for _ in range(_STEPS)]
        _compare(f"{name} reports other things when it is run again", straight[:_STEPS], again)
        place = os.path.join(root, "saved")
        os.makedirs(place)
        checkpoint = checkpoint_of(first.save_checkpoint(place), place)
        if _values(first.train()) != straight[_STEPS]:
            raise ValueError(f"{name}.save_checkpoint changes what the trainable does next")
        moved = os.path.join(root, "moved", "elsewhere")
        if use_object_store:
            _through_bytes(place, moved)
        else:
            shutil.copytree(place, moved)
        shutil.rmtree(place)
        checkpoint._directory = moved
        second = new()
        try:
            second._iteration = _STEPS
            second.load_checkpoint(argument_of(checkpoint))
        except Exception as error:
            raise ValueError(
                f"{name}.load_checkpoint failed after the checkpoint was moved: "
                f"{type(error).__name__}: {error}"
            ) from error
        continued = [_values(second.train()) for _ in range(_STEPS)]
        _compare(
            f"{name} goes on otherwise after a restore than without one: load_checkpoint does not "
            "bring back all of its state",
            straight[_STEPS:],
            continued,
        )
        left = sorted(_cwd_files() - before)
        if left:
            raise ValueError(f"{name} left files outside of its checkpoints: {', '.join(left[:5])}")
        return True
    finally:
        for one in made:
            one.stop()
        shutil.rmtree(root, ignore_errors=True)


def _cwd_files() -> set[str]:
    return set(os.listdir(os.getcwd()))


def _values(result: Mapping[str, Any]) -> Dict[str, Any]:
    return {k: v for k, v in plain_result(result).items() if k not in _CLOCKS}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return bool(a == b)


def _compare(what: str, expected: List[Dict[str, Any]], got: List[Dict[str, Any]]) -> None:
    for number, (a, b) in enumerate(zip(expected, got)):
        if not _same(a, b):
            raise ValueError(f"{what}: result {number + 1} is {b}, and should be {a}")


def _through_bytes(source: str, target: str) -> None:
    for folder, _, names in os.walk(source):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            at = os.path.join(target, os.path.relpath(folder, source), name)
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(at, "wb") as file:
                file.write(data)
    os.makedirs(target, exist_ok=True)
