"""Arrays of every kind come back with their type, dtype, shape and bits."""

import array

import ml_dtypes
import numpy as np
import pytest
import torch
from sameness import assert_same

import cairn
from cairn import _arrays, _tree

NUMPY_DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
    "datetime64[s]", "timedelta64[ns]",
]  # fmt: skip
TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 2, 3, 4)]


def numpy_array(dtype, shape, rng):
    """Random bits: NaN payloads, negative zeros and denormals are among them."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def torch_tensor(dtype, shape, rng):
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count).astype(bool)).reshape(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.from_numpy(rng.integers(0, 256, count * size, dtype=np.uint8))
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_numpy_arrays_come_back(round_trip, rng, dtype):
    state = {str(shape): numpy_array(dtype, shape, rng) for shape in SHAPES}
    assert_same(state, round_trip(state))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_torch_tensors_come_back(round_trip, rng, dtype):
    state = {str(shape): torch_tensor(dtype, shape, rng) for shape in SHAPES}
    assert_same(state, round_trip(state))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_numpy_arrays_are_filled(directory, rng, dtype):
    state = {str(shape): numpy_array(dtype, shape, rng) for shape in SHAPES}
    given = {name: np.zeros_like(a) for name, a in state.items()}
    identities = {name: id(a) for name, a in given.items()}
    with cairn.CheckpointManager(directory) as m:
        m.save(0, state, blocking=True)
        m.restore(given)
    assert identities == {name: id(a) for name, a in given.items()}
    assert_same(state, given)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_torch_tensors_are_filled(directory, rng, dtype):
    state = {str(shape): torch_tensor(dtype, shape, rng) for shape in SHAPES}
    given = {name: torch.empty(a.shape, dtype=a.dtype) for name, a in state.items()}
    pointers = {name: (id(a), a.data_ptr()) for name, a in given.items()}
    with cairn.CheckpointManager(directory) as m:
        m.save(0, state, blocking=True)
        m.restore(given)
    assert pointers == {name: (id(a), a.data_ptr()) for name, a in given.items()}
    assert_same(state, given)


def test_fortran_order_comes_back_by_value(round_trip, rng):
    a = np.asfortranarray(rng.random((4, 6)))
    assert_same(np.ascontiguousarray(a), round_trip({"a": a})["a"])


VIEWS = {
    "transposed": lambda a: a.T,
    "strided": lambda a: a[::2, 1::3],
    "reversed": lambda a: a[::-1],
    "broadcast": lambda a: np.broadcast_to(a[0], (3, a.shape[1])),
    "column": lambda a: a[:, 2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_numpy_views_are_stored_by_value(round_trip, rng, name):
    view = VIEWS[name](rng.random((6, 9)))
    assert_same(np.ascontiguousarray(view), round_trip({"v": view})["v"])


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "broadcast"])
def test_numpy_views_are_filled(directory, rng, name):
    whole = rng.random((6, 9))
    target = np.zeros((6, 9))
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"v": VIEWS[name](whole)}, blocking=True)
        m.restore({"v": VIEWS[name](target)})
    expected = np.zeros((6, 9))
    VIEWS[name](expected)[...] = VIEWS[name](whole)
    assert_same(expected, target)


def test_torch_views_are_stored_and_filled(directory):
    whole = torch.arange(54.0).reshape(6, 9)
    target = torch.zeros(6, 9)
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"t": whole.t(), "s": whole[::2, 1], "e": whole[0, :1].expand(4)}, blocking=True)
        m.restore({"t": target.t(), "s": torch.zeros(3), "e": None})
    assert torch.equal(whole, target)


def test_conjugated_and_negated_views(round_trip):
    z = torch.tensor([1 + 2j, 3 - 4j])
    state = round_trip({"conj": z.conj(), "neg": z.conj().imag, "plain": z})
    assert torch.equal(state["conj"], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(state["neg"], torch.tensor([-2.0, 4.0]))
    assert torch.equal(state["plain"], z)


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">c16", ">M8[s]", ">u2"])
def test_big_endian_arrays_keep_their_order(round_trip, directory, dtype):
    a = np.arange(5).astype(dtype)
    assert_same({"a": a}, round_trip({"a": a}))
    given = {"a": np.zeros_like(a)}
    with cairn.CheckpointManager(directory, read_only=True) as m:
        m.restore(given)
    assert_same({"a": a}, given)


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">c16", ">M8[s]"])
@pytest.mark.parametrize(
    "view", [np.transpose, np.asfortranarray, lambda a: a[::-1], lambda a: a[:, ::2]]
)
def test_views_of_big_endian_arrays_are_stored_by_value(round_trip, dtype, view):
    array = view(np.arange(12).reshape(3, 4).astype(dtype))
    state = {"a": array, "number": array[0, 0:1].reshape(())}
    assert_same(state, round_trip(state))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_other_orders_of_ml_dtypes_come_back_in_this_machine_s(round_trip, directory, dtype):
    """NumPy can make no dtype of them from text."""
    array = np.array([1, 2.5, -3], dtype)
    swapped = array.astype(array.dtype.newbyteorder())
    assert_same({"a": array, "b": array[:0]}, round_trip({"a": swapped, "b": swapped[:0]}))
    into = np.zeros_like(swapped)
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"a": swapped})
        manager.restore({"a": into})
    assert into.tobytes() == swapped.tobytes()


@pytest.mark.parametrize("note", [">V2", "|V2"])
def test_the_older_note_of_another_order_of_ml_dtypes_is_read(note):
    """What stands in checkpoints that were written before it was left away."""
    array = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    made = cairn._arrays.make("numpy", "BF16", (3,), array.view(np.uint8), {"np": note}, "a")
    assert made.dtype == array.dtype and made.tobytes() == array.tobytes()


def test_a_native_target_takes_big_endian_values(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"a": np.arange(4).astype(">i8")}, blocking=True)
        given = {"a": np.zeros(4, np.int64)}
        m.restore(given)
    assert given["a"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (np.zeros(2, "M8[s]"), np.zeros(2, "M8[ms]")),
        (np.zeros(2, "M8[s]"), np.zeros(2, "m8[s]")),
        (np.zeros(2, "M8[s]"), np.zeros(2, np.int64)),
        (np.zeros(3, np.complex64), np.zeros((3, 2), np.float32)),
        (array.array("d", [1.5]), array.array("q", [0])),
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        (np.zeros(2), torch.zeros(2)),
    ],
    ids=str,
)
def test_arrays_that_mean_something_else_do_not_fit(directory, stored, wanted):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"a": stored}, blocking=True)
        with pytest.raises(cairn.Mismatch) as refused:
            m.restore({"a": wanted})
    assert len(refused.value.mismatched) == 1
    assert refused.value.mismatched[0].startswith("a: stored ")


def test_numpy_and_torch_arrays_fit_each_other(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"a": np.arange(3.0), "b": torch.arange(3)}, blocking=True)
        given = {"a": torch.zeros(3, dtype=torch.float64), "b": np.zeros(3, np.int64)}
        m.restore(given)
    assert given["a"].tolist() == [0.0, 1.0, 2.0]
    assert given["b"].tolist() == [0, 1, 2]


def test_read_only_arrays_are_stored(round_trip):
    a = np.arange(4)
    a.flags.writeable = False
    assert_same({"a": np.arange(4)}, round_trip({"a": a}))


def test_a_read_only_array_is_not_filled(directory):
    a = np.arange(4)
    a.flags.writeable = False
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"model": {"a": np.zeros(4, np.int64)}}, blocking=True)
        with pytest.raises(cairn.Invalid, match="model/a.*read-only"):
            m.restore({"model": {"a": a}})
    assert a.tolist() == [0, 1, 2, 3]


BUFFERS = {
    "bytearray": bytearray(b"some bytes"),
    "empty bytearray": bytearray(),
    "large bytearray": bytearray(b"z" * 5000),
    "array of doubles": array.array("d", [1.5, -0.0]),
    "array of shorts": array.array("h", [-1, 2]),
    "empty array": array.array("i"),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_come_back(round_trip, name):
    assert_same({"b": BUFFERS[name]}, round_trip({"b": BUFFERS[name]}))


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_are_filled(directory, name):
    given = {"b": BUFFERS[name][:]}
    memoryview(given["b"]).cast("B")[:] = bytes(memoryview(given["b"]).nbytes)
    blank = given["b"]
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"b": BUFFERS[name]}, blocking=True)
        m.restore(given)
    assert given["b"] is blank
    assert_same(BUFFERS[name], blank)


@pytest.mark.parametrize("size", [0, 10, 4000])
def test_a_memoryview_comes_back_as_bytes(round_trip, size):
    data = bytes(i % 251 for i in range(size))
    assert round_trip({"v": memoryview(data)})["v"] == data


def test_a_memoryview_of_numbers_comes_back_as_an_array(round_trip):
    given = np.arange(6, dtype=np.int32).reshape(2, 3)
    back = round_trip({"v": memoryview(given), "s": memoryview(given.astype(np.int8).ravel())})
    assert back["v"].dtype == np.int32 and np.array_equal(back["v"], given)
    assert back["s"].dtype == np.int8 and back["s"].shape == (6,)


def test_a_strided_memoryview_is_stored_by_value(round_trip):
    assert round_trip({"v": memoryview(bytes(range(10)))[::3]})["v"] == bytes([0, 3, 6, 9])


class OnlyDLPack:
    """What another array library gives: no NumPy, no buffer."""

    def __init__(self, data):
        self._data = data

    def __dlpack__(self, **kwargs):
        return self._data.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._data.__dlpack_device__()


def test_dlpack_objects_come_back_as_arrays(round_trip):
    data = np.arange(6.0).reshape(2, 3)
    assert_same({"d": data}, round_trip({"d": OnlyDLPack(data)}))


def test_a_dlpack_object_in_the_state_is_replaced(directory):
    data = np.arange(6.0)
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"d": OnlyDLPack(data)}, blocking=True)
        given = {"d": OnlyDLPack(np.zeros(6))}
        m.restore(given)
    assert_same({"d": data}, given)


@pytest.mark.parametrize("other", [np.zeros(5), np.zeros((3, 2)), np.zeros(6, np.float32)])
def test_a_dlpack_object_of_another_shape_or_type_is_refused(directory, other):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"d": OnlyDLPack(np.arange(6.0)), "n": 1}, blocking=True)
        given = {"d": OnlyDLPack(other), "n": 0}
        with pytest.raises(cairn.Mismatch, match=r"d: stored F64 \[6\]"):
            m.restore(given)
        kept = given["d"]
        restored = m.restore(given, strict=False)
        assert [name for name, _ in restored.skipped] == ["d"]
        assert given["d"] is kept and given["n"] == 1


class Immutable(OnlyDLPack):
    """As jax's arrays are."""

    @property
    def shape(self):
        return self._data.shape

    @property
    def dtype(self):
        return self._data.dtype


def test_a_piece_that_cannot_be_filled_comes_back_as_a_piece(directory):
    whole = np.arange(12.0).reshape(4, 3)
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"w": whole, "r": whole[0].copy()}, blocking=True)
        given = {
            "w": cairn.Shard(Immutable(np.zeros((2, 3))), (4, 3), (1, 0)),
            "r": cairn.Replicated(Immutable(np.zeros(3))),
        }
        m.restore(given)
    assert isinstance(given["w"], cairn.Shard) and given["w"].offset == (1, 0)
    np.testing.assert_array_equal(given["w"].array, whole[1:3])
    np.testing.assert_array_equal(given["r"].array, whole[0])


class Unreadable:
    def __dlpack__(self, **kwargs):
        raise BufferError("on another device")

    def __dlpack_device__(self):
        return (2, 0)


def test_a_dlpack_object_that_cannot_be_read_is_refused_by_name(directory):
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="x/y.*DLPack"):
        m.save(0, {"x": {"y": Unreadable()}})


def freed(tensor):
    """What sharding leaves of a tensor whose values are elsewhere."""
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning", "ignore:.*nested:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
        lambda: torch.zeros(3, dtype=torch.uint8).view(torch.uint4),
        lambda: torch.zeros(3, dtype=torch.uint8).view(torch.int4),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: freed(torch.zeros(3)),
        lambda: freed(torch.zeros(3, 2).t()),
    ],
    ids=[
        *("sparse", "meta", "quantized", "4 bits", "4 bits with a sign", "nested", "freed"),
        "freed and turned",
    ],
)
def test_torch_tensors_without_plain_memory_are_refused(directory, make):
    with cairn.CheckpointManager(directory) as m, pytest.raises(cairn.Invalid, match="^model/w"):
        m.save(0, {"model": {"w": make()}})


def test_a_freed_tensor_is_not_filled(directory):
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {"model": {"w": torch.ones(3)}})
        with pytest.raises(cairn.Invalid, match="model/w"):
            m.restore({"model": {"w": freed(torch.zeros(3))}})


def test_parameters_come_back_as_parameters(round_trip):
    state = {
        "trained": torch.nn.Parameter(torch.arange(3.0)),
        "frozen": torch.nn.Parameter(torch.arange(3.0), requires_grad=False),
        "leaf": torch.arange(3.0, requires_grad=True),
        "plain": torch.arange(3.0),
        "size": torch.Size([2, 3]),
    }
    assert_same(state, round_trip(state))


class Marked(torch.Tensor):
    """A tensor of a class of its own, with memory like any other."""


def tensors_of_many_kinds(rng):
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    complex_ = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        f"{dtype} {shape}": torch_tensor(dtype, shape, rng)
        for dtype in TORCH_DTYPES
        for shape in SHAPES
    }
    return {
        **state,
        "weight": weight,
        "tied": weight,
        "detached": weight.detach(),
        "marked": weight.detach().as_subclass(Marked),
        "same memory, other shape": weight.detach().reshape(3, 2),
        "same memory, other dtype": weight.detach().view(torch.int32),
        "transposed": weight.t(),
        "frozen": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
        "leaf": torch.zeros(2, requires_grad=True),
        "marked parameter": torch.nn.Parameter(torch.ones(2).as_subclass(Marked)),
        "conjugated": complex_.conj(),
        "negated": complex_.conj().imag,
        "negated number": complex_[:1].conj().imag,
        "nothing": torch.empty(0, 3),
        "numpy": weight.detach().numpy(),
    }


def test_plain_tensors_are_described_as_all_others(rng, monkeypatch):
    state = tensors_of_many_kinds(rng)
    for layout in (
        _tree.Layout(own="frozen", plain="state"),
        _tree.Layout(rank=1, world_size=2, participant="rank_1"),
        _tree.Layout(rank=1, world_size=2, participant="rank_1", own="own", common=True),
    ):
        both = {"state": state, "own": {"weight": state["weight"]}}
        quick = _tree.encode(both, layout)
        with monkeypatch.context() as patch:
            # As with a torch that has no functions of DLPack for C, then as all that is not plain.
            patch.setattr(
                _arrays, "torch_tensors", lambda: (torch.Tensor, _arrays.plain_torch, None)
            )
            called = _tree.encode(both, layout)
            patch.setattr(
                _arrays, "torch_tensors", lambda: (torch.Tensor, lambda value: None, None)
            )
            asked = _tree.encode(both, layout)
        assert quick.json == called.json
        assert quick.tensors.digest() == called.tensors.digest()
        assert quick.json == asked.json
        assert quick.nbytes == asked.nbytes
        assert quick.tensors.digest() == asked.tensors.digest()


def test_a_size_in_the_given_state_is_replaced(directory):
    stored = {"size": torch.Size([2, 3]), "none": torch.Size([]), "pair": (2, 3)}
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, stored)
        given = {"size": torch.Size([4]), "none": torch.Size([7]), "pair": (0, 0)}
        assert_same(stored, manager.restore(given).state)
        given["pair"] = torch.Size([0, 0])  # it is a tuple
        assert manager.restore(given).state["pair"] == (2, 3)
        with pytest.raises(cairn.Mismatch, match="pair"):
            manager.restore({**given, "pair": torch.Size([0, 0, 0])})


def test_a_tensor_that_is_exchanged_while_it_is_described_is_one_of_the_two():
    class Exchanging(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.is_neg:
                args[0].data = torch.zeros(1000, 1000)
            return function(*args, **(kwargs or {}))

    tensor = torch.arange(6.0)
    with Exchanging():
        encoded = _tree.encode({"w": tensor}, _tree.Layout())
    assert tensor.shape == (1000, 1000)
    before = encoded.nbytes == 24 and '"shape":[6]' in encoded.json
    assert before or (encoded.nbytes == 4_000_000 and '"shape":[1000,1000]' in encoded.json)


def test_a_lazy_module_s_parameter_is_not_plain():
    assert _arrays.plain_torch(torch.nn.LazyLinear(3).weight) is None


def test_ten_thousand_arrays(round_trip):
    state = {f"layer.{i}.weight": np.full(8, i, np.float32) for i in range(10_000)}
    assert_same(state, round_trip(state))


def test_restored_arrays_are_writable_and_apart(round_trip):
    restored = round_trip({"a": np.zeros(3), "b": np.zeros(3)})
    restored["a"][:] = 1
    assert restored["b"].tolist() == [0.0, 0.0, 0.0]
