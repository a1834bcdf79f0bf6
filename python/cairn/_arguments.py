"""What users give: checked and brought into the form that the native module takes."""

from __future__ import annotations

import math
import numbers
import operator
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ._user_files import files_in
from ._wording import a_type
from .errors import Invalid

PathLike = Union[str, "os.PathLike[str]"]
Files = Union[PathLike, Sequence[PathLike], Mapping[str, Union[PathLike, bytes]]]

_MAX_VALUE_DEPTH = 60


def user_files(files: Optional[Files]) -> List[Tuple[str, Any]]:
    if files is None:
        return []
    if isinstance(files, (str, os.PathLike)):
        if os.path.isdir(files):
            found = files_in(os.path.abspath(files))
            for name in found:
                text_argument(name, "files: a name")
            return list(found.items())
        files = [files]
    if isinstance(files, Mapping):
        named = [(str(name), content) for name, content in files.items()]
    elif isinstance(files, Iterable) and not isinstance(files, (bytes, bytearray)):
        named = [(_base_name(p), p) for p in files]
    else:
        raise Invalid(
            f"files: a directory, a list of paths or {{name: path or bytes}}, not {a_type(files)}"
        )
    out: List[Tuple[str, Any]] = []
    for name, content in named:
        text_argument(name, "files: a name")
        if isinstance(content, (bytes, bytearray, memoryview)):
            out.append((name, bytes(content)))
            continue
        if not isinstance(content, (str, os.PathLike)):
            raise Invalid(f"files: {name!r} must be a path or bytes, not {type(content).__name__}")
        if not os.path.isfile(content):
            raise Invalid(f"files: {name!r}: there is no file {os.fspath(content)!r}")
        out.append((name, os.path.abspath(content)))
    return out


def _base_name(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise Invalid(f"files: a list holds paths, not {a_type(path)}")
    return str(os.path.basename(os.fspath(path)))


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


def text_argument(value: Any, what: str) -> str:
    """A str that is Unicode: names of files may hold other bytes, and nothing here can."""
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a str, not {a_type(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid(
                f"{what} must be valid Unicode, and {value!r} has a lone surrogate (bytes that are "
                "not UTF-8): rename it"
            ) from None
    return value


def names_by_name(given: Optional[Mapping[str, str]], what: str) -> Dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise Invalid(f"{what} must be a dict of names, not {a_type(given)}")
    return {
        text_argument(old, what + ": a name"): text_argument(new, what + ": a name")
        for old, new in given.items()
    }


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


def rank_number(value: Any, what: str) -> int:
    """As many as there can be processes: the engine judges the rest."""
    number = whole(value, what)
    if not -(1 << 31) <= number < 1 << 31:
        raise Invalid(f"{what} has more than 31 bits: {number}")
    return number


def positive(value: Any, what: str) -> Optional[int]:
    if value is None:
        return None
    number = whole(value, what)
    if number < 1:
        raise Invalid(f"{what} must be at least 1 (or None), not {number}")
    return number


def not_negative(value: Any, what: str) -> Optional[int]:
    if value is None:
        return None
    number = whole(value, what)
    if number < 0:
        raise Invalid(f"{what} must not be negative, and is {number}; None sets no limit")
    return number


def seconds(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < math.inf:
        raise Invalid(f"{what} must be a positive number of seconds, not {value!r}")
    return float_of(value, what)


def real(value: Any, what: str) -> float:
    """Any real number: the engine judges which."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Invalid(f"{what} must be a number, not {value!r}")
    return float_of(value, what)


def float_of(value: Any, what: str) -> float:
    """A number as a float. Python's integers may be larger than any."""
    try:
        return float(value)
    except OverflowError:
        raise Invalid(f"{what} is too large for a float") from None


def choice(value: Any, what: str, allowed: Tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise Invalid(f"{what} must be {' or '.join(repr(a) for a in allowed)}, not {value!r}")
    return str(value)


def name_set(names: Optional[Iterable[str]]) -> Set[str]:
    if names is None:
        return set()
    if isinstance(names, str):
        return {names}
    if not isinstance(names, Iterable):
        raise Invalid(f"skip must be a list of names, not {a_type(names)}")
    return {text_argument(name, "skip: a name") for name in names}
