"""Arrays of all kinds as addresses, and addresses as arrays: NumPy, torch, buffers, DLPack.

Nothing here imports torch or ml_dtypes unless an object of theirs is met (or must be made).
"""

from __future__ import annotations

import array as _array
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from .errors import Invalid

# NumPy dtypes (by name) and what they are called in safetensors.
_NUMPY: Dict[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",  # this and the next: ml_dtypes
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_ML_DTYPES = frozenset(name for name in _NUMPY if name.startswith(("bfloat", "float8")))
# Stored as pairs of floats.
_COMPLEX: Dict[str, Tuple[str, str]] = {
    "complex32": ("F16", "float16"),
    "complex64": ("F32", "float32"),
    "complex128": ("F64", "float64"),
}
_TORCH: Dict[str, str] = {**_NUMPY}
_TORCH_BY_STORED = {stored: name for name, stored in _TORCH.items()}
_NUMPY_BY_STORED = {stored: name for name, stored in _NUMPY.items()}


class Source(NamedTuple):
    """Memory to save: contiguous, little-endian."""

    stored: str  # dtype in the file
    shape: Tuple[int, ...]  # in the file: complex numbers have one dimension more
    address: int
    nbytes: int
    keep: Any  # whoever owns the memory
    kind: str  # "numpy", "torch", "bytearray", "array"
    note: Dict[str, Any]  # what the file does not say of the array


class Target(NamedTuple):
    """Memory to fill."""

    stored: str
    shape: Tuple[int, ...]
    address: int
    keep: Any
    finish: Optional[Callable[[], None]]  # copies from a temporary where memory cannot be filled


def torch_or_none() -> Any:
    """torch, when the program already uses it."""
    return sys.modules.get("torch")


def is_torch(value: Any) -> bool:
    torch = torch_or_none()
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """True for what is stored as a tensor."""
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, (bytearray, _array.array, memoryview)):
        return True
    if is_torch(value):
        return True
    return hasattr(value, "__dlpack__") and not isinstance(value, np.generic)


def source(value: Any, name: str) -> Source:
    """The memory of an array that is to be saved. Invalid, naming it, when it cannot be."""
    if isinstance(value, np.ndarray):
        return _numpy_source(value, name)
    if is_torch(value):
        return _torch_source(value, name)
    if isinstance(value, (bytearray, memoryview, _array.array)):
        return _buffer_source(value, name)
    try:
        return _numpy_source(np.from_dlpack(value), name)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise Invalid(
            f"{name}: a {type(value).__name__} cannot be read through DLPack: {error}"
        ) from error


def _numpy_source(value: np.ndarray, name: str) -> Source:
    dtype = value.dtype
    note: Dict[str, Any] = {}
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        note["np"] = dtype.str
        value = value.astype(dtype.newbyteorder("<"))
        dtype = value.dtype
    if dtype.kind in "mM":
        note["np"] = dtype.str
        value = np.ascontiguousarray(value).view(np.int64)
        dtype = value.dtype
    shape = value.shape
    base = dtype.name
    if base in _COMPLEX:
        stored, _ = _COMPLEX[base]
        note["complex"] = base
        shape = shape + (2,)
    elif base in _NUMPY:
        stored = _NUMPY[base]
    else:
        raise Invalid(
            f"{name}: arrays of dtype {dtype} cannot be stored; numbers, bool, complex, datetime64 "
            "and timedelta64 can"
        )
    if type(value) is not np.ndarray:
        if isinstance(value, np.ma.MaskedArray):
            raise Invalid(f"{name}: a masked array would lose its mask; store .data and .mask")
        value = np.asarray(value)
    if not value.flags.c_contiguous:
        value = np.ascontiguousarray(value)
    address = value.__array_interface__["data"][0]
    return Source(stored, shape, address, value.nbytes, value, "numpy", note)


def _torch_dtype_name(dtype: Any) -> str:
    return str(dtype)[len("torch.") :]


def _torch_source(value: Any, name: str) -> Source:
    torch = torch_or_none()
    if value.layout != torch.strided:
        raise Invalid(f"{name}: {value.layout} tensors cannot be stored; use .to_dense()")
    if value.is_quantized:
        raise Invalid(f"{name}: quantized tensors cannot be stored; use .dequantize()")
    if value.device.type == "meta":
        raise Invalid(f"{name}: the tensor is on the meta device and has no values")
    note: Dict[str, Any] = {}
    if value.requires_grad:
        note["requires_grad"] = True
    if isinstance(value, torch.nn.Parameter):
        note["parameter"] = True
    base = _torch_dtype_name(value.dtype)
    tensor = value.detach()
    if tensor.device.type != "cpu":
        tensor = _to_host(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    shape = tuple(tensor.shape)
    if base in _COMPLEX:
        stored, _ = _COMPLEX[base]
        note["complex"] = base
        shape = shape + (2,)
    elif base in _TORCH:
        stored = _TORCH[base]
    else:
        raise Invalid(f"{name}: tensors of dtype {value.dtype} cannot be stored")
    nbytes = tensor.numel() * tensor.element_size()
    return Source(stored, shape, tensor.data_ptr(), nbytes, tensor, "torch", note)


def _to_host(tensor: Any) -> Any:
    """A copy in pinned memory, which the device writes at full speed."""
    torch = torch_or_none()
    pinned = torch.cuda.is_available() and tensor.is_cuda
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    host.copy_(tensor)
    return host


def _buffer_source(value: Any, name: str) -> Source:
    note: Dict[str, Any] = {}
    if isinstance(value, _array.array):
        kind = "array"
        note["typecode"] = value.typecode
        if value.typecode in "uw":
            raise Invalid(f"{name}: arrays of characters cannot be stored; use a str")
    elif isinstance(value, bytearray):
        kind = "bytearray"
    else:
        kind = "bytes"  # a memoryview owns nothing: what comes back is bytes
    view = memoryview(value)
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    data = np.frombuffer(view, dtype=np.uint8)
    address = data.__array_interface__["data"][0]
    return Source("U8", (data.nbytes,), address, data.nbytes, data, kind, note)


def target(value: Any, name: str) -> Target:
    """The memory of an array that is to be filled. Invalid, naming it, when it may not be."""
    if isinstance(value, np.ndarray):
        return _numpy_target(value, name)
    if is_torch(value):
        return _torch_target(value, name)
    view = np.frombuffer(value, dtype=np.uint8)
    if not view.flags.writeable:
        raise Invalid(f"{name}: the {type(value).__name__} is read-only and cannot be filled")
    return Target("U8", (view.nbytes,), view.__array_interface__["data"][0], view, None)


def _numpy_target(value: np.ndarray, name: str) -> Target:
    if not value.flags.writeable:
        raise Invalid(f"{name}: the array is read-only and cannot be filled; give a writable copy")
    dtype = value.dtype
    swapped = dtype.byteorder == ">"
    plain = np.dtype(np.int64) if dtype.kind in "mM" else dtype.newbyteorder("=")
    shape = value.shape
    if plain.name in _COMPLEX:
        stored = _COMPLEX[plain.name][0]
        shape = shape + (2,)
    elif plain.name in _NUMPY:
        stored = _NUMPY[plain.name]
    else:
        raise Invalid(f"{name}: arrays of dtype {dtype} cannot be restored")
    if value.flags.c_contiguous and not swapped:
        return Target(stored, shape, value.__array_interface__["data"][0], value, None)
    staging = np.empty(value.shape, dtype=plain)

    def finish() -> None:
        value[...] = staging.view(dtype) if dtype.kind in "mM" else staging

    return Target(stored, shape, staging.__array_interface__["data"][0], staging, finish)


def _torch_target(value: Any, name: str) -> Target:
    torch = torch_or_none()
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise Invalid(f"{name}: only ordinary dense tensors can be filled")
    base = _torch_dtype_name(value.dtype)
    shape = tuple(value.shape)
    if base in _COMPLEX:
        stored = _COMPLEX[base][0]
        shape = shape + (2,)
    elif base in _TORCH:
        stored = _TORCH[base]
    else:
        raise Invalid(f"{name}: tensors of dtype {value.dtype} cannot be restored")
    plain = value.device.type == "cpu" and value.is_contiguous()
    if plain and not value.is_conj() and not value.is_neg():
        return Target(stored, shape, value.data_ptr(), value, None)
    staging = torch.empty(value.shape, dtype=value.dtype)

    def finish() -> None:
        with torch.no_grad():
            value.copy_(staging)

    return Target(stored, shape, staging.data_ptr(), staging, finish)


def make(kind: str, stored: str, shape: Tuple[int, ...], data: np.ndarray, note: Dict[str, Any],
         name: str) -> Any:
    """An array of the stored kind over `data` (bytes that nobody else uses)."""
    if kind == "torch":
        return _make_torch(stored, shape, data, note, name)
    if kind == "bytes":
        return data.tobytes()
    if kind == "bytearray":
        return bytearray(data)
    if kind == "array":
        made = _array.array(str(note["typecode"]))
        made.frombytes(data.tobytes())
        return made
    return _make_numpy(stored, shape, data, note, name)


def _make_numpy(
    stored: str, shape: Tuple[int, ...], data: np.ndarray, note: Dict[str, Any], name: str
) -> np.ndarray:
    base = _NUMPY_BY_STORED.get(stored)
    if "complex" in note:
        base, shape = str(note["complex"]), shape[:-1]
    if base is None:
        raise Invalid(f"{name}: NumPy has no dtype for {stored}; give a target to restore into")
    if base in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise Invalid(f"{name}: NumPy needs ml_dtypes for {base}: pip install ml_dtypes") from None
        dtype = np.dtype(getattr(ml_dtypes, base))
    else:
        dtype = np.dtype(base)
    made = data.view(dtype).reshape(shape)
    if "np" in note:
        wanted = np.dtype(str(note["np"]))
        made = made.view(wanted) if wanted.kind in "mM" else made.astype(wanted)
    return made


def _make_torch(
    stored: str, shape: Tuple[int, ...], data: np.ndarray, note: Dict[str, Any], name: str
) -> Any:
    try:
        import torch
    except ImportError:
        raise Invalid(
            f"{name} was stored from a torch tensor, and torch is not installed: install it, or "
            "give NumPy arrays to restore into"
        ) from None
    base = _TORCH_BY_STORED.get(stored)
    if "complex" in note:
        base, shape = str(note["complex"]), shape[:-1]
    dtype = getattr(torch, base or "", None)
    if dtype is None:
        raise Invalid(f"{name}: this torch has no dtype for {stored}")
    if data.nbytes == 0:
        made = torch.empty(shape, dtype=dtype)
    else:
        made = torch.from_numpy(data).view(dtype).reshape(shape)
    if note.get("parameter"):
        return torch.nn.Parameter(made, requires_grad=bool(note.get("requires_grad")))
    if note.get("requires_grad"):
        made.requires_grad_(True)
    return made
