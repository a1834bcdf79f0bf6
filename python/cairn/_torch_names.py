"""Names of a module's variables, whether or not torch.compile wraps it or a part of it."""

from __future__ import annotations

from typing import Any, Dict, Mapping

__all__ = ["uncompiled_name", "uncompiled_names"]

_WRAPPED = "_orig_mod."


def uncompiled_name(name: str) -> str:
    """The name as it is without torch.compile.

    >>> uncompiled_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return name.replace(_WRAPPED, "") if _WRAPPED in name else name


def uncompiled_names(state: Mapping[Any, Any]) -> Dict[Any, Any]:
    """The same of all keys, unless two would become one."""
    named = {uncompiled_name(k) if isinstance(k, str) else k: v for k, v in state.items()}
    return named if len(named) == len(state) else dict(state)
