"""What processes of one training that speak through torch.distributed tell each other."""

from __future__ import annotations

from typing import Any, List

import torch


def gather(value: Any) -> List[Any]:
    """The value of every process; on all of them. All must call it."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
