"""The first values of rows: pure functions of (seed, table, key).

>>> import cairn
>>> cairn.initializers.Uniform(-0.05, 0.05)
Uniform(low=-0.05, high=0.05)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ._settings import check_settings

__all__ = ["Constant", "Initializer", "Normal", "TruncatedNormal", "Uniform"]


class Initializer:
    """What all initializers share."""

    def __post_init__(self) -> None:
        check_settings(self)

    def _described(self) -> Tuple[str, float, float]:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Initializer):
    """Every element is `value`."""

    value: float = 0.0

    def _described(self) -> Tuple[str, float, float]:
        return "constant", float(self.value), 0.0


@dataclass(frozen=True)
class Uniform(Initializer):
    """In [low, high)."""

    low: float = -0.05
    high: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "uniform", float(self.low), float(self.high)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed."""

    mean: float = 0.0
    std: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "normal", float(self.mean), float(self.std)


@dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Normal, drawn again where it is farther than two deviations from the mean."""

    mean: float = 0.0
    std: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "truncated_normal", float(self.mean), float(self.std)
