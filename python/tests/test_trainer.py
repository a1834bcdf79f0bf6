"""Trainer: when it saves, what it restores, what it refuses."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap

import children
import numpy as np
import pytest
import torch

import cairn
import cairn.torch
from cairn._save_cost import cost_warning


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def count(model, batch):
    model["w"] += batch
    model["seen"] = model.get("seen", 0) + 1
    return {"sum": float(model["w"].sum())}


def make(directory, model=None, step=count, **config):
    config.setdefault("step_interval", 1)
    model = {"w": np.zeros(2), "seen": 0} if model is None else model
    settings = cairn.CheckpointConfig(directory, **config)
    return cairn.Trainer(model, step, checkpoint_config=settings), model


def saved_positions(directory):
    with cairn.CheckpointManager(directory, read_only=True) as m:
        return [(c.metadata["epoch"], c.metadata["step"]) for c in m.list()]


def test_saves_where_both_intervals_divide_and_at_the_end(directory):
    trainer, _ = make(directory, max_num_checkpoints=None, epoch_interval=2, step_interval=3)
    trainer.train(3, [1.0] * 5)
    assert saved_positions(directory) == [(0, 0), (0, 3), (2, 0), (2, 3), (2, 4)]


def test_the_tree_has_serial_names_and_text_files_of_the_last_completed_step(directory):
    trainer, _ = make(directory, max_num_checkpoints=None)
    trainer.train(1, [1.0, 1.0])
    assert sorted(p.name for p in directory.glob("checkpoint_*")) == [
        "checkpoint_0",
        "checkpoint_1",
    ]
    assert (directory / "checkpoint_0/trainer_0/epoch_id").read_text().strip() == "0"
    assert (directory / "checkpoint_1/trainer_0/step_id").read_text().strip() == "1"
    assert list((directory / "checkpoint_0/__model__").glob("*.safetensors"))
    assert json.loads((directory / "checkpoint_1/manifest.json").read_text())["step"] == 2


def test_model_tensors_have_the_names_of_the_model(directory):
    from safetensors.numpy import load_file

    make(directory)[0].train(1, [1.0])
    (file,) = (directory / "checkpoint_0/__model__").glob("*.safetensors")
    assert load_file(file)["w"].tolist() == [1.0, 1.0]


def test_goes_on_with_the_next_step(directory):
    steps = []

    def run(stop_at):
        trainer, model = make(directory)

        def handler(event):
            if isinstance(event, cairn.EndStepEvent):
                steps.append((event.epoch, event.step))
                if (event.epoch, event.step) == stop_at:
                    trainer.stop()

        summary = trainer.train(2, [1.0, 2.0, 4.0], handler)
        return model, summary

    run((0, 1))
    model, summary = run(None)
    assert steps == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert model["w"].tolist() == [14.0, 14.0] and model["seen"] == 6
    assert summary.steps == 4 and summary.global_step == 6 and summary.resumed_from is not None


def test_stopped_after_the_very_first_step_it_goes_on_with_the_second(directory):
    trainer, _ = make(directory)
    trainer.train(1, [1.0, 2.0], lambda e: trainer.stop())
    again, model = make(directory)
    assert again.train(1, [1.0, 2.0]).steps == 1
    assert model["w"].tolist() == [3.0, 3.0]


def test_a_finished_training_started_again_does_nothing_and_keeps_its_checkpoint(directory):
    make(directory)[0].train(2, [1.0, 2.0])
    again, model = make(directory)
    summary = again.train(2, [1.0, 2.0])
    assert summary.steps == 0 and model["w"].tolist() == [6.0, 6.0]
    assert saved_positions(directory)[-1] == (1, 1)


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_finished_epoch_is_not_read_again(directory, epochs):
    opened = []

    def reader(epoch):
        opened.append(epoch)
        return [float(epoch), float(np.random.rand())]

    def run(where, epochs):
        np.random.seed(3)
        opened.clear()
        events = []
        trainer, model = make(where, step_interval=10)
        trainer.train(epochs, reader, events.append)
        return model["w"].tolist(), events

    run(directory, 2)
    resumed, events = run(directory, epochs)
    assert opened == list(range(2, epochs))
    assert [e.epoch for e in events if isinstance(e, cairn.EndEpochEvent)] == opened
    assert resumed == run(directory.parent / "undisturbed", epochs)[0]


def test_the_last_checkpoint_has_the_metrics_of_the_last_step(directory):
    make(directory, step_interval=10)[0].train(1, [1.0, 2.0])
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert [c.metrics for c in m.list()] == [{"sum": 2.0}, {"sum": 6.0}]


def test_more_epochs_go_on_where_it_ended(directory):
    make(directory)[0].train(1, [1.0, 2.0])
    again, model = make(directory)
    assert again.train(3, [1.0, 2.0]).steps == 4
    assert model["w"].tolist() == [9.0, 9.0]


def test_events_come_in_order(directory):
    events = []
    make(directory)[0].train(1, [1.0], events.append)
    assert [type(e).__name__ for e in events] == [
        "BeginEpochEvent",
        "BeginStepEvent",
        "EndStepEvent",
        "EndEpochEvent",
    ]
    assert events[2].metrics == {"sum": 2.0}


def test_a_reader_that_cannot_be_called_is_refused_before_anything_is_made(tmp_path):
    config = cairn.CheckpointConfig(tmp_path / "run")
    trainer = cairn.Trainer({"w": np.zeros(1)}, count, checkpoint_config=config)
    with pytest.raises(cairn.Invalid, match="reader wants 2 arguments"):
        trainer.train(1, lambda path, size: [1.0])
    assert list(tmp_path.iterdir()) == []
    trainer.train(1, lambda epoch, size=3: [1.0])
    with pytest.raises(cairn.Invalid, match="checkpoint_dir is empty"):
        cairn.CheckpointConfig("")


def test_without_a_config_it_only_trains(tmp_path):
    model = {"w": np.zeros(1)}
    cairn.Trainer(model, count).train(2, [1.0])
    assert model["w"].tolist() == [2.0] and list(tmp_path.iterdir()) == []


class Seekable:
    """Counts what is read from it."""

    def __init__(self, batches):
        self.batches = batches
        self.next = 0
        self.reads = 0

    def __iter__(self):
        while self.next < len(self.batches):
            self.next += 1
            self.reads += 1
            yield self.batches[self.next - 1]
        self.next = 0

    def state(self):
        return {"next": self.next}

    def load_state(self, state):
        self.next = state["next"]


def test_a_reader_that_can_seek_is_not_read_again(directory):
    trainer, _ = make(directory)
    trainer.train(
        1, Seekable([1.0] * 10), lambda e: trainer.stop() if getattr(e, "step", 0) == 6 else None
    )
    reader = Seekable([1.0] * 10)
    again, model = make(directory)
    again.train(1, reader)
    assert reader.reads == 3 and model["w"].tolist() == [10.0, 10.0]


def test_one_that_cannot_is_read_again_and_the_log_says_so(directory, caplog):
    trainer, _ = make(directory)
    trainer.train(1, lambda: [1.0] * 5, lambda e: trainer.stop() if hasattr(e, "step") else None)
    again, model = make(directory)
    with caplog.at_level(logging.INFO, logger="cairn"):
        again.train(1, lambda: [1.0] * 5)
    assert "cannot seek" in caplog.text and model["w"].tolist() == [5.0, 5.0]


def test_a_callable_reader_is_given_the_epoch_when_it_wants_it(directory):
    trainer, model = make(directory)
    trainer.train(3, lambda epoch: [float(epoch)] * 2)
    assert model["w"].tolist() == [6.0, 6.0]


def test_random_numbers_go_on(directory):
    def run(stop):
        np.random.seed(5)
        trainer, model = make(
            directory if stop is not None else directory.with_name("undisturbed"),
            step=lambda m, b: m["w"].__iadd__(np.random.rand(2)) is None,
        )
        done = []

        def handler(event):
            if isinstance(event, cairn.EndStepEvent):
                done.append(event)
                if len(done) == stop:
                    trainer.stop()

        trainer.train(2, lambda: iter(np.random.permutation(4).tolist()), handler)
        return model["w"].tolist()

    wanted = run(None)
    run(3)
    np.random.seed(99)
    trainer, model = make(directory, step=lambda m, b: m["w"].__iadd__(np.random.rand(2)) is None)
    trainer.train(2, lambda: iter(np.random.permutation(4).tolist()))
    assert model["w"].tolist() == wanted


@pytest.mark.parametrize(
    "bad",
    [
        {"step_interval": 0},
        {"epoch_interval": -1},
        {"max_num_checkpoints": 0},
        {"step_interval": 1.5},
        {"step_interval": True},
        {"save_seconds": 0},
    ],
)
def test_bad_settings_are_refused(directory, bad):
    with pytest.raises(cairn.Invalid, match=next(iter(bad))):
        cairn.CheckpointConfig(directory, **bad)
    assert not directory.exists()


def test_bad_arguments_are_refused_before_anything_is_made(directory):
    config = cairn.CheckpointConfig(directory)
    with pytest.raises(cairn.Invalid, match="model"):
        cairn.Trainer(3, count, checkpoint_config=config)
    with pytest.raises(cairn.Invalid, match="step"):
        cairn.Trainer({}, None, checkpoint_config=config)
    with pytest.raises(cairn.Invalid, match="trainer_id"):
        cairn.Trainer({}, count, checkpoint_config=config, trainer_id=2, num_trainers=2)
    with pytest.raises(cairn.Invalid, match="used up"):
        cairn.Trainer({"w": np.zeros(1)}, count, checkpoint_config=config).train(2, iter([1]))
    assert not directory.exists()


def test_a_checkpoint_of_another_model_is_refused_before_the_first_step(directory):
    make(directory)[0].train(1, [1.0])
    steps = []
    other, _ = make(directory, {"v": np.zeros(3)}, step=lambda m, b: steps.append(b))
    with pytest.raises(cairn.Mismatch) as refused:
        other.train(2, [1.0])
    assert refused.value.missing == ["model/v"] and "model/w" in refused.value.unexpected
    assert "another checkpoint_dir" in str(refused.value) and "strict" not in str(refused.value)
    assert steps == []


def test_tables_belong_to_the_checkpoints(directory):
    def run(where, epochs):
        table = cairn.EmbeddingTable(
            "users",
            3,
            optimizer=cairn.optimizers.Adagrad(0.1),
            initializer=cairn.initializers.Uniform(-1, 1),
        )
        weights = np.zeros((10, 2))
        items = cairn.RowTracked.partition("items", {"weights": weights}, 2)

        def step(model, batch):
            table.apply_gradients([batch % 7, -batch], np.full((2, 3), 0.5))
            row = batch % 10
            with items[row // 5].changing([row % 5]):
                weights[row] += batch
            return count(model, batch)

        trainer = cairn.Trainer(
            {"w": np.zeros(2), "seen": 0},
            step,
            checkpoint_config=cairn.CheckpointConfig(where, step_interval=2),
            tables=[table, *items],
        )
        trainer.train(epochs, list(range(9)))
        return table.rows(), weights

    run(directory, 1)
    assert list(directory.glob("checkpoint_*/__lookup_table__/trainer_0.safetensors"))
    rows, weights = run(directory, 3)
    expected, expected_weights = run(directory.with_name("undisturbed"), 3)
    np.testing.assert_array_equal(weights, expected_weights)
    assert rows.keys() == expected.keys()
    for key, row in rows.items():
        assert row["version"] == expected[key]["version"]
        np.testing.assert_array_equal(row["weights"], expected[key]["weights"])
        np.testing.assert_array_equal(row["accumulator"], expected[key]["accumulator"])


def test_another_jobs_directory_is_refused(directory):
    with cairn.CheckpointManager(directory, job="theirs") as m:
        m.save(1, {"x": 1}).wait()
    config = cairn.CheckpointConfig(directory)
    with pytest.raises(cairn.OwnedByAnotherJob, match="theirs"):
        cairn.Trainer({"w": np.zeros(1)}, count, checkpoint_config=config, job="mine").train(1, [1])


def test_saving_much_is_warned_of_once(directory, caplog, monkeypatch):
    monkeypatch.setattr("cairn._save_cost.LEAST_SECONDS", 0.0)
    model = {"w": np.zeros(20_000_000)}
    config = cairn.CheckpointConfig(directory, step_interval=1)
    trainer = cairn.Trainer(
        model, lambda m, b: m["w"].__setitem__(b, 1.0), checkpoint_config=config
    )
    with caplog.at_level(logging.WARNING, logger="cairn"):
        trainer.train(1, list(range(25)))
    warnings = [r.getMessage() for r in caplog.records if "of the training time" in r.getMessage()]
    assert len(warnings) == 1 and "step_interval=" in warnings[0]


@pytest.mark.parametrize(
    ("options", "epoch_steps", "advice"),
    [
        # 0.1 s of stall after 1.9 s of training, which is 4 steps: a twentieth.
        ({"step_interval": 2}, 0, "step_interval=4 would"),
        ({"step_interval": 2, "save_seconds": 1}, 0, "save_seconds=2 and step_interval=4 would"),
        # Step 0 of each epoch is saved whatever the step_interval.
        ({"step_interval": 2}, 3, "epoch_interval=2 and step_interval=3 would"),
        ({"step_interval": 10}, 1, "epoch_interval=4 would"),
        ({"step_interval": 10, "epoch_interval": 4, "save_seconds": 1}, 1, "save_seconds=2 would"),
    ],
)
def test_the_interval_that_is_advised_is_one_that_helps(directory, options, epoch_steps, advice):
    config = cairn.CheckpointConfig(directory, **options)
    warning = cost_warning(
        config, saves=3, stall_seconds=0.3, seconds=3.3, steps=6, epoch_steps=epoch_steps
    )
    assert advice in warning
    assert cost_warning(config, 3, 0.1, 3.3, 6, epoch_steps) is None


HANGS = """
    def step(model, batch):
        model["w"] += batch
        if batch == 2:
            print("hangs")
            sys.stdin.readline()

    config = cairn.CheckpointConfig(sys.argv[1], step_interval=1)
    try:
        cairn.Trainer({"w": np.zeros(2)}, step, checkpoint_config=config).train(1, [1, 2, 3])
    except cairn.Error as error:
        print(type(error).__name__)
"""


def test_a_training_is_taken_over_from_a_process_that_hangs(directory):
    other = children.Child(HANGS, directory)
    other.expect("hangs")
    with pytest.raises(cairn.Unavailable, match="open with takeover"):
        make(directory, {"w": np.zeros(2)})[0].train(1, [1, 2, 3])
    config = cairn.CheckpointConfig(directory, step_interval=1)
    model = {"w": np.zeros(2)}
    trainer = cairn.Trainer(model, lambda m, b: m.__setitem__("w", m["w"] + b),
                            checkpoint_config=config, takeover=True)  # fmt: skip
    trainer.train(1, [1, 2, 3])
    assert model["w"].tolist() == [6.0, 6.0]
    other.tell()
    assert other.end()[1] == "Fenced\n"


SCRIPT = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    import numpy as np
    import cairn

    def step(model, batch):
        model["w"] += batch
        time.sleep(0.01)

    def handler(event):
        if isinstance(event, cairn.EndStepEvent):
            print(event.step, flush=True)

    config = cairn.CheckpointConfig(sys.argv[1], step_interval=1000)
    trainer = cairn.Trainer({"w": np.zeros(2)}, step, checkpoint_config=config)
    trainer.train(1, range(100000), handler)
"""


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)]
)
def test_told_to_end_it_saves_the_step_it_is_at(directory, number, code):
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    for _ in range(20):
        line = child.stdout.readline()
    child.send_signal(number)
    rest, errors = child.communicate(timeout=60)
    last = int(([line] + rest.split())[-1])
    assert child.returncode == code, errors
    assert saved_positions(directory)[-1] == (0, last)


@pytest.mark.parametrize("odd", [2**80, -(2**63) - 1, "text", b"raw", [1.0], torch.ones(2)], ids=repr)
def test_what_is_no_number_of_a_manifest_does_not_end_the_training(directory, odd):
    trainer, _ = make(directory, step=lambda model, batch: {"loss": 0.5, "odd": odd})
    assert trainer.train(1, [1.0, 2.0]).steps == 2
    with cairn.CheckpointManager(directory, read_only=True) as m:
        assert m.latest().metrics == {"loss": 0.5}


FORKING_READER = """
    import multiprocessing

    def feed(queue):
        while True:
            queue.put(1.0)

    def reader():
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue(1)
        feeder = fork.Process(target=feed, args=(queue,), daemon=True)
        feeder.start()
        yield queue.get()
        os.kill(feeder.pid, signal.SIGINT)  # as a terminal does to all of its processes
        for _ in range(4):
            yield queue.get()
        feeder.terminate()
        feeder.join(20)
        print(feeder.exitcode)

    config = cairn.CheckpointConfig(sys.argv[1])
    print(cairn.Trainer({}, lambda model, batch: None, checkpoint_config=config).train(1, reader).steps)
"""


def test_processes_that_a_reader_forks_let_ctrl_c_pass_and_end_by_sigterm(directory):
    # Otherwise nobody ends them: multiprocessing waits for them for ever when the program ends.
    out = children.run(FORKING_READER, directory)
    assert out.split() == [str(-signal.SIGTERM), "5"]


def test_stop_ends_one_call_of_train_and_the_next_goes_on(directory):
    model = {"w": np.zeros(1)}
    config = cairn.CheckpointConfig(directory)
    trainer = cairn.Trainer(model, lambda m, batch: m["w"].__iadd__(batch), checkpoint_config=config)

    def stop(event):
        if isinstance(event, cairn.EndStepEvent):
            trainer.stop()

    assert trainer.train(1, [1.0, 2.0, 3.0], stop).stopped
    rest = trainer.train(1, [1.0, 2.0, 3.0])
    assert (rest.steps, rest.stopped) == (2, False)
    assert model["w"].tolist() == [6.0]


def test_values_given_as_state_are_saved_as_they_are_and_put_back(directory):
    def run(epochs):
        counts = {"steps": 0, "losses": []}

        def step(model, batch):
            counts["steps"] += 1
            counts["losses"].append(batch)

        config = cairn.CheckpointConfig(directory, step_interval=1)
        trainer = cairn.Trainer({"w": np.zeros(1)}, step, state=counts, checkpoint_config=config)
        trainer.train(epochs, [1.0, 2.0])
        return counts

    assert run(1) == {"steps": 2, "losses": [1.0, 2.0]}
    assert run(2) == {"steps": 4, "losses": [1.0, 2.0, 1.0, 2.0]}


def test_a_state_that_is_no_dict_is_refused(directory):
    with pytest.raises(cairn.Invalid, match="state must be a dict, not a list"):
        cairn.Trainer({"w": np.zeros(1)}, count, state=[1, 2])


def losses_of(directory, epochs, on_event=None, stop_at=None):
    """A training whose shuffled loader and steps draw from the global random states."""
    torch.manual_seed(5)
    np.random.seed(5)
    losses = []

    def step(model, batch):
        model["w"] += np.random.rand(2) * float(batch.sum())
        losses.append(float(model["w"].sum()))

    config = cairn.CheckpointConfig(directory, step_interval=1)
    trainer = cairn.Trainer({"w": np.zeros(2)}, step, checkpoint_config=config)

    def handler(event):
        if on_event is not None:
            on_event(event)
        if isinstance(event, cairn.EndStepEvent) and len(losses) == stop_at:
            trainer.stop()

    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2, shuffle=True)
    trainer.train(epochs, loader, handler)
    return losses


def test_more_epochs_later_are_those_of_one_training(tmp_path):
    in_two = losses_of(tmp_path / "a", 1) + losses_of(tmp_path / "a", 3)
    assert in_two == losses_of(tmp_path / "b", 3)


@pytest.mark.parametrize("kind", ["BeginEpochEvent", "BeginStepEvent", "EndStepEvent"])
@pytest.mark.parametrize("stop_at", [2, 4, 5])
def test_a_handler_may_draw_random_numbers(tmp_path, kind, stop_at):
    def draw(event):
        if type(event).__name__ == kind:
            torch.rand(1)
            np.random.rand()

    whole = losses_of(tmp_path / "a", 2, draw)
    begun = losses_of(tmp_path / "b", 2, draw, stop_at)
    assert begun + losses_of(tmp_path / "b", 2, draw) == whole


class Rewinding(Seekable):
    """Knows at its beginning, not at its end, that the next epoch begins."""

    loaded = False

    def __iter__(self):
        if not self.loaded:
            self.next = 0
        self.loaded = False
        while self.next < len(self.batches):
            self.next += 1
            self.reads += 1
            yield self.batches[self.next - 1]

    def load_state(self, state):
        self.next = state["next"]
        self.loaded = True


class Counting(Seekable):
    """Each epoch has other batches, and nobody tells it which one it is."""

    epoch = 0

    def __iter__(self):
        while self.next < len(self.batches):
            self.next += 1
            yield self.batches[self.next - 1] + 100 * self.epoch
        self.next = 0
        self.epoch += 1

    def state(self):
        return {"next": self.next, "epoch": self.epoch}

    def load_state(self, state):
        self.next, self.epoch = state["next"], state["epoch"]


class Caller:
    """A callable that seeks itself."""

    def __init__(self, batches):
        self.inner = Counting(batches)
        self.state, self.load_state = self.inner.state, self.inner.load_state

    def __call__(self):
        return iter(self.inner)


def returning(reader):
    return lambda: reader


BATCHES = [1.0, 2.0, 3.0]
READERS = {
    "resets at its end": lambda: Seekable(BATCHES),
    "resets at its beginning": lambda: Rewinding(BATCHES),
    "counts epochs": lambda: Counting(BATCHES),
    "is called and seeks": lambda: Caller(BATCHES),
    "is called, what it gives seeks": lambda: lambda epoch: Rewinding([b + epoch for b in BATCHES]),
    "is called, gives the same, which seeks": lambda: returning(Counting(BATCHES)),
    "Loader": lambda: cairn.torch.Loader(torch.arange(6.0), batch_size=2, seed=1),
    "list": lambda: BATCHES,
}


@pytest.mark.parametrize("make_reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("interval", [1, 2, 10])  # saves at the last step of an epoch, or after it
@pytest.mark.parametrize("then", [1, 2, 4])
def test_after_a_whole_epoch_the_next_one_begins(directory, make_reader, interval, then):
    def run(where, epochs):
        seen, events = [], []

        def handler(event):
            if isinstance(event, (cairn.BeginStepEvent, cairn.EndStepEvent)):
                events.append((type(event).__name__, event.epoch, event.step))

        def step(model, batch):
            seen.append(np.asarray(batch).tolist())

        config = cairn.CheckpointConfig(where, step_interval=interval)
        trainer = cairn.Trainer({"w": np.zeros(1)}, step, checkpoint_config=config)
        trainer.train(epochs, make_reader(), handler)
        return seen, events

    whole = run(directory, then)
    parts = [run(directory.with_name("parts"), epochs) for epochs in (1, then, then)]
    assert sum((seen for seen, _ in parts), []) == whole[0]
    assert sum((events for _, events in parts), []) == whole[1]
    assert parts[2] == ([], [])


def test_an_epoch_without_a_batch_is_an_error(directory):
    trainer, _ = make(directory)
    used = iter([1.0, 2.0])
    with pytest.raises(cairn.Error, match="no batch in epoch 1: can it begin a second time"):
        trainer.train(3, lambda: used)


def test_a_table_that_is_in_no_checkpoint_is_warned_of_once(directory, caplog):
    table = cairn.EmbeddingTable("forgotten", 2, optimizer=cairn.optimizers.SGD(1.0))
    trainer, _ = make(directory, step=lambda model, batch: float(table.lookup([batch]).sum()))
    with caplog.at_level(logging.WARNING, logger="cairn"):
        trainer.train(1, [1, 2, 3])
    assert [r.getMessage() for r in caplog.records if "forgotten" in r.getMessage()] == [
        "the rows of table 'forgotten' are in no checkpoint of this Trainer; give the tables that "
        "it trains as tables=[…]"
    ]


@pytest.mark.parametrize("fresh", [[], [9.0], [9.0] * 5])
def test_a_list_of_values_grows_and_is_filled_by_a_resume(directory, fresh):
    def run(epochs, losses):
        def step(model, batch):
            losses.append(batch)

        config = cairn.CheckpointConfig(directory, step_interval=1)
        trainer = cairn.Trainer({"losses": losses, "w": np.ones(1)}, step, checkpoint_config=config)
        trainer.train(epochs, [1.0, 2.0])
        return losses

    run(1, [])
    assert run(2, list(fresh)) == [1.0, 2.0, 1.0, 2.0]


def test_lists_that_hold_arrays_do_not_grow(directory):
    def run(parts):
        config = cairn.CheckpointConfig(directory, step_interval=1)
        return cairn.Trainer({"parts": parts}, lambda m, b: None, checkpoint_config=config)

    run([np.ones(2), 5, np.random.default_rng(1)]).train(1, [1.0])
    for other in ([np.ones(2)], [], [1, 2], [np.ones(2), 5]):
        with pytest.raises(cairn.Mismatch, match="parts/"):
            run(other).train(2, [1.0])


def test_rows_that_a_resume_does_not_ask_for_are_not_dropped(directory):
    table = cairn.EmbeddingTable("rows", 2, optimizer=cairn.optimizers.SGD(1.0))
    config = cairn.CheckpointConfig(directory, step_interval=1)

    def train(epochs, tables):
        model, step = {"w": np.ones(1)}, lambda model, batch: None
        trainer = cairn.Trainer(model, step, checkpoint_config=config, tables=tables)
        return trainer.train(epochs, [1.0]).steps

    assert train(1, [table]) == 1
    with pytest.raises(cairn.Mismatch, match="the rows of 'rows', and no tables are given"):
        train(2, [])
    assert train(2, [table]) == 1


def test_a_reader_may_answer_none_for_what_it_does_not_have(directory):
    class Reader:
        def __iter__(self):
            return iter([1.0, 1.0])

        def __getattr__(self, name):
            return None

    for epochs in (1, 2):
        trainer, _ = make(directory)
        trainer.train(epochs, Reader())
        assert trainer.global_step == 2 * epochs


@pytest.mark.parametrize(
    "batches, match",
    [([], "no batch in epoch 0: is there any data"), ([1.0], "no batch in epoch 1: can it begin a")],
)
def test_a_reader_that_gives_nothing_is_not_taken_for_an_epoch(directory, batches, match):
    used_up = iter(batches)
    trainer, model = make(directory)
    with pytest.raises(cairn.Error, match=match):
        trainer.train(2, lambda: used_up)
    assert trainer.global_step == len(batches)


def test_a_trainers_checkpoint_is_loaded_mapped_too(directory):
    trainer, model = make(directory)
    trainer.train(1, [1.0, 2.0])
    read, mapped = cairn.load(directory), cairn.load(directory, mmap=True)
    assert mapped["model"]["w"].tolist() == read["model"]["w"].tolist() == model["w"].tolist()
    words = [state["args"]["rng"]["python"]["words"].tolist() for state in (read, mapped)]
    assert words[0] == words[1] and len(words[0]) == 625


@pytest.mark.parametrize("wrong", [{"pservers": 5}, {"callbacks": 5}])
def test_what_is_no_list_is_named(wrong):
    with pytest.raises(cairn.Invalid, match=next(iter(wrong))):
        cairn.Trainer({"w": np.zeros(1)}, count, **wrong)


def test_a_loader_wants_a_dataset_and_whole_batches():
    with pytest.raises(cairn.Invalid, match="a dataset has a length"):
        cairn.torch.Loader(None)
    with pytest.raises(cairn.Invalid, match="batch_size must be an integer"):
        cairn.torch.Loader([1, 2], batch_size=1.5)
