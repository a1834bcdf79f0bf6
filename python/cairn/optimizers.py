"""How the rows of an :class:`cairn.EmbeddingTable` change with their gradients.

>>> import cairn
>>> cairn.optimizers.Adagrad(0.1, initial_accumulator_value=1.0)
Adagrad(learning_rate=0.1, initial_accumulator_value=1.0, epsilon=0.0)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Dict, Tuple

from ._settings import check_settings

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Ftrl", "Momentum", "Optimizer", "RowwiseAdagrad"]


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers share. All that one remembers of a row is saved with the row."""

    learning_rate: float
    _kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_settings(self)

    def _described(self) -> Tuple[str, Dict[str, Any]]:
        numbers = {
            name: value if isinstance(value, bool) else float(value)
            for name, value in asdict(self).items()
        }
        return self._kind, numbers


@dataclass(frozen=True)
class SGD(Optimizer):
    """w ← w − η g"""

    learning_rate: float = 0.01
    _kind: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m ← μ m + g; w ← w − η m (Nesterov: w ← w − η (g + μ m))"""

    learning_rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    _kind: ClassVar[str] = "momentum"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """a ← a + g²; w ← w − η g / (√a + ε)"""

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.1
    epsilon: float = 0.0
    _kind: ClassVar[str] = "adagrad"


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; its corrections count the updates of each row by itself."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    _kind: ClassVar[str] = "adam"


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, applied to rows when they are updated."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    _kind: ClassVar[str] = "adamw"


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-Proximal."""

    learning_rate: float = 0.01
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    _kind: ClassVar[str] = "ftrl"


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row: the mean of the squared gradient."""

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-8
    _kind: ClassVar[str] = "rowwise_adagrad"
