"""Arrays of all kinds as addresses, and addresses as arrays: NumPy, torch, buffers, DLPack.

Nothing here imports torch or ml_dtypes unless an object of theirs is met (or must be made).
"""

from __future__ import annotations

import array as _array
import functools
import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .errors import Invalid

# Dtypes by their names in NumPy (with ml_dtypes) and torch, and what safetensors calls them.
_STORED: Dict[str, str] = {
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
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
# C64 is in files of other writers; we store complex numbers as pairs, which every reader knows.
_BY_STORED = {**{stored: name for name, stored in _STORED.items()}, "C64": "complex64"}
_ML_DTYPES = frozenset(name for name in _STORED if name.startswith(("bfloat", "float8")))
# Stored as pairs of floats.
_COMPLEX: Dict[str, str] = {"complex32": "F16", "complex64": "F32", "complex128": "F64"}


class Source(NamedTuple):
    """Memory to save: contiguous, little-endian."""

    stored: str  # dtype in the file
    shape: Tuple[int, ...]  # in the file: complex numbers have one dimension more
    address: int
    nbytes: int
    keep: Any  # whoever owns the memory
    identity: Tuple[Any, ...]  # equal for arrays that are the same view of the same memory …
    owner: Any  # … as long as this one lives: `keep` may be a copy
    kind: str  # "numpy", "torch", "bytearray", "array"
    note: Dict[str, Any]  # what the file does not say of the array


class Target(NamedTuple):
    """Memory to fill."""

    stored: str
    shape: Tuple[int, ...]
    meaning: Optional[str]
    address: int
    keep: Any
    identity: Tuple[Any, ...]  # equal for targets that are the same view of the same memory
    finish: Optional[Callable[[], None]]  # copies from a temporary where memory cannot be filled


def torch_or_none() -> Any:
    """torch, when the program already uses it."""
    return sys.modules.get("torch")


def torch_tensors() -> Tuple[Any, Any, Any]:
    """How the native module looks at tensors: (torch.Tensor, plain_torch, torch.nn.Parameter), or
    nothing without torch."""
    torch = torch_or_none()
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    if parameter is None:  # torch is just being imported, or not used
        return None, None, None
    return torch.Tensor, plain_torch, parameter


def is_torch(value: Any) -> bool:
    torch = torch_or_none()
    return torch is not None and isinstance(value, torch.Tensor)


def is_lazy(tensor: Any) -> bool:
    """True for what a lazy module of torch has not made yet: it has neither shape nor memory."""
    return bool(torch_or_none().nn.parameter.is_lazy(tensor))


def is_array(value: Any) -> bool:
    """True for what is stored as a tensor."""
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, (bytearray, _array.array, memoryview)):
        return True
    if is_torch(value):
        return True
    return hasattr(value, "__dlpack__") and not isinstance(value, np.generic)


def is_fillable(value: Any) -> bool:
    """False for arrays that nobody may write to (jax): they are made anew."""
    return isinstance(value, (np.ndarray, bytearray, _array.array, memoryview)) or is_torch(value)


def empty_like(value: Any) -> Optional[np.ndarray]:
    """A NumPy array as a DLPack object is; None for one that NumPy cannot read."""
    try:
        return np.empty_like(np.from_dlpack(value), order="C", subok=False)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None


def itemsize(stored: str) -> Optional[int]:
    """Bytes of an element by its dtype in a file; None for one that is not known."""
    if stored not in _BY_STORED:
        return None
    digits = "".join(c for c in stored.split("_")[0] if c.isdigit())
    return int(digits) // 8 if digits else 1


def is_storable(dtype_name: str) -> bool:
    return dtype_name in _STORED or dtype_name in _COMPLEX


def meaning(note: Dict[str, Any]) -> Optional[str]:
    """What elements stand for when their stored dtype does not say it: arrays fit each other only
    when these are equal too."""
    if "complex" in note:
        return str(note["complex"])
    if "typecode" in note:
        return f"array({str(note['typecode'])!r})"
    dtype = numpy_dtype(str(note["np"]), "an array") if "np" in note else None
    return dtype.name if dtype is not None and dtype.kind in "mM" else None


def numpy_dtype(name: str, where: str) -> np.dtype:
    """A dtype by its name, those of ml_dtypes too."""
    if name not in _ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise Invalid(f"{where}: NumPy needs ml_dtypes for {name}: pip install ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))


def source(value: Any, name: str) -> Source:
    """The memory of an array that is to be saved. Invalid, naming it, when it cannot be."""
    if isinstance(value, np.ndarray):
        return _numpy_source(value, name)
    if is_torch(value):
        return _torch_source(value, name)
    if isinstance(value, memoryview) and not _is_plain(value):
        return _numpy_source(_typed(value, name), name)
    if isinstance(value, (bytearray, memoryview, _array.array)):
        return _buffer_source(value, name)
    if not is_array(value):
        raise Invalid(f"{name}: a {type(value).__name__} is no array")
    try:
        return _numpy_source(np.from_dlpack(value), name)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise Invalid(
            f"{name}: a {type(value).__name__} cannot be read through DLPack: {error}"
        ) from error


def _stored_as(dtype_name: str, shape: Tuple[int, ...]) -> Tuple[Optional[str], Tuple[int, ...]]:
    """Dtype (None: cannot be stored) and shape in the file. Complex numbers are pairs."""
    if dtype_name in _COMPLEX:
        return _COMPLEX[dtype_name], shape + (2,)
    return _STORED.get(dtype_name), shape


class _NumpyKind(NamedTuple):
    """What is to be known of a NumPy dtype; looking it up is much of the cost of a small array."""

    stored: Optional[str]  # None: cannot be stored
    tail: Tuple[int, ...]  # added to the shape
    note: Dict[str, Any]
    meaning: Optional[str]
    native: bool


@functools.lru_cache(maxsize=256)
def _numpy_kind(dtype: np.dtype) -> _NumpyKind:
    stored, tail = _stored_as("int64" if dtype.kind in "mM" else dtype.name, ())
    note: Dict[str, Any] = {}
    if dtype.name in _COMPLEX:
        note["complex"] = dtype.name
    if dtype.kind in "mM" or (not dtype.isnative and dtype.name not in _ML_DTYPES):
        note["np"] = dtype.str  # which names no dtype of ml_dtypes: those come back native
    return _NumpyKind(stored, tail, note, meaning(note), dtype.isnative)


def _numpy_source(value: np.ndarray, name: str) -> Source:
    if isinstance(value, np.ma.MaskedArray):
        raise Invalid(f"{name}: a masked array would lose its mask; store .data and .mask")
    dtype = value.dtype
    kind = _numpy_kind(dtype)
    if kind.stored is None:
        raise Invalid(
            f"{name}: arrays of dtype {dtype} cannot be stored; numbers, bool, complex, datetime64 "
            "and timedelta64 can"
        )
    shape = value.shape + kind.tail
    address = value.__array_interface__["data"][0]
    identity = (address, value.strides, shape, dtype)
    owner = value
    if not kind.native:
        value = value.astype(dtype.newbyteorder("="), order="C")
        address = value.__array_interface__["data"][0]
    elif not value.flags.c_contiguous:
        value = np.ascontiguousarray(value)
        address = value.__array_interface__["data"][0]
    return Source(
        kind.stored, shape, address, value.nbytes, value, identity, owner, "numpy", kind.note
    )


def _torch_dtype_name(dtype: Any) -> str:
    return str(dtype)[len("torch.") :]


@functools.lru_cache(maxsize=256)
def _torch_stored(dtype: Any) -> Optional[str]:
    """The dtype in the file; None where more is to be said of the array, or it cannot be stored."""
    return _STORED.get(_torch_dtype_name(dtype))


def plain_torch(value: Any) -> Optional[Tuple[str, Tuple[int, ...], int, bool, bool, Any]]:
    """(dtype in the file, shape, address, whether it requires gradients, whether it is a parameter,
    who owns the memory) of a tensor whose memory is what a file holds; None for any other. Called for
    each tensor of a state: what it costs, a training with many small tensors waits for."""
    torch = sys.modules["torch"]
    kind = type(value)
    parameter = kind is torch.nn.Parameter
    if not parameter and kind is not torch.Tensor:
        # Subclasses may have no memory, or more than one, or not made it yet.
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or is_lazy(value):
            return None
        parameter = isinstance(value, torch.nn.Parameter)
    if value.layout is not torch.strided or not value.is_cpu or value.is_nested:
        return None
    stored = _torch_stored(value.dtype)
    if stored is None or value.is_neg() or not value.is_contiguous():
        return None
    # A tensor of its own, since the memory of a parameter may be exchanged (.data = …).
    keep = value.detach()
    return stored, value.shape, keep.data_ptr(), value.requires_grad, parameter, keep


def _torch_source(value: Any, name: str) -> Source:
    torch = torch_or_none()
    if is_lazy(value):
        raise Invalid(
            f"{name} is not made yet (a lazy module makes it in its first forward pass); run a batch "
            "through the module first"
        )
    if value.is_nested:
        raise Invalid(f"{name}: nested tensors cannot be stored; store what they were made of")
    if value.layout != torch.strided:
        raise Invalid(f"{name}: {value.layout} tensors cannot be stored; use .to_dense()")
    if value.is_quantized:
        raise Invalid(f"{name}: quantized tensors cannot be stored; use .dequantize()")
    if value.device.type == "meta":
        raise Invalid(f"{name}: the tensor is on the meta device and has no values")
    if value.is_cpu and value.numel() > 0 and value.data_ptr() == 0:
        raise Invalid(f"{name}: the tensor's memory was freed (its storage has no bytes)")
    note: Dict[str, Any] = {}
    if value.requires_grad:
        note["requires_grad"] = True
    if isinstance(value, torch.nn.Parameter):
        note["parameter"] = True
    base = _torch_dtype_name(value.dtype)
    stored, shape = _stored_as(base, tuple(value.shape))
    if stored is None:
        raise Invalid(f"{name}: tensors of dtype {value.dtype} cannot be stored")
    if base in _COMPLEX:
        note["complex"] = base
    identity = (value.data_ptr(), value.stride(), shape, base, value.is_conj(), value.is_neg())
    tensor = value.detach()
    if tensor.device.type != "cpu":
        tensor = _to_host(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    nbytes = tensor.numel() * tensor.element_size()
    return Source(stored, shape, tensor.data_ptr(), nbytes, tensor, identity, value, "torch", note)


def _to_host(tensor: Any) -> Any:
    """A copy in pinned memory, which the device writes at full speed."""
    torch = torch_or_none()
    pinned = torch.cuda.is_available() and tensor.is_cuda
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    host.copy_(tensor)
    return host


def _is_plain(view: memoryview) -> bool:
    """Of bytes, which come back as such; one of numbers comes back as an array."""
    return view.format in ("B", "c") and view.ndim == 1


def _typed(view: memoryview, name: str) -> np.ndarray:
    try:
        return np.asarray(view)
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"{name}: a memoryview of format {view.format!r} is no array: {error}"
        ) from error


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
    identity = (address, data.nbytes, note.get("typecode"))
    return Source("U8", (data.nbytes,), address, data.nbytes, data, identity, value, kind, note)


def target(value: Any, name: str) -> Target:
    """The memory of an array that is to be filled. Invalid, naming it, when it may not be."""
    if isinstance(value, np.ndarray):
        return _numpy_target(value, name)
    if is_torch(value):
        return _torch_target(value, name)
    if isinstance(value, memoryview) and not _is_plain(value):
        return _numpy_target(_typed(value, name), name)
    view = np.frombuffer(value, dtype=np.uint8)
    if not view.flags.writeable:
        raise Invalid(f"{name}: the {type(value).__name__} is read-only and cannot be filled")
    typecode = {"typecode": value.typecode} if isinstance(value, _array.array) else {}
    address = view.__array_interface__["data"][0]
    shape = (view.nbytes,)
    return Target("U8", shape, meaning(typecode), address, view, (address, "U8", shape), None)


def _numpy_target(value: np.ndarray, name: str) -> Target:
    if not value.flags.writeable:
        raise Invalid(f"{name}: the array is read-only and cannot be filled; give a writable copy")
    kind = _numpy_kind(value.dtype)
    if kind.stored is None:
        raise Invalid(f"{name}: arrays of dtype {value.dtype} cannot be restored")
    shape = value.shape + kind.tail
    address = value.__array_interface__["data"][0]
    if kind.native and value.flags.c_contiguous:
        identity: Tuple[Any, ...] = (address, kind.stored, shape)
        return Target(kind.stored, shape, kind.meaning, address, value, identity, None)
    identity = (address, kind.stored, shape, value.strides)
    _check_apart(value.shape, value.strides, name)
    staging = np.empty(value.shape, dtype=value.dtype.newbyteorder("="))

    def finish() -> None:
        value[...] = staging

    address = staging.__array_interface__["data"][0]
    return Target(kind.stored, shape, kind.meaning, address, staging, identity, finish)


def _check_apart(shape: Sequence[int], strides: Sequence[int], name: str) -> None:
    """Invalid for what was expanded: its elements are one in memory, and cannot hold all values."""
    if 0 not in shape and any(n > 1 and step == 0 for n, step in zip(shape, strides)):
        raise Invalid(
            f"{name}: elements of the array share their memory (it was expanded or broadcast), so "
            "it cannot be filled; give a copy"
        )


def _torch_target(value: Any, name: str) -> Target:
    torch = torch_or_none()
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise Invalid(f"{name}: only ordinary dense tensors can be filled")
    base = _torch_dtype_name(value.dtype)
    stored, shape = _stored_as(base, tuple(value.shape))
    if stored is None:
        raise Invalid(f"{name}: tensors of dtype {value.dtype} cannot be restored")
    what = base if base in _COMPLEX else None
    plain = value.device.type == "cpu" and value.is_contiguous()
    if plain and not value.is_conj() and not value.is_neg():
        identity: Tuple[Any, ...] = (value.data_ptr(), stored, shape)
        return Target(stored, shape, what, value.data_ptr(), value, identity, None)
    identity = (value.data_ptr(), stored, shape, value.stride(), value.is_conj(), value.is_neg())
    _check_apart(value.shape, value.stride(), name)
    staging = torch.empty(value.shape, dtype=value.dtype)

    def finish() -> None:
        with torch.no_grad():
            value.copy_(staging)

    return Target(stored, shape, what, staging.data_ptr(), staging, identity, finish)


def make(
    kind: str,
    stored: str,
    shape: Tuple[int, ...],
    data: np.ndarray,
    note: Dict[str, Any],
    name: str,
) -> Any:
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
    base = _BY_STORED.get(stored)
    if "complex" in note:
        base, shape = str(note["complex"]), shape[:-1]
    if base is None:
        raise Invalid(f"{name}: NumPy has no dtype for {stored}; give a target to restore into")
    dtype = numpy_dtype(base, name)
    made = data.view(dtype).reshape(shape)
    if "np" in note:
        wanted = np.dtype(str(note["np"]))
        if wanted.kind in "mM":
            made = made.view(wanted.newbyteorder("="))
        # "V" is how older checkpoints say ml_dtypes in another byte order: the values are native.
        if wanted.kind != "V":
            made = made.astype(wanted, copy=False)
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
    base = _BY_STORED.get(stored)
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
