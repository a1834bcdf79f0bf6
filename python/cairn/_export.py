"""Exports for serving. Behind cairn.train."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, List, Mapping, Optional, Sequence

from . import _location
from ._arguments import PathLike, names_by_name
from ._wording import a_type
from .errors import Invalid
from .inference import Signature, _native_module, _signatures, graph_of
from .initializers import Constant
from .table import _DTYPES

__all__ = ["ExportedModel", "ServingInputReceiver", "export"]


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """What export_saved_model wrote; os.fspath gives its path.

    Attributes:
        path: of the new numbered directory.
        version: its number.
        feeds, targets: of the graph. Feeds that are rows of a table are asked for as ids.
        weights: dense weights of the graph, which checkpoints bring anew.

    >>> import os, onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] user) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (user, w) }')
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> made = cairn.train.export_saved_model("export", ["user"], ["y"], graph, {"user": users})
    >>> os.fspath(made) == made.path, made.version, [feed.name for feed in made.feeds], made.weights
    (True, 1, ['user'], ['w'])
    """

    path: str
    version: int
    feeds: List[Signature]
    targets: List[Signature]
    weights: List[str]

    def __fspath__(self) -> str:
        return self.path


@dataclasses.dataclass
class ServingInputReceiver:
    """What a serving_input_receiver_fn gives: the arguments of export_saved_model.

    Attributes:
        program: an ONNX model, or a torch module (then with example_inputs).
        feed_names, target_names: inputs and outputs.
        tables: {input: table} for inputs that are rows of a table.
        variables: {weight: variable in the checkpoints} where their names differ.

    >>> import onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] user) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (user, w) }')
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> def serving_input_receiver_fn():
    ...     return cairn.train.ServingInputReceiver(graph, ["user"], ["y"], tables={"user": users})
    >>> sorted(serving_input_receiver_fn().tables)
    ['user']
    """

    program: Any
    feed_names: Sequence[str]
    target_names: Sequence[str]
    tables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    example_inputs: Optional[Sequence[Any]] = None
    dynamic_axes: Optional[Mapping[str, Mapping[int, str]]] = None


def export(directory: PathLike, given: ServingInputReceiver, increments: bool) -> ExportedModel:
    """Writes the export; whether increments are saved was checked by the caller."""
    for names in (given.feed_names, given.target_names):
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise Invalid(f"feed_names and target_names are lists of names, not {a_type(names)}")
    if not isinstance(given.tables, Mapping):
        raise Invalid(f"tables must be a dict {{input: table}}, not {a_type(given.tables)}")
    described = {}
    for name, table in given.tables.items():
        missing = [a for a in ("name", "dim", "dtype") if not hasattr(table, a)]
        if missing:
            raise Invalid(
                f"tables: {name!r}: a {type(table).__name__} is no table (it has no {missing[0]})"
            )
        initializer = getattr(table, "initializer", None)
        default = initializer.value if isinstance(initializer, Constant) else 0.0
        described[str(name)] = (table.name, table.dim, _DTYPES[table.dtype], float(default))
    with contextlib.ExitStack() as scratch:
        model, path = graph_of(
            given.program,
            given.feed_names,
            given.target_names,
            given.example_inputs,
            given.dynamic_axes,
            scratch,
        )
        found = _native_module().export_model(
            directory=_location.text_of(directory),
            model=model,
            model_path=path,
            feed_names=[str(n) for n in given.feed_names],
            target_names=[str(n) for n in given.target_names],
            tables=described,
            variables=names_by_name(given.variables, "variables"),
            increments=bool(increments),
        )
    return ExportedModel(
        path=found["path"],
        version=found["version"],
        feeds=_signatures(found["inputs"]),
        targets=_signatures(found["outputs"]),
        weights=found["weights"],
    )
