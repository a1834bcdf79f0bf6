"""The first values of variables and rows: pure functions of (seed, name or key, element)."""

from __future__ import annotations

import dataclasses

__all__ = ["Constant", "Normal", "TruncatedNormal", "Uniform"]


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Evenly between low and high."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Normal:
    """With a mean and a standard deviation."""

    mean: float = 0.0
    std: float = 1.0


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """Normal; what is farther than two deviations from the mean is drawn again."""

    mean: float = 0.0
    std: float = 1.0
