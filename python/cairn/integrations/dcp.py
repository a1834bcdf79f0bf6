"""torch.distributed.checkpoint: dcp.save, dcp.async_save and dcp.load on a Cairn repository.

Every rank's pieces become pieces of ordinary Cairn arrays, every other value an ordinary value, so
that a checkpoint can be read by another number of ranks, by cairn.load and by the `cairn` command.
Rank 0 describes the whole state; each rank writes the pieces that the planner gave it.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        LoadPlan,
        LoadPlanner,
        ReadItem,
        SavePlan,
        SavePlanner,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
    from torch.futures import Future
except ImportError as error:
    raise ImportError(f"cairn.integrations.dcp needs torch: pip install torch ({error})") from error

from .. import _arrays, _location, _native, _tree
from .._arguments import PathLike
from .._restore import STATE_FILE, CheckpointInfo
from ..errors import Corruption, Invalid, Mismatch, NotFound
from ..manager import CheckpointManager
from ..shard import Shard

__all__ = ["CairnReader", "CairnWriter"]

log = logging.getLogger("cairn")

Path = Tuple[Union[str, int], ...]
_VALUES = "__values__"  # where ranks above 0 keep values that they alone have


class _Array(NamedTuple):
    dtype: Any
    shape: Tuple[int, ...]
    path: Path


def _step_of(checkpoint_id: Any) -> Optional[int]:
    if checkpoint_id is None:
        return None
    try:
        return int(
            os.fspath(checkpoint_id) if not isinstance(checkpoint_id, int) else checkpoint_id
        )
    except (TypeError, ValueError):
        raise Invalid(
            f'checkpoint_id is the step of a checkpoint, such as "40", not {checkpoint_id!r}; the '
            "directory is given to CairnWriter or CairnReader"
        ) from None


class CairnWriter(StorageWriter):
    """Saves with torch.distributed.checkpoint into a repository.

    All ranks make one, on the same directory, and use it for all their saves. ``checkpoint_id`` of
    dcp.save is the step; without one the steps are counted. A save is durable when dcp.save (or the
    future of dcp.async_save) is done; killed at any moment, the one before it is still the newest.

    Args:
        directory: of checkpoints.
        process_group: the one given to dcp.save.
        no_dist: as given to dcp.save.
        options: for CheckpointManager (keep_last, job, deadline, on_saved, …).

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from cairn.integrations.dcp import CairnReader, CairnWriter
    >>> model = torch.nn.Linear(2, 1)
    >>> writer = CairnWriter("runs/a", keep_last=2)
    >>> for step in (20, 30, 40):
    ...     _ = dcp.save({"model": model, "epoch": 3}, storage_writer=writer, checkpoint_id=str(step))
    >>> writer.manager.latest().step
    40
    >>> writer.close()
    >>> again = {"model": torch.nn.Linear(2, 1), "epoch": 0}
    >>> dcp.load(again, storage_reader=CairnReader("runs/a"))
    >>> bool((again["model"].weight == model.weight).all()), again["epoch"]
    (True, 3)
    """

    def __init__(
        self,
        directory: PathLike,
        *,
        process_group: Any = None,
        no_dist: bool = False,
        **options: Any,
    ) -> None:
        for name in ("rank", "world_size", "read_only", "private"):
            if name in options:
                raise Invalid(f"CairnWriter: {name} is the process group's; it cannot be given")
        self._directory = _location.text_of(directory)
        self._group = process_group
        self._no_dist = no_dist
        self._options = options
        self._manager: Optional[CheckpointManager] = None
        self._is_copy = False
        self._asked: Optional[int] = None
        self._step = 0
        self._coordinator = False
        self._own: Dict[str, WriteItem] = {}  # values of this rank, before they are shared out
        self._plans: List[SavePlan] = []

    @property
    def manager(self) -> Optional[CheckpointManager]:
        """The repository, once the first save has opened it."""
        return self._manager

    def close(self) -> None:
        """Gives the directory up. The next save opens it again."""
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.close()

    def __enter__(self) -> "CairnWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getstate__(self) -> Dict[str, Any]:
        # async_save in a process of its own takes a copy for each save.
        if self._manager is not None:
            raise Invalid(
                "CairnWriter: it has the directory open here and cannot be sent to another "
                "process; "
                "use another writer for async saves in a process"
            )
        return {**self.__dict__, "_is_copy": True}

    # What torch.distributed.checkpoint calls, in this order -------------------------------------

    def reset(self, checkpoint_id: Any = None) -> None:
        self._asked = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise Invalid(
                "dcp.save(use_collectives=False) makes a checkpoint for each rank; Cairn makes "
                "one of "
                "all ranks. Leave use_collectives as it is"
            )
        self._coordinator = is_coordinator
        alone = self._no_dist or not (dist.is_available() and dist.is_initialized())
        if self._manager is None:
            self._manager = CheckpointManager(
                self._directory,
                rank=0 if alone else dist.get_rank(self._group),
                world_size=1 if alone else dist.get_world_size(self._group),
                **self._options,
            )
        step, self._asked = self._asked, None
        if step is None:  # all ranks see the same: no save is in flight
            latest = self._manager.latest()
            step = 0 if latest is None else latest.step + 1
        self._step = step

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if getattr(plan, "usable", True):  # else: the same as last time
            values = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
            self._own = {item.index.fqn: item for item in values}
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        if len(self._plans) != len(plans):
            self._plans = list(plans)
        for i, plan in enumerate(plans):
            if getattr(plan, "usable", True):
                self._plans[i] = plan
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        manager = self._manager
        assert manager is not None
        pieces: Dict[str, List[Shard]] = {}
        results: List[WriteResult] = []
        for item in plan.items:
            size = 0
            if item.type != WriteItemType.BYTE_IO:
                shard = _piece(item, planner)
                # Empty pieces of several ranks would all stand at the same place.
                if shard.array.numel() or not all(shard.global_shape):
                    pieces.setdefault(item.index.fqn, []).append(shard)
                size = shard.array.numel() * shard.array.element_size()
            results.append(WriteResult(index=item.index, size_in_bytes=size, storage_data=None))
        if self._coordinator:
            state, metadata = self._whole_state(pieces, planner)
        else:
            state, metadata = _own_state(plan, pieces, planner), {}
        manager.save(self._step, state, metadata=metadata, blocking=True)
        if self._is_copy:
            self.close()
        done: "Future[List[WriteResult]]" = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        pass  # the save that every rank waited for was the commit

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        try:
            return _step_of(checkpoint_id) is not None
        except Invalid:
            return False

    def storage_meta(self) -> Optional[StorageMeta]:
        return StorageMeta(checkpoint_id=self._directory)

    # The state ------------------------------------------------------------------------------------

    def _whole_state(
        self, pieces: Mapping[str, List[Shard]], planner: SavePlanner
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Rank 0's state: all arrays, whoever writes them, and all values that rank 0 has."""
        arrays: Dict[str, _Array] = {}
        values: Dict[str, Path] = {}
        elsewhere: Dict[str, int] = {}
        for rank, plan in enumerate(self._plans):
            for item in plan.items:
                fqn = item.index.fqn
                path = _path(plan, fqn)
                if item.type != WriteItemType.BYTE_IO:
                    data = item.tensor_data
                    arrays[fqn] = _Array(data.properties.dtype, tuple(data.size), path)
                elif fqn in self._own:
                    values[fqn] = path
                else:
                    elsewhere[fqn] = rank
        _check_names([array.path for array in arrays.values()])
        state: Dict[str, Any] = {}
        for fqn, array in arrays.items():
            _put(state, array.path, _pieces(array, pieces.get(fqn, [])))
        for fqn, path in values.items():
            _put(state, path, _value(self._own[fqn], planner))
        # Without planner_data the planner did not take the state apart.
        flat = not any(plan.planner_data for plan in self._plans)
        return _lists(state), {"dcp": {"flat": flat, "values": elsewhere}}


def _check_names(paths: List[Path]) -> None:
    """All ranks must give an array the same name, and none knows the others' arrays."""
    names: Dict[str, Path] = {}
    for path in paths:
        name = "/".join(map(str, path))
        if names.setdefault(name, path) != path:
            raise Invalid(f"{path} and {names[name]} would both be stored as {name}; rename one")


def _own_state(
    plan: SavePlan, pieces: Mapping[str, List[Shard]], planner: SavePlanner
) -> Dict[str, Any]:
    """What a rank above 0 writes: its pieces, under the names that rank 0 gives them, and values
    that may be its alone."""
    state: Dict[str, Any] = {}
    values: Dict[str, Any] = {}
    for item in plan.items:
        fqn = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            values[fqn] = _value(item, planner)
        elif fqn in pieces:
            data = item.tensor_data
            array = _Array(data.properties.dtype, tuple(data.size), _path(plan, fqn))
            _put(state, array.path, _pieces(array, pieces[fqn]))
    state[_VALUES] = _Own(values)
    return state


class _Own(_tree.Stateful):
    """A rank's own values; no part of the state that all ranks make together."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self._values = values

    def cairn_save(self) -> Any:
        return self._values


def _path(plan: SavePlan, fqn: str) -> Path:
    """Where a value stands in the nested state."""
    return tuple((plan.planner_data or {}).get(fqn, (fqn,)))


def _pieces(array: _Array, shards: List[Shard]) -> _tree.Pieces:
    return _tree.Pieces(torch.empty(0, dtype=array.dtype), array.shape, shards)


def _piece(item: WriteItem, planner: SavePlanner) -> Shard:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor):
        raise Invalid(f"{item.index.fqn}: the planner gave a {type(tensor).__name__}, no tensor")
    data = item.tensor_data
    return Shard(tensor.detach(), tuple(data.size), tuple(data.chunk.offsets))


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """A value as it is, where the planner gives it; planners hand it out pickled."""
    lookup = getattr(planner, "lookup_object", None)
    if lookup is not None:
        value = lookup(item.index)
        if not isinstance(value, io.BytesIO):
            return value
    data = planner.resolve_data(item)
    return torch.load(data, map_location="cpu", weights_only=True)


def _put(state: Dict[Any, Any], path: Path, value: Any) -> None:
    here = state
    for key in path[:-1]:
        here = here.setdefault(key, {})
    if path[-1] in here:
        raise Invalid(f"two values of the state are called {'/'.join(map(str, path))}")
    here[path[-1]] = value


def _lists(value: Any) -> Any:
    """Dicts whose keys are positions, as lists."""
    if type(value) is not dict:
        return value
    items = {key: _lists(item) for key, item in value.items()}
    if items and all(type(key) is int for key in items):
        return [items.get(i) for i in range(max(items) + 1)]
    return items


class CairnReader(StorageReader):
    """Loads with torch.distributed.checkpoint from a repository, with any number of ranks.

    ``checkpoint_id`` of dcp.load is a step; without one the newest checkpoint that is whole is
    loaded, which the coordinator finds out by reading it: a damaged one is passed over, with a
    warning. All ranks load the coordinator's choice. Checkpoints that CheckpointManager saved can
    be loaded too.

    Args:
        directory: of checkpoints.
        step: instead of checkpoint_id.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from cairn.integrations.dcp import CairnReader, CairnWriter
    >>> with CairnWriter("runs/a") as writer:
    ...     for step in (20, 40):
    ...         _ = dcp.save({"step": step}, storage_writer=writer, checkpoint_id=str(step))
    >>> state, reader = {"step": 0}, CairnReader("runs/a", step=20)
    >>> dcp.load(state, storage_reader=reader)
    >>> state, reader.info.step
    ({'step': 20}, 20)
    """

    def __init__(self, directory: PathLike, *, step: Optional[int] = None) -> None:
        self._directory = _location.text_of(directory)
        self._step = step
        self._info: Optional[CheckpointInfo] = None
        self._nodes: Dict[str, Any] = {}
        self._elsewhere: Dict[str, int] = {}

    @property
    def info(self) -> Optional[CheckpointInfo]:
        """The checkpoint that was loaded last."""
        return self._info

    def reset(self, checkpoint_id: Any = None) -> None:
        self._step = _step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._look(self._step, "")

    def _look(self, step: Optional[int], id: str) -> Metadata:
        """Reads what a checkpoint holds, and remembers it as the one to load."""
        found: Dict[str, Any] = {}

        def prepare(info: Dict[str, Any], files: Dict[str, bytes]) -> Dict[str, Any]:
            found.update(info=info, text=files.get(STATE_FILE, b""))
            return _request([], [])

        with CheckpointManager(self._directory, read_only=True) as manager:
            if (
                manager._native.restore(prepare=prepare, step=step, id=id, path="", atomic=False)
                is None
            ):
                raise NotFound(f"{self._directory!r} has no checkpoint yet")
        self._info = CheckpointInfo(**found["info"])
        if not _tree.Stored.is_one(found["text"]):
            raise Invalid(f"{self._info.path} was not written from Python; cairn.load reads it")
        notes = self._info.metadata.get("dcp", {})
        root = _tree.Stored(found["text"], self._info.path).root
        paths: Dict[str, Path] = {}
        self._nodes = {}
        _flatten(root, (), bool(notes.get("flat")), self._nodes, paths)
        self._elsewhere = {str(k): int(v) for k, v in notes.get("values", {}).items()}
        known = {fqn: _metadata(node, self._info.path) for fqn, node in self._nodes.items()}
        known.update({fqn: BytesStorageMetadata() for fqn in self._elsewhere})
        return Metadata(
            state_dict_metadata=known,
            planner_data=None if notes.get("flat") else paths,
            storage_meta=StorageMeta(checkpoint_id=self._info.path),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        # On the coordinator, when every rank has looked at the newest that it saw: the plans fit any
        # checkpoint of the same state, and say which one is read.
        chosen = _Chosen(self._choose())
        return [dataclasses.replace(plan, storage_data=chosen) for plan in plans]

    def _choose(self) -> str:
        assert self._info is not None
        if self._step is not None:  # a certain one is not passed over
            return self._info.id
        with CheckpointManager(self._directory, read_only=True) as manager:
            infos = [info for info in reversed(manager.list()) if not info.foreign]
        places = [i for i, info in enumerate(infos) if info.id == self._info.id]
        damaged: List[str] = []
        for info in infos[places[0] if places else 0 :]:
            try:
                problems = [f"{a}: {b}" for a, b in _native.verify(info.path, True)["problems"]]
            except (Corruption, NotFound) as error:
                problems = [str(error)]
            if not problems:
                return info.id
            damaged.append(f"step {info.step}: {problems[0]}")
            log.warning("a checkpoint was passed over: %s", damaged[-1])
        raise Corruption(f"{self._directory!r}: no checkpoint is whole: {'; '.join(damaged)}")

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        assert self._info is not None
        if isinstance(plan.storage_data, _Chosen) and plan.storage_data.id != self._info.id:
            self._look(None, plan.storage_data.id)
        reading = _Reading(self._nodes)
        for item in plan.items:
            fqn = item.storage_index.fqn
            if fqn not in self._nodes and fqn not in self._elsewhere:
                raise Mismatch(f"{self._info.path}: there is no {fqn!r} in it", missing=[fqn])
            if item.type != LoadItemType.BYTE_IO:
                reading.tensor(item, planner)
            elif fqn in self._nodes:
                reading.value(item)
        with CheckpointManager(self._directory, read_only=True) as manager:
            result = manager._native.restore(
                prepare=lambda info, files: _request(reading.into, reading.names),
                step=None,
                id=self._info.id,
                path="",
                atomic=False,
            )
        reading.finish(result, planner)
        for item in plan.items:
            fqn = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO and fqn not in self._nodes:
                planner.load_bytes(item, _pickled(self._value_of_a_rank(fqn)))
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _value_of_a_rank(self, fqn: str) -> Any:
        rank = self._elsewhere[fqn]
        assert self._info is not None
        with CheckpointManager(
            self._directory, read_only=True, rank=rank, world_size=rank + 1
        ) as manager:
            restored = manager.restore({_VALUES: {fqn: None}}, id=self._info.id, strict=False)
        assert restored is not None
        return restored.state[_VALUES][fqn]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return CairnWriter.validate_checkpoint_id(checkpoint_id)


@dataclasses.dataclass(frozen=True)
class _Chosen:
    """The checkpoint that all ranks read, in their plans."""

    id: str


class _Reading:
    """One rank's part of a load: what to fill, and what to do when it is filled."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._targets: List[Tuple[ReadItem, Any, Any]] = []
        self._values: List[ReadItem] = []
        self._keep: List[Any] = []
        self.into: List[_tree.Described] = []
        self.names: List[str] = []

    def tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        leaf = self._nodes[item.storage_index.fqn]["tensor"]
        wanted = planner.resolve_tensor(item).detach()
        dtype = _dtype(leaf, item.storage_index.fqn)
        # Other dtypes are converted, as torch's own readers do.
        memory = wanted if wanted.dtype == dtype else torch.empty(wanted.shape, dtype=dtype)
        target = _arrays.target(memory, item.storage_index.fqn)
        tail = target.shape[len(wanted.shape) :]
        start = item.storage_index.offset or (0,) * len(wanted.shape)
        offset = tuple(a + b for a, b in zip(start, item.storage_offsets)) + (0,) * len(tail)
        whole = tuple(int(d) for d in leaf["shape"])
        group = str(leaf.get("group", "model"))
        self.into.append(_tree.to_fill(str(leaf["name"]), target, whole, offset, group))
        self._keep.append(target.keep)

        def finish() -> None:
            if target.finish is not None:
                target.finish()
            if memory is not wanted:
                wanted.copy_(memory)

        self._targets.append((item, wanted, finish))

    def value(self, item: ReadItem) -> None:
        self._values.append(item)
        for tensor in _tree.tensors_of(self._nodes[item.storage_index.fqn]):
            self.names.append(str(tensor["name"]))

    def finish(self, result: Dict[str, Any], planner: LoadPlanner) -> None:
        where = str(result["info"]["path"])
        lost = {d[0] for d in self.into} - set(result["restored"])
        if lost:
            raise Corruption(f"{where}: not in the checkpoint: {', '.join(sorted(lost)[:10])}")
        for item, wanted, finish in self._targets:
            finish()
            planner.commit_tensor(item, wanted)
        made = {str(name): data for _, name, _, _, data in result["tensors"]}

        def array(leaf: Dict[str, Any]) -> Any:
            name = str(leaf["name"])
            if name not in made:
                raise Corruption(f"{where}: the tensor {name!r} is not there")
            shape = tuple(int(d) for d in leaf["shape"])
            return _arrays.make(
                str(leaf["kind"]), str(leaf["dtype"]), shape, made[name], leaf, name
            )

        for item in self._values:
            value = _tree.build(self._nodes[item.storage_index.fqn], array)
            planner.load_bytes(item, _pickled(value))


def _request(into: List[_tree.Described], names: List[str]) -> Dict[str, Any]:
    return {
        "into": into,
        "allocate": bool(names),
        "allocate_names": names,
        "strict": False,
        "rename": {},
        "skip": [],
    }


def _pickled(value: Any) -> io.BytesIO:
    """Planners take values as torch.save writes them: in memory, never on disk."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


def _flatten(
    node: Any, path: Path, flat: bool, nodes: Dict[str, Any], paths: Dict[str, Path]
) -> None:
    """Names as torch's planners make them: dicts are taken apart, and lists that hold tensors or
    dicts; all else is one value."""
    deeper = path == () or (not flat and _taken_apart(node))
    if not deeper:
        fqn = ".".join(map(str, path))
        nodes[fqn] = node
        paths[fqn] = path
        return
    for key, child in _tree.children(node):
        step = key if isinstance(node, list) else str(key)
        _flatten(child, path + (step,), flat, nodes, paths)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, dict) and "tensor" in node and node["tensor"].get("kind") == "torch"


def _taken_apart(node: Any) -> bool:
    if isinstance(node, list):
        return any(_is_tensor(item) or _taken_apart(item) for item in node)
    return isinstance(node, dict) and not _tree.is_leaf(node) and "tuple" not in node


def _metadata(node: Any, where: str) -> Any:
    if not _is_tensor(node):
        return BytesStorageMetadata()
    leaf = node["tensor"]
    shape = [int(d) for d in leaf["shape"]]
    if "complex" in leaf:
        shape = shape[:-1]
    size = torch.Size(shape)
    # One chunk, whatever was written: the engine finds the pieces.
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=_dtype(leaf, where)),
        size=size,
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)],
    )


def _dtype(leaf: Mapping[str, Any], name: str) -> Any:
    base = str(leaf["complex"]) if "complex" in leaf else _arrays._BY_STORED.get(leaf["dtype"])
    dtype = getattr(torch, base or "", None)
    if dtype is None:
        raise Invalid(f"{name}: this torch has no dtype for {leaf['dtype']}")
    return dtype
