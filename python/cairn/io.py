"""Saving and loading variables by role, and models for inference.

A program is a :class:`cairn.Scope` (None: the default one) or a ``torch.nn.Module``, with its
optimizer where slots, learning rates and step counters are wanted too.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _arrays, _location, _native, _program
from ._arguments import PathLike, name_set, names_by_name, text_argument
from ._program import Predicate
from ._restore import CheckpointInfo
from ._torch_names import uncompiled_name
from ._wording import a_type
from .errors import Invalid, Mismatch
from .inference import (
    InferenceProgram,
    SavedInferenceModel,
    Signature,
    load_inference_model,
    save_inference_model,
)
from .manager import CheckpointManager
from .scope import Variable

__all__ = [
    "InferenceProgram",
    "LoadedVars",
    "SavedInferenceModel",
    "SavedVars",
    "Signature",
    "list_vars",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_vars",
    "read",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
]

_SAVES = {None: "save_vars", "parameter": "save_params", "persistable": "save_persistables"}

Vars = Optional[Iterable[Union[str, Variable]]]


@dataclasses.dataclass(frozen=True)
class SavedVars:
    """What a save wrote.

    Attributes:
        names: of the variables, sorted.
        bytes: of the variables.
        info: of the checkpoint that holds them.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w, rate = scope.parameter("w", np.zeros(4)), scope.persistable("rate", np.array([0.1]))
    >>> saved = cairn.io.save_persistables("model", scope)
    >>> saved.names, saved.bytes, saved.info.kind
    (['rate', 'w'], 40, 'full')
    """

    names: List[str]
    bytes: int
    info: CheckpointInfo


@dataclasses.dataclass(frozen=True)
class LoadedVars:
    """What a load filled.

    Attributes:
        names: of the variables.
        bytes: of the variables.
        skipped: (name, reason) of what was left out, here or there.
        path: of the checkpoint or file.

    >>> import numpy as np, cairn
    >>> old, new = cairn.Scope(), cairn.Scope()
    >>> w, b = old.parameter("w", np.ones(4)), old.parameter("b", np.ones(1))
    >>> saved = cairn.io.save_params("model", old)
    >>> w = new.parameter("w", np.zeros(4))
    >>> loaded = cairn.io.load_params("model", new, strict=False)
    >>> loaded.names, loaded.bytes, [name for name, reason in loaded.skipped]
    (['w'], 32, ['b'])
    """

    names: List[str]
    bytes: int
    skipped: List[Tuple[str, str]]
    path: str


def list_vars(program: Any = None, optimizer: Any = None) -> List[Variable]:
    """The variables of a program that can be saved, and a scope's temporaries: name, role, dtype,
    shape, bytes.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.zeros((2, 3), np.float32))
    >>> [(v.name, v.role, v.dtype, v.shape, v.bytes) for v in cairn.io.list_vars(scope)]
    [('w', 'parameter', 'float32', (2, 3), 24)]
    """
    made = _program.as_program(program, optimizer)
    if isinstance(made, _program.ScopeProgram):
        return made._scope.vars()
    return [entry.variable for entry in made.entries(loading=False)]


def save_vars(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
    *,
    optimizer: Any = None,
) -> SavedVars:
    """Saves the variables that are named, or for which the predicate is true (neither: all).

    The save is durable when this returns, and replaces an earlier one in the directory only then.

    Args:
        dirname: a directory for this save alone.
        program: a Scope, a torch module, or None for the default scope.
        vars: names or variables.
        predicate: called with each Variable.
        filename: None for a file per variable, else the name of the one file for all.
        optimizer: of a torch module.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w, head = scope.parameter("body/w", np.ones(2)), scope.parameter("head/w", np.ones(2))
    >>> cairn.io.save_vars("body", scope, predicate=lambda var: var.name.startswith("body/")).names
    ['body/w']
    >>> cairn.io.save_vars("head", scope, vars=["head/w"]).names
    ['head/w']
    """
    return _save(dirname, program, None, vars, predicate, filename, optimizer)


def save_params(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
) -> SavedVars:
    """Saves the parameters: enough to predict.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.arange(3.0))
    >>> saved = cairn.io.save_params("model", scope)
    >>> saved.names, saved.bytes
    (['w'], 24)
    """
    return _save(dirname, program, "parameter", vars, predicate, filename, None)


def save_persistables(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
    *,
    optimizer: Any = None,
) -> SavedVars:
    """Saves all that training needs to go on: parameters, slots, learning rates, counters.

    Of a :class:`cairn.ps.Client` as program: what the servers have of the tables and variables it
    declared, pulled through this trainer; see :meth:`cairn.ps.Client.save_persistables`.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.ones(2))
    >>> velocity = scope.persistable("w/velocity", np.zeros(2))
    >>> batch = scope.temporary("batch", np.zeros(2))
    >>> cairn.io.save_persistables("model", scope).names
    ['w', 'w/velocity']
    """
    if hasattr(program, "save_persistables"):
        if vars is not None or predicate is not None or filename is not None:
            raise Invalid("save_persistables: of a client everything is saved, in its own files")
        return _saved_by_client(dirname, program)
    return _save(dirname, program, "persistable", vars, predicate, filename, optimizer)


def _file_name(given: Any) -> str:
    if not text_argument(given, "filename"):
        raise Invalid("filename is empty; None is for a file per variable")
    return given


def _saved_by_client(dirname: PathLike, client: Any) -> SavedVars:
    path = client.save_persistables(dirname)
    with CheckpointManager(dirname, read_only=True) as manager:
        saved = os.path.basename(path)  # what is in front of it may be written otherwise
        info = next(info for info in manager.list() if os.path.basename(info.path) == saved)
    return SavedVars(client.names(), info.bytes, info)


def _save(
    dirname: PathLike,
    program: Any,
    role: Optional[str],
    vars: Vars,
    predicate: Optional[Predicate],
    filename: Optional[str],
    optimizer: Any,
) -> SavedVars:
    made = _program.as_program(program, optimizer)
    if vars is None and predicate is None:
        made.check_whole(_SAVES[role])
    chosen = _program.select(made.entries(loading=False), role, vars, predicate)
    views, keep, meanings = _program.sources(chosen)
    found = _native.save_vars(
        directory=_location.text_of(dirname),
        variables=views,
        filename="" if filename is None else _file_name(filename),
        meanings=meanings,
    )
    del keep
    return SavedVars(found["names"], found["bytes"], CheckpointInfo(**found["info"]))


def load_vars(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
    *,
    optimizer: Any = None,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    skip: Optional[Iterable[str]] = None,
    format: Optional[str] = None,
    names: Optional[Sequence[str]] = None,
) -> LoadedVars:
    """Loads the variables that are named, or for which the predicate is true.

    Names, shapes and dtypes of all of them are compared, and every checksum is verified, before any
    memory changes: when this raises, every variable is as it was.

    Args:
        dirname: a save, any checkpoint, a directory of checkpoints (the latest), or a file of
            Paddle, torch, safetensors or ONNX; a path or URL.
        program, vars, predicate, optimizer: as for :func:`save_vars`.
        filename: of a file in a directory that is not Cairn's (Paddle's combined file); a save of
            Cairn's knows its own files.
        strict: False loads what matches and reports the rest in `.skipped`.
        rename: {stored name: variable}.
        skip: stored names or variables to leave alone.
        format: of a foreign file: "paddle", "pdparams", "torch", "safetensors", "onnx"; None: by
            its name and bytes.
        names: of the tensors of Paddle's combined file, in its order (sorted by name, where Paddle
            wrote it).

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w, b = scope.parameter("w", np.ones(2)), scope.parameter("b", np.ones(1))
    >>> saved = cairn.io.save_vars("model", scope)
    >>> w[:], b[:] = 0, 0
    >>> cairn.io.load_vars("model", scope, vars=["w"]).names, w.tolist(), b.tolist()
    (['w'], [1.0, 1.0], [0.0])
    """
    stored = "all" if vars is None and predicate is None else "asked"
    asked = (vars, predicate)
    options = _Options(filename, strict, rename, skip, format, names)
    return _load(dirname, program, None, asked, optimizer, stored, options)


def load_params(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
    *,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    skip: Optional[Iterable[str]] = None,
    format: Optional[str] = None,
    names: Optional[Sequence[str]] = None,
) -> LoadedVars:
    """Loads the parameters, also out of a save of persistables. See :func:`load_vars`.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.arange(3.0))
    >>> saved = cairn.io.save_params("model", scope)
    >>> w[:] = 0
    >>> cairn.io.load_params("model", scope).names, w.tolist()
    (['w'], [0.0, 1.0, 2.0])
    """
    stored = "parameters" if vars is None and predicate is None else "asked"
    options = _Options(filename, strict, rename, skip, format, names)
    return _load(dirname, program, "parameter", (vars, predicate), None, stored, options)


def load_persistables(
    dirname: PathLike,
    program: Any = None,
    vars: Vars = None,
    predicate: Optional[Predicate] = None,
    filename: Optional[str] = None,
    *,
    optimizer: Any = None,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    skip: Optional[Iterable[str]] = None,
    format: Optional[str] = None,
    names: Optional[Sequence[str]] = None,
) -> LoadedVars:
    """Loads all that training needs to go on. See :func:`load_vars`.

    >>> import numpy as np, cairn
    >>> scope = cairn.Scope()
    >>> w, step = scope.parameter("w", np.ones(2)), scope.persistable("step", np.array([40]))
    >>> saved = cairn.io.save_persistables("model", scope)
    >>> w[:], step[:] = 0, 0
    >>> loaded = cairn.io.load_persistables("model", scope)
    >>> w.tolist(), step.tolist()
    ([1.0, 1.0], [40])
    """
    stored = "all" if vars is None and predicate is None else "asked"
    options = _Options(filename, strict, rename, skip, format, names)
    asked = (vars, predicate)
    return _load(dirname, program, "persistable", asked, optimizer, stored, options)


@dataclasses.dataclass
class _Options:
    filename: Optional[str]
    strict: bool
    rename: Optional[Mapping[str, str]]
    skip: Optional[Iterable[str]]
    format: Optional[str]
    names: Optional[Sequence[str]]


def _load(
    dirname: PathLike,
    program: Any,
    role: Optional[str],
    asked: Tuple[Vars, Optional[Predicate]],
    optimizer: Any,
    stored: str,
    options: _Options,
) -> LoadedVars:
    made = _program.as_program(program, optimizer)
    made.check_loadable()
    chosen = _program.select(made.entries(loading=True), role, *asked)
    path = _location.text_of(dirname)
    try:
        return _fill_matching(path, made, chosen, stored, options)
    except Mismatch as error:
        # Of a module that torch.compile wrapped when others saved it.
        compiled = {n: uncompiled_name(n) for n in error.unexpected if uncompiled_name(n) != n}
        if not compiled or not isinstance(made, _program.TorchProgram):
            raise
        renamed = {**compiled, **names_by_name(options.rename, "rename")}
        again = dataclasses.replace(options, rename=renamed)
        return _fill_matching(path, made, chosen, stored, again)


def _fill_matching(
    path: str,
    made: _program.Program,
    chosen: List[_program.Entry],
    stored: str,
    options: _Options,
) -> LoadedVars:
    try:
        return _fill(path, made, chosen, stored, options)
    except Mismatch as error:
        there = {entry.name for entry in chosen}
        more = [e for e in made.made_when_stored(error.unexpected) if e.name not in there]
        if more:
            return _fill_matching(path, made, chosen + more, stored, options)
        missing = [e for e in chosen if e.name in set(error.missing)]
        otherwise = {e.name: e.otherwise() for e in missing if e.others}
        if otherwise:
            try:
                again = [otherwise.get(e.name, e) for e in chosen]
                return _fill_matching(path, made, again, stored, options)
            except Mismatch:
                raise error from None
        # Slots are made by the first step that has a gradient for their parameter. What had none
        # before the save has no slots there, and needs none here.
        names = {e.first_name for e in missing}
        unmade = set().union(*(group for group in made.made_by_loading() if group <= names))
        before = _as_before(chosen, error.mismatched)
        if unmade != names or error.unexpected or len(before) != len(error.mismatched):
            raise
        if not unmade and not before:
            raise
        again = [before.get(e.name, e) for e in chosen if e.first_name not in unmade]
        return _fill_matching(path, made, again, stored, options)


def _as_before(entries: List[_program.Entry], mismatched: List[str]) -> Dict[str, _program.Entry]:
    """Entries that do not match and that earlier saves had otherwise, as they had them."""
    found = {}
    for entry in entries:
        start = f"{entry.name}: "
        for line in mismatched if entry.before is not None else ():
            before = entry.before(line[len(start) :]) if line.startswith(start) else None
            if before is not None:
                found[entry.name] = before
    return found


def _fill(
    path: str,
    program: _program.Program,
    entries: List[_program.Entry],
    stored: str,
    options: _Options,
) -> LoadedVars:
    views, targets = _program.targets(entries)
    meanings = {e.name: e.meaning or t.meaning for e, t in zip(entries, targets)}
    found = _native.load_vars(
        path=path,
        variables=views,
        stored=stored,
        strict=bool(options.strict),
        rename=names_by_name(options.rename, "rename"),
        skip=name_set(options.skip),
        filename="" if options.filename is None else text_argument(options.filename, "filename"),
        format=_format(options.format),
        names=_tensor_names(options.names),
        meanings={name: meaning for name, meaning in meanings.items() if meaning is not None},
    )
    filled = set(found["names"])
    for entry, target in zip(entries, targets):
        if entry.name not in filled:
            continue
        if target.finish is not None:
            target.finish()
        if entry.put is not None:
            entry.put()
    program.loaded(found["names"])
    return LoadedVars(found["names"], found["bytes"], found["skipped"], found["path"])


def _format(given: Any) -> str:
    return "guess" if given is None else text_argument(given, "format")


def _tensor_names(given: Any) -> List[str]:
    if given is None:
        return []
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise Invalid(f"names must be a list of names, not {a_type(given)}")
    return [text_argument(name, "names: a name") for name in given]


def read(
    path: PathLike, format: Optional[str] = None, names: Optional[Sequence[str]] = None
) -> Dict[str, np.ndarray]:
    """The tensors of a file that another program wrote, by name, as NumPy arrays. Nothing in it is
    executed.

    Args:
        path: a file of torch, Paddle (.pdparams, .pdopt, tensor files), safetensors or ONNX (its
            initializers), or a directory of Paddle's one-variable files or of safetensors; a path
            or URL.
        format, names: as for :func:`load_vars`.

    >>> import numpy as np, cairn, cairn.convert
    >>> info = cairn.save("model", {"w": np.ones(2)})
    >>> cairn.io.read(f"{info.path}/__model__")
    {'w': array([1., 1.])}
    """
    made: Dict[str, np.ndarray] = {}
    found = _native.read_foreign(
        path=_location.text_of(path), format=_format(format), names=_tensor_names(names)
    )
    for _, name, dtype, shape, data in found:
        note = {}
        if dtype == "C64":
            note, dtype, shape = {"complex": "complex64"}, "F32", (*shape, 2)
        made[name] = _arrays.make("numpy", dtype, tuple(shape), data, note, name)
    return made
