"""What is changed after save() returned is not in the checkpoint."""

import gc
import resource
import threading

import numpy as np
import pytest
import torch

import cairn

MEGABYTES = 24


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_array_changed_right_after_save_is_stored_as_it_was(directory, kind):
    w = np.zeros(MEGABYTES << 18, np.float32)
    given = w if kind == "numpy" else torch.from_numpy(w)
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        for step in range(12):
            w[:] = step
            m.save(step, {"w": given, "step": step})
            w[:] = -1
        target = np.empty_like(w)
        for step in range(12):
            m.restore({"w": target, "step": None}, step=step)
            assert target.min() == target.max() == step


def test_values_changed_right_after_save_are_stored_as_they_were(directory):
    state = {"list": [1], "bytes": bytearray(b"before"), "strided": np.zeros((50, 50)).T}
    with cairn.CheckpointManager(directory) as m:
        handle = m.save(0, state)
        state["list"].append(2)
        state["bytes"][:] = b"after!"
        state["strided"][:] = 9
        handle.wait()
        restored = m.restore().state
    assert restored["list"] == [1] and restored["bytes"] == b"before"
    assert not restored["strided"].any()


def test_an_array_that_is_freed_right_after_save_is_stored(directory):
    with cairn.CheckpointManager(directory) as m:
        for step in range(5):
            handle = m.save(step, {"w": np.full(1 << 20, step, np.float64)})
            gc.collect()
            junk = np.full(1 << 20, -1.0)  # likely the same memory
            handle.wait()
            assert m.restore().state["w"].min() == step
            del junk


def test_saves_from_several_threads_are_each_whole(directory):
    with cairn.CheckpointManager(directory, keep_last=None) as m:

        def work(worker):
            w = np.empty(1 << 18)
            for i in range(5):
                step = worker * 5 + i
                w[:] = step
                m.save(step, {"w": w, "step": step})
                w[:] = -1

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        m.wait()
        assert sorted(i.step for i in m.list()) == list(range(20))
        for step in range(20):
            w = m.restore(step=step).state["w"]
            assert w.min() == w.max() == step


def test_lazy_arrays_may_be_changed_after_guard(directory):
    w = np.zeros(MEGABYTES << 18, np.float32)
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        for step in range(8):
            w[:] = step
            handle = m.save(step, {"w": w}, lazy=True)
            handle.guard()
            w[:] = -1
        m.wait()
        for step in range(8):
            restored = m.restore(step=step).state["w"]
            assert restored.min() == restored.max() == step


def test_lazy_arrays_are_kept_alive_without_their_owner(directory):
    with cairn.CheckpointManager(directory) as m:
        for step in range(5):
            m.save(step, {"w": np.full(1 << 21, step, np.float64).reshape(2, -1).T}, lazy=True)
            gc.collect()
            junk = np.full(1 << 21, -1.0)
            m.wait()
            assert m.restore().state["w"].min() == step
            del junk


def test_a_lazy_save_keeps_memory_that_a_parameter_exchanges(directory):
    weight = torch.nn.Parameter(torch.empty(0))
    with cairn.CheckpointManager(directory) as m:
        for step in range(5):
            weight.data = torch.full((1 << 22,), float(step))
            m.save(step, {"w": weight}, lazy=True)
            weight.data = torch.empty(0)
            junk = torch.full((1 << 22,), -1.0)
            m.wait()
            restored = m.restore().state["w"]
            assert restored.min() == restored.max() == step
            del junk


def test_a_skipped_save_does_not_free_the_arrays_of_the_lazy_one_before(directory):
    with cairn.CheckpointManager(directory, on_busy="skip") as m:
        for round_ in range(5):
            m.wait()
            m.save(2 * round_, {"w": np.full(1 << 22, round_, np.float64)}, lazy=True)
            m.save(2 * round_ + 1, {"w": np.zeros(1)}, lazy=True)  # skipped, most likely
            gc.collect()
            junk = np.full(1 << 22, -1.0)
            m.wait()
            w = m.restore(step=2 * round_).state["w"]
            assert w.min() == w.max() == round_
            del junk


def test_a_blocking_save_is_durable_when_it_returns(directory):
    with cairn.CheckpointManager(directory) as m:
        handle = m.save(0, {"w": np.ones(1 << 20)}, blocking=True)
        assert handle.done()
        with cairn.CheckpointManager(directory, read_only=True) as reader:
            assert reader.latest().step == 0
        assert handle.wait().step == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_after_a_blocking_save_that_failed_the_next_one_is_made(directory, lazy):
    large = {"w": np.zeros(1_000_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with cairn.CheckpointManager(directory) as m:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(cairn.NoSpace):
                m.save(1, large, blocking=True, lazy=lazy)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert m.save(2, large, blocking=True, lazy=lazy).wait().step == 2
        assert [info.step for info in m.list()] == [2]


def test_a_handle_tells_what_it_cost(directory):
    with cairn.CheckpointManager(directory) as m:
        handle = m.save(0, {"w": np.ones(1 << 20)})
        info = handle.wait()
        assert handle.done() and info.bytes >= 8 << 20
        assert 0 <= handle.stall_seconds <= handle.durable_seconds
        assert handle.bytes_written >= 8 << 20 and handle.bytes_shared == 0
        again = m.save(1, {"w": np.ones(1 << 20)})
        again.wait()
        m.save(2, {"w": np.ones(1 << 20)}).wait()
        assert again.bytes_written + again.bytes_shared >= 8 << 20


def test_low_memory_stores_the_same(directory):
    w = np.arange(1 << 20, dtype=np.float64)
    with cairn.CheckpointManager(directory, low_memory=True) as m:
        m.save(0, {"w": w})
        w[:] = -1
        assert m.restore().state["w"].tolist() == list(range(1 << 20))
