"""The shape of a nested state, as state.json keeps it (docs/format/state.md).

Encoding walks a state once, gives every array a tensor name and turns all else into JSON. Planning
a restore compares a stored tree with the objects to be restored, names and all, before memory is
touched. Nothing that is read from a file is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import collections
import json
import math
import random
import struct
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np

from . import _arrays
from .errors import Corruption, Invalid, Mismatch
from .shard import Replicated, Shard

VERSION = 1
MAX_DEPTH = 200
_INLINE_BYTES = 1024
_SAFE_INT = 1 << 53
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

# (name, dtype, shape, address, global shape, offset, replicated, group) for the native module.
Described = Tuple[
    str,
    str,
    Tuple[int, ...],
    int,
    Optional[Tuple[int, ...]],
    Optional[Tuple[int, ...]],
    bool,
    str,
]


class Stateful:
    """An object with a state of its own that may stand in a state: cairn.torch.Capture and what
    wraps modules and optimizers. Subclasses say how it is taken, compared and put back."""

    def cairn_save(self) -> Any:
        """The state to store: nested, as any other."""
        raise NotImplementedError

    def cairn_template(self, stored: "Stored") -> Any:
        """What to restore into: a nested state whose arrays are filled in place; None: anything.
        May raise Mismatch: nothing was changed yet."""
        return None

    def cairn_load(self, state: Any) -> None:
        """Takes the restored state (with the template's arrays already filled)."""
        raise NotImplementedError

    def cairn_saved(self, handle: Any) -> None:
        """A save of this object was handed over."""


class Pieces:
    """A distributed array of which this rank writes some pieces, or none: for adapters, whose rank 0
    describes the whole state whoever holds it.

    Args:
        like: an empty, one-dimensional array of the dtype.
        global_shape: of the whole array.
        shards: this rank's pieces; one that is the whole array is stored under its plain name.
    """

    __slots__ = ("like", "global_shape", "shards")

    def __init__(self, like: Any, global_shape: Tuple[int, ...], shards: List[Shard]) -> None:
        self.like = like
        self.global_shape = tuple(global_shape)
        self.shards = shards


class _StateDict(Stateful):
    """Anything with state_dict and load_state_dict."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def cairn_save(self) -> Any:
        return self.value.state_dict()

    def cairn_load(self, state: Any) -> None:
        self.value.load_state_dict(state)


def as_stateful(value: Any) -> Optional[Stateful]:
    """The value's own ways, when it is no plain data."""
    if isinstance(value, Stateful):
        return value
    if _arrays.is_torch(value) or isinstance(value, (dict, list, tuple, np.ndarray)):
        return None
    if callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    ):
        if type(value).__module__.startswith("torch") or _arrays.torch_or_none() is not None:
            from . import torch as adapters

            return adapters.stateful(value)
        return _StateDict(value)
    return None


class _Names:
    """Tensor names: keys joined with /, made unique when they would collide."""

    def __init__(self) -> None:
        self._used: Set[str] = {"__metadata__"}

    def unique(self, path: str) -> str:
        name = path or "value"
        number = 1
        while name in self._used:
            number += 1
            name = f"{path}~{number}"
        self._used.add(name)
        return name


def _join(path: str, key: Any) -> str:
    text = key if isinstance(key, str) else str(key)
    return f"{path}/{text}" if path else text


def _check_text(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid(f"{where!r}: the text has lone surrogates and is no valid unicode") from None
    return text


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def _from_bits(text: str) -> float:
    return struct.unpack(">d", bytes.fromhex(text))[0]


class Encoded(NamedTuple):
    json: str
    tensors: List[Described]
    keep: List[Any]  # owners of the memory
    stateful: List[Stateful]
    nbytes: int


class Layout(NamedTuple):
    """Which participant writes which arrays of a state, and under which names."""

    rank: int = 0
    world_size: int = 1
    participant: str = "rank_0"
    own: str = ""  # a subtree that is each participant's own, also rank 0's
    common: bool = False  # the rest is alike everywhere: rank 0 writes it, others refer to it
    plain: str = ""  # a subtree whose tensors are named without its own name


class _Encoder:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._names = _Names()
        self._shared: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
        self._open: Set[int] = set()
        self.tensors: List[Described] = []
        self.keep: List[Any] = []
        self.stateful: List[Stateful] = []
        self.nbytes = 0

    def node(self, value: Any, path: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return _check_text(value, path)
        if kind is int:
            return value if -_SAFE_INT <= value <= _SAFE_INT else {"int": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": _bits(value)}
        if kind is np.ndarray or _arrays.is_torch(value):
            return self._array(value, path)
        if kind in (dict, collections.OrderedDict, list, tuple):
            return self._container(value, path, depth)
        return self._other(value, path, depth)

    def _other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, Shard):
            return self._array(value.array, path, shard=value)
        if isinstance(value, Replicated):
            return self._array(value.array, path, replicated=True)
        if isinstance(value, Pieces):
            return self._pieces(value, path)
        if isinstance(value, bytes):
            return self._bytes(value, path)
        if isinstance(value, np.generic):
            return self._numpy_scalar(value, path)
        if isinstance(value, complex):
            return {"complex": [_bits(value.real), _bits(value.imag)]}
        if isinstance(value, (set, frozenset)):
            return self._set(value, path, depth)
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            return {"rng": [_rng_kind(value, path), self.node(_rng_state(value), path, depth + 1)]}
        if type(value).__module__ == "torch" and type(value).__name__ == "Size":
            return {"torch.Size": [int(v) for v in value]}
        if type(value).__module__.startswith("torch") and type(value).__name__ == "Generator":
            return {"rng": ["torch", self.node(value.get_state(), path, depth + 1)]}
        stateful = as_stateful(value)
        if stateful is not None:
            self.stateful.append(stateful)
            return self.node(stateful.cairn_save(), path, depth + 1)
        if isinstance(value, (str, int, float, dict, list, tuple)) and not isinstance(value, bool):
            raise Invalid(
                f"{path or 'the state'}: {_type_name(value)} is a type of its own and would come "
                f"back as a plain {type(value).__mro__[-2].__name__}; convert it first"
            )
        if _arrays.is_array(value):
            return self._array(value, path)
        raise Invalid(
            f"{path or 'the state'}: a {_type_name(value)} cannot be stored. Arrays, tensors, "
            "numbers, str, bytes, None, dicts, lists, tuples, random states and objects with "
            "state_dict and load_state_dict can; nothing is pickled"
        )

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            raise Invalid(f"{path[:200]}…: nested deeper than {MAX_DEPTH} levels")
        if id(value) in self._open:
            raise Invalid(f"{path or 'the state'}: the {_type_name(value)} contains itself")
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                return self._dict(value, path, depth)
            items = [self.node(v, _join(path, i), depth + 1) for i, v in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        finally:
            self._open.discard(id(value))

    def _dict(self, value: Dict[Any, Any], path: str, depth: int) -> Any:
        tag = "odict" if isinstance(value, collections.OrderedDict) else "dict"
        if all(type(key) is str for key in value):
            for key in value:
                _check_text(key, path)
            return {tag: {key: self.node(v, _join(path, key), depth + 1) for key, v in value.items()}}
        items = []
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, bytes, tuple, type(None))):
                raise Invalid(
                    f"{path or 'the state'}: keys of type {_type_name(key)} cannot be stored; str, "
                    "numbers, bytes, None and tuples of them can"
                )
            where = _join(path, key)
            before = len(self.tensors)
            coded = self.node(key, where, depth + 1)
            if len(self.tensors) != before:
                raise Invalid(f"{where}: a key cannot hold arrays or long bytes")
            items.append([coded, self.node(item, where, depth + 1)])
        return {tag + "_items": items}

    def _set(self, value: Any, path: str, depth: int) -> Any:
        before = len(self.tensors)
        items = [self.node(v, path, depth + 1) for v in value]
        if len(self.tensors) != before:
            raise Invalid(f"{path}: a set cannot hold arrays or long bytes")
        items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        return {"set" if isinstance(value, set) else "frozenset": items}

    def _bytes(self, value: bytes, path: str) -> Any:
        if len(value) <= _INLINE_BYTES:
            return {"bytes": base64.b64encode(value).decode()}
        return self._array(memoryview(value), path)

    def _numpy_scalar(self, value: np.generic, path: str) -> Any:
        if value.dtype.kind not in "biufcmM" and value.dtype.name not in _arrays._NUMPY:
            raise Invalid(f"{path}: a NumPy scalar of dtype {value.dtype} cannot be stored")
        if value.dtype.name in ("float128", "complex256", "longdouble", "clongdouble"):
            raise Invalid(f"{path}: {value.dtype} cannot be stored; use float64")
        dtype = value.dtype.newbyteorder("<")
        name = dtype.name if dtype.kind not in "mM" else dtype.str
        return {"numpy": [name, np.asarray(value).astype(dtype).tobytes().hex()]}

    def _is_own(self, path: str) -> bool:
        own = self._layout.own
        return bool(own) and (path == own or path.startswith(own + "/"))

    def _group(self, path: str) -> str:
        if self._is_own(path):
            return "state"
        return "state" if self._layout.rank > 0 and not self._layout.common else "model"

    def _tensor_name(self, path: str, group: str) -> str:
        if group == "state" and not self._is_own(path):
            return f"{self._layout.participant}/{path}"  # rank 0 has one of this name
        plain = self._layout.plain
        if plain and path.startswith(plain + "/"):
            return path[len(plain) + 1 :]
        return path

    def _array(
        self, value: Any, path: str, shard: Optional[Shard] = None, replicated: bool = False
    ) -> Any:
        if not _arrays.is_array(value):
            raise Invalid(f"{path}: a {_type_name(value)} is no array")
        source = _arrays.source(value, path or "the state")
        if shard is not None and shard.array.shape != value.shape:
            raise Invalid(f"{path}: the shard's array was changed to {list(value.shape)}")
        whole: Optional[Tuple[int, ...]] = None
        offset: Optional[Tuple[int, ...]] = None
        if shard is not None:
            tail = source.shape[len(shard.offset) :]  # complex numbers
            whole, offset = shard.global_shape + tail, shard.offset + (0,) * len(tail)
        # Tied weights: the same memory, seen the same way, is stored once.
        key = (source.address, source.stored, source.shape, source.kind, whole, offset, replicated)
        tied = source.nbytes > 0 and shard is None
        if tied and key in self._shared:
            same = dict(self._shared[key])
            same.update(source.note)
            return {"tensor": same}
        group = "model" if shard is not None or replicated else self._group(path)
        name = self._names.unique(_check_text(self._tensor_name(path, group), path))
        leaf: Dict[str, Any] = {
            "name": name,
            "dtype": source.stored,
            "shape": list(whole if whole is not None else source.shape),
            "kind": source.kind,
        }
        leaf.update(source.note)
        if group == "state":
            leaf["group"] = group
        if tied:
            self._shared[key] = leaf
        if self._layout.common and self._layout.rank > 0 and group == "model" and shard is None:
            return {"tensor": leaf}  # rank 0 writes it
        self.tensors.append(
            (
                name,
                source.stored,
                source.shape,
                source.address,
                whole,
                offset,
                replicated and self._layout.world_size > 1,
                group,
            )
        )
        self.keep.append(source.keep)
        self.nbytes += source.nbytes
        return {"tensor": leaf}


    def _pieces(self, value: Pieces, path: str) -> Any:
        like = _arrays.source(value.like, path)
        tail = like.shape[1:]  # complex numbers
        whole = value.global_shape + tail
        name = self._names.unique(_check_text(path, path))
        for shard in value.shards:
            source = _arrays.source(shard.array, path)
            if source.stored != like.stored or shard.global_shape != value.global_shape:
                raise Invalid(f"{path}: a piece is of another dtype or another array")
            piece = None if source.shape == whole else shard.offset + (0,) * len(tail)
            self.tensors.append(
                (
                    name,
                    source.stored,
                    source.shape,
                    source.address,
                    None if piece is None else whole,
                    piece,
                    False,
                    "model",
                )
            )
            self.keep.append(source.keep)
            self.nbytes += source.nbytes
        leaf = {"name": name, "dtype": like.stored, "shape": list(whole), "kind": like.kind}
        leaf.update(like.note)
        return {"tensor": leaf}


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _rng_kind(value: Any, path: str) -> str:
    if isinstance(value, np.random.RandomState):
        return "numpy.RandomState"
    if isinstance(value, random.Random):
        return "random"
    kind = type(value.bit_generator).__name__
    if kind not in _BIT_GENERATORS:
        raise Invalid(f"{path}: the bit generator {kind} cannot be stored")
    return "numpy." + kind


def _rng_state(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.getstate()


def _set_rng(value: Any, state: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, (np.random.RandomState,)):
        value.set_state(state)
    elif isinstance(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state)  # torch


def _make_rng(kind: str, state: Any) -> Any:
    if kind == "random":
        made: Any = random.Random()
    elif kind == "numpy.RandomState":
        made = np.random.RandomState()
    elif kind == "torch":
        import torch

        made = torch.Generator()
    else:
        name = kind[len("numpy.") :]
        if name not in _BIT_GENERATORS:
            raise Corruption(f"state.json names an unknown random generator {kind!r}")
        made = np.random.Generator(getattr(np.random, name)())
    _set_rng(made, state)
    return made


def encode(value: Any, layout: Layout) -> Encoded:
    """Walks a state; the arrays' memory is described, not copied."""
    encoder = _Encoder(layout)
    root = encoder.node(value, "", 0)
    text = json.dumps(
        {"cairn_state": VERSION, "state": root}, ensure_ascii=False, separators=(",", ":")
    )
    return Encoded(text, encoder.tensors, encoder.keep, encoder.stateful, encoder.nbytes)


class Stored:
    """A stored tree: nodes as they are in state.json."""

    def __init__(self, text: bytes, where: str) -> None:
        self.where = where
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Corruption(f"{where}: state.json is not JSON: {error}") from None
        if not isinstance(whole, dict) or "cairn_state" not in whole:
            raise Corruption(f"{where}: state.json holds no state")
        if whole["cairn_state"] != VERSION:
            raise Invalid(
                f"{where}: the state has version {whole['cairn_state']!r}; this Cairn knows {VERSION}"
            )
        self.root = whole.get("state")

    @staticmethod
    def is_one(text: bytes) -> bool:
        """False for the state files of other programs."""
        return text.startswith(b'{"cairn_state"')


def is_leaf(node: Any) -> bool:
    if isinstance(node, list):
        return False
    if isinstance(node, dict):
        return not any(tag in node for tag in _CONTAINERS)
    return True


_CONTAINERS = ("dict", "odict", "dict_items", "odict_items", "tuple")


def children(node: Any) -> Iterator[Tuple[Any, Any]]:
    """(key, node) of a container."""
    if isinstance(node, list):
        yield from enumerate(node)
    elif "tuple" in node:
        yield from enumerate(node["tuple"])
    elif "dict" in node or "odict" in node:
        yield from (node.get("dict") or node.get("odict") or {}).items()
    else:
        for key, child in node.get("dict_items") or node.get("odict_items") or ():
            yield _plain(key), child


def _plain(node: Any) -> Any:
    """A value without arrays."""
    return build(node, lambda leaf: leaf)


def build(node: Any, array: Callable[[Dict[str, Any]], Any], path: str = "") -> Any:
    """The Python value of a node. `array` gives the arrays."""
    if isinstance(node, list):
        return [build(v, array, _join(path, i)) for i, v in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise Corruption(f"state.json: a node with {len(node)} tags at {path!r}")
    ((tag, body),) = node.items()
    try:
        return _build_tagged(tag, body, array, path)
    except (ValueError, TypeError, KeyError, binascii.Error, struct.error) as error:
        if isinstance(error, Invalid):
            raise
        raise Corruption(f"state.json: a bad {tag!r} at {path!r}: {error}") from None


def _build_tagged(
    tag: str, body: Any, array: Callable[[Dict[str, Any]], Any], path: str
) -> Any:
    if tag == "tensor":
        return array(body)
    if tag in ("dict", "odict"):
        made = {k: build(v, array, _join(path, k)) for k, v in body.items()}
        return made if tag == "dict" else collections.OrderedDict(made)
    if tag in ("dict_items", "odict_items"):
        items = []
        for key, item in body:
            plain = _plain(key)
            items.append((plain, build(item, array, _join(path, plain))))
        return dict(items) if tag == "dict_items" else collections.OrderedDict(items)
    if tag == "tuple":
        return tuple(build(v, array, _join(path, i)) for i, v in enumerate(body))
    if tag in ("set", "frozenset"):
        made_set = [build(v, array, path) for v in body]
        return set(made_set) if tag == "set" else frozenset(made_set)
    if tag == "int":
        return int(body)
    if tag == "float":
        return _from_bits(body)
    if tag == "complex":
        return complex(_from_bits(body[0]), _from_bits(body[1]))
    if tag == "bytes":
        return base64.b64decode(body, validate=True)
    if tag == "numpy":
        dtype = _arrays._make_numpy  # for ml_dtypes names
        data = np.frombuffer(bytes.fromhex(body[1]), dtype=np.uint8)
        if body[0] in _arrays._NUMPY:
            return dtype(_arrays._NUMPY[body[0]], (), data, {}, path)[()]
        return data.view(np.dtype(body[0]))[0]
    if tag == "rng":
        return _make_rng(body[0], build(body[1], array, path))
    if tag == "torch.Size":
        import torch

        return torch.Size(body)
    raise Corruption(f"state.json: an unknown tag {tag!r} at {path!r}")


class Plan:
    """How a stored tree fills what was given: made before any memory is touched.

    Attributes:
        into: the tensors to fill, for the native module.
        allocate: names of tensors to be made anew.
    """

    def __init__(
        self,
        stored: Stored,
        given: Any,
        *,
        anything: bool,
        strict: bool,
        rename: Dict[str, str],
        skip: Set[str],
    ) -> None:
        self.into: List[Described] = []
        self.allocate: Set[str] = set()
        self.skipped: List[Tuple[str, str]] = []
        self._keep: List[Any] = []
        self._finish: List[Callable[[], None]] = []
        self._setters: List[Callable[[], None]] = []
        self._loads: List[Callable[[], None]] = []
        self._arrays: Dict[str, Any] = {}  # made anew, by tensor name
        self._made: Dict[Tuple[str, str], np.ndarray] = {}
        self._stored = stored
        self._strict = strict
        self._rename = rename
        self._skip = skip
        self._missing: List[str] = []
        self._mismatched: List[str] = []
        self._by_name: Dict[str, Any] = {}  # target name → node, containers too
        self._leaves: Dict[str, str] = {}  # target name of each stored leaf → its stored name
        self._used: Set[str] = set()
        self._seen: Set[Described] = set()
        self._index(stored.root, "", _Names())
        self._tree: Callable[[], Any]
        if anything:
            self._tree = self._take(stored.root, "")
        else:
            self._tree = self._match(given, "", _Names(), None)
        self._judge()

    # Indexing the stored tree -------------------------------------------------------------------

    def _renamed(self, name: str) -> str:
        if name in self._rename:
            return self._rename[name]
        for old, new in self._rename.items():
            if name.startswith(old + "/"):
                return new + name[len(old) :]
        return name

    def _index(self, node: Any, path: str, names: _Names) -> None:
        if is_leaf(node):
            name = names.unique(path)
            target = self._renamed(name)
            if target in self._leaves:
                raise Invalid(
                    f"rename: both {self._leaves[target]} and {name} would become {target}"
                )
            self._leaves[target] = name
            self._by_name[target] = node
            return
        self._by_name.setdefault(self._renamed(path), node)
        for key, child in children(node):
            self._index(child, _join(path, key), names)

    def _is_skipped(self, name: str) -> bool:
        stored = self._leaves.get(name, name)
        for skip in self._skip:
            for candidate in (name, stored):
                if candidate == skip or candidate.startswith(skip + "/"):
                    return True
        return False

    def _below(self, path: str) -> List[str]:
        if not path:
            return list(self._leaves)
        if path in self._leaves:
            return [path]
        return [n for n in self._leaves if n == path or n.startswith(path + "/")]

    # Taking what is stored, as it is ------------------------------------------------------------

    def _take(self, node: Any, path: str) -> Callable[[], Any]:
        """All of a stored node, in new memory."""
        for name in self._below(path):
            self._used.add(name)
            if self._is_skipped(name):
                self.skipped.append((name, "left alone, as asked for"))
                continue
            leaf = self._by_name[name]
            for tensor in _tensors_of(leaf):
                self.allocate.add(tensor["name"])
        return lambda: self._build(node, path)

    def _build(self, node: Any, path: str) -> Any:
        if not self._skip:
            return build(node, self._array, path)
        return _build_without(node, path, self)

    def _array(self, leaf: Dict[str, Any]) -> Any:
        """A new array; tied ones are the same object."""
        name = str(leaf["name"])
        if name not in self._arrays:
            data = self._made.get((str(leaf.get("group", "model")), name))
            if data is None:
                raise Corruption(f"{self._stored.where}: the tensor {name!r} is not there")
            shape = tuple(int(d) for d in leaf["shape"])
            self._arrays[name] = _arrays.make(
                str(leaf["kind"]), str(leaf["dtype"]), shape, data, leaf, name
            )
        return self._arrays[name]

    # Comparing with what was given --------------------------------------------------------------

    def _match(
        self, given: Any, path: str, names: _Names, set_it: Optional[Callable[[Any], None]]
    ) -> Callable[[], Any]:
        stateful = as_stateful(given)
        if stateful is not None:
            return self._match_stateful(stateful, given, path)
        if isinstance(given, (dict, list, tuple)) and len(given) > 0:
            return self._match_container(given, path, names)
        name = names.unique(path)
        if self._is_skipped(name):
            self._used.update(self._below(name))
            self.skipped.append((name, "left alone, as asked for"))
            return lambda: given
        node = self._by_name.get(name, _ABSENT)
        if node is _ABSENT:
            if isinstance(given, (dict, list, tuple)):
                return lambda: given  # empty, and nothing stored below
            self._missing.append(name)
            return lambda: given
        if isinstance(given, (dict, list, tuple)) and not is_leaf(node):
            return lambda: given  # empty: whatever is stored below was not asked for
        if given is None:
            return self._set_later(self._take(node, name), set_it)
        return self._match_leaf(given, node, name, set_it)

    def _match_container(self, given: Any, path: str, names: _Names) -> Callable[[], Any]:
        parts: List[Tuple[Any, Callable[[], Any]]] = []
        items = given.items() if isinstance(given, dict) else enumerate(given)
        for key, item in items:
            setter = None
            if not isinstance(given, tuple):

                def setter(value: Any, key: Any = key) -> None:
                    given[key] = value

            parts.append((key, self._match(item, _join(path, key), names, setter)))
        if isinstance(given, tuple):
            return lambda: tuple(part() for _, part in parts)

        def whole() -> Any:
            for _, part in parts:
                part()
            return given

        return whole

    def _match_stateful(self, stateful: Stateful, given: Any, path: str) -> Callable[[], Any]:
        node = self._by_name.get(path, _ABSENT)
        if self._is_skipped(path):
            self._used.update(self._below(path))
            self.skipped.append((path, "left alone, as asked for"))
            return lambda: given
        if node is _ABSENT:
            self._missing.append(path or "the state")
            return lambda: given
        template = stateful.cairn_template(_View(self, node, path))
        if template is None:
            tree = self._take(node, path)
        else:
            tree = self._match(template, path, _Names(), None)
        result: List[Any] = []
        self._loads.append(lambda: stateful.cairn_load(result[0]))

        def whole() -> Any:
            result.append(tree())
            return given

        return whole

    def _match_leaf(
        self, given: Any, node: Any, name: str, set_it: Optional[Callable[[Any], None]]
    ) -> Callable[[], Any]:
        self._used.update(self._below(name))
        shard = given if isinstance(given, Shard) else None
        array = given.array if isinstance(given, (Shard, Replicated)) else given
        tensor = node.get("tensor") if isinstance(node, dict) else None
        if _arrays.is_array(array) and not isinstance(array, (bytes,)):
            if tensor is None:
                self._mismatched.append(
                    f"{name}: stored {_describe(node)}, wanted {_describe_array(array)}"
                )
                return lambda: given
            return self._fill(given, array, shard, tensor, name)
        if not is_leaf(node):
            self._mismatched.append(f"{name}: stored {_describe(node)}, wanted a {_type_name(given)}")
            return lambda: given
        if isinstance(node, dict) and "rng" in node:
            return self._match_rng(given, node, name, set_it)
        if tensor is not None and tensor.get("kind") not in ("bytes", "bytearray"):
            self._mismatched.append(f"{name}: stored {_describe(node)}, wanted a {_type_name(given)}")
            return lambda: given
        return self._set_later(self._take(node, name), set_it)

    def _match_rng(
        self, given: Any, node: Any, name: str, set_it: Optional[Callable[[Any], None]]
    ) -> Callable[[], Any]:
        for tensor in _tensors_of(node):
            self.allocate.add(tensor["name"])
        kind = node["rng"][0]
        try:
            fits = _rng_kind(given, name) == kind
        except (AttributeError, Invalid):
            fits = kind == "torch" and hasattr(given, "set_state")
        if not fits:
            self._mismatched.append(f"{name}: stored a {kind} generator, wanted {_type_name(given)}")
            return lambda: given
        state = node["rng"][1]
        box: List[Any] = []
        self._loads.append(lambda: _set_rng(given, box[0]))

        def whole() -> Any:
            box.append(build(state, self._array, name))
            return given

        return whole

    def _fill(
        self, given: Any, array: Any, shard: Optional[Shard], tensor: Dict[str, Any], name: str
    ) -> Callable[[], Any]:
        if not isinstance(array, np.ndarray) and not _arrays.is_torch(array):
            if not isinstance(array, (bytearray, memoryview)) and not hasattr(array, "typecode"):
                # Arrays that nobody may write to (jax): a new one, when it fits.
                return self._replace(given, array, tensor, name)
        target = _arrays.target(array, name)
        shape = target.shape
        whole: Optional[Tuple[int, ...]] = None
        offset: Optional[Tuple[int, ...]] = None
        if shard is not None:
            tail = target.shape[len(shard.offset) :]
            whole, offset = shard.global_shape + tail, shard.offset + (0,) * len(tail)
            shape = whole
        stored_shape = tuple(int(d) for d in tensor["shape"])
        if tensor["dtype"] != target.stored or stored_shape != shape:
            self._mismatched.append(
                f"{name}: stored {_type_and_shape(tensor['dtype'], stored_shape)}, wanted "
                f"{_type_and_shape(target.stored, shape)}"
            )
            return lambda: given
        group = str(tensor.get("group", "model"))
        described = (
            str(tensor["name"]),
            target.stored,
            target.shape,
            target.address,
            whole,
            offset,
            False,
            group,
        )
        if described not in self._seen:  # tied targets are one memory: filled once
            self._seen.add(described)
            self.into.append(described)
        self._keep.append(target.keep)
        if target.finish is not None:
            self._finish.append(target.finish)
        return lambda: given

    def _replace(self, given: Any, array: Any, tensor: Dict[str, Any], name: str) -> Callable[[], Any]:
        self.allocate.add(str(tensor["name"]))
        return lambda: self._array(tensor)

    def _set_later(
        self, tree: Callable[[], Any], set_it: Optional[Callable[[Any], None]]
    ) -> Callable[[], Any]:
        def whole() -> Any:
            value = tree()
            if set_it is not None:
                set_it(value)
            return value

        return whole

    def _judge(self) -> None:
        unexpected = []
        for name, stored_name in self._leaves.items():
            if name in self._used:
                continue
            if self._is_skipped(name):
                self.skipped.append((stored_name, "left alone, as asked for"))
                continue
            node = self._by_name[name]
            if is_leaf(node) and not isinstance(node, (dict, list)) and node is None:
                continue  # None is no loss
            unexpected.append(stored_name)
        if not self._strict:
            self.skipped += [(n, "not in the checkpoint") for n in self._missing]
            self.skipped += [(n, "not asked for") for n in unexpected]
            for line in self._mismatched:
                name, _, why = line.rpartition(": stored ")
                self.skipped.append((name, "stored " + why))
            return
        if self._missing or unexpected or self._mismatched:
            raise_mismatch(self._stored.where, self._missing, unexpected, self._mismatched)

    # After the tensors were read ----------------------------------------------------------------

    def finish(self, tensors: List[Tuple[str, str, str, Tuple[int, ...], np.ndarray]]) -> Any:
        """Puts everything in its place; gives the state."""
        for group, name, dtype, shape, data in tensors:
            self._made[(group, name)] = data
        for finish in self._finish:
            finish()
        state = self._tree()
        for load in self._loads:
            load()
        return state


class _Absent:
    pass


_ABSENT = _Absent()


class _View(Stored):
    """A part of a stored tree, for Stateful.cairn_template."""

    def __init__(self, plan: Plan, node: Any, path: str) -> None:  # noqa: D107
        self.where = plan._stored.where
        self.root = node
        self.path = path

    def skeleton(self) -> Any:
        """The values; arrays are shown as (dtype, shape)."""
        return build(self.root, lambda leaf: (leaf["dtype"], tuple(leaf["shape"])))


def _build_without(node: Any, path: str, plan: Plan) -> Any:
    """As build, without what is to be left alone."""
    if is_leaf(node):
        return build(node, plan._array, path)
    kept = [
        (key, _build_without(child, _join(path, key), plan))
        for key, child in children(node)
        if not plan._is_skipped(_join(path, key))
    ]
    if isinstance(node, list):
        return [value for _, value in kept]
    if "tuple" in node:
        return tuple(value for _, value in kept)
    return collections.OrderedDict(kept) if "odict" in node or "odict_items" in node else dict(kept)


def _tensors_of(node: Any) -> Iterator[Dict[str, Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _tensors_of(item)
    elif isinstance(node, dict):
        if "tensor" in node and isinstance(node["tensor"], dict):
            yield node["tensor"]
        elif "rng" in node:
            yield from _tensors_of(node["rng"][1])
        elif not is_leaf(node):
            for _, child in children(node):
                yield from _tensors_of(child)


def _type_and_shape(dtype: str, shape: Tuple[int, ...]) -> str:
    return f"{dtype} [{','.join(str(d) for d in shape)}]"


def _describe_array(value: Any) -> str:
    try:
        target = _arrays.source(value, "")
        return _type_and_shape(target.stored, target.shape)
    except Invalid:
        return f"a {_type_name(value)}"


def _describe(node: Any) -> str:
    if isinstance(node, dict) and "tensor" in node:
        tensor = node["tensor"]
        return _type_and_shape(tensor["dtype"], tuple(tensor["shape"]))
    if is_leaf(node):
        return f"a {_type_name(_plain(node))}"
    return f"{sum(1 for _ in children(node))} values below it"


def raise_mismatch(
    where: str, missing: List[str], unexpected: List[str], mismatched: List[str]
) -> None:
    """Mismatch with a message that lists the first of each."""
    parts = []
    for names, what in (
        (missing, "not in the checkpoint"),
        (unexpected, "stored but not asked for"),
        (mismatched, "of another type or shape"),
    ):
        if names:
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            shown = ", ".join(n if len(n) <= 200 else n[:200] + "…" for n in names[:10])
            parts.append(f"{len(names)} {what}: {shown}{more}")
    raise Mismatch(
        f"restore {where}: the state does not match: {'; '.join(parts)}. Nothing was changed; "
        "rename, skip or strict=False restore the others",
        missing,
        unexpected,
        mismatched,
    )
