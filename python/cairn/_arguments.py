"""What users give: checked and brought into the form that the native module takes."""

from __future__ import annotations

import math
import numbers
import operator
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ._user_files import files_in
from .errors import Invalid

PathLike = Union[str, "os.PathLike[str]"]
Files = Union[PathLike, Sequence[PathLike], Mapping[str, Union[PathLike, bytes]]]

_MAX_VALUE_DEPTH = 60


def user_files(files: Optional[Files]) -> List[Tuple[str, Any]]:
    if files is None:
        return []
    if isinstance(files, (str, os.PathLike)):
        if os.path.isdir(files):
            return list(files_in(os.path.abspath(files)).items())
        files = [files]
    if isinstance(files, Mapping):
        named = [(str(name), content) for name, content in files.items()]
    else:
        named = [(os.path.basename(os.fspath(p)), p) for p in files]
    out: List[Tuple[str, Any]] = []
    for name, content in named:
        if isinstance(content, (bytes, bytearray, memoryview)):
            out.append((name, bytes(content)))
            continue
        if not isinstance(content, (str, os.PathLike)):
            raise Invalid(f"files: {name!r} must be a path or bytes, not {type(content).__name__}")
        if not os.path.isfile(content):
            raise Invalid(f"files: {name!r}: there is no file {os.fspath(content)!r}")
        out.append((name, os.path.abspath(content)))
    return out


def json_values(value: Any, where: str, depth: int = 0) -> Any:
    """NumPy and torch numbers as Python's; the rest is judged by the native module."""
    if depth > _MAX_VALUE_DEPTH:
        raise Invalid(f"{where[:100]}…: nested deeper than {_MAX_VALUE_DEPTH} levels")
    if isinstance(value, Mapping):
        return {k: json_values(v, f"{where}/{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(v, f"{where}/{i}", depth + 1) for i, v in enumerate(value)]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        size = getattr(value, "size", None)
        count = value.numel() if callable(size) else size
        if count != 1:
            raise Invalid(f"{where}: an array of {count} elements is no number")
        return value.item()
    return value


def value_dict(given: Optional[Mapping[str, Any]], where: str) -> Dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise Invalid(f"{where} must be a dict, not {type(given).__name__}")
    return dict(json_values(given, where))


def whole(value: Any, what: str) -> int:
    if isinstance(value, bool):
        raise Invalid(f"{what} must be an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise Invalid(f"{what} must be an integer, not {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise Invalid(f"{what} has more than 64 bits: {number:#x}")
    return number


def positive(value: Any, what: str) -> Optional[int]:
    if value is None:
        return None
    number = whole(value, what)
    if number < 1:
        raise Invalid(f"{what} must be at least 1 (or None), not {number}")
    return number


def seconds(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < math.inf:
        raise Invalid(f"{what} must be a positive number of seconds, not {value!r}")
    return float(value)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a text, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} has half of a surrogate pair, which cannot be stored") from None
    return value


def choice(value: Any, what: str, allowed: Tuple[str, ...]) -> str:
    if value not in allowed:
        raise Invalid(f"{what} must be {' or '.join(repr(a) for a in allowed)}, not {value!r}")
    return str(value)


def name_set(names: Optional[Iterable[str]]) -> Set[str]:
    if names is None:
        return set()
    if isinstance(names, str):
        return {names}
    return {str(name) for name in names}
