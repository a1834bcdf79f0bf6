"""PyTorch: capture a training's live objects as one state; a loader that resumes at once."""

from __future__ import annotations

import os
import random
from typing import Any, Dict, Iterator, List, Mapping, Optional

import numpy as np
import torch

from . import _tree
from ._arguments import whole
from ._arrays import is_lazy
from ._random import RandomStates
from ._torch_embedding import Embedding, EmbeddingBag, module_tables
from ._torch_gradients import Gradients
from ._torch_names import uncompiled_name, uncompiled_names
from ._wording import a_type, with_article
from .errors import Cancelled, Error, Invalid, Mismatch
from .table import EmbeddingTable

__all__ = ["Capture", "Embedding", "EmbeddingBag", "Gradients", "Loader", "capture"]


class _Module(_tree.Stateful):
    """A module: its parameters and buffers are filled in place. Compiled or not, their names are
    those of the module that was written."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def cairn_save(self) -> Any:
        return uncompiled_names(_plain_dict(self._module.state_dict()))

    def cairn_save_lazily(self) -> Any:
        # Parameters change in an optimizer's step. Buffers change whenever somebody runs the module
        # (batch normalisation), and no hook sees all the ways to do that; they are small.
        made = [p for p in self._module.parameters() if not is_lazy(p)]
        return _tree.copied(self.cairn_save(), keep=frozenset(p.data_ptr() for p in made))

    def cairn_template(self, stored: _tree.Stored) -> Any:
        live = self.cairn_save()
        if not self._is_live(live):
            self._compare_shapes(live, stored)
            return None
        if _tree.is_leaf(stored.root) or isinstance(stored.root, list):
            return live
        # Saves from before have the names that torch.compile gives.
        names = [key for key, _ in _tree.children(stored.root) if isinstance(key, str)]
        stored_as = {uncompiled_name(name): name for name in names}
        return {stored_as.get(name, name): value for name, value in live.items()}

    def _compare_shapes(self, live: Mapping[str, Any], stored: _tree.Stored) -> None:
        """What load_state_dict would refuse when other parts of the state are filled already."""
        skeleton = stored.skeleton()  # type: ignore[attr-defined]
        if not isinstance(skeleton, dict):
            return
        lines = []
        for name, value in skeleton.items():
            mine = live.get(uncompiled_name(name) if isinstance(name, str) else name)
            if not isinstance(mine, torch.Tensor) or is_lazy(mine) or not isinstance(value, tuple):
                continue
            shape = value[1][:-1] if mine.is_complex() else value[1]  # stored as pairs of numbers
            if shape != tuple(mine.shape):
                lines.append(f"{name}: stored {list(shape)}, wanted {list(mine.shape)}")
        if lines:
            raise Mismatch(f"restore {stored.where}: {'; '.join(lines)}", mismatched=lines)

    def _is_live(self, state: Mapping[str, Any]) -> bool:
        """False when state_dict gives copies (hooks, wrapped modules), or what is not made yet."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        if any(is_lazy(t) for t in tensors):
            return False
        memory = {t.data_ptr() for t in tensors}
        return all(
            not isinstance(value, torch.Tensor) or value.numel() == 0 or value.data_ptr() in memory
            for value in state.values()
        )

    def cairn_load(self, state: Any) -> None:
        # Tensors are in place already; modules with a state beside them (get_extra_state) take it.
        live = self._module.state_dict()
        if not self._is_live(live) or any(not isinstance(v, torch.Tensor) for v in live.values()):
            self.load(state)

    def load(self, state: Mapping[str, Any]) -> None:
        """By load_state_dict, under the names that this module has."""
        own = {uncompiled_name(name): name for name in self._module.state_dict()}
        renamed = {}
        for name, value in state.items():
            plain = uncompiled_name(name) if isinstance(name, str) else name
            renamed[own.get(plain, name)] = value
        self._module.load_state_dict(renamed)

    def cairn_tables(self) -> List[EmbeddingTable]:
        return module_tables(self._module)


# Settings of a parameter group that say how a step is computed, or that schedulers put there.
_NOT_OF_THE_KIND = frozenset(
    ("params", "param_names", "foreach", "fused", "capturable", "differentiable", "maximize")
    + ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "decoupled_weight_decay")
)


class _Optimizer(_tree.Stateful):
    """An optimizer, also a fresh one that has not made a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._lazy: List[Any] = []  # saves that may still be reading: of several managers, or skipped
        self._hooked = False

    def cairn_save(self) -> Any:
        return _plain_dict(self._optimizer.state_dict())

    def cairn_save_lazily(self) -> Any:
        # The next step changes what a lazy save may still be copying: it waits.
        if not self._hooked:
            _that_steps(self._optimizer).register_step_pre_hook(self._before_step)
            self._hooked = True
        state = self.cairn_save()
        if "param_groups" in state:  # schedulers change them outside of steps
            state["param_groups"] = _tree.copied(state["param_groups"])
        return state

    def cairn_template(self, stored: _tree.Stored) -> Any:
        skeleton = stored.skeleton()  # type: ignore[attr-defined]
        groups = _stored_groups(skeleton)
        mine = self._optimizer.param_groups
        sizes = [len(group["params"]) for group in groups or ()]
        wanted = [len(group["params"]) for group in mine]
        line = ""
        if groups is None:
            line = (
                f"stored {_shown(stored)}, which is no optimizer's state, wanted "
                f"{type(self._optimizer).__name__}'s"
            )
        elif sizes != wanted:
            line = f"stored parameter groups of {sizes}, wanted {wanted}"
        elif groups:
            theirs = set(groups[0]) - _NOT_OF_THE_KIND
            ours = set(mine[0]) - _NOT_OF_THE_KIND
            # Either side alone may know more: versions of torch add settings.
            if theirs - ours and ours - theirs:
                kind = type(self._optimizer).__name__
                line = (
                    f"stored settings {', '.join(sorted(theirs - ours))} of another optimizer, "
                    f"{kind} has {', '.join(sorted(ours - theirs))}"
                )
        if line:
            line = f"{getattr(stored, 'path', '') or 'optimizer'}: {line}"
            raise Mismatch(
                f"restore {stored.where}: {line}. Nothing was changed", mismatched=[line]
            )
        return None

    def cairn_load(self, state: Any) -> None:
        self._optimizer.load_state_dict(state)
        self._put_dtypes_back(state)

    def _put_dtypes_back(self, state: Any) -> None:
        """torch casts slots to their parameter's dtype: float32 moments of bfloat16 parameters would
        lose their bits. Optimizers that load in ways of their own know what they do."""
        kind = type(self._optimizer)
        base = torch.optim.Optimizer
        if kind.load_state_dict is not base.load_state_dict or kind.state_dict is not base.state_dict:
            return
        numbers = [n for group in state["param_groups"] for n in group["params"]]
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for number, parameter in zip(numbers, parameters):
            slots = self._optimizer.state.get(parameter, {})
            for name, stored in state["state"].get(number, {}).items():
                loaded = slots.get(name)
                if isinstance(stored, torch.Tensor) and isinstance(loaded, torch.Tensor):
                    if stored.dtype != loaded.dtype:
                        slots[name] = stored.to(loaded.device)

    def cairn_saved(self, handle: Any) -> None:
        if self._hooked:
            self._lazy = [lazy for lazy in self._lazy if _is_ours(lazy) and not lazy.done()]
            self._lazy.append(handle)

    def _before_step(self, *_: Any) -> None:
        failed: Optional[Error] = None
        while self._lazy:  # all of them, whatever becomes of one
            lazy = self._lazy.pop()
            if not _is_ours(lazy):
                continue
            try:
                lazy.guard()
            except Cancelled:
                pass  # it was skipped, and reads nothing
            except Error as error:
                failed = error
        if failed is not None:
            raise failed


def _is_ours(handle: Any) -> bool:
    """A fork has memory of its own, which nobody is copying."""
    return bool(handle._pid == os.getpid())


def _that_steps(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer whose steps can be hooked: itself, or the one that it wraps (accelerate)."""
    inner, wrappers = optimizer, 0
    while isinstance(inner, torch.optim.Optimizer) and wrappers < 8:
        if getattr(type(inner).step, "hooked", False) and hasattr(
            inner, "_optimizer_step_pre_hooks"
        ):
            return inner
        inner, wrappers = getattr(inner, "optimizer", None), wrappers + 1
    raise Invalid(
        f"save(lazy=True): the steps of {with_article(type(optimizer).__name__)} cannot be made to "
        "wait for the copy: it does not call torch.optim.Optimizer's __init__; save with lazy=False"
    )


def _stored_groups(skeleton: Any) -> Optional[List[Any]]:
    """The parameter groups of an optimizer's state; None for what is none."""
    groups = skeleton.get("param_groups") if isinstance(skeleton, dict) else None
    if not isinstance(groups, list) or "state" not in skeleton:
        return None
    fits = all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in groups)
    return groups if fits else None


def _shown(stored: Any) -> str:
    skeleton = stored.skeleton()
    if isinstance(stored.root, dict) and "tensor" in stored.root:
        return "an array"
    if isinstance(skeleton, dict):
        names = ", ".join(str(key) for key in list(skeleton)[:5])
        return f"a dict of {names or 'nothing'}" + (", …" if len(skeleton) > 5 else "")
    return "None" if skeleton is None else a_type(skeleton)


class _StateDict(_tree.Stateful):
    """Schedulers, scalers, loaders: whatever has state_dict and load_state_dict."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def cairn_save(self) -> Any:
        return _plain_dict(self._value.state_dict())

    def cairn_save_lazily(self) -> Any:
        return _tree.copied(self.cairn_save())

    def cairn_load(self, state: Any) -> None:
        self._value.load_state_dict(state)


def _plain_dict(state: Any) -> Any:
    """State dicts carry attributes (_metadata) that are no part of the state."""
    return dict(state) if isinstance(state, dict) else state


def stateful(value: Any) -> _tree.Stateful:
    """How an object with state_dict and load_state_dict is saved and restored."""
    if isinstance(value, torch.nn.Module):
        return _Module(value)
    if isinstance(value, torch.optim.Optimizer):
        known = getattr(value, "_cairn_stateful", None)
        if known is None:
            known = _Optimizer(value)
            value._cairn_stateful = known  # type: ignore[attr-defined]
        return known
    return _StateDict(value)


class Capture(_tree.Stateful):
    """The live objects of a training as a state or a part of one. Made by :func:`capture`.

    >>> import torch, cairn.torch
    >>> model = torch.nn.Linear(2, 1)
    >>> train = cairn.torch.capture(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    >>> train
    Capture(model, optimizer, rng)
    >>> saved = {name: w.clone() for name, w in train.state()["model"].items()}
    >>> state = {**train.state(), "model": saved}
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> train.restore(state)
    >>> bool((model.weight == saved["weight"]).all())
    True
    """

    def __init__(self, parts: Mapping[str, Any], rng: bool) -> None:
        self._parts: Dict[str, _tree.Stateful] = {}
        for name, value in parts.items():
            known = _tree.as_stateful(value)
            if known is None:
                raise Invalid(
                    f"capture: {name} is {a_type(value)}, which has no state_dict and "
                    "load_state_dict"
                )
            self._parts[name] = known
        if rng:
            self._parts["rng"] = RandomStates()

    def cairn_save(self) -> Any:
        return {name: part.cairn_save() for name, part in self._parts.items()}

    def cairn_save_lazily(self) -> Any:
        return {name: part.cairn_save_lazily() for name, part in self._parts.items()}

    def cairn_template(self, stored: _tree.Stored) -> Any:
        return dict(self._parts)  # each compares and takes its own

    def cairn_load(self, state: Any) -> None:
        pass  # the parts did

    def cairn_saved(self, handle: Any) -> None:
        for part in self._parts.values():
            part.cairn_saved(handle)

    def cairn_tables(self) -> List[EmbeddingTable]:
        return [table for part in self._parts.values() for table in part.cairn_tables()]

    def state(self) -> Dict[str, Any]:
        """The state now: nested dicts whose tensors are the live ones."""
        return dict(self.cairn_save())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts a state (from state(), or Restored.state) back into the live objects. The state stays
        what it is, whatever they do from then on."""
        missing = [name for name in self._parts if name not in state]
        if missing:
            raise Mismatch(f"capture: the state has no {', '.join(missing)}", missing=missing)
        for name, part in self._parts.items():
            if isinstance(part, _Module):
                part.load(state[name])
            else:  # optimizers and schedulers keep what they are given, and change it
                part.cairn_load(_tree.copied(state[name]))

    def __repr__(self) -> str:
        return f"Capture({', '.join(self._parts)})"


def capture(
    model: Optional[torch.nn.Module] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    scheduler: Optional[Any] = None,
    scaler: Optional[Any] = None,
    sampler: Optional[Any] = None,
    loader: Optional[Any] = None,
    rng: bool = True,
    **others: Any,
) -> Capture:
    """Captures the live objects of a training: save it, restore into it.

    The optimizer may be a fresh one. With ``save(..., lazy=True)`` the optimizer's next step waits
    for the copy by itself; buffers, which a forward pass may change, are copied at once.

    Args:
        model: a module.
        optimizer, scheduler, scaler: as in a usual training loop.
        sampler, loader: with state_dict and load_state_dict (cairn.torch.Loader, torchdata's
            StatefulDataLoader).
        rng: also the global random states of Python, NumPy and torch.
        others: more objects with state_dict and load_state_dict.

    >>> import torch, cairn, cairn.torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> train = cairn.torch.capture(model=model, optimizer=optimizer)
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     before = model.weight.clone()
    ...     info = m.save(1, {"train": train, "epoch": 3}).wait()
    ...     _ = torch.nn.init.zeros_(model.weight)
    ...     r = m.restore({"train": train, "epoch": None})
    >>> bool((model.weight == before).all()), r.state["epoch"]
    (True, 3)
    """
    named = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "sampler": sampler,
        "loader": loader,
        **others,
    }
    if isinstance(loader, torch.utils.data.DataLoader) and not hasattr(loader, "state_dict"):
        raise Invalid(
            "capture: a plain DataLoader has no position that could be saved; use "
            "cairn.torch.Loader or torchdata's StatefulDataLoader"
        )
    if rng and "rng" in named:
        raise Invalid("capture: the name rng is taken by the random states")
    return Capture({name: value for name, value in named.items() if value is not None}, rng)


class _Batch(List[int]):
    """The examples of a batch. What a worker process draws for it (augmentation) must not depend on
    what that worker did before, since a resume begins with new workers. The workers are sent their
    batches: what a batch is on the other side is a plain list, and the random states there are those
    of this batch. With that neither the dataset nor its ways to be asked are wrapped."""

    def __init__(self, examples: List[int], entropy: List[int]) -> None:
        super().__init__(examples)
        self._entropy = entropy

    def __reduce__(self) -> Any:
        return _received, (list(self), self._entropy)


def _received(examples: List[int], entropy: List[int]) -> List[int]:
    """A batch as a worker gets it, its random states set."""
    words = np.random.SeedSequence(entropy).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    torch.manual_seed(int(words[1]) & 0x7FFFFFFFFFFFFFFF)
    np.random.seed([int(word) & 0xFFFFFFFF for word in words[2:]])
    return examples


class Loader:
    """Batches of a map-style dataset in an order that is a pure function of (seed, epoch), so that
    a resume finds its place in O(1). It draws nothing from the global random state.

    In worker processes (num_workers) what the dataset draws from the global random states of Python,
    NumPy and torch is a function of seed, epoch and batch alone. Without workers it is drawn in this
    process, whose random states a Trainer saves.

    Args:
        dataset: with __len__ and __getitem__.
        batch_size: examples in a batch.
        shuffle: a new order each epoch; else the dataset's own.
        seed: of the order.
        drop_last: leave the last batch out when it is smaller.
        rank, world_size: each rank gets its own share of every epoch.
        options: for torch.utils.data.DataLoader (num_workers, collate_fn, …).

    >>> import torch
    >>> loader = Loader(torch.arange(6), batch_size=2, seed=1)
    >>> batches = iter(loader)
    >>> first = next(batches)
    >>> saved = loader.state_dict()
    >>> rest = [b.tolist() for b in batches]
    >>> again = Loader(torch.arange(6), batch_size=2, seed=1)
    >>> again.load_state_dict(saved)
    >>> [b.tolist() for b in again] == rest
    True
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        for name in ("sampler", "batch_sampler", "generator"):
            if name in options:
                raise Invalid(f"Loader: {name} is the loader's own; it cannot be given")
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise Invalid(f"Loader: a dataset has a length and elements, {a_type(dataset)} has not")
        if whole(batch_size, "Loader: batch_size") < 1:
            raise Invalid(f"Loader: batch_size must be at least 1, not {batch_size}")
        if not 0 <= rank < world_size:
            raise Invalid(f"Loader: rank {rank} is not one of world_size {world_size}")
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._rank = rank
        self._world_size = world_size
        self._options = options
        self.epoch = 0
        self._next = 0  # batch of the epoch
        self._complete = False  # its last batch was given, to somebody who did not ask for more

    draws_nothing = True  # while it reads with workers, from any random state of this process

    @property
    def num_workers(self) -> int:
        """How many processes read.

        >>> import torch, cairn.torch
        >>> cairn.torch.Loader(torch.arange(6), num_workers=2).num_workers
        2
        """
        return int(self._options.get("num_workers", 0))

    def _order(self, epoch: int) -> List[int]:
        count = len(self._dataset)
        if self._shuffle:
            entropy = [self._seed & 0xFFFFFFFFFFFFFFFF, epoch]
            order = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
            indices = order.permutation(count)
        else:
            indices = np.arange(count)
        share = indices[self._rank :: self._world_size]
        if self._world_size > 1:  # all ranks make the same number of steps
            share = share[: count // self._world_size]
        return [int(i) for i in share]

    def _batches(self, epoch: int) -> List[List[int]]:
        order = self._order(epoch)
        size = self._batch_size
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        if self._drop_last and batches and len(batches[-1]) < size:
            batches.pop()
        return batches

    def __len__(self) -> int:
        share = len(self._dataset) // self._world_size
        if self._drop_last:
            return share // self._batch_size
        return -(-share // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        """The rest of this epoch; the next call begins the next one."""
        if self._complete:
            self._begin(self.epoch + 1)
        seeds = [self._seed & 0xFFFFFFFFFFFFFFFF, self.epoch, self._rank]
        batches = [
            _Batch(examples, [*seeds, number])
            for number, examples in enumerate(self._batches(self.epoch))
        ][self._next :]
        workers = torch.Generator()
        workers.manual_seed((self._seed * 1000003 + self.epoch) & 0x7FFFFFFFFFFFFFFF)
        loader = torch.utils.data.DataLoader(
            self._dataset, batch_sampler=batches, generator=workers, **self._options
        )
        for number, batch in enumerate(loader, 1):
            self._next += 1
            self._complete = number == len(batches)
            yield batch
        self._begin(self.epoch + 1)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._next = 0
        self._complete = False

    _cairn_begin_epoch = _begin  # for Trainer

    def set_epoch(self, epoch: int) -> None:
        """Begins at the start of an epoch.

        >>> import torch, cairn.torch
        >>> loader = cairn.torch.Loader(torch.arange(6), batch_size=6, seed=1)
        >>> [first], [second] = [b.tolist() for b in loader], [b.tolist() for b in loader]
        >>> loader.set_epoch(0)
        >>> next(iter(loader)).tolist() == first, first == second
        (True, False)
        """
        if epoch != self.epoch:
            self._begin(epoch)

    def _order_of(self) -> Dict[str, Any]:
        """What decides which examples the first so many batches had."""
        return {
            "seed": self._seed,
            "batch_size": self._batch_size,
            "examples": len(self._dataset),
            "shuffle": bool(self._shuffle),
            "rank": self._rank,
            "world_size": self._world_size,
        }

    def state_dict(self) -> Dict[str, Any]:
        """The epoch, the next batch of it, and what decides the order."""
        return {"epoch": self.epoch, "next": self._next, **self._order_of()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken; Invalid for one of another order."""
        for name, mine in self._order_of().items():
            stored = state.get(name, mine)  # states from before have fewer
            if stored != mine:
                raise Invalid(
                    f"Loader: the state is of {name} {stored}, this loader has {mine}: its position "
                    "would be among other examples"
                )
        self._begin(int(state["epoch"]))
        self._next = int(state["next"])

    # The names that cairn.Trainer knows.
    state = state_dict
    load_state = load_state_dict
