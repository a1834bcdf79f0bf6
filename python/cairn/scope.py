"""Variables by role: parameters, persistables, temporaries."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from . import _arrays, _native, _tree
from ._arguments import float_of, text_argument
from ._wording import a_type
from .errors import Error, Invalid

__all__ = ["Scope", "Variable", "default_scope"]

# What initializers call their numbers.
_KINDS: Dict[str, Tuple[str, Tuple[str, ...], Tuple[str, ...]]] = {
    "Constant": ("constant", ("value", "x"), ()),
    "Uniform": ("uniform", ("low", "lo"), ("high", "hi")),
    "Normal": ("normal", ("mean",), ("std", "stddev")),
    "TruncatedNormal": ("truncated_normal", ("mean",), ("std", "stddev")),
}


@dataclasses.dataclass(frozen=True)
class Variable:
    """What a program knows of a variable.

    Attributes:
        name, role: the role is "parameter", "persistable" or "temporary".
        dtype: its name in NumPy ("float32").
        shape, bytes: of its memory.
        trainable, learning_rate_factor: for the optimizer.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.zeros((2, 3), np.float32), trainable=False)
    >>> scope.vars()
    [Variable(name='w', role='parameter', dtype='float32', shape=(2, 3), bytes=24, trainable=False, ...)]
    """

    name: str
    role: str
    dtype: str
    shape: Tuple[int, ...]
    bytes: int
    trainable: bool = True
    learning_rate_factor: float = 1.0


class Scope(_tree.Stateful):
    """A program's variables by name. Their memory is the scope's; `scope[name]` is a writable NumPy
    view of it.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("fc/w", np.zeros((2, 3), np.float32), cairn.initializers.Uniform(-1, 1))
    >>> lr = scope.persistable("lr", np.float32(0.1))
    >>> scope.initialize(seed=7)
    >>> bool((w != 0).all()), [v.name for v in scope.vars("persistable")]
    (True, ['fc/w', 'lr'])
    """

    def __init__(self) -> None:
        self._native = _native.Scope()
        self._notes: Dict[str, Dict[str, Any]] = {}  # what the engine's dtypes do not say

    @classmethod
    def _over(cls, native: Any, notes: Dict[str, Dict[str, Any]]) -> "Scope":
        made = cls.__new__(cls)
        made._native = native
        made._notes = notes
        return made

    def parameter(
        self,
        name: str,
        array: Any,
        initializer: Any = None,
        trainable: bool = True,
        learning_rate_factor: float = 1.0,
    ) -> np.ndarray:
        """Declares a variable that is learned, and gives its memory.

        Args:
            name: any text; not taken yet.
            array: its first values, which are copied.
            initializer: run by :meth:`initialize`: one of cairn.initializers, or a number.
            trainable: whether an optimizer should change it.
            learning_rate_factor: its own factor of the learning rate.
        """
        return self._declare(name, "parameter", array, initializer, trainable, learning_rate_factor)

    def persistable(self, name: str, array: Any, initializer: Any = None) -> np.ndarray:
        """Declares a variable that lives across iterations: optimizer slots, learning rate,
        counters, statistics."""
        return self._declare(name, "persistable", array, initializer, True, 1.0)

    def temporary(self, name: str, array: Any) -> np.ndarray:
        """Declares a variable of this iteration: it is gone after :meth:`end_iteration` and never
        saved.

        >>> import numpy as np, cairn
        >>> scope = cairn.Scope()
        >>> activations = scope.temporary("activations", np.zeros(3))
        >>> scope.end_iteration()
        >>> "activations" in scope
        False
        """
        made = self._declare(name, "temporary", array, None, True, 1.0)
        _WITH_TEMPORARIES.add(self)
        return made

    def _declare(
        self,
        name: str,
        role: str,
        array: Any,
        initializer: Any,
        trainable: bool,
        learning_rate_factor: float,
    ) -> np.ndarray:
        text_argument(name, "a variable's name")
        factor = learning_rate_factor
        if isinstance(factor, bool) or not isinstance(factor, numbers.Real):
            raise Invalid(f"{name!r}: learning_rate_factor must be a number, not {factor!r}")
        if not math.isfinite(float_of(factor, f"{name!r}: learning_rate_factor")):
            raise Invalid(f"{name!r}: learning_rate_factor must be finite, not {factor!r}")
        if not _arrays.is_array(array):
            try:
                array = np.asarray(array)
            except ValueError as error:
                raise Invalid(f"{name!r}: {a_type(array)} is no array: {error}") from None
        source = _arrays.source(array, name)
        self._native.declare(
            view=(name, role, source.stored, source.shape, source.address),
            initializer=_initializer(initializer, name),
            trainable=bool(trainable),
            learning_rate_factor=float(factor),
        )
        self._notes[name] = _kept_notes(source.note)
        return self[name]

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._native.find(text_argument(name, "a variable's name"))
        return _arrays.make(
            "numpy",
            found["dtype"],
            tuple(found["shape"]),
            self._native.memory(name),
            self._notes.get(name, {}),
            name,
        )

    def __setitem__(self, name: str, value: Any) -> None:
        """Assigns the values of a variable that is declared already."""
        view = self[name]
        if not view.flags.writeable:
            raise Error(f"{name!r} may not be changed: the scope is frozen (a clone for testing)")
        value = np.asarray(value)
        if value.shape != view.shape:
            raise Invalid(f"{name!r} has the shape {view.shape}, the value {value.shape}")
        view[...] = value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._native.contains(name))

    def __iter__(self) -> Iterator[str]:
        return iter([v.name for v in self.vars()])

    def __len__(self) -> int:
        return len(self.vars())

    def __repr__(self) -> str:
        frozen = ", frozen" if self.frozen else ""
        return f"<cairn.Scope of {len(self)} variables{frozen}>"

    def vars(self, role: Optional[str] = None) -> List[Variable]:
        """The variables by name. "persistable" gives the parameters too: every parameter is one."""
        if role is not None:
            text_argument(role, "role")
        return [self._variable(found) for found in self._native.vars(role)]

    def _variable(self, found: Dict[str, Any]) -> Variable:
        view = self[found["name"]]
        return Variable(
            name=found["name"],
            role=found["role"],
            dtype=view.dtype.name,
            shape=view.shape,
            bytes=int(found["bytes"]),
            trainable=bool(found["trainable"]),
            learning_rate_factor=float(found["learning_rate_factor"]),
        )

    def initialize(self, seed: int = 0, overwrite: bool = False) -> None:
        """Runs the initializers. Their values depend on the seed and on each variable's name, not on
        the order of declarations.

        Args:
            seed: of all random initializers.
            overwrite: also initialise what was loaded. Otherwise that is an error: an initializer
                that runs after a load would throw the loaded values away.
        """
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise Invalid(f"seed must be an integer, not {seed!r}")
        self._native.initialize(operator.index(seed) & 0xFFFFFFFFFFFFFFFF, bool(overwrite))

    def end_iteration(self) -> None:
        """Destroys the temporaries.

        >>> import numpy as np, cairn
        >>> scope = cairn.Scope()
        >>> w, activations = scope.parameter("w", np.zeros(2)), scope.temporary("activations", np.zeros(3))
        >>> scope.end_iteration()
        >>> list(scope)
        ['w']
        """
        self._native.end_iteration()
        _WITH_TEMPORARIES.discard(self)

    def clear(self) -> None:
        """Destroys all variables: another program begins.

        >>> import numpy as np, cairn
        >>> scope = cairn.Scope()
        >>> w = scope.parameter("w", np.zeros(2))
        >>> scope.clear()
        >>> len(scope)
        0
        """
        self._native.clear()
        self._notes.clear()

    def clone(self, for_test: bool = False) -> "Scope":
        """With for_test: a frozen scope over the same memory, which sees the parameters and cannot
        change them. Otherwise an independent copy.

        >>> import numpy as np, cairn
        >>> scope = cairn.Scope()
        >>> w = scope.parameter("w", np.zeros(1))
        >>> test = scope.clone(for_test=True)
        >>> w[0] = 5
        >>> float(test["w"][0]), test["w"].flags.writeable
        (5.0, False)
        """
        return Scope._over(self._native.clone(bool(for_test)), dict(self._notes))

    @property
    def frozen(self) -> bool:
        """True for a clone for testing.

        >>> import numpy as np, cairn
        >>> scope = cairn.Scope()
        >>> w = scope.parameter("w", np.zeros(2))
        >>> scope.frozen, scope.clone(for_test=True).frozen
        (False, True)
        """
        return bool(self._native.frozen)

    # A scope may stand in a state: CheckpointManager and Trainer save its persistables.

    def cairn_save(self) -> Any:
        return {v.name: self[v.name] for v in self.vars("persistable")}

    def cairn_template(self, stored: Any) -> Any:
        return self.cairn_save()

    def cairn_load(self, state: Any) -> None:
        self._native.mark_loaded(list(state))


def _kept_notes(note: Dict[str, Any]) -> Dict[str, Any]:
    """What of a dtype the engine does not know. The scope's memory has this machine's byte order:
    views of another one would be copies, and what is written into them lost."""
    kept = {key: value for key, value in note.items() if key == "complex"}
    dtype = np.dtype(str(note["np"])) if "np" in note else None
    if dtype is not None and dtype.kind in "mM":
        kept["np"] = dtype.newbyteorder("=").str
    return kept


def _initializer(given: Any, name: str) -> Optional[Tuple[str, float, float]]:
    if given is None:
        return None
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        if not math.isfinite(float_of(given, f"{name!r}: the initializer")):
            raise Invalid(f"{name!r}: the initializer must be a finite number, not {given!r}")
        return ("constant", float(given), 0.0)
    known = _KINDS.get(type(given).__name__)
    if known is None:
        raise Invalid(
            f"{name!r}: {a_type(given)} is no initializer; a number and those of "
            "cairn.initializers are"
        )
    kind, first, second = known
    return (kind, _attribute(given, first, name), _attribute(given, second, name))


def _attribute(given: Any, names: Tuple[str, ...], variable: str) -> float:
    for name in names:
        if hasattr(given, name):
            return float(getattr(given, name))
    if not names:
        return 0.0
    raise Invalid(f"{variable!r}: the initializer {given!r} has no {names[0]}")


# A state that may be large is looked through only after steps that made some.
_WITH_TEMPORARIES: "weakref.WeakSet[Scope]" = weakref.WeakSet()


def end_iteration_of(value: Any) -> None:
    """A step is over: destroys the temporaries of the value, if it is a scope, and of the scopes that
    stand in it, however deep."""
    if _WITH_TEMPORARIES:
        _end_iteration_of(value, 0)


def _end_iteration_of(value: Any, depth: int) -> None:
    if isinstance(value, Scope):
        value.end_iteration()
    elif depth <= _tree.MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _end_iteration_of(item, depth + 1)


_DEFAULT: List[Scope] = []


def default_scope() -> Scope:
    """The scope of a program that names none.

    >>> import cairn
    >>> cairn.default_scope() is cairn.default_scope()
    True
    """
    if not _DEFAULT:
        _DEFAULT.append(Scope._over(_native.default_scope(), {}))
    return _DEFAULT[0]
