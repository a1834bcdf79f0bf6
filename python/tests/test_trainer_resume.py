"""Trainer: what handlers change, loaders draw and states grow by is exact after a resume."""

import collections
import contextlib
import logging
import random
import signal

import children
import numpy as np
import pytest
import torch
from sameness import assert_same
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import cairn
import cairn.torch


class Killed(Exception):
    pass


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def make(directory, model, step, interval=1, **options):
    config = cairn.CheckpointConfig(directory, step_interval=interval)
    return cairn.Trainer(model, step, checkpoint_config=config, **options)


def killed_at(kill, on_event=None):
    """A handler that ends the training as a kill would, before its `kill`-th step of this run."""
    begun = []

    def handler(event):
        if on_event is not None:
            on_event(event)
        if isinstance(event, cairn.BeginStepEvent):
            begun.append(event)
            if len(begun) == kill:
                raise Killed

    return handler


def resumed_as_undisturbed(run, tmp_path, kills):
    """`run(directory, kill)` gives the final state; it must not depend on the kill."""
    expected = run(tmp_path / "undisturbed", None)
    for kill in kills:
        with pytest.raises(Killed):
            run(tmp_path / f"killed-{kill}", kill)
        assert run(tmp_path / f"killed-{kill}", None) == expected, f"killed at step {kill}"


# Handlers ----------


def test_what_a_handler_changes_at_the_beginning_of_an_epoch_is_changed_once(tmp_path):
    def run(directory, kill):
        table = cairn.EmbeddingTable("t", 1, optimizer=cairn.optimizers.SGD(1.0))
        model, optimizer = {"w": np.zeros(1), "rate": np.ones(1)}, {"epochs": 0}
        state = {"seen": [], "generator": np.random.default_rng(1)}
        weights = np.zeros((3, 1))
        tracked = cairn.RowTracked("r", {"weights": weights})

        def step(model, batch):
            model["w"] += batch * model["rate"] + state["noise"] + table.lookup([1])[0]
            with tracked.changing([0]):
                weights[0] += batch

        def handler(event):
            if isinstance(event, cairn.BeginEpochEvent):
                model["rate"] *= 0.5
                optimizer["epochs"] += 1
                state["seen"].append(event.epoch)
                state["noise"] = state["generator"].random()
                table.assign([1], table.lookup([1]) + 1)
                with tracked.changing([1]):
                    weights[1] += 1

        trainer = make(
            directory, model, step, optimizer=optimizer, state=state, tables=[table, tracked]
        )
        trainer.train(3, [1.0, 2.0, 3.0, 4.0], killed_at(kill, handler))
        rows = {key: row["weights"].tolist() for key, row in table.rows().items()}
        kept = state["seen"], state["noise"], state["generator"].random()
        return {k: v.tolist() for k, v in model.items()}, optimizer, kept, rows, weights.tolist()

    resumed_as_undisturbed(run, tmp_path, [2, 3, 6, 8, 12])


def test_what_a_handler_keeps_in_memory_for_an_epoch_is_made_again(tmp_path):
    def run(directory, kill):
        random.seed(3), np.random.seed(3)
        model, memory = {"w": np.zeros(1)}, {}

        def step(model, batch):
            model["w"] += batch * memory["noise"] + np.random.rand()

        def handler(event):
            if isinstance(event, cairn.BeginEpochEvent):
                memory["noise"] = np.random.rand() + random.random()
            elif isinstance(event, cairn.EndEpochEvent):
                del memory["noise"]

        make(directory, model, step).train(3, [1.0, 2.0, 3.0], killed_at(kill, handler))
        return model["w"].tolist()

    resumed_as_undisturbed(run, tmp_path, [2, 3, 5, 9])


def test_the_event_says_with_which_step_the_epoch_goes_on(directory):
    def run(kill):
        events = []
        trainer = make(directory, {"w": np.zeros(1)}, lambda m, b: None)
        try:
            trainer.train(2, [1.0, 2.0, 3.0], killed_at(kill, events.append))
        except Killed:
            pass
        return [(e.epoch, e.step) for e in events if isinstance(e, cairn.BeginEpochEvent)]

    assert run(3) == [(0, 0)]
    assert run(3) == [(0, 2), (1, 0)]
    assert run(None) == [(1, 1)]
    assert cairn.BeginEpochEvent(4) == cairn.BeginEpochEvent(4, 0)


def test_a_handler_that_changes_nothing_costs_no_second_restore(directory, monkeypatch):
    restores = []
    restore = cairn.CheckpointManager.restore

    def counted(manager, *args, **options):
        restores.append(options.get("id"))
        return restore(manager, *args, **options)

    def run(handler):
        def step(model, batch):
            model["w"] += batch

        try:
            make(directory, {"w": np.zeros(1)}, step).train(1, [1.0, 2.0, 3.0], killed_at(2, handler))
        except Killed:
            pass

    run(None)
    monkeypatch.setattr(cairn.CheckpointManager, "restore", counted)
    run(lambda event: None)
    assert restores == [None]


def test_lookups_of_keys_that_are_not_admitted_count_once_too(tmp_path):
    def run(directory, kill):
        table = cairn.EmbeddingTable(
            "t", 1, optimizer=cairn.optimizers.SGD(1.0), admission=cairn.CounterFilter(3)
        )

        def handler(event):
            if isinstance(event, cairn.BeginEpochEvent):
                table.lookup([7])

        trainer = make(directory, {"w": np.zeros(1)}, lambda m, b: None, tables=[table])
        trainer.train(2, [1.0, 2.0, 3.0], killed_at(kill, handler))
        return table.size(), table.pending()

    resumed_as_undisturbed(run, tmp_path, [2, 3, 5])


@pytest.mark.parametrize("interval", [1, 5])  # the last step of an epoch is saved, or not
def test_a_stop_at_the_end_of_every_epoch_trains_one_epoch_a_run(directory, interval):
    def run():
        model = {"w": np.zeros(1), "epochs": 0}
        trainer = make(directory, model, lambda m, b: m["w"].__iadd__(b), interval)

        def handler(event):
            if isinstance(event, cairn.EndEpochEvent):
                model["epochs"] += 1
                trainer.stop()

        summary = trainer.train(4, [1.0] * 4, handler)
        return summary.steps, model["w"].tolist(), model["epochs"]

    assert [run() for _ in range(5)] == [
        (4, [4.0], 1), (4, [8.0], 2), (4, [12.0], 3), (4, [16.0], 4), (0, [16.0], 4),
    ]  # fmt: skip


def test_what_a_handler_changes_at_the_end_of_the_last_epoch_is_saved(directory):
    def run():
        model = {"w": np.ones(1)}

        def handler(event):
            if isinstance(event, cairn.EndEpochEvent):
                model["w"] *= 2

        make(directory, model, lambda m, b: m["w"].__iadd__(b)).train(1, [1.0], handler)
        return model["w"].tolist()

    assert run() == [4.0] and run() == [4.0]


def test_a_signal_at_the_end_of_an_epoch_ends_it_there(directory):
    import signal

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        def handler(event):
            if isinstance(event, cairn.EndEpochEvent):
                signal.raise_signal(signal.SIGTERM)

        summary = make(directory, {"w": np.zeros(1)}, lambda m, b: None).train(3, [1.0] * 4, handler)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (summary.global_step, summary.stopped) == (4, True)


# Loaders with generators of their own ----------


def shuffled(generator, **options):
    return DataLoader(torch.arange(8), batch_size=2, shuffle=True, generator=generator, **options)


def by_sampler(generator):
    sampler = RandomSampler(torch.arange(8), generator=generator)
    return DataLoader(torch.arange(8), batch_size=2, sampler=sampler)


def by_batch_sampler(generator):
    sampler = RandomSampler(range(8), replacement=True, num_samples=8, generator=generator)
    return DataLoader(torch.arange(8), batch_sampler=BatchSampler(sampler, 2, False))


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i + torch.rand(1).item()


def with_workers(generator):
    return DataLoader(Noise(), batch_size=2, shuffle=True, generator=generator, num_workers=1)


def with_staying_workers(generator):
    options = {"num_workers": 1, "persistent_workers": True}
    return DataLoader(torch.arange(8), 2, shuffle=True, generator=generator, **options)


def always(loader):
    return lambda: loader


LOADERS = {
    "generator": lambda g: shuffled(g),
    "sampler": by_sampler,
    "batch sampler": by_batch_sampler,
    "workers": with_workers,
    "workers that stay": with_staying_workers,
    "workers that stay, by the global state": lambda g: with_staying_workers(None),
    "workers that stay, by a callable": lambda g: always(with_staying_workers(g)),
    "workers that stay for one epoch": lambda g: lambda: with_staying_workers(g),
    "one for each epoch": lambda g: lambda: shuffled(g),
    "seeded for each epoch": lambda g: lambda epoch: shuffled(torch.Generator().manual_seed(epoch)),
}


@pytest.mark.parametrize("make_reader", LOADERS.values(), ids=LOADERS.keys())
@pytest.mark.parametrize("in_state", [False, True])
def test_a_loader_with_a_generator_of_its_own_gives_the_same_data(tmp_path, make_reader, in_state):
    def run(directory, kill, epochs=3):
        torch.manual_seed(0)
        g = torch.Generator().manual_seed(5)
        model = {"w": np.zeros(1)}

        def step(model, batch):
            model["w"] = model["w"] * 0.9 + float((batch * torch.arange(1, 3)).sum())
            if in_state:  # the steps draw from it too
                model["w"] += torch.rand(1, generator=g).item()

        state = {"g": g} if in_state else None
        trainer = make(directory, model, step, state=state)
        trainer.train(epochs, make_reader(g), killed_at(kill))
        return model["w"].tolist()

    resumed_as_undisturbed(run, tmp_path, [2, 5, 7, 12])
    run(tmp_path / "more", None, epochs=1)  # an epoch that was saved whole
    assert run(tmp_path / "more", None) == run(tmp_path / "undisturbed", None)


@pytest.mark.parametrize("stops", [[2], [4], [6], [4, 2]])
def test_workers_that_stay_from_one_call_of_train_to_the_next_change_nothing(tmp_path, stops):
    def train(directory, loader, seen, stop):
        def step(model, batch):
            seen.append(batch.tolist())
            if len(seen) == stop:
                trainer.stop()

        trainer = make(directory, {"w": np.zeros(1)}, step)
        trainer.train(2, loader)

    def run(directory, stops):
        torch.manual_seed(0)
        loader, seen = with_staying_workers(None), []
        for stop in stops:
            train(directory, loader, seen, len(seen) + stop)
        train(directory, loader, seen, None)
        return seen

    assert run(tmp_path / "stopped", stops) == run(tmp_path / "undisturbed", [])


def test_a_resume_with_workers_that_stay_says_what_is_not_exact(directory, caplog):
    def run(kill):
        trainer = make(directory, {"w": np.zeros(1)}, lambda m, b: None)
        with contextlib.suppress(Killed):
            trainer.train(2, with_staying_workers(None), killed_at(kill))
        return [r.getMessage() for r in caplog.records if "persistent_workers" in r.getMessage()]

    with caplog.at_level(logging.WARNING, logger="cairn"):
        assert run(2) == []
        assert run(5) == [], "in the first epoch they are started as the first time"
        assert len(run(None)) == 1


ALL_PROCESSES = """
    import torch, cairn.torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    BLOCKS = len(sys.argv) > 3

    class Examples(Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            if type(i) is tuple:  # from the 7th batch on
                if BLOCKS:
                    time.sleep(3600)
                i = i[0]
            return float(i) + torch.rand(1).item()

    class Marked(Examples):
        def __getitem__(self, i):
            order = cairn.torch.Loader(range(24), 2)._order(0)
            return super().__getitem__(i if order.index(i) < 12 else (i,))

    class Sampler(RandomSampler):
        def __iter__(self):
            for number, i in enumerate(super().__iter__()):
                torch.rand(1)  # a sampler may draw whenever it is asked
                yield i if number < 12 else (i,)

    torch.manual_seed(1)
    if sys.argv[2] == "cairn":
        loader = cairn.torch.Loader(Marked(), 2, num_workers=2)
    else:
        loader = DataLoader(Examples(), 2, sampler=Sampler(range(24)), num_workers=2)
    model = {"w": np.zeros(1)}

    def step(model, batch):
        model["w"] = model["w"] * 0.9 + float(batch.sum()) + torch.rand(1).item()

    def handler(event):
        if isinstance(event, cairn.EndStepEvent) and event.step == 5 and BLOCKS:
            # When the training waits for a batch that does not come.
            threading.Timer(0.3, os.killpg, (0, signal.SIGTERM)).start()

    os.setpgid(0, 0)
    config = cairn.CheckpointConfig(sys.argv[1], step_interval=100)
    summary = cairn.Trainer(model, step, checkpoint_config=config).train(1, loader, handler)
    print(summary.steps, float(model["w"][0]).hex())
"""


@pytest.mark.parametrize("loader", ["torch", "cairn"])
def test_a_signal_that_ends_the_workers_too_is_no_failure(tmp_path, loader):
    steps, undisturbed = children.run(ALL_PROCESSES, tmp_path / "undisturbed", loader).split()
    status, _, errors = children.Child(ALL_PROCESSES, tmp_path / "ended", loader, "blocks").end()
    assert status == -signal.SIGTERM and "the reader failed" in errors, errors
    rest, resumed = children.run(ALL_PROCESSES, tmp_path / "ended", loader).split()
    assert (int(steps), int(rest), resumed) == (12, 6, undisturbed)


@pytest.mark.parametrize("kind", [np.random.default_rng, random.Random])
def test_a_reader_may_draw_from_a_generator_in_the_state(tmp_path, kind):
    def run(directory, kill):
        generator = kind(1)
        model = {"w": np.zeros(1)}

        def reader():
            order = list(range(4))
            generator.shuffle(order)
            return iter(order)

        def step(model, batch):
            model["w"] = model["w"] * 0.9 + batch + generator.random()

        make(directory, model, step, state={"g": generator}).train(3, reader, killed_at(kill))
        return model["w"].tolist()

    resumed_as_undisturbed(run, tmp_path, [2, 5, 7, 12])


def test_a_loader_with_other_generators_is_refused(directory):
    def train(loader, kill):
        try:
            make(directory, {"w": np.zeros(1)}, lambda m, b: None).train(1, loader, killed_at(kill))
        except Killed:
            pass

    train(shuffled(torch.Generator()), 3)
    with pytest.raises(cairn.Mismatch, match="other random generators .* has a generator"):
        train(shuffled(None), None)


# States that grow ----------


GROWING = {
    "an empty optimizer": ({"w": 0}, {}, None),
    "an optimizer with a setting": ({"w": 0}, {"lr": 0.5}, None),
    "an empty dict in the state": ({"w": 0}, {}, {"best": {}}),
    "a state with a value": ({"w": 0}, {}, {"best": {"epoch": 0}}),
    "an empty model": ({}, {}, {}),
}


@pytest.mark.parametrize("given", GROWING.values(), ids=GROWING.keys())
def test_what_the_steps_put_into_dicts_comes_back(tmp_path, given):
    import copy

    def run(directory, kill):
        model, optimizer, state = copy.deepcopy(given)

        def step(model, batch):
            model["w"] = model.get("w", 0) + batch
            optimizer.setdefault("momentum", np.zeros(2))
            optimizer["momentum"] += batch
            model["steps"] = model.get("steps", 0) + 1
            if state is not None:
                best = state.setdefault("best", {})
                best["loss"] = float(model["w"])
                best["weights"] = optimizer["momentum"].copy()

        trainer = make(directory, model, step, optimizer=optimizer, state=state)
        trainer.train(2, [1.0] * 4, killed_at(kill))
        best = None if state is None else {k: np.asarray(v).tolist() for k, v in state["best"].items()}
        return model, optimizer["momentum"].tolist(), best

    resumed_as_undisturbed(run, tmp_path, [2, 3, 6])


def test_a_sessions_dicts_grow_by_values_and_the_empty_ones_by_anything(directory):
    def run(state, steps):
        with cairn.train.MonitoredTrainingSession(
            directory, save_checkpoint_steps=1, save_checkpoint_secs=None, tables=[], state=state
        ) as session:
            for _ in range(steps):
                session.run(lambda step: state["best"].update(step=step, weights=state["w"] + step))
        return {k: np.asarray(v).tolist() for k, v in state["best"].items()}

    kept = {"best": {}, "w": np.ones(2)}
    assert run(kept, 2) == run(kept, 0) == {"step": 1, "weights": [2.0, 2.0]}
    assert run({"best": {}, "w": np.zeros(2)}, 0) == {"step": 1, "weights": [2.0, 2.0]}
    with pytest.raises(cairn.Mismatch, match="best/weights"):
        run({"best": {"step": 0}, "w": np.zeros(2)}, 0)


def test_arrays_that_a_model_lacks_are_those_of_another_model(directory):
    def train(model, **options):
        return make(directory, model, lambda m, b: None, **options).train(2, [1.0])

    train({"w": np.ones(1), "v": np.ones(1)}, state={"train": cairn.torch.capture(a=Counter())})
    with pytest.raises(cairn.Mismatch, match="another model") as refused:
        train({"w": np.ones(1)}, state={"train": cairn.torch.capture(a=Counter())})
    assert refused.value.unexpected == ["model/v"]
    with pytest.raises(cairn.Mismatch, match="another optimizer or state") as refused:
        train({"w": np.ones(1), "v": np.ones(1)}, state={"train": cairn.torch.capture(b=Counter())})
    assert "another model" not in str(refused.value)


class Counter:
    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        pass


# Directories of others ----------


@pytest.mark.parametrize("args", [5, {"epoch": 1}, [1, 2], None])
def test_a_managers_directory_is_refused_before_anything_is_changed(directory, args):
    state = {"model": {"w": np.ones(1)}}
    with cairn.CheckpointManager(directory) as m:
        m.save(0, state if args is None else {**state, "args": args}, blocking=True)
    model = {"w": np.zeros(1)}
    with pytest.raises(cairn.Mismatch, match="not saved by a"):
        make(directory, model, lambda m, b: None).train(1, [1.0])
    assert model["w"].tolist() == [0.0]


def rotate(state, batch):
    """As a cache of the values used last does: the first one becomes the last."""
    values = state["values"]
    key = next(iter(values))
    values[key] = values.pop(key) + batch


def append_tensor(state, batch):
    state["values"].append(torch.full((2,), float(batch)))


def longer_tuple(state, batch):
    state["values"] += (batch,)


def shorter_tuple(state, batch):
    state["values"] = state["values"][1:]


@pytest.mark.parametrize(
    "fresh, change",
    [
        (lambda: {"a": 1, "b": 2, "c": 3}, rotate),
        (lambda: collections.OrderedDict(a=1, b=2, c=3), rotate),
        (lambda: {"a": 1, 2: np.ones(1), (3, "x"): 3}, rotate),
        (list, append_tensor),
        (lambda: (1, "a"), longer_tuple),
        (lambda: tuple(range(20)), shorter_tuple),
    ],
    ids=["dict", "OrderedDict", "keys", "list of tensors", "longer tuple", "shorter tuple"],
)
@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_containers_come_back_as_the_steps_left_them(tmp_path, fresh, change, stop_at):
    def run(directory, stop=None):
        state = {"values": fresh()}
        given = state["values"]

        def step(model, batch):
            change(state, batch)
            model["w"] += sum(float(np.sum(np.asarray(v))) for v in firsts(state["values"]))
            if trainer.global_step + 1 == stop:
                trainer.stop()

        model = {"w": np.zeros(1)}
        config = cairn.CheckpointConfig(directory, step_interval=1)
        trainer = cairn.Trainer(model, step, checkpoint_config=config, state=state)
        trainer.train(2, [1, 2, 3, 4])
        assert isinstance(given, tuple) or state["values"] is given
        return {"state": state, "model": model}

    calm = run(tmp_path / "calm")
    run(tmp_path / "stopped", stop_at)
    assert_same(calm, run(tmp_path / "stopped"))


def firsts(values):
    """What the first value is depends on the order."""
    items = list(values.values()) if isinstance(values, dict) else list(values)
    return [item for item in items[:1] if not isinstance(item, str)]
