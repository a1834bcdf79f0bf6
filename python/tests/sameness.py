"""Whether two states are the same: types, dtypes, bits, order and nesting."""

import array
import random
import struct

import numpy as np


def assert_same(a, b, where="state"):
    """Fails, naming the place, when the states differ in anything that a checkpoint must keep."""
    assert type(a) is type(b), f"{where}: {type(a)} became {type(b)}"
    if isinstance(a, dict):
        assert list(a) == list(b), f"{where}: keys {list(a)} became {list(b)}"
        assert [type(k) for k in a] == [type(k) for k in b], f"{where}: types of keys"
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), f"{where}: {len(a)} elements became {len(b)}"
        for i, (x, y) in enumerate(zip(a, b)):
            assert_same(x, y, f"{where}/{i}")
    elif isinstance(a, float):
        assert struct.pack("<d", a) == struct.pack("<d", b), f"{where}: {a!r} became {b!r}"
    elif isinstance(a, complex):
        assert_same([a.real, a.imag], [b.real, b.imag], where)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"{where}: {a.dtype}{a.shape} {b.dtype}"
        assert a.tobytes() == b.tobytes(), f"{where}: bytes differ"
    elif isinstance(a, array.array):
        assert a.typecode == b.typecode and a.tobytes() == b.tobytes(), where
    elif isinstance(a, random.Random):
        assert a.getstate() == b.getstate(), where
    elif isinstance(a, np.random.Generator):
        assert type(a.bit_generator) is type(b.bit_generator), where
        assert_same(a.bit_generator.state, b.bit_generator.state, where)
    elif isinstance(a, np.random.RandomState):
        assert_same(a.get_state(legacy=False), b.get_state(legacy=False), where)
    elif type(a).__module__.startswith("torch"):
        _assert_same_torch(a, b, where)
    else:
        assert a == b, f"{where}: {a!r} became {b!r}"


def _assert_same_torch(a, b, where):
    import torch

    if isinstance(a, torch.Generator):
        assert_same(a.get_state(), b.get_state(), where)
        return
    if not isinstance(a, torch.Tensor):
        assert a == b, where
        return
    assert a.dtype == b.dtype and a.shape == b.shape, f"{where}: {a.dtype} became {b.dtype}"
    assert a.requires_grad == b.requires_grad, f"{where}: requires_grad"
    flat = [
        t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for t in (a, b)
    ]
    assert torch.equal(*flat), f"{where}: bytes differ"
