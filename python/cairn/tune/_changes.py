"""What differs between what an experiment was made with and what it is given when it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_SEEDS = ("seed", "random_state")


def comparable(value: Any) -> Any:
    """As the record has it: NaN and infinities are texts there, and a seed has its 64 bits."""
    if isinstance(value, Mapping):
        return {str(key): comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def changed_keys(given: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """The keys whose values are not those on record.

    >>> changed_keys({"a": 1, "b": 2.0, "c": (1,)}, {"a": 7, "b": 2, "c": [1]})
    ['a']
    """
    given, recorded = comparable(given), comparable(recorded)
    return sorted(key for key in given if given[key] != recorded.get(key))


def changed_part(given: Mapping[str, Any], recorded: Mapping[str, Any], seeded: bool) -> str:
    """How a searcher or scheduler differs from the one on record; "" if it does not.

    Args:
        given, recorded: what describe() says of them, or {"class": name}.
        seeded: whether its seed was given, and not made up.

    >>> changed_part({"name": "asha", "max_t": 20}, {"name": "asha", "max_t": 10}, True)
    'max_t=20 instead of 10'
    """
    kind = "class" if "class" in given else "name"
    if given[kind] != recorded.get(kind):
        was = recorded.get("name") or recorded.get("class")
        return f"{given[kind]} instead of {was}"
    said = []
    for key in changed_keys(given, recorded):
        if key in _SEEDS and not seeded:
            continue
        if isinstance(given[key], Mapping) and isinstance(recorded.get(key), Mapping) and "name" in given[key]:
            inner = changed_part(given[key], recorded[key], seeded)
            said += [inner] if inner else []
        else:
            said.append(f"{key}={given[key]!r} instead of {recorded.get(key)!r}")
    return ", ".join(said)
