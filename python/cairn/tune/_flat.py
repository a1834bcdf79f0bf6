"""Nested results as flat columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN = frozenset((bool, int, float, str))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of nested dicts joined with "/".

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a/b': 1, 'c': 2}
    """
    out: dict[str, Any] = {}
    for key, value in values.items():
        # Mapping's check costs more than all the rest, and is for what users derive from it.
        if value and type(value) not in _PLAIN and isinstance(value, Mapping):
            out.update(flatten(value, f"{prefix}{key}/"))
        else:
            out[f"{prefix}{key}"] = value
    return out
