"""Inference models. Private: cairn.inference is the only user."""

from collections.abc import Iterable, Sequence
from typing import Any

_Signature = list[tuple[str, str, tuple[int, ...]]]

def save(
    *,
    directory: str,
    model: bytes,
    model_path: str,
    feed_names: Sequence[str],
    target_names: Sequence[str],
) -> dict[str, Any]: ...

class Model:
    @staticmethod
    def load(directory: str, plugin: str, threads: int) -> Model: ...
    def run(self, feeds: Sequence[tuple[Any, ...]], /) -> Iterable[tuple[Any, ...]]: ...
    def reload(self, directory: str, /) -> None: ...
    @property
    def inputs(self) -> _Signature: ...
    @property
    def outputs(self) -> _Signature: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def graph_reads(self) -> int: ...
