"""The user's own files of a checkpoint: what is in a directory, and what several ranks give."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import _native
from .._user_files import Content, Selector, files_in, shown_name
from ..errors import NotFound

__all__ = ["Content", "Selector", "files_in"]

_BLOCK = 1 << 20


def digest(content: Content) -> str:
    """Of the content of a file. One that cannot be read differs from every other: why it cannot."""
    sum_ = hashlib.blake2b()
    if isinstance(content, bytes):
        sum_.update(content)
        return sum_.hexdigest()
    try:
        with open(content, "rb") as file:
            while block := file.read(_BLOCK):
                sum_.update(block)
    except OSError as error:
        return f"{error} {uuid.uuid4()}"
    return sum_.hexdigest()


def find_shared(names: Sequence[Sequence[str]]) -> Dict[str, List[int]]:
    """Names that several ranks give → those ranks.

    >>> find_shared([["a", "b"], ["b", "c"], ["b"]])
    {'b': [0, 1, 2]}
    """
    ranks: Dict[str, List[int]] = {}
    for rank, given in enumerate(names):
        for name in given:
            ranks.setdefault(name, []).append(rank)
    return {name: who for name, who in ranks.items() if len(who) > 1}


def find_crossings(names: Sequence[Sequence[str]]) -> List[str]:
    """A name that is a file of one rank and a directory of another.

    >>> find_crossings([["model"], ["model/0.bin"]])
    ["'model' is a file of rank 0 and a directory of rank 1"]
    """
    files: Dict[str, int] = {}
    for rank, given in enumerate(names):
        for name in given:
            files.setdefault(name, rank)
    problems = []
    for rank, given in enumerate(names):
        for name in given:
            folder = os.path.dirname(name)
            while folder:
                if folder in files:
                    problems.append(
                        f"'{folder}' is a file of rank {files[folder]} and a directory of rank {rank}"
                    )
                folder = os.path.dirname(folder)
    return sorted(set(problems))


def find_conflicts(
    shared: Mapping[str, List[int]], digests: Sequence[Mapping[str, str]]
) -> List[str]:
    """Files of the same name and other content, with their ranks.

    >>> find_conflicts({"a": [0, 1]}, [{"a": "x"}, {"a": "y"}])
    ["'a' has other content on rank 0 than on rank 1"]
    """
    problems = []
    for name, ranks in sorted(shared.items()):
        first = ranks[0]
        for rank in ranks[1:]:
            if digests[rank][name] != digests[first][name]:
                problems.append(f"'{name}' has other content on rank {first} than on rank {rank}")
    return problems


def _same(a: Any, b: Any) -> bool:
    """As ==, but a NaN is one: ranks that all have it agree."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b or (a != a and b != b))


def merge_metadata(
    given: Sequence[Optional[Mapping[str, Any]]],
) -> Tuple[Dict[str, Any], List[str]]:
    """The metadata of all ranks in one, and what they do not agree about.

    >>> merge_metadata([{"steps_completed": 5, "a": {"x": 1}}, {"a": {"y": 2}}, None])
    ({'steps_completed': 5, 'a': {'x': 1, 'y': 2}}, [])
    >>> merge_metadata([{"a": {"x": 1}}, {"a": {"x": 2}}])[1]
    ["metadata 'a/x' is 1 on rank 0 and 2 on rank 1"]
    >>> merge_metadata([{"a": [float("nan")]}, {"a": [float("nan")]}])
    ({'a': [nan]}, [])
    """
    merged: Dict[str, Any] = {}
    owners: Dict[str, int] = {}
    problems: List[str] = []

    def put(into: Dict[str, Any], values: Mapping[str, Any], rank: int, where: str) -> None:
        for key, value in values.items():
            path = f"{where}{key}"
            if key not in into:
                into[key] = dict(value) if isinstance(value, Mapping) else value
                owners[path] = rank
            elif isinstance(into[key], dict) and isinstance(value, Mapping):
                put(into[key], value, rank, path + "/")
            elif not _same(into[key], value):
                problems.append(
                    f"metadata '{path}' is {into[key]!r} on rank {owners.get(path, 0)} and {value!r} "
                    f"on rank {rank}"
                )

    for rank, values in enumerate(given):
        if values is not None:
            put(merged, values, rank, "")
    return merged, problems


def fetch(
    checkpoint: str, directory: str, selector: Optional[Selector] = None, *, link: bool = False
) -> List[str]:
    """Brings a checkpoint's own files into a directory, compared with their checksums on the way.
    Returns their names.

    Args:
        link: large files are links to the checkpoint's own where it is on the same disk, for those
            who only read.
    """
    names = _native.user_files(checkpoint)
    wanted = [n for n in names if selector is None or selector(shown_name(n))]
    _native.fetch_user_files(checkpoint, wanted, directory, "link" if link else "copy")
    return wanted


def check(checkpoint: str) -> List[str]:
    """Reads a checkpoint's own files and compares them with their checksums; raises Corruption."""
    names = list(_native.user_files(checkpoint))
    _native.fetch_user_files(checkpoint, names, "", "check")
    return names


def remove_tree(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def require_directory(directory: str) -> str:
    if not os.path.isdir(directory):
        raise NotFound(f"there is no directory {directory!r}")
    return os.path.abspath(directory)
