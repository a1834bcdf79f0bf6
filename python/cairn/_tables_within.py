"""Tables whose rows belong to the modules that stand in a state."""

from __future__ import annotations

import logging
from typing import AbstractSet, Any, Dict, FrozenSet, List, Optional, Sequence

from . import _tree
from ._restore import Restored
from .errors import Invalid, Mismatch
from .table import EmbeddingTable
from .table import tables as all_tables

log = logging.getLogger("cairn")

_NONE: FrozenSet[str] = frozenset()


def with_tables_within(
    tables: Sequence[Any], state: Any, skip: AbstractSet[str] = _NONE
) -> List[Any]:
    """The tables that were given, then those of modules (cairn.torch.Embedding) in the state: a
    module without its rows would come back untrained. What is under a name in `skip` is left out."""
    if isinstance(tables, (str, bytes)) or not hasattr(tables, "__iter__"):
        raise Invalid(f"tables must be a list of tables, not {tables!r}")
    every = list(tables)
    if not all_tables():
        return every
    known = {id(table) for table in every}
    found: Dict[int, EmbeddingTable] = {}
    _find(state, "", skip, 0, found)
    return every + [table for key, table in found.items() if key not in known]


def refuse_lost_tables(restored: Optional[Restored], tables: Sequence[Any]) -> None:
    """For trainings that go on without any table where there were some: their next checkpoints would
    have no rows, and those that have them are removed in time."""
    _refuse(restored, tables, _stored(restored))


def refuse_lost_tables_of_one(
    restored: Optional[Restored], tables: Sequence[Any], had: Optional[Sequence[str]]
) -> None:
    """The same for one of several trainers, which is not asked for what only the others had. `had`: its
    tables when the checkpoint was made; None: a checkpoint from before does not say."""
    if had is not None:
        _refuse(restored, tables, had)
    elif restored is not None and not tables and restored.info.tables:
        log.warning(
            "%s has the rows of %s, and this trainer is given no tables: if no other one is given them, "
            "they are in no later checkpoint",
            restored.info.path,
            _listed(_stored(restored)),
        )


def _stored(restored: Optional[Restored]) -> List[str]:
    return [] if restored is None else [str(table["name"]) for table in restored.info.tables]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _refuse(restored: Optional[Restored], tables: Sequence[Any], had: Sequence[str]) -> None:
    if tables or not had or restored is None:
        return
    raise Mismatch(
        f"restore {restored.info.path}: it has the rows of {_listed(had)}, and no tables are given: they "
        "would be in no later checkpoint. Make the tables before, and give them as tables=[…]",
        unexpected=list(had),
    )


def _find(
    value: Any, path: str, skip: AbstractSet[str], depth: int, found: Dict[int, EmbeddingTable]
) -> None:
    if depth > _tree.MAX_DEPTH or path in skip:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _find(item, _tree.join(path, key), skip, depth + 1, found)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _find(item, _tree.join(path, number), skip, depth + 1, found)
    else:
        stateful = _tree.as_stateful(value)
        if stateful is not None:
            found.update((id(table), table) for table in stateful.cairn_tables())
