"""The shape of a nested state, as state.json keeps it (docs/format/state.md).

Encoding walks a state once, gives every array a tensor name and turns all else into JSON; building
turns JSON into values again. Nothing that is read from a file is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import collections
import collections.abc
import contextlib
import copy
import gc
import json
import math
import random
import struct
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _arrays, _native
from ._wording import with_article
from .errors import Corruption, Invalid
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


def to_fill(
    name: str,
    target: _arrays.Target,
    whole: Optional[Tuple[int, ...]],
    offset: Optional[Tuple[int, ...]],
    group: str = "model",
) -> Described:
    """Memory that a restore fills with the tensor of that name, or with the piece of it at `offset`."""
    return name, target.stored, target.shape, target.address, whole, offset, False, group


class Stateful:
    """An object with a state of its own that may stand in a state: cairn.torch.Capture and what
    wraps modules and optimizers. Subclasses say how it is taken, compared and put back."""

    def cairn_save(self) -> Any:
        """The state to store: nested, as any other."""
        raise NotImplementedError

    def cairn_save_lazily(self) -> Any:
        """The state to store, for a save that reads its arrays later: what may change before guard()
        is called, by the caller or by this object, is copied now. May refuse (Invalid)."""
        return self.cairn_save()

    def cairn_template(self, stored: "Stored") -> Any:
        """What to restore into: a nested state whose arrays are filled in place; None: anything.
        May raise Mismatch: nothing was changed yet."""
        return None

    def cairn_load(self, state: Any) -> None:
        """Takes the restored state (with the template's arrays already filled)."""
        raise NotImplementedError

    def cairn_saved(self, handle: Any) -> None:
        """A save of this object was handed over."""

    def cairn_tables(self) -> List[Any]:
        """EmbeddingTables whose rows are saved and restored with this object."""
        return []


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

    def cairn_save_lazily(self) -> Any:
        return copied(self.cairn_save())

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


def copied(
    value: Any, keep: frozenset[int] = frozenset(), made: Optional[Dict[Any, Any]] = None
) -> Any:
    """A nested state whose arrays are copies, and tied ones copies that are tied.

    Args:
        keep: addresses of torch tensors that are left as they are.
        made: the copies so far.
    """
    made = {} if made is None else made
    if isinstance(value, dict):
        same = copy.copy(value)
        for key, item in value.items():
            same[key] = copied(item, keep, made)
        return same
    if isinstance(value, (list, tuple)):
        items = [copied(item, keep, made) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, np.ndarray):
        address, strides = value.__array_interface__["data"][0], value.strides
        identity = (address, strides, value.shape, value.dtype.str)
        return made.setdefault(identity, (value, value.copy()))[1]
    if _arrays.is_torch(value):
        if _arrays.is_lazy(value) or (value.numel() and value.data_ptr() in keep):
            return value  # a lazy one is refused by name, later
        if value.layout != _arrays.torch_or_none().strided:
            return value.detach().clone()
        signs = (value.is_conj(), value.is_neg())
        identity = (value.data_ptr(), value.stride(), tuple(value.shape), str(value.dtype), signs)
        return made.setdefault(identity, (value, value.detach().clone()))[1]
    return value


def join(path: str, key: Any) -> str:
    text = key if isinstance(key, str) else str(key)
    return f"{path}/{text}" if path else text


def _check_text(text: str, where: str) -> str:
    if text.isascii():
        return text
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
    tensors: _native.StateEncoder  # for the native module's save, once
    keep: List[Any]  # owners of the memory
    stateful: List[Stateful]
    nbytes: int

    @property
    def json(self) -> str:
        """The content of state.json, until it is saved."""
        return self.tensors.json


class Layout(NamedTuple):
    """Which participant writes which arrays of a state, and under which names."""

    rank: int = 0
    world_size: int = 1
    participant: str = "rank_0"
    own: str = ""  # a subtree that is each participant's own, also rank 0's
    common: bool = False  # the rest is alike everywhere: rank 0 writes it, others refer to it
    plain: str = ""  # a subtree whose tensors are named without its own name


# What the native walk is told of a value that it does not know: its JSON, or (text before, a value
# to walk instead, text after).
_Answer = Union[str, Tuple[str, Any, str]]


def _text(node: Any) -> str:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"))


class _Encoder:
    """The half of the native StateEncoder that knows Python's types."""

    def __init__(self, layout: Layout, lazy: bool, before: Optional["_Encoder"] = None) -> None:
        self._layout = layout
        self._lazy = lazy
        self._shared: Dict[Tuple[Any, ...], Dict[str, Any]] = {}  # leaves without notes, by memory
        # Memory that was given back would be another array's next: objects give copies that die.
        self._owners: List[Any] = []
        self.stateful: List[Stateful] = []
        # Objects that were asked, and what they gave. A walk begun anew does not ask them again: they
        # may count, or gather their state from processes that are asked once (FSDP).
        self._asked: List[Tuple[Any, Stateful, Any]] = []
        self._before = collections.deque(() if before is None else before._asked)
        self.native = _native.StateEncoder(
            rank=layout.rank,
            participant=layout.participant,
            own=layout.own,
            common=layout.common,
            plain=layout.plain,
        )

    def encode(self, value: Any, known: Optional[_native.KnownState]) -> None:
        self.native.encode(value, self._other, self._key, *_arrays.torch_tensors(), known)

    def encode_known(self, value: Any, known: _native.KnownState) -> bool:
        return self.native.encode_known(value, self._other, *_arrays.torch_tensors(), known)

    def _other(self, value: Any, path: str, depth: int) -> _Answer:
        if _arrays.is_torch(value):
            return _text(self._array(value, path))
        if isinstance(value, Shard):
            return _text(self._array(value.array, path, shard=value))
        if isinstance(value, Replicated):
            return _text(self._array(value.array, path, replicated=True))
        if isinstance(value, Pieces):
            return _text(self._pieces(value, path))
        if type(value) is np.memmap:
            return "", np.asarray(value), ""
        if isinstance(value, np.ndarray) or (type(value) is bytes and len(value) > _INLINE_BYTES):
            return _text(
                self._array(value if type(value) is not bytes else memoryview(value), path)
            )
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            kind = rng_kind(value)
            if kind is None:
                raise Invalid(f"{path or 'the state'}: {a_type(value)} has no state to store")
            return f'{{"rng":["{kind}",', rng_state(value), "]}"
        if type(value).__module__.startswith("torch") and type(value).__name__ == "Generator":
            return '{"rng":["torch",', value.get_state(), "]}"
        if self._before and self._before[0][0] is value:
            _, stateful, state = self._before.popleft()
            self.stateful.append(stateful)
            return "", state, ""
        stateful = as_stateful(value)
        if stateful is not None:
            self.stateful.append(stateful)
            state = stateful.cairn_save_lazily() if self._lazy else stateful.cairn_save()
            self._asked.append((value, stateful, state))
            return "", state, ""
        known, node = _value_node(value, path, depth)
        if known:
            return _text(node)
        if _arrays.is_array(value):
            return _text(self._array(value, path))
        raise Invalid(
            f"{path or 'the state'}: {a_type(value)} cannot be stored. Arrays, tensors, "
            "numbers, str, bytes, None, dicts, lists, tuples, random states and objects with "
            "state_dict and load_state_dict can; nothing is pickled"
        )

    def _key(self, key: Any, path: str) -> str:
        if not isinstance(key, (str, int, float, bool, bytes, tuple, type(None))):
            raise Invalid(
                f"{path or 'the state'}: keys of type {type_name(key)} cannot be stored; str, "
                "numbers, bytes, None and tuples of them can"
            )
        where = join(path, key)
        known, node = _value_node(key, where, 0)
        if not known:
            raise Invalid(f"{where}: a key cannot hold arrays or long bytes")
        return _text(node)

    def _array(
        self, value: Any, path: str, shard: Optional[Shard] = None, replicated: bool = False
    ) -> Any:
        source = _arrays.source(value, path or "the state")
        whole: Optional[Tuple[int, ...]] = None
        offset: Optional[Tuple[int, ...]] = None
        if shard is not None:
            tail = source.shape[len(shard.offset) :]  # complex numbers
            whole, offset = shard.global_shape + tail, shard.offset + (0,) * len(tail)
        # Tied weights: the same memory, seen the same way, is stored once.
        group = "model" if shard is not None or replicated else self.native.group_of(path)
        memory = (source.identity, source.kind, replicated, group)
        tied = source.nbytes > 0 and shard is None
        if tied and memory in self._shared:
            return {"tensor": {**self._shared[memory], **source.note}}
        name = self.native.unique_name(self.native.tensor_name(path, group))
        leaf: Dict[str, Any] = {
            "name": name,
            "dtype": source.stored,
            "shape": source.shape if whole is None else whole,
            "kind": source.kind,
        }
        if group == "state":
            leaf["group"] = group
        if tied:
            self._shared[memory] = leaf
            self._owners.append(source.owner)
        if self._layout.common and self._layout.rank > 0 and group == "model" and shard is None:
            return {"tensor": {**leaf, **source.note}}  # rank 0 writes it
        if whole is not None and not self._writes_piece(source.nbytes, whole):
            return {"tensor": {**leaf, **source.note}}
        several = replicated and self._layout.world_size > 1
        self.native.add(
            (name, source.stored, source.shape, source.address, whole, offset, several, group),
            source.keep,
            source.nbytes,
        )
        return {"tensor": {**leaf, **source.note}}

    def _writes_piece(self, nbytes: int, whole: Tuple[int, ...]) -> bool:
        """A piece without elements is nobody's: several ranks have theirs at the same place. Of an
        array without elements rank 0 writes the one that says so."""
        return nbytes > 0 or (0 in whole and self._layout.rank == 0)

    def _pieces(self, value: Pieces, path: str) -> Any:
        like = _arrays.source(value.like, path)
        tail = like.shape[1:]  # complex numbers
        whole = value.global_shape + tail
        name = self.native.unique_name(path)
        for shard in value.shards:
            source = _arrays.source(shard.array, path)
            if source.stored != like.stored or shard.global_shape != value.global_shape:
                raise Invalid(f"{path}: a piece is of another dtype or another array")
            if not self._writes_piece(source.nbytes, whole):
                continue
            piece = None if source.shape == whole else shard.offset + (0,) * len(tail)
            whole_of_piece = None if piece is None else whole
            self.native.add(
                (
                    name,
                    source.stored,
                    source.shape,
                    source.address,
                    whole_of_piece,
                    piece,
                    False,
                    "model",
                ),
                source.keep,
                source.nbytes,
            )
        leaf = {"name": name, "dtype": like.stored, "shape": list(whole), "kind": like.kind}
        leaf.update(like.note)
        return {"tensor": leaf}


def _value_node(value: Any, path: str, depth: int) -> Tuple[bool, Any]:
    """(True, its node) of a value without arrays: what may stand in sets and be a key."""
    if depth >= MAX_DEPTH:
        raise Invalid(f"{path[:200]}…: nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind is bool:
        return True, value
    if kind is str:
        return True, _check_text(value, path)
    if kind is int:
        return True, value if -_SAFE_INT <= value <= _SAFE_INT else {"int": hex(value)}
    if kind is float:
        return True, value if math.isfinite(value) else {"float": _bits(value)}
    if kind is complex:
        return True, {"complex": [_bits(value.real), _bits(value.imag)]}
    if kind is bytes and len(value) <= _INLINE_BYTES:
        return True, {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return True, _numpy_scalar_node(value, path)
    if kind is tuple:
        return True, {"tuple": _value_nodes(value, path, depth)}
    if kind in (set, frozenset):
        items = _value_nodes(value, path, depth)
        items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        return True, {kind.__name__: items}
    if kind is collections.Counter:  # torch's MultiStepLR has one
        keys = _value_nodes(value.keys(), path, depth)
        counts = _value_nodes(value.values(), path, depth)
        return True, {"counter": [list(pair) for pair in zip(keys, counts)]}
    if is_torch_size(value):
        return True, {"torch.Size": [int(v) for v in value]}
    for plain_type in (str, bytes, int, float, complex, dict, list, tuple, set, frozenset):
        if isinstance(value, plain_type) and kind is not plain_type:
            raise Invalid(
                f"{path or 'the state'}: {a_type(value)} would come back as a plain "
                f"{plain_type.__name__}; convert it first"
            )
    return False, None


def _value_nodes(values: Any, path: str, depth: int) -> List[Any]:
    nodes = []
    for value in values:
        known, node = _value_node(value, path, depth + 1)
        if not known:
            raise Invalid(f"{path or 'the state'}: {a_type(value)} cannot stand in a set or a key")
        nodes.append(node)
    return nodes


def is_torch_size(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "torch" and kind.__name__ == "Size"


def _numpy_scalar_node(value: np.generic, path: str) -> Any:
    dtype = value.dtype.newbyteorder("<")
    name = dtype.str if dtype.kind in "mM" else dtype.name
    if dtype.kind not in "mM" and not _arrays.is_storable(name):
        raise Invalid(f"{path}: a NumPy scalar of dtype {value.dtype} cannot be stored")
    return {"numpy": [name, np.asarray(value).astype(dtype).tobytes().hex()]}


def type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def a_type(value: Any) -> str:
    """ "a dict", "an enum.Enum": as a message calls it."""
    return with_article(type_name(value))


def rng_kind(value: Any) -> Optional[str]:
    """None for what has no state that can be stored and put back."""
    if type(value) is np.random.RandomState:
        return "numpy.RandomState"
    if type(value) is random.Random:
        return "random"
    if type(value) is np.random.Generator:
        kind = type(value.bit_generator).__name__
        return "numpy." + kind if kind in _BIT_GENERATORS else None
    return None


def fits_rng(value: Any, kind: str) -> bool:
    """True when a generator can take the state of one of this kind."""
    if kind == "torch":
        return type(value).__name__ == "Generator" and hasattr(value, "initial_seed")
    return rng_kind(value) == kind


def rng_state(value: Any) -> Any:
    """What set_rng takes."""
    if fits_rng(value, "torch"):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.getstate()


def set_rng(value: Any, state: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state)  # np.random.RandomState, torch.Generator


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
    set_rng(made, state)
    return made


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Describing 10,000 arrays makes many objects, none of them garbage: looking for it would take
    a third of the time."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def encode(
    value: Any,
    layout: Layout,
    lazy: bool = False,
    known: Optional[_native.KnownState] = None,
) -> Encoded:
    """Walks a state; the arrays' memory is described, not copied.

    Args:
        lazy: it will be read later.
        known: the state encoded before; from now on this one. It makes the walk faster.
    """
    encoder = _Encoder(layout, lazy)
    with collector_paused():
        if known is None or not encoder.encode_known(value, known):
            encoder = _Encoder(layout, lazy, encoder)
            encoder.encode(value, known)
    native = encoder.native
    return Encoded(native, native.keep, encoder.stateful, native.nbytes)


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


_CONTAINERS = frozenset(("dict", "odict", "dict_items", "odict_items", "tuple"))


def is_leaf(node: Any) -> bool:
    if isinstance(node, list):
        return False
    return not isinstance(node, dict) or _CONTAINERS.isdisjoint(node)


def _only_member(node: Dict[str, Any]) -> Tuple[str, Any]:
    if len(node) != 1:
        raise Corruption(f"state.json: a node with {len(node)} tags: {sorted(node)[:5]}")
    ((tag, body),) = node.items()
    return tag, body


def children(node: Any) -> Iterator[Tuple[Any, Any]]:
    """(key, node) of a container."""
    if isinstance(node, list):
        yield from enumerate(node)
        return
    tag, body = _only_member(node)
    if tag == "tuple" and isinstance(body, list):
        yield from enumerate(body)
    elif tag in ("dict", "odict") and isinstance(body, dict):
        yield from body.items()
    elif isinstance(body, list) and all(isinstance(i, list) and len(i) == 2 for i in body):
        for coded, child in body:
            key = plain(coded)
            if not isinstance(key, collections.abc.Hashable):
                raise Corruption(f"state.json: {str(coded)[:200]} is no key")
            yield key, child
    else:
        raise Corruption(f"state.json: a bad {tag!r}")


def _check_tensor(leaf: Any) -> None:
    """What is said of a tensor, as a file says it."""
    good = isinstance(leaf, dict) and type(leaf.get("shape")) is list
    if good:
        for member in ("name", "dtype", "kind"):
            good = good and type(leaf.get(member)) is str
        for dim in leaf["shape"]:
            good = good and type(dim) is int and dim >= 0
    if not good:
        raise Corruption(f"state.json: a bad tensor: {str(leaf)[:200]}")


def check_leaf(node: Dict[str, Any]) -> None:
    """Corruption when what is said of a leaf's tensors has a bad form."""
    if "tensor" in node:
        _check_tensor(node["tensor"])
    else:
        for _ in tensors_of(node):
            pass


def tensors_of(node: Any) -> Iterator[Dict[str, Any]]:
    """What is said of the tensors below a node; all of it has the right form."""
    if isinstance(node, dict) and "tensor" in node:
        _check_tensor(node["tensor"])
        yield node["tensor"]
    elif isinstance(node, dict) and "rng" in node:
        if not isinstance(node["rng"], list) or len(node["rng"]) != 2:
            raise Corruption("state.json: a bad 'rng'")
        yield from tensors_of(node["rng"][1])
    elif not is_leaf(node):
        for _, child in children(node):
            yield from tensors_of(child)


def plain(node: Any) -> Any:
    """A value without arrays."""
    return build(node, lambda leaf: leaf)


def build(node: Any, array: Callable[[Dict[str, Any]], Any], path: str = "") -> Any:
    """The Python value of a node. `array` gives the arrays."""
    if isinstance(node, list):
        return [build(v, array, join(path, i)) for i, v in enumerate(node)]
    if not isinstance(node, dict):
        return node
    tag, body = _only_member(node)
    try:
        return _build_tagged(tag, body, array, path)
    except (ValueError, TypeError, KeyError, binascii.Error, struct.error) as error:
        if isinstance(error, Invalid):
            raise
        raise Corruption(f"state.json: a bad {tag!r} at {path!r}: {error}") from None


def _build_tagged(tag: str, body: Any, array: Callable[[Dict[str, Any]], Any], path: str) -> Any:
    if tag == "tensor":
        return array(body)
    if tag in _CONTAINERS:
        items = [(k, build(v, array, join(path, k))) for k, v in children({tag: body})]
        if tag == "tuple":
            return tuple(value for _, value in items)
        return collections.OrderedDict(items) if tag.startswith("odict") else dict(items)
    if tag in ("set", "frozenset"):
        made_set = [build(v, array, path) for v in body]
        return set(made_set) if tag == "set" else frozenset(made_set)
    if tag == "counter":
        return collections.Counter({plain(key): plain(count) for key, count in body})
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return _from_bits(body)
    if tag == "complex":
        return complex(_from_bits(body[0]), _from_bits(body[1]))
    if tag == "bytes":
        return base64.b64decode(body, validate=True)
    if tag == "numpy":
        return np.frombuffer(bytes.fromhex(body[1]), dtype=_arrays.numpy_dtype(body[0], path))[0]
    if tag == "rng":
        return _make_rng(body[0], build(body[1], array, path))
    if tag == "torch.Size":
        import torch

        return torch.Size(body)
    raise Corruption(f"state.json: an unknown tag {tag!r} at {path!r}")
