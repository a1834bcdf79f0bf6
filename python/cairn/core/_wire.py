"""Values between ranks: JSON with tags for what JSON does not know. Nothing is unpickled."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from typing import Any

import numpy as np

from ..errors import Error, Invalid

_TAG = "__cairn__"
_LENGTH = struct.Struct("<Q")
MAX_BYTES = 1 << 30


def _pack(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_TAG: "bytes", "v": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "v": [_pack(v) for v in value]}
    if isinstance(value, list):
        return [_pack(v) for v in value]
    if isinstance(value, (set, frozenset)):
        # Not every two things can be compared, and every rank has to write the same.
        return {_TAG: "set", "v": sorted((_pack(v) for v in value), key=json.dumps)}
    if isinstance(value, dict):
        if all(isinstance(k, str) for k in value) and _TAG not in value:
            return {k: _pack(v) for k, v in value.items()}
        return {_TAG: "dict", "v": [[_pack(k), _pack(v)] for k, v in value.items()]}
    if isinstance(value, np.generic):
        return _pack(value.item())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "v": data}
    raise Invalid(
        f"a {type(value).__name__} cannot be sent to other ranks: give numbers, text, bytes, NumPy "
        "arrays, or lists, tuples, sets and dicts of them"
    )


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {k: _unpack(v) for k, v in value.items()}
    if tag == "float":
        return float(value["v"])
    if tag == "bytes":
        return base64.b64decode(value["v"])
    if tag == "tuple":
        return tuple(_unpack(v) for v in value["v"])
    if tag == "set":
        return {_unpack(v) for v in value["v"]}
    if tag == "dict":
        return {_unpack(k): _unpack(v) for k, v in value["v"]}
    if tag == "array":
        flat = np.frombuffer(base64.b64decode(value["v"]), dtype=np.dtype(value["dtype"]))
        return flat.reshape(value["shape"]).copy()
    raise Error(f"another rank sent a value of kind {tag!r}, which this version does not know")


def dumps(value: Any) -> bytes:
    """The bytes of a value.

    >>> loads(dumps({"a": (1, 2.5, b"x"), 3: float("inf")}))
    {'a': (1, 2.5, b'x'), 3: inf}
    """
    return json.dumps(_pack(value), separators=(",", ":"), allow_nan=False).encode()


def loads(data: bytes) -> Any:
    return _unpack(json.loads(data))


def send(to: socket.socket, data: bytes) -> None:
    to.sendall(_LENGTH.pack(len(data)) + data)


def receive(source: socket.socket, limit: int = MAX_BYTES) -> bytes:
    """A whole message. EOFError when the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    if length > limit:
        raise Error(f"a message of {length} bytes between ranks; at most {limit} are taken")
    return _exactly(source, length)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = source.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
