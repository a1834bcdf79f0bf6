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

    >>> import numpy as np, tempfile, cairn
    >>> scope = cairn.Scope()
    >>> w = scope.parameter("w", np.arange(3.0))
    >>> saved = cairn.io.save_params(tempfile.mkdtemp() + "/model", scope)
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
    """
    if hasattr(program, "save_persistables"):
        if vars is not None or predicate is not None or filename is not None:
            raise Invalid("save_persistables: of a client everything is saved, in its own files")
        return _saved_by_client(dirname, program)
    return _save(dirname, program, "persistable", vars, predicate, filename, optimizer)


def _saved_by_client(dirname: PathLike, client: Any) -> SavedVars:
    path = client.save_persistables(dirname)
    with CheckpointManager(dirname, read_only=True) as manager:
        info = next(info for info in manager.list() if os.fspath(info.path) == path)
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
    views, keep = _program.sources(chosen)
    found = _native.save_vars(
        directory=_location.text_of(dirname),
        variables=views,
        filename="" if filename is None else text_argument(filename, "filename"),
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
            Paddle, torch, safetensors or ONNX.
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

    >>> import numpy as np, tempfile, cairn
    >>> scope, path = cairn.Scope(), tempfile.mkdtemp() + "/model"
    >>> w = scope.parameter("w", np.arange(3.0))
    >>> saved = cairn.io.save_params(path, scope)
    >>> w[:] = 0
    >>> cairn.io.load_params(path, scope).names, w.tolist()
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
    """Loads all that training needs to go on. See :func:`load_vars`."""
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
    if options.filename and not _is_cairns(path):
        path = os.path.join(path, options.filename)
    try:
        return _fill(path, made, chosen, stored, options)
    except Mismatch as error:
        # An optimizer that has made no step has no slots; a save of one neither.
        fresh = set(made.made_by_loading())
        if not fresh or set(error.missing) != fresh or error.unexpected or error.mismatched:
            raise
        return _fill(path, made, [e for e in chosen if e.name not in fresh], stored, options)


def _fill(
    path: str,
    program: _program.Program,
    entries: List[_program.Entry],
    stored: str,
    options: _Options,
) -> LoadedVars:
    views, targets = _program.targets(entries)
    found = _native.load_vars(
        path=path,
        variables=views,
        stored=stored,
        strict=bool(options.strict),
        rename=names_by_name(options.rename, "rename"),
        skip=name_set(options.skip),
        format=options.format or "guess",
        names=list(options.names or ()),
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


def _is_cairns(path: str) -> bool:
    if _location.is_remote(path):
        return True  # files of other programs are read from local disks only
    return any(os.path.isfile(os.path.join(path, name)) for name in ("cairn.json", "manifest.json"))


def read(
    path: PathLike, format: Optional[str] = None, names: Optional[Sequence[str]] = None
) -> Dict[str, np.ndarray]:
    """The tensors of a file that another program wrote, by name, as NumPy arrays. Nothing in it is
    executed.

    Args:
        path: a file of torch, Paddle (.pdparams, .pdopt, tensor files), safetensors or ONNX (its
            initializers), or a directory of Paddle's one-variable files or of safetensors.
        format, names: as for :func:`load_vars`.
    """
    made: Dict[str, np.ndarray] = {}
    found = _native.read_foreign(
        path=_location.text_of(path), format=format or "guess", names=list(names or ())
    )
    for _, name, dtype, shape, data in found:
        note = {}
        if dtype == "C64":
            note, dtype, shape = {"complex": "complex64"}, "F32", (*shape, 2)
        made[name] = _arrays.make("numpy", dtype, tuple(shape), data, note, name)
    return made
