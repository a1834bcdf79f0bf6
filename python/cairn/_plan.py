"""How a stored tree fills what was given: compared, names and all, before memory is touched."""

from __future__ import annotations

import collections
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

import numpy as np

from . import _arrays, _tree
from ._wording import with_article
from .errors import Corruption, Invalid, Mismatch
from .shard import Replicated, Shard

# Where a value stands: its keys from the root. Names (keys joined with /) may collide, these do not.
Key = Tuple[Any, ...]
# Makes a value when the tensors were read; None: what was given stays.
Recipe = Optional[Callable[[], Any]]

_AS_ASKED = "left alone, as asked for"


class _Place:
    """A node of the stored tree, the name it is stored under and the name it is asked for by."""

    __slots__ = ("children", "name", "node", "target", "used")

    def __init__(
        self, node: Any, name: str, target: str, children: Optional[List[Tuple[Any, "_Place"]]]
    ) -> None:
        self.node = node
        self.name = name
        self.target = target
        self.children = children  # None: a leaf
        self.used = False

    def use(self) -> None:
        """Marks what stands here, or below, as asked for."""
        if self.children is None:
            self.used = True
            return
        for leaf in self.leaves():
            leaf.used = True

    def leaves(self) -> Iterator["_Place"]:
        if self.children is None:
            yield self
            return
        for _, child in self.children:
            yield from child.leaves()


class _Index:
    """The places of a stored tree by key and by name, renamed as asked for."""

    def __init__(self, root: Any, rename: Dict[str, str]) -> None:
        self._rename = rename
        self._by_key: Dict[Key, _Place] = {}
        self._by_name: Dict[str, Optional[_Place]] = {}  # None: several have the name
        self._renamed_leaves: Dict[str, str] = {}
        self.root = self._add(root, (), "")
        self._refuse_collisions()

    def find(self, key: Key, name: str) -> Optional[_Place]:
        """The place asked for. A list's element 0 is also found by the key "0", if that is clear."""
        place = self._by_key.get(key)
        return self._by_name.get(name) if place is None else place

    def _add(self, node: Any, key: Key, name: str) -> _Place:
        target, renamed = self._renamed(name) if self._rename else (name, False)
        children = None
        if not _tree.is_leaf(node):
            children = [
                (k, self._add(child, key + (k,), _tree.join(name, k)))
                for k, child in _tree.children(node)
            ]
        elif isinstance(node, dict):
            _tree.check_leaf(node)
        place = _Place(node, name or "the state", target, children)
        if not renamed:
            self._by_key[key] = place
        elif children is None:
            self._renamed_leaves.setdefault(target, name)
        self._by_name[target] = None if target in self._by_name and not renamed else place
        return place

    def _renamed(self, name: str) -> Tuple[str, bool]:
        """The longest renamed part counts."""
        part = name
        while True:
            if part in self._rename:
                return self._rename[part] + name[len(part) :], True
            part, slash, _ = part.rpartition("/")
            if not slash:
                return name, False

    def names(self) -> Tuple[Set[str], Set[str]]:
        """The names of everything that is stored, and those after renaming."""
        stored, targets = set(), set()
        places = [self.root]
        for place in places:
            stored.add(place.name)
            targets.add(place.target)
            places += [child for _, child in place.children or ()]
        return stored, targets

    def _refuse_collisions(self) -> None:
        if not self._renamed_leaves:
            return
        seen: Dict[str, str] = {}
        for leaf in self.root.leaves():
            other = seen.setdefault(leaf.target, leaf.name)
            if other != leaf.name and leaf.target in self._renamed_leaves:
                raise Invalid(f"rename: both {other} and {leaf.name} would become {leaf.target}")


class Plan:
    """How a stored tree fills what was given.

    Attributes:
        into: the tensors to fill, for the native module.
        allocate: names of tensors to be made anew.
        skipped: (name, reason) of what is not restored.

    With `may_grow` the lists and dicts of the given state are those of a program that begins, and
    that fills them: lists and tuples take any number of values, dicts take values that they lack, and
    empty ones take anything. Below the names in `may_grow` all dicts do, and empty lists. Keys come
    back in the order they were stored in. Dicts and lists stay the same objects.
    """

    def __init__(
        self,
        stored: _tree.Stored,
        given: Any,
        *,
        anything: bool,
        strict: bool,
        rename: Dict[str, str],
        skip: Set[str],
        may_grow: Optional[Tuple[str, ...]] = None,
    ) -> None:
        self.into: List[_tree.Described] = []
        self.allocate: Set[str] = set()
        self.skipped: List[Tuple[str, str]] = []
        self._stored = stored
        self._strict = strict
        self._skip = skip
        self._may_grow = may_grow
        self._in_template = 0  # depth: what an object makes for a restore has what it has
        self._missing: List[str] = []
        self._mismatched: List[Tuple[str, str]] = []
        self._memory: Dict[Tuple[Any, ...], Tuple[Any, str]] = {}  # → (tensor, name) that fills it
        self._keep: List[Any] = []
        self._finish: List[Callable[[], None]] = []
        self._loads: List[Callable[[], None]] = []
        self._made: Dict[Tuple[str, str], np.ndarray] = {}  # bytes, by group and tensor name
        self._arrays: Dict[str, Any] = {}  # over those bytes
        self._given = given
        if anything and not rename and not skip:  # nobody asks for a place by its name
            self.allocate.update(tensor["name"] for tensor in _tree.tensors_of(stored.root))
            self._recipe: Recipe = lambda: _tree.build(stored.root, self._array)
            return
        self._index = _Index(stored.root, rename)
        if anything:
            if rename:
                raise Invalid("rename: give the state to restore into")
            self._judge_names(rename)
            self._recipe = self._take(self._index.root)
        else:
            self._recipe = self._match(given, (), "")
            self._judge_names(rename)
        self._judge()

    # Taking what is stored, as it is ----------

    def _is_skipped(self, target: str, stored: str) -> bool:
        return any(
            name == skip or name.startswith(skip + "/")
            for skip in self._skip
            for name in (target, stored)
        )

    def _take(self, place: _Place) -> Recipe:
        """All of a stored node, in new memory."""
        whole = True
        for leaf in place.leaves():
            leaf.used = True
            if self._skip and self._is_skipped(leaf.target, leaf.name):
                self.skipped.append((leaf.name, _AS_ASKED))
                whole = False
            elif isinstance(leaf.node, dict):
                self._allocate(leaf.node)
        if whole:
            return lambda: _tree.build(place.node, self._array, place.name)
        return lambda: self._build_without_skipped(place)

    def _allocate(self, node: Any) -> None:
        if "tensor" in node:
            self.allocate.add(node["tensor"]["name"])
            return
        for tensor in _tree.tensors_of(node):
            self.allocate.add(tensor["name"])

    def _build_without_skipped(self, place: _Place) -> Any:
        if place.children is None:
            return _tree.build(place.node, self._array, place.name)
        kept = [
            (key, self._build_without_skipped(child))
            for key, child in place.children
            if not self._is_skipped(child.target, child.name)
        ]
        if isinstance(place.node, list):
            return [value for _, value in kept]
        if "tuple" in place.node:
            return tuple(value for _, value in kept)
        ordered = "odict" in place.node or "odict_items" in place.node
        return collections.OrderedDict(kept) if ordered else dict(kept)

    def _array(self, leaf: Dict[str, Any]) -> Any:
        """An array over the bytes that were read. Tied ones are the same object, or (a parameter and
        its detached self) share their memory."""
        name = leaf["name"]
        alike = f"{name}\0{leaf.get('parameter')}\0{leaf.get('requires_grad')}"
        if alike not in self._arrays:
            data = self._made.get((leaf.get("group", "model"), name))
            if data is None:
                raise Corruption(f"{self._stored.where}: the tensor {name!r} is not there")
            self._arrays[alike] = _arrays.make(
                leaf["kind"], leaf["dtype"], tuple(leaf["shape"]), data, leaf, name
            )
        return self._arrays[alike]

    # Comparing with what was given ----------

    def _match(self, given: Any, key: Key, name: str) -> Recipe:
        if self._may_grow is not None and type(given) in (list, tuple) and not self._skip:
            place = self._index.find(key, name)
            if place is not None and self._is_taken_whole(given, place, key):
                return self._take(place) if type(given) is tuple else self._refill(given, place)
        counter = type(given) is collections.Counter  # a value, not a place for others
        grows = isinstance(given, dict) and self._dict_grows(key) and not counter
        value = counter or (_tree.is_torch_size(given) and self._is_leaf(key, name))
        if isinstance(given, (dict, list, tuple)) and (len(given) > 0 or grows) and not value:
            return self._match_container(given, key, name)
        place = self._index.find(key, name)
        if self._skip and self._is_skipped(name, place.name if place else name):
            self.skipped.append((name, _AS_ASKED))
            if place is not None:
                place.use()
            return None
        if isinstance(given, (dict, list, tuple)) and (place is None or place.children is not None):
            return None  # empty: whatever is stored below was not asked for
        if place is None:
            self._missing.append(name or "the state")
            return None
        if given is None:
            return self._take(place)
        stateful = None if type(given) is np.ndarray else _tree.as_stateful(given)
        if stateful is not None:
            return self._match_stateful(stateful, place, key, name)
        place.use()
        return self._match_leaf(given, place, name or "the state")

    def _is_leaf(self, key: Key, name: str) -> bool:
        place = self._index.find(key, name)
        return place is not None and place.children is None

    def _is_taken_whole(self, given: Any, place: _Place, key: Key) -> bool:
        """True for lists and tuples of values, which may have any length, and for lists that are
        empty where a program fills them; what holds arrays must fit otherwise."""
        stored = place.node.get("tuple") if isinstance(place.node, dict) else place.node
        if not isinstance(stored, list) or isinstance(place.node, list) != isinstance(given, list):
            return False
        if len(stored) == len(given):
            return False
        if not given and isinstance(given, list) and not self._in_template:
            if len(key) > 0 and key[0] in (self._may_grow or ()):
                return True
        return all(_holds_values(item) for item in given) and _stores_values(place)

    def _refill(self, given: List[Any], place: _Place) -> Recipe:
        """A list of values that grew or shrank (losses so far): it becomes the stored one, and stays
        the same object."""
        stored = self._take(place)
        assert stored is not None

        def fill() -> Any:
            given[:] = stored()
            return given

        return fill

    def _match_container(self, given: Any, key: Key, name: str) -> Recipe:
        items = given.items() if isinstance(given, dict) else enumerate(given)
        changes: Dict[Any, Callable[[], Any]] = {}
        for k, item in items:
            recipe = self._match(item, key + (k,), _tree.join(name, k))
            if recipe is not None:
                changes[k] = recipe
        order: Optional[List[Any]] = None
        if isinstance(given, dict) and self._dict_grows(key):
            changes.update(self._take_new(given, key, name))
            order = self._other_order(given, changes, key, name)
        if not changes and order is None:
            return None
        if isinstance(given, tuple):
            return lambda: _replaced(given, {i: make() for i, make in changes.items()})

        def fill() -> Any:
            for k, make in changes.items():
                given[k] = make()
            if order is not None:
                ordered = [(k, given[k]) for k in order]
                given.clear()
                given.update(ordered)
            return given

        return fill

    def _other_order(
        self, given: Dict[Any, Any], new: Mapping[Any, Any], key: Key, name: str
    ) -> Optional[List[Any]]:
        """The keys as they are stored, where steps have put them into another order (a cache of what
        was used last); None where they stay as they are."""
        place = self._index.find(key, name)
        if place is None or not isinstance(place.node, dict) or place.children is None:
            return None
        stored = [k for k, _ in place.children]
        here = [*given, *(k for k in new if k not in given)]
        return stored if stored != here and set(stored) == set(here) else None

    def _dict_grows(self, key: Key) -> bool:
        """Not the outermost: what a training consists of is up to the program."""
        return self._may_grow is not None and len(key) > 0 and not self._in_template

    def _take_new(
        self, given: Dict[Any, Any], key: Key, name: str
    ) -> Iterator[Tuple[Any, Callable[[], Any]]]:
        """What is stored in a dict that the given one lacks: a step put it there."""
        place = self._index.find(key, name)
        if place is None or not isinstance(place.node, dict) or place.children is None:
            return
        if "tuple" in place.node:
            return
        anything = not given or key[0] in (self._may_grow or ())
        for k, child in place.children:
            if k not in given and (anything or _stores_values(child)):
                recipe = self._take(child)
                assert recipe is not None
                yield k, recipe

    def _match_stateful(
        self, stateful: _tree.Stateful, place: _Place, key: Key, name: str
    ) -> Recipe:
        try:
            template = stateful.cairn_template(_View(self._stored.where, place.node, place.name))
        except Mismatch as error:
            place.use()
            named = name or "the state"
            whys = [line.removeprefix(f"{place.name}: ") for line in error.mismatched]
            self._mismatched += [(named, why) for why in whys or [str(error)]]
            return None
        self._in_template += 1
        recipe = self._take(place) if template is None else self._match(template, key, name)
        self._in_template -= 1
        self._loads.append(lambda: stateful.cairn_load(template if recipe is None else recipe()))
        return None

    def _match_leaf(self, given: Any, place: _Place, name: str) -> Recipe:
        array = given.array if isinstance(given, (Shard, Replicated)) else given
        node = place.node
        tensor = node.get("tensor") if isinstance(node, dict) else None
        if _arrays.is_array(array):
            if tensor is None:
                return self._refuse(name, node, _describe_array(array))
            if not _arrays.is_fillable(array):
                return self._fill_anew(given, array, tensor, name)
            return self._fill(array, given if isinstance(given, Shard) else None, tensor, name)
        if isinstance(node, dict) and "rng" in node:
            return self._match_rng(given, node, name)
        if place.children is not None or (
            tensor is not None and tensor["kind"] not in ("bytes", "bytearray")
        ):
            return self._refuse(name, node, _tree.a_type(given))
        return self._take(place)

    def _refuse(self, name: str, node: Any, wanted: str) -> Recipe:
        self._mismatched.append((name, f"stored {_describe(node)}, wanted {wanted}"))
        return None

    def _match_rng(self, given: Any, node: Any, name: str) -> Recipe:
        kind, state = node["rng"]
        if not _tree.fits_rng(given, kind):
            self._mismatched.append(
                (name, f"stored {with_article(kind)} generator, wanted {_tree.a_type(given)}")
            )
            return None
        self._allocate(node)
        self._loads.append(lambda: _tree.set_rng(given, _tree.build(state, self._array, name)))
        return None

    def _fill_anew(self, given: Any, array: Any, tensor: Dict[str, Any], name: str) -> Recipe:
        """For arrays that nobody may write to: another of their kind takes their place."""
        fresh = _arrays.empty_like(array)
        if fresh is None:  # what it is cannot be seen
            self.allocate.add(tensor["name"])
            return lambda: self._array(tensor)
        before = len(self._mismatched)
        self._fill(fresh, given if isinstance(given, Shard) else None, tensor, name)
        if len(self._mismatched) > before:
            return None
        if isinstance(given, Shard):
            return lambda: Shard(fresh, given.global_shape, given.offset)
        return lambda: Replicated(fresh) if isinstance(given, Replicated) else fresh

    def _fill(
        self, array: Any, shard: Optional[Shard], tensor: Dict[str, Any], name: str
    ) -> Recipe:
        target = _arrays.target(array, name)
        whole: Optional[Tuple[int, ...]] = None
        offset: Optional[Tuple[int, ...]] = None
        if shard is not None:
            tail = target.shape[len(shard.offset) :]
            whole, offset = shard.global_shape + tail, shard.offset + (0,) * len(tail)
        wanted = (target.stored, target.shape if whole is None else whole, target.meaning)
        stored = (tensor["dtype"], tuple(tensor["shape"]), _arrays.meaning(tensor))
        if stored[0] == "C64" and target.meaning == "complex64":
            # Not pairs, as we store them, but the same bytes: a file of another writer.
            target = target._replace(stored="C64", shape=target.shape[:-1], meaning=None)
            if whole is not None and offset is not None:
                whole, offset = whole[:-1], offset[:-1]
            wanted = ("C64", target.shape if whole is None else whole, None)
        if stored != wanted:
            self._mismatched.append(
                (name, f"stored {_type_and_shape(*stored)}, wanted {_type_and_shape(*wanted)}")
            )
            return None
        if self._is_filled_already(target, tensor["name"], (whole, offset), name):
            return None
        group = tensor.get("group", "model")
        self.into.append(_tree.to_fill(tensor["name"], target, whole, offset, group))
        self._keep.append(target.keep)
        if target.finish is not None:
            self._finish.append(target.finish)
        return None

    def _is_filled_already(
        self, target: _arrays.Target, tensor: str, piece: Tuple[Any, ...], name: str
    ) -> bool:
        """True for the second of two tied targets. What was stored apart cannot fill both."""
        filled_by, first = self._memory.setdefault(target.identity, ((tensor, piece), name))
        if first == name or 0 in target.shape:
            return False
        if filled_by != (tensor, piece):
            self._mismatched.append((name, f"stored apart from {first}, wanted tied to it"))
        return True

    def _judge_names(self, rename: Dict[str, str]) -> None:
        """Names in rename and skip that are nobody's: most likely misspelt, and then something else
        is restored than was meant."""
        if not rename and not self._skip:
            return
        stored, targets = self._index.names()
        unknown = [("rename", name) for name in rename if name not in stored]
        for name in sorted(self._skip - stored - targets):
            # Given, and not stored?
            if not any(left == name or left.startswith(name + "/") for left, _ in self.skipped):
                unknown.append(("skip", name))
        if unknown and self._strict:
            listed = ", ".join(f"{what}: {name!r}" for what, name in unknown[:10])
            raise Invalid(f"{listed}: there is nothing of that name in {self._stored.where}")
        self.skipped += [(name, "there is nothing of that name") for _, name in unknown]

    def _judge(self) -> None:
        unexpected = []
        for leaf in self._index.root.leaves():
            if leaf.used or leaf.node is None:  # a None that nobody wants is no loss
                continue
            if self._skip and self._is_skipped(leaf.target, leaf.name):
                self.skipped.append((leaf.name, _AS_ASKED))
            else:
                unexpected.append(leaf.name)
        if not self._strict:
            self.skipped += [(n, "not in the checkpoint") for n in self._missing]
            self.skipped += [(n, "not asked for") for n in unexpected]
            self.skipped += self._mismatched
        elif self._missing or unexpected or self._mismatched:
            mismatched = [f"{name}: {why}" for name, why in self._mismatched]
            raise_mismatch(self._stored.where, self._missing, unexpected, mismatched)

    # After the tensors were read ----------

    def finish(self, tensors: List[Tuple[str, str, str, Tuple[int, ...], np.ndarray]]) -> Any:
        """Puts everything in its place; gives the state."""
        for group, name, _, _, data in tensors:
            self._made[(group, name)] = data
        for finish in self._finish:
            finish()
        state = self._given if self._recipe is None else self._recipe()
        for load in self._loads:
            load()
        return state


class _View(_tree.Stored):
    """A part of a stored tree, for Stateful.cairn_template."""

    def __init__(self, where: str, node: Any, path: str) -> None:
        self.where = where
        self.root = node
        self.path = path

    def skeleton(self) -> Any:
        """The values; arrays are shown as (dtype, shape)."""
        return _tree.build(self.root, lambda leaf: (leaf["dtype"], tuple(leaf["shape"])))


def _stores_values(place: _Place) -> bool:
    """True where neither arrays nor generators are stored."""
    return all(
        not isinstance(leaf.node, dict) or leaf.node.keys().isdisjoint(("tensor", "rng"))
        for leaf in place.leaves()
    )


def _holds_values(given: Any) -> bool:
    if isinstance(given, dict):
        return all(_holds_values(item) for item in given.values())
    if isinstance(given, (list, tuple)):
        return all(_holds_values(item) for item in given)
    return given is None or isinstance(given, (bool, int, float, complex, str, bytes, np.generic))


def _replaced(given: Any, changes: Dict[int, Any]) -> Any:
    """A tuple (or named tuple) with some of its elements changed."""
    items = [changes.get(i, item) for i, item in enumerate(given)]
    return type(given)(*items) if hasattr(given, "_fields") else tuple(items)


def _type_and_shape(dtype: str, shape: Tuple[int, ...], meaning: Optional[str] = None) -> str:
    return f"{dtype} [{','.join(str(d) for d in shape)}]" + (f" of {meaning}" if meaning else "")


def _describe_array(value: Any) -> str:
    try:
        source = _arrays.source(value, "")
        return _type_and_shape(source.stored, source.shape)
    except Invalid:
        return _tree.a_type(value)


def _describe(node: Any) -> str:
    if isinstance(node, dict) and "tensor" in node:
        tensor = node["tensor"]
        return _type_and_shape(tensor["dtype"], tuple(tensor["shape"]))
    if isinstance(node, dict) and "rng" in node:
        return f"{with_article(node['rng'][0])} generator"
    if _tree.is_leaf(node):
        return _tree.a_type(_tree.plain(node))
    return f"{sum(1 for _ in _tree.children(node))} values below it"


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
