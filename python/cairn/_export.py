"""Exports for serving. Behind cairn.train."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, Optional, Sequence

from . import _location
from ._arguments import PathLike
from .errors import Invalid
from .inference import Signature, _native_module, _onnx, _signatures
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
    if isinstance(given.feed_names, str) or isinstance(given.target_names, str):
        raise Invalid("feed_names and target_names are lists of names")
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
    model, path = _onnx(
        given.program,
        given.feed_names,
        given.target_names,
        given.example_inputs,
        given.dynamic_axes,
    )
    found = _native_module().export_model(
        directory=_location.text_of(directory),
        model=model,
        model_path=path,
        feed_names=[str(n) for n in given.feed_names],
        target_names=[str(n) for n in given.target_names],
        tables=described,
        variables={str(k): str(v) for k, v in given.variables.items()},
        increments=bool(increments),
    )
    return ExportedModel(
        path=found["path"],
        version=found["version"],
        feeds=_signatures(found["inputs"]),
        targets=_signatures(found["outputs"]),
        weights=found["weights"],
    )
