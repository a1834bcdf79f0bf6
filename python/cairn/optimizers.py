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
    """What all optimizers share. All that one remembers of a row is saved with the row.

    >>> import cairn
    >>> isinstance(cairn.optimizers.Adam(), cairn.optimizers.Optimizer)
    True
    >>> cairn.EmbeddingTable("users", 8, optimizer=cairn.optimizers.Adam(0.001)).slots
    {'m': 8, 'v': 8, 'updates': 1}
    """

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
    """w ← w − η g

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(learning_rate=0.5),
    ...                              initializer=cairn.initializers.Constant(1.0))
    >>> table.apply_gradients([7], [[1.0, -1.0]])
    >>> table.lookup([7]).tolist()
    [[0.5, 1.5]]
    """

    learning_rate: float = 0.01
    _kind: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m ← μ m + g; w ← w − η m (Nesterov: w ← w − η (g + μ m))

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.Momentum(1.0, momentum=0.5),
    ...                              initializer=cairn.initializers.Constant(0.0))
    >>> for _ in range(3):
    ...     table.apply_gradients([7], [[1.0]])
    ...     table.lookup([7]).item()
    -1.0
    -2.5
    -4.25
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    _kind: ClassVar[str] = "momentum"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """a ← a + g²; w ← w − η g / (√a + ε)

    >>> import cairn
    >>> adagrad = cairn.optimizers.Adagrad(0.5, initial_accumulator_value=0.0)
    >>> table = cairn.EmbeddingTable("users", 1, optimizer=adagrad,
    ...                              initializer=cairn.initializers.Constant(0.0))
    >>> table.apply_gradients([7], [[100.0]])        # the first step is as long as the rate says
    >>> table.lookup([7]).item()
    -0.5
    """

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.1
    epsilon: float = 0.0
    _kind: ClassVar[str] = "adagrad"


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; its corrections count the updates of each row by itself.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.Adam(0.001),
    ...                              initializer=cairn.initializers.Constant(0.0))
    >>> table.apply_gradients([7], [[100.0]])
    >>> round(table.lookup([7]).item(), 6)
    -0.001
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    _kind: ClassVar[str] = "adam"


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, applied to rows when they are updated.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.AdamW(0.1, weight_decay=0.5),
    ...                              initializer=cairn.initializers.Constant(1.0))
    >>> table.apply_gradients([7], [[0.0]])          # decays though its gradient is 0
    >>> round(table.lookup([7]).item(), 6)
    0.95
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    _kind: ClassVar[str] = "adamw"


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-Proximal.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.Ftrl(0.1, l1=2.0),
    ...                              initializer=cairn.initializers.Constant(0.0))
    >>> table.apply_gradients([7, 8], [[1.0], [5.0]])
    >>> (table.lookup([7, 8]) != 0).ravel().tolist()  # l1 keeps weights of little use at 0
    [False, True]
    """

    learning_rate: float = 0.01
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    _kind: ClassVar[str] = "ftrl"


@dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row: the mean of the squared gradient.

    >>> import cairn
    >>> rowwise = cairn.optimizers.RowwiseAdagrad(0.01)
    >>> cairn.EmbeddingTable("users", 64, optimizer=rowwise).slots       # Adagrad: 64 for each row
    {'accumulator': 1}
    """

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-8
    _kind: ClassVar[str] = "rowwise_adagrad"
