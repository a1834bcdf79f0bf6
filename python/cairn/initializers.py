"""The first values of rows: pure functions of (seed, table, key).

>>> import cairn
>>> cairn.initializers.Uniform(-0.05, 0.05)
Uniform(low=-0.05, high=0.05)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable, Tuple, Type, TypeVar

from ._settings import check_settings

__all__ = ["Constant", "Initializer", "Normal", "TruncatedNormal", "Uniform"]


class Initializer:
    """What all initializers share.

    >>> import cairn
    >>> def values(seed):
    ...     table = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD(), seed=seed,
    ...                                  initializer=cairn.initializers.Normal(0, 0.01))
    ...     return table.lookup([7]).tolist()
    >>> values(1) == values(1), values(1) == values(2)
    (True, False)
    """

    def __post_init__(self) -> None:
        check_settings(self)

    def _described(self) -> Tuple[str, float, float]:
        raise NotImplementedError


_Made = TypeVar("_Made", bound=Initializer)


def _also_called(**names: str) -> Callable[[Type[_Made]], Type[_Made]]:
    """Lets a class take {other name: name of the field} by keyword too."""

    def decorate(made: Type[_Made]) -> Type[_Made]:
        init = made.__init__

        @functools.wraps(init)
        def with_other_names(self: Any, *given: Any, **named: Any) -> None:
            for name in names.keys() & named.keys():
                if names[name] in named:
                    raise TypeError(f"{made.__name__}: {name} is {names[name]}, and both are given")
                named[names[name]] = named.pop(name)
            init(self, *given, **named)

        made.__init__ = with_other_names  # type: ignore[method-assign]
        return made

    return decorate


@_also_called(x="value")
@dataclass(frozen=True)
class Constant(Initializer):
    """Every element is `value`, which may be called `x` too.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(),
    ...                              initializer=cairn.initializers.Constant(0.5))
    >>> table.lookup([7]).tolist()
    [[0.5, 0.5]]
    """

    value: float = 0.0

    def _described(self) -> Tuple[str, float, float]:
        return "constant", float(self.value), 0.0


@_also_called(lo="low", hi="high")
@dataclass(frozen=True)
class Uniform(Initializer):
    """In [low, high); the two may be called `lo` and `hi` too.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 1000, optimizer=cairn.optimizers.SGD(),
    ...                              initializer=cairn.initializers.Uniform(-0.1, 0.1))
    >>> w = table.lookup([7])
    >>> bool(((w >= -0.1) & (w < 0.1)).all())
    True
    """

    low: float = -0.05
    high: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "uniform", float(self.low), float(self.high)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 10_000, optimizer=cairn.optimizers.SGD(),
    ...                              initializer=cairn.initializers.Normal(mean=1.0, std=0.1))
    >>> w = table.lookup([7])
    >>> round(float(w.mean()), 1), round(float(w.std()), 1)
    (1.0, 0.1)
    """

    mean: float = 0.0
    std: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "normal", float(self.mean), float(self.std)


@dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """Normal, drawn again where it is farther than two deviations from the mean.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 10_000, optimizer=cairn.optimizers.SGD(),
    ...                              initializer=cairn.initializers.TruncatedNormal(std=0.1))
    >>> float(abs(table.lookup([7])).max()) <= 0.2
    True
    """

    mean: float = 0.0
    std: float = 0.05

    def _described(self) -> Tuple[str, float, float]:
        return "truncated_normal", float(self.mean), float(self.std)
