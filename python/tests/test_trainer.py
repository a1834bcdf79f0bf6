"""Trainer: when it saves, what it restores, what it refuses."""

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import cairn


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
    monkeypatch.setattr("cairn.trainer._WARN_AFTER", 0.0)
    model = {"w": np.zeros(20_000_000)}
    config = cairn.CheckpointConfig(directory, step_interval=1)
    trainer = cairn.Trainer(
        model, lambda m, b: m["w"].__setitem__(b, 1.0), checkpoint_config=config
    )
    with caplog.at_level(logging.WARNING, logger="cairn"):
        trainer.train(1, list(range(25)))
    warnings = [r.getMessage() for r in caplog.records if "of the training time" in r.getMessage()]
    assert len(warnings) == 1 and "step_interval=" in warnings[0]


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
