"""What cairn.io saves and loads: the variables of a Scope, or of a torch module with its optimizer."""

from __future__ import annotations

import collections
import copy
import dataclasses
import hashlib
import numbers
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arrays
from ._torch_names import uncompiled_names
from ._wording import a_type
from .errors import Error, Invalid
from .scope import Scope, Variable, default_scope

Predicate = Callable[[Variable], bool]


@dataclasses.dataclass
class Entry:
    """A variable and how its values are reached."""

    variable: Variable
    value: Any  # an array, or a torch tensor; for `put` the memory that is filled before it
    put: Optional[Callable[[], None]] = None  # takes the loaded value where it belongs
    meaning: Optional[str] = None  # what its elements stand for, where its dtype does not say it
    # As earlier saves had it, told by what a mismatch says of it; None: they had it so too.
    before: Optional[Callable[[str], Optional["Entry"]]] = None
    others: Tuple[str, ...] = ()  # more names of it, under which another program may have saved it
    first_name: str = ""  # of the entry that this one is under one of its other names

    def __post_init__(self) -> None:
        self.first_name = self.first_name or self.name

    @property
    def name(self) -> str:
        return self.variable.name

    def otherwise(self) -> "Entry":
        """The same under the next of its other names."""
        variable = dataclasses.replace(self.variable, name=self.others[0])
        return dataclasses.replace(self, variable=variable, others=self.others[1:])


class Program:
    """The variables of a program by role."""

    def entries(self, loading: bool) -> List[Entry]:
        """All variables that can be saved; with `loading`, also those that a load would make."""
        raise NotImplementedError

    def check_loadable(self) -> None:
        """Raises when nothing may be loaded into the program."""

    def loaded(self, names: Sequence[str]) -> None:
        """These variables have their values out of a file now."""

    def check_whole(self, what: str) -> None:
        """Raises when something that is learned is none of the variables."""

    def made_by_loading(self) -> Sequence[FrozenSet[str]]:
        """Groups of variables that do not exist yet and need not: a save may lack all of one."""
        return ()

    def made_when_stored(self, names: Sequence[str]) -> List[Entry]:
        """Variables among these that do not exist here and are made where a save has them."""
        return []


class ScopeProgram(Program):
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def entries(self, loading: bool) -> List[Entry]:
        return [Entry(v, self._scope[v.name]) for v in self._scope.vars("persistable")]

    def check_loadable(self) -> None:
        if self._scope.frozen:
            raise Error(
                "a frozen scope (a clone for testing) cannot be loaded into; load into the scope "
                "that it was cloned from"
            )

    def loaded(self, names: Sequence[str]) -> None:
        self._scope._native.mark_loaded(list(names))


class TorchProgram(Program):
    """A module's parameters; its buffers and the optimizer's slots, learning rates and step counters
    as persistables. Slots are named after their parameters, never after positions."""

    def __init__(self, module: Any, optimizer: Any) -> None:
        self._module = module
        self._optimizer = optimizer
        self._fresh: List[FrozenSet[str]] = []  # slots not made yet, those of each parameter
        self._names: Dict[int, str] = {}  # of parameters, by id
        self._others: Dict[str, Tuple[str, ...]] = {}  # more names of parameters

    def entries(self, loading: bool) -> List[Entry]:
        stored = self._module.state_dict(keep_vars=True)
        parameters = uncompiled_names(dict(self._module.named_parameters()))
        others = _other_names(self._module.named_parameters(remove_duplicate=False), parameters)
        out = []
        for name, tensor in parameters.items():
            if hasattr(tensor, "materialize"):  # torch.nn.Lazy…
                raise Invalid(
                    f"{name!r} has no shape yet (a lazy module): call the module once before, with a "
                    "batch"
                )
            variable = _variable(name, "parameter", tensor, tensor.requires_grad)
            out.append(Entry(variable, tensor, others=others.get(name, ())))
        self._others = others
        buffers = {n: t for n, t in self._module.named_buffers() if n in stored}  # others are no state
        buffers = uncompiled_names(buffers)
        others = _other_names(self._module.named_buffers(remove_duplicate=False), buffers)
        for name, tensor in buffers.items():
            variable = _variable(name, "persistable", tensor)
            out.append(Entry(variable, tensor, others=others.get(name, ())))
        if self._optimizer is not None:
            self._names = {id(p): n for n, p in parameters.items()}
            out.extend(self._slots(loading))
        return out

    def check_whole(self, what: str) -> None:
        from ._torch_embedding import module_tables

        extra = [name for name in self._module.state_dict() if name.endswith("_extra_state")]
        if extra and what != "save_params":
            raise Invalid(
                f"{what}: {extra[0]!r} of the module (get_extra_state) is no variable and would be left "
                "out; save the module with a CheckpointManager, which has it, or choose the variables "
                "by vars or predicate"
            )
        tables = module_tables(self._module)
        if tables:
            raise Invalid(
                f"{what}: the rows of table {tables[0].name!r} in the module are no variables and "
                "would be left out; save the module with a CheckpointManager, which has them, or "
                "choose the dense variables by vars or predicate"
            )

    def made_by_loading(self) -> Sequence[FrozenSet[str]]:
        return self._fresh

    def made_when_stored(self, names: Sequence[str]) -> List[Entry]:
        # A scheduler makes it: after the load perhaps, or never again.
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        key = "initial_lr"
        return [
            self._rate(number, key)
            for number, group in enumerate(groups)
            if f"optimizer/group_{number}/{key}" in names and key not in group
        ]

    def _slots(self, loading: bool) -> Iterable[Entry]:
        self._fresh = []
        names = self._names
        for number, group in enumerate(self._optimizer.param_groups):
            for key in ("lr", "initial_lr"):
                if key in group:
                    yield self._rate(number, key)
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise Invalid(
                        "the optimizer holds a parameter that the module does not have; give the "
                        "module that it was made for"
                    )
                yield from self._slots_of(parameter, names[id(parameter)], loading)

    def _slots_of(self, parameter: Any, name: str, loading: bool) -> Iterable[Entry]:
        state = self._optimizer.state.get(parameter)
        if state:
            for slot in sorted(k for k, v in state.items() if v is not None):
                yield self._slot(name, state, slot)
            return
        if not loading or not parameter.requires_grad:
            return
        # The optimizer has made no step: its slots are made as it would make them, and given to it
        # when they are filled.
        made = _first_state(self._optimizer, parameter)
        entries = [self._slot(name, made, slot) for slot in sorted(made)]
        self._fresh.append(frozenset(entry.name for entry in entries))
        for entry in entries:
            fill = entry.put

            def put(fill: Optional[Callable[[], None]] = fill) -> None:
                if fill is not None:
                    fill()
                self._optimizer.state[parameter] = made

            entry.put = put
            yield entry

    def _slot(self, parameter: str, state: Dict[str, Any], slot: str) -> Entry:
        entry = _setting(f"optimizer/{parameter}/{slot}", state, slot)
        entry.others = tuple(f"optimizer/{n}/{slot}" for n in self._others.get(parameter, ()))
        return entry

    def _rate(self, number: int, key: str) -> Entry:
        """Groups have no names but their numbers. Where there are several, it is noted whose rate it is: in
        another order each would get that of another one."""
        groups = self._optimizer.param_groups
        whose = None
        if len(groups) > 1:
            names = [self._names.get(id(p), "") for p in groups[number]["params"]]
            whose = _learning_rate_of([min(name, *self._others.get(name, (name,))) for name in names])
        return _rate(f"optimizer/group_{number}/{key}", groups[number], key, whose)


def _learning_rate_of(parameters: Sequence[str]) -> str:
    """What identifies a group of parameters, and names some of them.

    >>> _learning_rate_of(["head.weight", "head.bias"])
    'the learning rate of head.bias, head.weight'
    """
    names = sorted(parameters)
    listed = ", ".join(names[:2])
    if len(names) > 2:
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
        listed += f" and {len(names) - 2} more ({digest})"
    return f"the learning rate of {listed}"


def _other_names(
    all_names: Iterable[Tuple[str, Any]], named: Dict[str, Any]
) -> Dict[str, Tuple[str, ...]]:
    """More names of what a module has in several places (weights that are tied). Which one is the first
    depends on the order in which the module was built."""
    first = {id(tensor): name for name, tensor in named.items()}
    others: Dict[str, Tuple[str, ...]] = {}
    for name, tensor in uncompiled_names(dict(all_names)).items():
        known = first.get(id(tensor), name)
        if known != name:
            others[known] = (*others.get(known, ()), name)
    return others


def _variable(name: str, role: str, value: Any, trainable: bool = True) -> Variable:
    if _arrays.is_torch(value):
        dtype = str(value.dtype)[len("torch.") :]
        size = value.numel() * value.element_size()
    else:
        dtype, size = value.dtype.name, value.nbytes
    return Variable(name, role, dtype, tuple(value.shape), size, trainable)


def _setting(name: str, holder: Dict[str, Any], key: str) -> Entry:
    """A tensor that is filled in place, or a number that is taken over after the load."""
    value = holder[key]
    if _arrays.is_torch(value):
        return Entry(_variable(name, "persistable", value), value)
    kind = type(value)
    if kind not in (int, float, bool) and not isinstance(value, np.generic):
        raise Invalid(
            f"{name}: {a_type(value)} cannot be saved here; numbers and tensors can. A CheckpointManager "
            "saves such an optimizer (cairn.torch.capture)"
        )
    memory = np.array(value)

    def put() -> None:
        holder[key] = kind(memory[()])

    return Entry(_variable(name, "persistable", memory), memory, put)


def _rate(name: str, holder: Dict[str, Any], key: str, whose: Optional[str]) -> Entry:
    """A learning rate: a tensor, or a float whatever number it was given as. A scheduler makes a
    float of the int that training began with, and the next run begins with the int again."""
    value = holder.get(key, 0.0)
    if _arrays.is_torch(value):
        tensor = _setting(name, holder, key)
        unmarked = dataclasses.replace(tensor)
        tensor.meaning = whose
        tensor.before = lambda why: unmarked if why.startswith("stored plain numbers") else None
        return tensor
    if not isinstance(value, (numbers.Real, np.bool_)):
        raise Invalid(f"{name}: {a_type(value)} is no learning rate; numbers and tensors are")

    def entry(memory: Any) -> Entry:
        def put() -> None:
            holder[key] = float(memory[()])

        return Entry(_variable(name, "persistable", memory), memory, put)

    def before(why: str) -> Optional[Entry]:
        if whose is not None and why.startswith("stored plain numbers"):
            return _rate(name, holder, key, None)
        return entry(np.zeros((), np.int64)) if why.startswith("stored I64") else None

    made = entry(np.array(float(value)))
    made.meaning, made.before = whose, before
    return made


def _first_state(optimizer: Any, parameter: Any) -> Dict[str, Any]:
    """The slots that the optimizer would make for the parameter, all zero: learned from a step of a
    copy of it over a stand-in without memory (the meta device) where that works."""
    import torch

    failure: Optional[Exception] = None
    for device in ("meta", "cpu"):
        stand_in = torch.nn.Parameter(torch.zeros_like(parameter, device=device))
        stand_in.grad = torch.zeros_like(stand_in)
        try:
            state = _step_of_a_copy(optimizer, parameter, stand_in)
            break
        except Exception as error:
            failure = error
    else:
        raise Invalid(
            f"cannot tell which slots a fresh {type(optimizer).__name__} has ({failure}); make one "
            "step before loading, or leave the optimizer out"
        ) from failure
    made: Dict[str, Any] = {}
    for slot, value in state.items():
        if _arrays.is_torch(value):
            # Step counters stay where the optimizer keeps them, on the host.
            host = value.dim() == 0 and value.device.type != "meta"
            where = value.device if host else parameter.device
            made[slot] = torch.zeros_like(value, device=where)
        elif value is not None:
            made[slot] = type(value)(0)
    return made


def _step_of_a_copy(optimizer: Any, parameter: Any, stand_in: Any) -> Dict[str, Any]:
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    twin = copy.copy(optimizer)  # without hooks; state and groups are replaced
    twin.state = collections.defaultdict(dict)
    options = {k: v for k, v in group.items() if k != "params"}
    options.update({k: False for k in ("foreach", "fused", "capturable") if k in options})
    twin.param_groups = [{**options, "params": [stand_in]}]
    twin.step()
    return dict(twin.state[stand_in])


def as_program(program: Any, optimizer: Any) -> Program:
    """Invalid, saying what can be given, for anything else than a Scope or a torch module."""
    if program is None:
        program = default_scope()
    if isinstance(program, Scope):
        if optimizer is not None:
            raise Invalid("optimizer: a Scope holds its optimizer's slots itself, as persistables")
        return ScopeProgram(program)
    torch = _arrays.torch_or_none()
    if torch is not None and isinstance(program, torch.nn.Module):
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise Invalid(f"optimizer: {a_type(optimizer)} is no torch optimizer")
        return TorchProgram(program, optimizer)
    raise Invalid(
        f"program: {a_type(program)} is none; a cairn.Scope, a torch.nn.Module and None "
        "(the default scope) are"
    )


def select(
    entries: List[Entry],
    role: Optional[str],
    vars: Optional[Iterable[Union[str, Variable]]],
    predicate: Optional[Predicate],
) -> List[Entry]:
    """The entries of a role that are named in `vars` and for which `predicate` is true."""
    chosen = [e for e in entries if role != "parameter" or e.variable.role == "parameter"]
    if predicate is not None and not callable(predicate):
        raise Invalid(f"predicate must be callable, not {a_type(predicate)}")
    if vars is not None:
        if isinstance(vars, (str, Variable)):
            vars = [vars]
        if not isinstance(vars, Iterable):
            raise Invalid(f"vars must be a list of names or variables, not {a_type(vars)}")
        wanted = {v.name if isinstance(v, Variable) else str(v) for v in vars}
        unknown = sorted(wanted - {e.name for e in chosen})
        if unknown:
            raise Invalid(f"vars: there is no {role or 'variable'} {unknown[0]!r} to save or load")
        chosen = [e for e in chosen if e.name in wanted]
    if predicate is not None:
        chosen = [e for e in chosen if predicate(e.variable)]
    return chosen


def sources(entries: List[Entry]) -> Tuple[List[Tuple[Any, ...]], List[Any], Dict[str, str]]:
    """What the native module saves, what must live until it has, and what the elements stand for
    where their dtype in the file does not say it."""
    views, keep = [], []
    meanings: Dict[str, str] = {}
    for entry in entries:
        source = _arrays.source(entry.value, entry.name)
        meaning = entry.meaning or _arrays.meaning(source.note)
        if meaning is not None:
            meanings[entry.name] = meaning
        views.append((entry.name, entry.variable.role, source.stored, source.shape, source.address))
        keep.append(source.keep)
    return views, keep, meanings


def targets(entries: List[Entry]) -> Tuple[List[Tuple[Any, ...]], List[_arrays.Target]]:
    """What the native module fills."""
    views, made = [], []
    for entry in entries:
        value = entry.value.detach() if _arrays.is_torch(entry.value) else entry.value
        target = _arrays.target(value, entry.name)
        views.append((entry.name, entry.variable.role, target.stored, target.shape, target.address))
        made.append(target)
    return views, made
