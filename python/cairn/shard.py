"""Marks for arrays that several ranks hold together."""

from __future__ import annotations

import operator
from typing import Any, Iterable, Tuple

from .errors import Invalid

__all__ = ["Replicated", "Shard"]


def _dims(values: Iterable[Any], what: str) -> Tuple[int, ...]:
    try:
        dims = tuple(operator.index(v) for v in values)
    except TypeError:
        raise Invalid(f"Shard: {what} must be integers, not {values!r}") from None
    if any(d < 0 for d in dims):
        raise Invalid(f"Shard: {what} must not be negative: {dims}")
    return dims


class Shard:
    """A piece of a distributed array, allowed anywhere in a state.

    Args:
        array: this rank's piece (NumPy array or torch tensor).
        global_shape: the shape of the whole array.
        offset: where the piece's first element stands in the whole array.

    A checkpoint of any number of ranks can be restored by any other number: give each rank the
    shards it wants.

    >>> import numpy as np, cairn
    >>> cairn.Shard(np.zeros((2, 3)), global_shape=(4, 3), offset=(2, 0))
    Shard(float64 [2, 3] at [2, 0] of [4, 3])
    """

    __slots__ = ("array", "global_shape", "offset")

    def __init__(self, array: Any, global_shape: Iterable[int], offset: Iterable[int]) -> None:
        self.array = array
        self.global_shape = _dims(global_shape, "global_shape")
        self.offset = _dims(offset, "offset")
        shape = tuple(getattr(array, "shape", ()))
        if not hasattr(array, "shape"):
            raise Invalid(f"Shard: not an array: {type(array).__name__}")
        if not len(shape) == len(self.global_shape) == len(self.offset):
            raise Invalid(
                f"Shard: the array has {len(shape)} dimensions, global_shape "
                f"{len(self.global_shape)}, offset {len(self.offset)}"
            )
        for size, whole, start in zip(shape, self.global_shape, self.offset):
            if start + size > whole:
                raise Invalid(
                    f"Shard: {list(shape)} at {list(self.offset)} is not inside "
                    f"{list(self.global_shape)}"
                )

    def __repr__(self) -> str:
        dtype = str(self.array.dtype).replace("torch.", "")
        return (
            f"Shard({dtype} {list(self.array.shape)} at {list(self.offset)} "
            f"of {list(self.global_shape)})"
        )


class Replicated:
    """An array that all ranks hold alike: it is written once, by one of them.

    Without this mark every rank's arrays are its own and each rank gets its own back.

    >>> import numpy as np, cairn
    >>> cairn.Replicated(np.zeros(3))
    Replicated(float64 [3])
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        if not hasattr(array, "shape"):
            raise Invalid(f"Replicated: not an array: {type(array).__name__}")
        self.array = array

    def __repr__(self) -> str:
        return f"Replicated({str(self.array.dtype).replace('torch.', '')} {list(self.array.shape)})"
