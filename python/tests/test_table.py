"""Sparse tables from Python."""

import gc
import threading

import numpy as np
import pytest

import cairn
from cairn import initializers, optimizers
from cairn.table import batch, cut


def make(name="t", dim=4, **settings):
    settings.setdefault("optimizer", optimizers.SGD(1.0))
    settings.setdefault("initializer", initializers.Constant(0.0))
    return cairn.EmbeddingTable(name, dim, **settings)


def same_rows(a, b):
    a, b = a.rows(), b.rows()
    assert a.keys() == b.keys()
    for key, row in a.items():
        for name, value in row.items():
            np.testing.assert_array_equal(value, b[key][name], err_msg=f"{key} {name}")


def save(tables, kind="full", **settings):
    """What a checkpoint would hold of each table."""
    out = []
    for each in cut(tables, kind, **settings):
        out.append((kind, [each._native.read()]))
        each.committed()
    return out


def test_lookup_gives_rows_in_the_shape_of_the_ids():
    table = make(initializer=initializers.Normal(0, 1), seed=3)
    rows = table.lookup([[1, 2, 3], [3, 2, -(2**63)]])
    assert rows.shape == (2, 3, 4) and rows.dtype == np.float32
    np.testing.assert_array_equal(rows[0, 2], rows[1, 0])
    assert table.size() == len(table) == 4


def test_each_process_can_tell_which_ids_are_its_own():
    ids = np.concatenate([np.arange(-500, 500), [2**63 - 1, -(2**63)]]).reshape(2, -1)
    shards = cairn.table.shards_of(ids)
    assert shards.shape == ids.shape and shards.min() >= 0 and shards.max() < 1024
    taken = 0
    for begin, end in [(0, 341), (341, 682), (682, 1024)]:
        part = make(shards=(begin, end))
        mine = (begin <= shards) & (shards < end)
        part.lookup(ids[mine])
        with pytest.raises(cairn.Invalid, match="shards_of"):
            part.lookup(ids[~mine][:1])
        taken += part.size()
    assert taken == ids.size
    assert cairn.table.shards_of([]).shape == (0,) and cairn.table.shards_of(7).shape == ()
    with pytest.raises(cairn.Invalid, match="integers"):
        cairn.table.shards_of([0.5])


def test_lookup_without_create_makes_nothing():
    table = make(initializer=initializers.Uniform(-1, 1))
    before = table.lookup([5], create=False)
    assert table.size() == 0
    np.testing.assert_array_equal(table.lookup([5]), before)


def test_unsigned_ids_are_the_same_64_bits():
    table = make()
    table.lookup(np.array([2**64 - 1], dtype=np.uint64))
    assert list(table.rows()) == [-1]


def test_gradients_of_one_id_are_summed():
    table = make()
    table.apply_gradients([7, 8, 7], np.full((3, 4), 0.5))
    np.testing.assert_array_equal(table.lookup([7, 8]), [[-1] * 4, [-0.5] * 4])
    assert table.rows()[7]["frequency"] == 2


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.SGD(0.1),
        optimizers.Momentum(0.1, 0.9, nesterov=True),
        optimizers.Adagrad(0.1),
        optimizers.Adam(0.01),
        optimizers.AdamW(0.01, weight_decay=0.1),
        optimizers.Ftrl(0.1, l1=0.01),
        optimizers.RowwiseAdagrad(0.1),
    ],
    ids=lambda o: type(o).__name__,
)
def test_every_optimizer_minimises_a_parabola(optimizer):
    table = make(optimizer=optimizer, initializer=initializers.Constant(1.0))
    for _ in range(200):
        table.apply_gradients([1], 2 * table.lookup([1]))
    assert np.abs(table.lookup([1])).max() < 0.5
    assert set(table.rows()[1]) == {"weights", "frequency", "version", *table.slots}


def test_adagrad_is_torchs():
    torch = pytest.importorskip("torch")
    table = make(optimizer=optimizers.Adagrad(0.1, initial_accumulator_value=1.0))
    weight = torch.zeros(4, requires_grad=True)
    theirs = torch.optim.Adagrad([weight], lr=0.1, initial_accumulator_value=1.0, eps=0)
    rng = np.random.default_rng(1)
    for _ in range(20):
        g = rng.normal(size=4).astype(np.float32)
        table.apply_gradients([1], g)
        weight.grad = torch.from_numpy(g)
        theirs.step()
    np.testing.assert_allclose(table.lookup([1])[0], weight.detach().numpy(), rtol=1e-5)


def test_assign_erase_and_items():
    table = make(dim=2)
    table.assign([1, 2, 3], [[1, 1], [2, 2], [3, 3]])
    assert table.erase([2, 99]) == 1
    assert {key: row.tolist() for key, row in table.items()} == {1: [1, 1], 3: [3, 3]}
    table.clear()
    assert list(table.items()) == []


def test_admission_counts_lookups():
    table = make(admission=cairn.CounterFilter(3))
    table.lookup([1, 1])
    table.apply_gradients([1], np.ones((1, 4)))
    assert (table.size(), table.pending()) == (0, 1)
    table.lookup([1])
    assert (table.size(), table.pending()) == (1, 0)


def test_eviction_by_age_and_by_length():
    table = make(
        dim=1,
        eviction=[cairn.GlobalStepEvict(5), cairn.L2WeightEvict(0.5)],
        optimizer=optimizers.SGD(),
    )
    table.step = 1
    table.assign([1, 2, 3], [[1], [1], [0.1]])
    table.step = 9
    table.assign([2], [[2]])
    assert table.evict(9) == (2, 0)
    assert list(table.rows()) == [2]


def test_bad_arguments_are_refused_by_name():
    for settings, word in [
        ({"dim": 0}, "dim"),
        ({"dtype": "int8"}, "int8"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"initializer": 3}, "initializer"),
        ({"admission": 0}, "admission"),
        ({"eviction": 5}, "eviction"),
        ({"shards": (4, 4)}, "shards"),
        ({"optimizer": optimizers.SGD(float("nan"))}, "learning_rate"),
    ]:
        with pytest.raises(cairn.Invalid, match=word):
            make(**settings)
    table = make()
    with pytest.raises(cairn.Invalid, match="integers"):
        table.lookup([0.5])
    with pytest.raises(cairn.Invalid, match="need grads of shape"):
        table.apply_gradients([1, 2], np.zeros((2, 3)))
    with pytest.raises(cairn.Error, match="eviction"):
        table.evict(1)


def test_tables_lists_the_living_in_order():
    a, b = make("a"), make("b")
    assert [t for t in cairn.tables() if t in (a, b)] == [a, b]
    del a
    gc.collect()
    assert "a" not in [t.name for t in cairn.tables()]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_full_and_increments_bring_everything_back(dtype):
    table = make(dtype=dtype, optimizer=optimizers.Adagrad(0.1), initializer=initializers.Normal())
    table.apply_gradients(np.arange(500), np.ones((500, 4)))
    chain = save([table])
    for i in range(3):
        table.apply_gradients(np.arange(i * 10, i * 10 + 20), np.ones((20, 4)))
        table.erase([400 + i])
        chain += save([table], "consecutive")
    assert chain[-1][1][0]["keys"][1] == [20]
    other = make(dtype=dtype, optimizer=optimizers.Adagrad(0.1), initializer=initializers.Normal())
    other._native.load(chain, False)
    same_rows(table, other)


def test_quantized_increments_tell_their_error():
    table = make(dim=16, optimizer=optimizers.Adagrad(0.1), initializer=initializers.Normal())
    table.lookup(np.arange(100))
    save([table])
    table.apply_gradients(np.arange(100), np.ones((100, 16)))
    (increment,) = cut([table], "cumulative", quantize=True, compress_keys=True)
    columns = increment._native.read()
    assert columns["values"][0] == "I8" and "keys_zstd" in columns
    absolute, relative = increment.quantization_error
    assert 0 < absolute and 0 < relative < 0.5 / 127 + 1e-6


def test_an_increment_without_a_full_is_refused():
    with pytest.raises(cairn.Error, match="save a full one first"):
        cut([make()], "cumulative")


def test_another_optimizer_is_a_mismatch():
    table = make(optimizer=optimizers.Adagrad(0.1))
    table.lookup([1])
    chain = save([table])
    with pytest.raises(cairn.Mismatch, match="accumulator"):
        make(optimizer=optimizers.SGD(0.1))._native.load(chain, False)


def test_a_cut_takes_dense_state_of_the_same_instant():
    table, dense = make(dim=1), np.zeros(1)
    stop = threading.Event()

    def train():
        while not stop.is_set():
            with batch():
                table.apply_gradients([1], [[-1.0]])
                dense[0] += 1

    table.assign([1], [[0.0]])
    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for _ in range(30):
            seen = []
            (each,) = cut([table], also=lambda seen=seen: seen.append(dense[0]))
            value = np.frombuffer(each._native.read()["values"][2], dtype=np.float32)[0]
            assert value == seen[0]
            each.failed()
    finally:
        stop.set()
        trainer.join()


def test_an_error_of_the_callback_is_raised_and_nothing_is_cut():
    table = make()
    table.lookup([1])

    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cut([table], also=fail)
    assert save([table])[0][1][0]["keys"][1] == [1]


def test_a_cut_keeps_its_table_alive():
    (each,) = cut([make()])
    native = each._native
    del each
    gc.collect()
    native.failed()


def test_threads_update_together():
    table = make(dim=1)
    ids = np.arange(200)

    def work():
        for _ in range(100):
            table.apply_gradients(ids, np.full((200, 1), -1.0))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(table.lookup(ids).ravel()) == {400.0}


def _changed(tracked, weights, rows, by):
    with tracked.changing(rows) as numbers:
        weights[numbers] += by


def test_tracked_arrays_get_row_increments_in_any_partition(tmp_path):
    weights = np.arange(60, dtype=np.float32).reshape(20, 3)
    moments = np.zeros(20)
    pieces = cairn.RowTracked.partition("emb", {"weights": weights, "moments": moments}, 4)
    assert [p.rows for p in pieces] == [5, 5, 5, 5]
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(0, {}, tables=pieces, blocking=True)
        _changed(pieces[1], weights[5:10], [0, 4], 1)
        _changed(pieces[3], weights[15:], [2], 1)
        info = m.save(1, {}, tables=pieces, kind="consecutive", blocking=True).wait()
        assert info.kind == "increment"
        assert [(t["name"], t["rows"]) for t in info.tables] == [("emb", 3)]
    other = np.zeros((20, 3), dtype=np.float32)
    slots = np.ones(20)
    whole = cairn.RowTracked("emb", {"weights": other, "moments": slots})
    with cairn.CheckpointManager(tmp_path) as m:
        assert m.restore({}, tables=[whole]).step == 1
        np.testing.assert_array_equal(other, weights)
        np.testing.assert_array_equal(slots, moments)
        _changed(whole, other, [19], 7)
        assert (
            m.save(2, {}, tables=[whole], kind="cumulative", blocking=True).wait().tables[0]["rows"]
            == 4
        )


def test_tracked_arrays_must_be_plain():
    with pytest.raises(cairn.Invalid, match="contiguous"):
        cairn.RowTracked("a", {"w": np.zeros((4, 4))[:, ::2]})
    with pytest.raises(cairn.Invalid, match="rows"):
        cairn.RowTracked("a", {"w": np.zeros((4, 2)), "s": np.zeros(5)})
    with pytest.raises(cairn.Invalid, match="row 4 of 4"):
        with cairn.RowTracked("a", {"w": np.zeros((4, 2))}).changing([4]):
            pass


@pytest.mark.parametrize(
    "arguments, match",
    [
        ((5, {"w": np.zeros((4, 2))}), "name must be a str"),
        (("a", [np.zeros((4, 2))]), "not a list"),
        (("a", {1: np.zeros((4, 2))}), "must be a str"),
        (("a", {"w": [[1.0, 2.0]]}), "not a list"),
        (("a", {"w": np.float32(1)}), "can be changed"),
        (("a", {"w": np.zeros((4, 2))}, {"first_row": -1}), "first_row must not be negative"),
        (("a", {"w": np.zeros((4, 2))}, {"whole_rows": "4"}), "whole_rows must be an integer"),
        (("a", {"w": np.zeros((4, 2))}, {"side_buffer_bytes": None}), "side_buffer_bytes"),
    ],
)
def test_wrong_arguments_of_tracked_arrays_are_named(arguments, match):
    name, arrays, *options = arguments
    with pytest.raises(cairn.Invalid, match=match):
        cairn.RowTracked(name, arrays, **(options[0] if options else {}))


@pytest.mark.parametrize("kind", ["cumulative", "consecutive"])
def test_a_save_elsewhere_takes_no_rows_from_increments(tmp_path, kind):
    def make():
        return cairn.EmbeddingTable(
            "t",
            2,
            optimizer=cairn.optimizers.SGD(1.0),
            initializer=cairn.initializers.Constant(0.0),
        )

    table, other = make(), make()
    with cairn.CheckpointManager(tmp_path / "run") as m:
        table.assign([1], [[1, 1]])
        m.save(1, {}, tables=[table], blocking=True)
        table.assign([2], [[2, 2]])
        with cairn.CheckpointManager(tmp_path / "backup") as backup:
            backup.save(1, {}, tables=[table], blocking=True)
        table.assign([3], [[3, 3]])
        assert not m.can_increment()
        with pytest.raises(cairn.Error, match="another manager saved.*save a full checkpoint"):
            m.save(2, {}, tables=[table], kind=kind)
        m.save(2, {}, tables=[table], blocking=True)
        table.assign([4], [[4, 4]])
        m.save(3, {}, tables=[table], kind=kind, blocking=True)
        m.restore(tables=[other])
    assert sorted(other.rows()) == [1, 2, 3, 4]


def test_a_learning_rate_that_was_set_comes_back_with_the_rows(tmp_path):
    def made():
        sgd = cairn.optimizers.SGD(0.5)
        return cairn.EmbeddingTable("t", 2, optimizer=sgd, initializer=initializers.Constant(0.0))

    table = made()
    with cairn.CheckpointManager(tmp_path / "a", keep_last=None) as m:
        m.save(0, {}, tables=[table]).wait()
        table.learning_rate = 0.1
        table.lookup([7])
        m.save(1, {}, tables=[table], kind="cumulative").wait()
        table.learning_rate = 0.025
        m.save(2, {}, tables=[table]).wait()
        for step, rate in [(0, 0.5), (1, 0.1), (2, 0.025), (0, 0.5)]:
            m.restore({}, tables=[table], step=step)
            assert table.learning_rate == np.float32(rate), step
    other = made()
    with cairn.CheckpointManager(tmp_path / "a", read_only=True) as m:
        other.learning_rate = 2.0
        m.restore({}, tables=[other], merge_tables=True)
        assert other.learning_rate == 2.0  # the rows came, and nothing else changed
        m.restore({}, tables=[other])
    assert other.learning_rate == np.float32(0.025)


def test_a_session_saves_a_full_one_after_a_backup_of_its_table(tmp_path):
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0))

    def session():
        return cairn.train.MonitoredTrainingSession(
            tmp_path / "run",
            save_checkpoint_secs=None,
            save_incremental_checkpoint_steps=2,
            tables=[table],
        )

    with session() as sess:
        for _ in range(3):
            sess.run(lambda step: table.lookup([step]))
        sess.save(full=False).wait()
        sess.run(lambda step: table.lookup([step]))
        with cairn.CheckpointManager(tmp_path / "backup") as backup:
            backup.save(1, {}, tables=[table], blocking=True)
        sess.run(lambda step: table.lookup([step]))
    table.clear()
    with session() as sess:
        assert sorted(table.rows()) == [0, 1, 2, 3, 4]


def test_a_skipped_save_returns_at_once_and_loses_no_rows(tmp_path):
    table = cairn.EmbeddingTable("t", 64, optimizer=cairn.optimizers.SGD(1.0))
    table.apply_gradients(np.arange(20_000), np.ones((20_000, 64)))
    skipped = 0
    with cairn.CheckpointManager(tmp_path, on_busy="skip", keep_last=None) as m:
        for step in range(10):
            handle = m.save(step, {}, tables=[table])
            table.apply_gradients([step], np.ones((1, 64)))
            if handle.done():
                try:
                    handle.wait()
                except cairn.Cancelled:
                    skipped += 1
        m.wait()
        last = m.save(99, {}, tables=[table], kind="cumulative", blocking=True).wait()
    assert skipped > 0
    fresh = cairn.EmbeddingTable("t", 64, optimizer=cairn.optimizers.SGD(1.0))
    with cairn.CheckpointManager(tmp_path, read_only=True) as m:
        assert m.restore({}, tables=[fresh], id=last.id).step == 99
    np.testing.assert_array_equal(fresh.lookup(np.arange(20)), table.lookup(np.arange(20)))


def test_restored_rows_replace_the_tables_or_are_merged_into_it(tmp_path):
    table = make(dim=2)
    table.assign([1, 2], np.full((2, 2), 5.0))
    with cairn.CheckpointManager(tmp_path) as m:
        m.save(0, {}, tables=[table], blocking=True)
        other = make(dim=2)
        other.assign([2, 3], np.full((2, 2), 9.0))
        m.restore({}, tables=[other], merge_tables=True)
        assert {key: row["weights"][0] for key, row in other.rows().items()} == {1: 5, 2: 5, 3: 9}
        assert not m.can_increment(), "an increment would have no base with these rows"
        m.restore({}, tables=[other])
        assert sorted(other.rows()) == [1, 2]
        assert m.can_increment()


@pytest.mark.parametrize(
    "settings, named",
    [
        (lambda: optimizers.SGD("x"), "SGD: learning_rate"),
        (lambda: optimizers.Adam(0.1, beta1=None), "Adam: beta1"),
        (lambda: optimizers.Momentum(0.1, nesterov=1), "Momentum: nesterov"),
        (lambda: optimizers.Adagrad(True), "Adagrad: learning_rate"),
        (lambda: initializers.Uniform("low", 1), "Uniform: low"),
    ],
)
def test_settings_that_are_no_numbers_are_refused_at_once(settings, named):
    with pytest.raises(cairn.Invalid, match=named):
        settings()


def test_settings_may_be_numbers_of_numpy():
    t = make(optimizer=optimizers.SGD(np.float32(0.5)), initializer=initializers.Constant(1))
    assert t.lookup([1]).tolist() == [[1.0] * t.dim]


def _one(name="users", dim=2, **options):
    return cairn.EmbeddingTable(name, dim, optimizer=cairn.optimizers.SGD(0.5), **options)


def test_tables_that_do_not_match_are_named(tmp_path):
    table = _one()
    table.assign([1, 2], np.ones((2, 2)))
    with cairn.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": np.arange(3.0)}, tables=[table]).wait()
    with cairn.CheckpointManager(tmp_path) as manager:
        with pytest.raises(cairn.Mismatch) as raised:
            manager.restore(tables=[_one(dim=3)])
        assert [line.split(":")[0] for line in raised.value.mismatched] == ["users"]
        with pytest.raises(cairn.Mismatch) as raised:
            manager.restore(tables=[_one("others")])
        assert raised.value.missing == ["others"]
        assert raised.value.unexpected == ["users"]


def test_not_strict_restores_the_tables_that_match_and_reports_the_rest(tmp_path):
    first, second = _one("first"), _one("second")
    for table in (first, second):
        table.assign([1, 2], np.ones((2, 2)))
    with cairn.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": np.arange(3.0)}, tables=[first, second]).wait()
    with cairn.CheckpointManager(tmp_path) as manager:
        fits, other, absent = _one("first"), _one("second", dim=3), _one("absent")
        other.assign([9], np.ones((1, 3)))
        restored = manager.restore(tables=[fits, other, absent], strict=False)
        assert fits.size() == 2
        assert other.size() == 1, "left as it was"
        assert absent.size() == 0
        reasons = dict(restored.skipped)
        assert sorted(reasons) == ["absent", "second"]
        assert "does not fit" in reasons["second"]
        # Without tables= those of the checkpoint are said to be left out.
        assert sorted(dict(manager.restore({"x": np.zeros(3)}).skipped)) == ["first", "second"]


def test_a_table_is_free_when_its_save_is_durable(tmp_path):
    table = _one()
    table.assign([1], np.ones((1, 2)))
    with cairn.CheckpointManager(tmp_path) as manager:
        manager.save(1, {}, tables=[table]).wait()
        table.clear()
        assert table.size() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": None},
        {"name": 5},
        {"shards": (-1, 4)},
        {"shards": (4, 4)},
        {"side_buffer_bytes": -1},
        {"seed": 1 << 64},
        {"eviction": cairn.GlobalStepEvict(1.5)},
        {"eviction": [cairn.GlobalStepEvict(1), cairn.GlobalStepEvict(2)]},
    ],
)
def test_nonsense_is_refused_by_name(arguments):
    with pytest.raises(cairn.Invalid, match="table"):
        _one(**arguments)


def test_gradients_of_another_layout_are_refused():
    table = _one()
    for grads in (np.ones((2, 3)), np.ones((3, 2), dtype=complex), np.ones(5)):
        with pytest.raises(cairn.Invalid, match="grads"):
            table.apply_gradients([1, 2, 3], grads)
    with pytest.raises(cairn.Invalid, match="learning_rate"):
        table.learning_rate = float("nan")
    assert table.size() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"dim": True},
        {"dim": 2.0},
        {"seed": True},
        {"seed": "1"},
        {"admission": True},
        {"admission": "2"},
        {"shards": None},
        {"shards": (1, 2, 3)},
        {"name": "a\udc80"},
        {"eviction": cairn.L2WeightEvict("x")},
        {"eviction": cairn.L2WeightEvict(None)},
    ],
)
def test_what_is_no_number_or_name_is_refused_by_name(arguments):
    with pytest.raises(cairn.Invalid, match="table"):
        _one(**arguments)


def test_counts_may_be_numbers_of_numpy():
    table = _one(dim=np.int64(3), seed=np.int64(4), admission=np.int32(1),
                 eviction=cairn.GlobalStepEvict(np.int64(2)))  # fmt: skip
    table.step = np.int64(1)
    table.lookup(np.arange(4))
    table.lookup(np.arange(4))
    assert table.size() == 4
    assert table.evict(np.int64(9)).rows == 4


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda t: t.apply_gradients([1], [[None, None]]), "grads"),
        (lambda t: t.apply_gradients([1], [["a", "b"]]), "grads"),
        (lambda t: t.apply_gradients([1], np.array([[True, False]])), "grads"),
        (lambda t: t.apply_gradients([1], [[1], [2, 3]]), "grads"),
        (lambda t: t.assign([1], [[None, None]]), "values"),
        (lambda t: t.lookup([[1], [2, 3]]), "ids"),
        (lambda t: t.evict("1"), "step"),
        (lambda t: t.evict(-1), "step"),
        (lambda t: t.evict(1 << 70), "step"),
        (lambda t: setattr(t, "step", -1), "step"),
        (lambda t: setattr(t, "step", True), "step"),
        (lambda t: setattr(t, "step", "1"), "step"),
        (lambda t: setattr(t, "learning_rate", "1"), "learning_rate"),
        (lambda t: setattr(t, "learning_rate", True), "learning_rate"),
    ],
)
def test_what_is_no_number_reaches_no_row(call, named):
    table = _one(eviction=cairn.GlobalStepEvict(1))
    with pytest.raises(cairn.Invalid, match=f"'users'.*{named}"):
        call(table)
    assert table.size() == 0


def test_gradients_may_be_tensors_of_any_float_and_with_a_graph():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        table = _one(initializer=initializers.Constant(1))
        table.apply_gradients(torch.tensor([1]), torch.ones(1, 2, dtype=dtype, requires_grad=True))
        assert table.lookup([1]).tolist() == [[0.5, 0.5]]
