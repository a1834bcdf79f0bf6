"""GPUs of this machine: how many there are, and which of them a trial gets."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Optional

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Optional[Mapping[str, str]] = None, root: str = "/") -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name here: what it names already, or all devices.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"}), visible_gpus({"CUDA_VISIBLE_DEVICES": ""})
    (['2', '3'], [])
    """
    given = (os.environ if environment is None else environment).get(VISIBLE)
    if given is not None:
        names: list[str] = []
        for name in map(str.strip, given.split(",")):
            # As CUDA reads it: what follows a name of no device does not count. UUIDs are names too.
            if not re.fullmatch(r"\d+|(GPU|MIG)-.+", name) or name in names:
                break
            names.append(name)
        return names
    count = len([one for one in _names(root, "dev") if re.fullmatch(r"nvidia\d+", one)])
    count = count or len(_names(root, "proc/driver/nvidia/gpus"))
    return [str(i) for i in range(count)]


def _names(root: str, path: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, path))
    except OSError:
        return []


def places(gpus: int, each: float) -> int:
    """How many trials have room at a time that take so much of a GPU, or so many.

    >>> places(4, 2), places(2, 0.5), places(3, 2)
    (2, 4, 1)
    """
    return gpus * _shares(each) if each < 1 else gpus // int(each)


def _shares(each: float) -> int:
    """How many trials share one: of thirds three, although three of them are less than 1."""
    return max(1, math.floor(1 / each + 1e-9))


class GpuPlaces:
    """Gives trials GPUs of their own, or a share of one.

    Args:
        gpus: as visible_gpus has them.
        each: how much a trial takes: a part of one, or a whole number of them.

    >>> places = GpuPlaces(["0", "1"], 1)
    >>> places.take("a"), places.take("b")
    ('0', '1')
    >>> places.give_back("a")
    >>> places.take("c")
    '0'
    """

    def __init__(self, gpus: list[str], each: float) -> None:
        self._gpus = gpus
        self._wanted = math.ceil(each)
        self._taken: dict[str, list[str]] = {}

    def take(self, owner: str) -> str:
        """The value of CUDA_VISIBLE_DEVICES: those that the fewest have."""
        users = [name for names in self._taken.values() for name in names]
        order = sorted(range(len(self._gpus)), key=lambda i: (users.count(self._gpus[i]), i))
        names = [self._gpus[i] for i in sorted(order[: self._wanted])]
        self._taken[owner] = names
        return ",".join(names)

    def give_back(self, owner: str) -> None:
        self._taken.pop(owner, None)
