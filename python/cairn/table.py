"""Sparse tables: rows of weights by 64-bit ids."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arrays, _native
from ._arguments import float_of, text_argument, whole
from ._wording import a_type
from .errors import Invalid
from .initializers import Initializer, Uniform
from .optimizers import Optimizer

__all__ = [
    "CounterFilter",
    "EmbeddingTable",
    "Evicted",
    "GlobalStepEvict",
    "L2WeightEvict",
    "TableCut",
    "batch",
    "cut",
    "shards_of",
    "tables",
]

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_SHARDS = 1024
_HALVES = ("bfloat16",)  # of ml_dtypes, which NumPy does not count among the floats

# In the order in which they were made; WeakSet has none.
_made: List["weakref.ref[EmbeddingTable]"] = []
_names_made: List[str] = []  # of all, also of those that are gone


@dataclass(frozen=True)
class CounterFilter:
    """Admits an id when it was looked up `filter_freq` times.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD(),
    ...                              admission=cairn.CounterFilter(filter_freq=3))
    >>> for _ in range(3):
    ...     rows = table.lookup([7])
    ...     print(table.size(), table.pending())
    0 1
    0 1
    1 0
    """

    filter_freq: int


@dataclass(frozen=True)
class GlobalStepEvict:
    """Evicts rows that were not made or updated for more than `steps_to_live` steps.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD(),
    ...                              eviction=cairn.GlobalStepEvict(steps_to_live=100))
    >>> rows = table.lookup([7])
    >>> table.step = 50
    >>> rows = table.lookup([8])
    >>> table.evict(step=120), table.arrays()[0].tolist()
    (Evicted(rows=1, pending=0), [8])
    """

    steps_to_live: int


@dataclass(frozen=True)
class L2WeightEvict:
    """Evicts rows whose weights are shorter than `l2_weight_threshold`.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(),
    ...                              eviction=cairn.L2WeightEvict(l2_weight_threshold=0.5))
    >>> table.assign([7, 8], [[0.1, 0.1], [1.0, 1.0]])
    >>> table.evict(step=1), table.arrays()[0].tolist()
    (Evicted(rows=1, pending=0), [8])
    """

    l2_weight_threshold: float


class Evicted(NamedTuple):
    """What :meth:`EmbeddingTable.evict` removed.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(),
    ...                              eviction=cairn.GlobalStepEvict(steps_to_live=10))
    >>> rows = table.lookup([7, 8])
    >>> table.evict(step=20).rows
    2
    """

    rows: int
    pending: int  # counts of ids that were not admitted yet


_Eviction = Union[GlobalStepEvict, L2WeightEvict]


class RowsById:
    """What tables in this process and on servers have in common."""

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: Optimizer,
        initializer: Optional[Initializer],
        dtype: str,
    ) -> None:
        initializer = Uniform() if initializer is None else initializer
        text_argument(name, f"table {name!r}: the name")
        if not isinstance(optimizer, Optimizer):
            raise Invalid(f"table {name!r}: optimizer: use one of cairn.optimizers")
        if not isinstance(initializer, Initializer):
            raise Invalid(f"table {name!r}: initializer: use one of cairn.initializers")
        if str(dtype) not in _DTYPES:
            raise Invalid(f"table {name!r}: dtype {dtype!r}: there are {', '.join(_DTYPES)}")
        self.name = name
        self.dim = whole(dim, f"table {name!r}: dim")
        if not 0 < self.dim < 1 << 32:
            raise Invalid(f"table {name!r}: dim must be a positive integer, not {dim!r}")
        self.dtype = str(dtype)
        self.optimizer = optimizer
        self.initializer = initializer
        self._native: Any = None  # made by the subclass

    def lookup(self, ids: Any, create: bool = True) -> np.ndarray:
        """The weights of each id, as float32 of shape ``ids.shape + (dim,)``.

        With ``create=False`` missing rows give their initial value and nothing changes.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(),
        ...                              initializer=cairn.initializers.Constant(0.5))
        >>> table.lookup([[7, 8], [7, 9]], create=False).shape, table.size()
        ((2, 2, 2), 0)
        >>> table.lookup([7]).tolist(), table.size()
        ([[0.5, 0.5]], 1)
        """
        flat, shape = _ids(self.name, ids)
        out = np.empty((flat.size, self.dim), dtype=np.float32)
        self._native.lookup(flat, out, bool(create))
        return out.reshape((*shape, self.dim))

    def apply_gradients(self, ids: Any, grads: Any) -> None:
        """Lets the optimizer change each id's row by its gradient. On servers in sync mode: when
        the step ends, with the gradients of the other trainers.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(0.5),
        ...                              initializer=cairn.initializers.Constant(1.0))
        >>> table.apply_gradients([7, 8, 7], [[1, 1], [1, 1], [1, 1]])   # those of 7 are summed
        >>> table.lookup([7, 8]).tolist()
        [[0.0, 0.0], [0.5, 0.5]]
        """
        flat, shape = _ids(self.name, ids)
        self._native.apply_gradients(flat, self._rows(shape, grads, "grads"))

    def assign(self, ids: Any, values: Any) -> None:
        """Sets weights; of an id given twice the last counts. Slots stay as they are.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> table.assign([7, 8], [[1, 2], [3, 4]])
        >>> table.lookup([8]).tolist()
        [[3.0, 4.0]]
        """
        flat, shape = _ids(self.name, ids)
        self._native.assign(flat, self._rows(shape, values, "values"))

    def erase(self, ids: Any) -> int:
        """Removes rows; returns how many there were.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> table.assign([7, 8], [[1, 2], [3, 4]])
        >>> table.erase([8, 9]), table.size()
        (1, 1)
        """
        return self._native.erase(_ids(self.name, ids)[0])

    def items(self) -> Iterator[Tuple[int, np.ndarray]]:
        """(id, weights) of each row, from a copy made now.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> table.assign([7, 8], [[1, 2], [3, 4]])
        >>> sorted((id, weights.tolist()) for id, weights in table.items())
        [(7, [1.0, 2.0]), (8, [3.0, 4.0])]
        """
        keys, weights = self.arrays()
        return zip(keys.tolist(), weights)

    def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
        """All ids and their weights, as two arrays.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> table.assign([7, 8], [[1, 2], [3, 4]])
        >>> ids, weights = table.arrays()
        >>> sorted(ids.tolist()), weights.shape
        ([7, 8], (2, 2))
        """
        keys, _, _, weights, _ = self._native.export()
        return (
            np.frombuffer(keys, dtype=np.int64),
            np.frombuffer(weights, dtype=np.float32).reshape(-1, self.dim),
        )

    def size(self) -> int:
        """How many rows there are.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> rows = table.lookup([7, 8])
        >>> table.size(), len(table)
        (2, 2)
        """
        return self._native.size()

    def __len__(self) -> int:
        return self.size()

    def _rows(self, shape: Tuple[int, ...], rows: Any, what: str) -> np.ndarray:
        given = _array_of(rows, f"table {self.name!r}: {what}")
        count = math.prod(shape)
        wanted = {(*shape, self.dim), (count, self.dim), (count * self.dim,)}
        numeric = given.dtype.kind in "fiu" or given.dtype.name in _HALVES
        if given.shape not in wanted or not numeric:
            other = f"shape {list(given.shape)}" if numeric else f"elements of {given.dtype.name}"
            raise Invalid(
                f"table {self.name!r}: ids of shape {list(shape)} need {what} of shape "
                f"{[*shape, self.dim]}, not {other}"
            )
        return np.ascontiguousarray(given, dtype=np.float32).reshape(count, self.dim)


class EmbeddingTable(RowsById):
    """A sparse table: rows are made when an id is first looked up or updated.

    Many threads may use it at once. Gradients of an id that a batch holds several times are summed
    in order, then applied once.

    Args:
        name: of its tensors in checkpoints.
        dim: weights of a row.
        initializer: of new rows (:mod:`cairn.initializers`).
        optimizer: of updates (:mod:`cairn.optimizers`).
        dtype: of the weights: "float32", "float16" or "bfloat16". Slots are float32.
        admission: an id gets a row only after it was looked up so often: a number, or
            :class:`CounterFilter`. Until then lookups give the initial value, gradients are ignored.
        eviction: what :meth:`evict` removes: :class:`GlobalStepEvict`, :class:`L2WeightEvict`, or
            several.
        seed: of the initial values.
        shards: this process's part of the 1,024 logical shards, as (begin, end); :func:`shards_of`
            tells which ids are in it.
        side_buffer_bytes: memory for the earlier content of rows that change while a checkpoint is
            written; when it is used up, updates wait for the writer. Up to as much again holds
            the rows of an increment while it is written, which makes it faster.

    >>> import numpy as np, cairn
    >>> table = cairn.EmbeddingTable(
    ...     "users", 4,
    ...     initializer=cairn.initializers.Constant(1.0),
    ...     optimizer=cairn.optimizers.SGD(0.5),
    ... )
    >>> table.lookup([7, -3]).shape
    (2, 4)
    >>> table.apply_gradients([7, 7], np.ones((2, 4)))
    >>> table.lookup([7])
    array([[0., 0., 0., 0.]], dtype=float32)
    >>> table.size()
    2
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer,
        initializer: Optional[Initializer] = None,
        dtype: str = "float32",
        admission: Union[None, int, CounterFilter] = None,
        eviction: Union[None, _Eviction, Sequence[_Eviction]] = None,
        seed: int = 0,
        shards: Tuple[int, int] = (0, _SHARDS),
        side_buffer_bytes: int = 512 << 20,
    ) -> None:
        super().__init__(name, dim, optimizer, initializer, dtype)
        where = f"table {name!r}: "
        if not isinstance(shards, (tuple, list)) or len(shards) != 2:
            raise Invalid(f"{where}shards: (begin, end), not {shards!r}")
        begin, end = (whole(shard, where + "shards") for shard in shards)
        if not 0 <= begin < end <= _SHARDS:
            raise Invalid(f"{where}shards: a part of 0 to {_SHARDS}, not {shards!r}")
        self.shards = (begin, end)
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise Invalid(f"{where}seed must be an integer of 64 bits, not {seed!r}")
        seed = operator.index(seed)
        if not -(1 << 63) <= seed < 1 << 64:
            raise Invalid(f"{where}seed must be an integer of 64 bits, not {seed!r}")
        if whole(side_buffer_bytes, where + "side_buffer_bytes") < 0:
            raise Invalid(f"{where}side_buffer_bytes must not be negative")
        steps, norm = _eviction(name, eviction)
        self._counts_lookups = _admission(name, admission) is not None  # until a key is admitted
        self._native = _native.Table.make(
            {
                "name": name,
                "dim": self.dim,
                "dtype": _DTYPES[self.dtype],
                "optimizer": optimizer._described(),
                "initializer": self.initializer._described(),
                "seed": seed % (1 << 64),
                "admission": _admission(name, admission),
                "steps_to_live": steps,
                "min_l2_norm": norm,
                "shards": self.shards,
                "side_buffer_bytes": side_buffer_bytes,
            }
        )
        _made.append(weakref.ref(self, _made.remove))
        _names_made.append(name)

    def evict(self, step: int) -> Evicted:
        """Removes what the eviction rules say, at `step`.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(),
        ...                              eviction=cairn.GlobalStepEvict(steps_to_live=10))
        >>> rows = table.lookup([7, 8])
        >>> table.evict(step=20), table.size()
        (Evicted(rows=2, pending=0), 0)
        """
        return Evicted(*self._native.evict(self._step(step)))

    def clear(self) -> None:
        """Removes everything; the next checkpoint of the table is a full one. Refused while a
        checkpoint of it is written in the background: :meth:`erase` is not.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> rows = table.lookup([7, 8])
        >>> table.clear()
        >>> table.size()
        0
        """
        self._native.clear()

    def rows(self) -> Dict[int, Dict[str, Any]]:
        """Every row with its slots, frequency and version: for small tables and tests.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.Momentum(0.5),
        ...                              initializer=cairn.initializers.Constant(1.0))
        >>> table.step = 40
        >>> table.apply_gradients([7], [[1.0]])
        >>> row = table.rows()[7]
        >>> row["weights"].tolist(), row["momentum"].tolist(), row["version"]
        ([0.5], [1.0], 40)
        """
        keys, frequency, version, weights, slots = self._native.export()
        count = len(keys) // 8
        values = np.frombuffer(weights, dtype=np.float32).reshape(count, self.dim)
        states = np.frombuffer(slots, dtype=np.float32).reshape(count, -1 if count else 0)
        out: Dict[int, Dict[str, Any]] = {}
        for i, key in enumerate(np.frombuffer(keys, dtype=np.int64).tolist()):
            row: Dict[str, Any] = {
                "weights": values[i],
                "frequency": int(np.frombuffer(frequency, dtype=np.int64)[i]),
                "version": int(np.frombuffer(version, dtype=np.int64)[i]),
            }
            at = 0
            for name, width in self._native.slots():
                row[name] = states[i, at : at + width]
                at += width
            out[key] = row
        return out

    def pending(self) -> int:
        """How many ids are counted and not admitted yet.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(), admission=2)
        >>> rows = table.lookup([7, 8]), table.lookup([8])
        >>> table.pending(), table.size()
        (1, 1)
        """
        return self._native.pending_size()

    def memory(self) -> Dict[str, int]:
        """Bytes by purpose: rows, index, tracking, side_buffer, pending.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 16, optimizer=cairn.optimizers.SGD())
        >>> rows = table.lookup(range(1000))
        >>> table.memory()["rows"] >= 1000 * 16 * 4
        True
        """
        return self._native.memory()

    @property
    def slots(self) -> Dict[str, int]:
        """What the optimizer keeps with each row: name → elements.

        >>> import cairn
        >>> cairn.EmbeddingTable("users", 16, optimizer=cairn.optimizers.Adagrad()).slots
        {'accumulator': 16}
        """
        return dict(self._native.slots())

    @property
    def step(self) -> int:
        """The step that changes are stamped with; sessions set it.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> table.step = 40
        >>> rows = table.lookup([7])
        >>> table.rows()[7]["version"]
        40
        """
        return self._native.step

    @step.setter
    def step(self, step: int) -> None:
        self._native.step = self._step(step)

    def _step(self, step: int) -> int:
        number = whole(step, f"table {self.name!r}: step")
        if number < 0:
            raise Invalid(f"table {self.name!r}: step must not be negative: {number}")
        return number

    @property
    def learning_rate(self) -> float:
        """Of updates from now on: the optimizer's, until another is set. What was set is part of
        checkpoints, and comes back with them.

        >>> import cairn
        >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(0.5))
        >>> table.learning_rate /= 10
        >>> round(table.learning_rate, 3)
        0.05
        """
        return self._native.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._native.learning_rate = _learning_rate(self.name, rate)

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.name!r}, dim={self.dim}, {self.dtype}, {self.size()} rows)"


class TableCut:
    """The rows of a table at one instant, all or those that changed; made by :func:`cut`.

    >>> import cairn
    >>> table = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> rows = table.lookup([7, 8])
    >>> [cut] = cairn.table.cut([table])
    >>> cut.summary["name"], cut.summary["rows"]
    ('users', 2)
    >>> cut.committed()                              # after it was written; failed() if it was not
    >>> rows = table.lookup([9])
    >>> [cut] = cairn.table.cut([table], "cumulative", quantize=True)
    >>> cut.summary["rows"], cut.quantization_error
    (1, (0.0, 0.0))
    >>> cut.failed()
    """

    def __init__(self, native: "_native.TableCut", table: EmbeddingTable) -> None:
        self._native = native
        self.table = table

    @property
    def summary(self) -> Dict[str, Any]:
        """name, dim, dtype, rows, deleted, pending."""
        return self._native.summary()

    def committed(self) -> None:
        """The rows are durable: they leave the set of changed rows."""
        self._native.committed()

    def failed(self) -> None:
        """The rows will be in the next increment."""
        self._native.failed()

    @property
    def quantization_error(self) -> Tuple[float, float]:
        """The largest error of an 8-bit increment, absolute and relative to its row."""
        return self._native.quantization_error()


def cut(
    tables: Sequence[EmbeddingTable],
    kind: str = "full",
    *,
    quantize: bool = False,
    compress_keys: bool = False,
    also: Optional[Callable[[], Any]] = None,
) -> List[TableCut]:
    """Cuts tables at one instant; `also` is called at the same, to take dense state.

    Args:
        tables: which ones.
        kind: "full", "cumulative" (since the last full) or "consecutive" (since the last save).
        quantize: 8-bit rows in increments.
        compress_keys: the column of keys as zstd.
        also: called while nobody updates.

    >>> import cairn
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> items = cairn.EmbeddingTable("items", 2, optimizer=cairn.optimizers.SGD())
    >>> dense, taken = [1.0, 2.0], []
    >>> rows = users.lookup([7])
    >>> cuts = cairn.table.cut([users, items], also=lambda: taken.extend(dense))
    >>> [cut.summary["rows"] for cut in cuts], taken
    ([1, 0], [1.0, 2.0])
    >>> for cut in cuts:
    ...     cut.committed()
    """
    for table in tables:
        if not isinstance(table, EmbeddingTable):
            raise Invalid(f"cut: {a_type(table)} is no EmbeddingTable")
    natives = _native.cut_tables([t._native for t in tables], kind, quantize, compress_keys, also)
    return [TableCut(native, table) for native, table in zip(natives, tables)]


def tables() -> List[EmbeddingTable]:
    """Every table of this process that still lives, in the order in which they were made.

    >>> import cairn
    >>> t = cairn.EmbeddingTable("items", 2, optimizer=cairn.optimizers.SGD())
    >>> [table.name for table in cairn.tables() if table is t]
    ['items']
    """
    return [table for table in (made() for made in _made) if table is not None]


def shards_of(ids: Any) -> np.ndarray:
    """Which of the 1,024 logical shards each id belongs to, as an array of the ids' shape: for
    processes that have parts of one table (`shards` of :class:`EmbeddingTable`).

    >>> import numpy as np, cairn
    >>> rank, world_size = 1, 3
    >>> begin, end = rank * 1024 // world_size, (rank + 1) * 1024 // world_size
    >>> mine = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD(), shards=(begin, end))
    >>> ids = np.arange(1000)
    >>> shards = cairn.table.shards_of(ids)
    >>> mine.lookup(ids[(begin <= shards) & (shards < end)]).shape
    (331, 2)
    """
    flat, shape = _ids("", ids)
    shards = np.empty(flat.shape, np.int64)
    _native.shards_of(flat, shards)
    return shards.reshape(shape)


def names_made() -> Sequence[str]:
    """The names of all tables that were ever made in this process, in order."""
    return _names_made


def stamp(of: Sequence[Any], step: int) -> None:
    """Changes of these tables from now on belong to `step`; others are left alone."""
    for table in of:
        if isinstance(table, EmbeddingTable):
            table.step = step


@contextlib.contextmanager
def batch() -> Iterator[None]:
    """A ``with`` block that no cut divides: for steps that change several tables or dense state.

    >>> import cairn
    >>> with cairn.table.batch():
    ...     pass
    """
    inside = _native.Batch()
    inside.enter()
    try:
        yield
    finally:
        inside.leave()


def _array_of(values: Any, what: str) -> np.ndarray:
    """As NumPy sees it; torch tensors, on any device and with a graph, too."""
    if _arrays.is_torch(values):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()
        return np.asarray(values.numpy())
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{what}: {a_type(values)} is no array of numbers: {error}") from None


def _ids(name: str, ids: Any) -> Tuple[np.ndarray, Tuple[int, ...]]:
    array = _array_of(ids, f"table {name!r}: ids")
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise Invalid(f"table {name!r}: ids must be integers, not {array.dtype}")
    # Hashed features are often uint64: the same 64 bits.
    return np.ascontiguousarray(array.astype(np.int64, copy=False)).reshape(-1), array.shape


def _admission(name: str, admission: Union[None, int, CounterFilter]) -> Optional[int]:
    given = admission.filter_freq if isinstance(admission, CounterFilter) else admission
    if given is None:
        return None
    count = whole(given, f"table {name!r}: admission")
    if not 0 < count < 1 << 31:
        raise Invalid(f"table {name!r}: admission: a count of at least 1, not {count!r}")
    return count


def _learning_rate(name: str, rate: Any) -> float:
    number = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
    what = f"table {name!r}: learning_rate"
    if not number or not math.isfinite(float_of(rate, what)) or rate < 0:
        raise Invalid(f"{what} must be a number, not {rate!r}")
    return float(rate)


def _threshold(name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise Invalid(f"table {name!r}: l2_weight_threshold must be a number, not {given!r}")
    return float_of(given, f"table {name!r}: l2_weight_threshold")


def _eviction(
    name: str, eviction: Union[None, _Eviction, Sequence[_Eviction]]
) -> Tuple[Optional[int], Optional[float]]:
    rules = [] if eviction is None else eviction
    steps: Optional[int] = None
    norm: Optional[float] = None
    for rule in rules if isinstance(rules, (list, tuple)) else [rules]:
        if isinstance(rule, GlobalStepEvict) and steps is None:
            steps = whole(rule.steps_to_live, f"table {name!r}: steps_to_live")
        elif isinstance(rule, L2WeightEvict) and norm is None:
            norm = _threshold(name, rule.l2_weight_threshold)
        else:
            raise Invalid(
                f"table {name!r}: eviction: at most one GlobalStepEvict and one L2WeightEvict, not "
                f"{rule!r}"
            )
    return steps, norm
