"""Reads safetensors files of any writer by mapping them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import numpy as np

from . import _arrays
from .errors import Corruption, Invalid

_MAX_HEADER = 100 << 20


class Mapped(NamedTuple):
    """A tensor of a mapped file."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    data: np.ndarray  # bytes; changes stay in memory


def map_tensors(file: Path) -> Iterator[Mapped]:
    """The tensors of a file. Corruption when it is none, or lies about itself."""
    header, start = _header(file)
    # While it is mapped nobody writes over the file, even when its checkpoint is removed: only files
    # that no process has open are recycled.
    whole = np.memmap(file, dtype=np.uint8, mode="c").view(np.ndarray)[start:]
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _checked(entry, f"{file}: {name}")
        if end > whole.size:
            raise Corruption(f"{file}: {name} lies outside of the file")
        yield Mapped(name, dtype, shape, whole[begin:end])


def _header(file: Path) -> Tuple[Dict[str, Any], int]:
    with open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(_MAX_HEADER, size - 8):
            raise Corruption(f"{file}: not a safetensors file")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise Corruption(f"{file}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise Corruption(f"{file}: the header is no object")
    return header, 8 + length


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _checked(entry: Any, where: str) -> Tuple[str, Tuple[int, ...], int, int]:
    """(dtype, shape, begin, end), which agree with each other."""
    if not isinstance(entry, dict):
        raise Corruption(f"{where}: no object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets):
        raise Corruption(f"{where}: a bad dtype, shape or offset")
    itemsize = _arrays.itemsize(dtype)
    if itemsize is None:
        raise Invalid(f"{where}: NumPy has no dtype for {dtype}")
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * itemsize:
        raise Corruption(f"{where}: the offsets do not fit {dtype} {shape}")
    return dtype, tuple(shape), offsets[0], offsets[1]
