"""cairn.serving and exports, in Python."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cairn
from cairn import serving, train

DIM = 4


def graph():
    """score = sum of the user's row and the item's row, times w, plus x."""
    user = helper.make_tensor_value_info("user", TensorProto.FLOAT, ["batch", DIM])
    item = helper.make_tensor_value_info("item", TensorProto.FLOAT, ["batch", DIM])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", DIM])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", DIM])
    nodes = [
        helper.make_node("Add", ["user", "item"], ["both"]),
        helper.make_node("Mul", ["both", "w"], ["scaled"]),
        helper.make_node("Add", ["scaled", "x"], ["score"]),
    ]
    w = onnx.numpy_helper.from_array(np.ones(DIM, np.float32), "w")
    made = helper.make_graph(nodes, "g", [user, item, x], [score], [w])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def table(name):
    return cairn.EmbeddingTable(
        name,
        DIM,
        optimizer=cairn.optimizers.SGD(1.0),
        initializer=cairn.initializers.Constant(0.5),
    )


class Job:
    """A session over two tables and a dense variable; each step sets all of them to its number."""

    def __init__(self, directory, **options):
        self.users, self.items = table("users"), table("items")
        self.w = np.ones(DIM, np.float32)
        self.directory = str(directory)
        options.setdefault("save_incremental_checkpoint_steps", 1)
        self.session = train.MonitoredTrainingSession(
            self.directory, tables=[self.users, self.items], state={"w": self.w}, **options
        )

    def step(self, step):
        value = float(step + 1)
        self.users.assign([1, 2], np.full((2, DIM), value, np.float32))
        self.items.assign([5], np.full((1, DIM), value, np.float32))
        self.w[:] = value

    def run(self, steps):
        for _ in range(steps):
            self.session.run(self.step)
        self.session._handle.wait() if self.session._handle else None

    def export(self, directory, save_incr_model=True, session=None):
        return train.export_saved_model(
            directory,
            ["user", "item", "x"],
            ["score"],
            graph(),
            tables={"user": self.users, "item": self.items},
            save_incr_model=save_incr_model,
            session=session,
        )


FEED = {"user": [1, 9], "item": [5, 5], "x": np.zeros((2, DIM), np.float32)}


def test_a_model_serves_what_a_session_trains(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        exported = job.export(tmp_path / "export")
        assert exported.version == 1 and exported.weights == ["w"]
        with serving.Model(tmp_path / "export", job.directory, follow=False) as model:
            assert model.version().step == 1
            assert model.fixed_weights == []
            assert [(i.name, i.dtype, i.shape) for i in model.inputs] == [
                ("user", "int64", (None,)),
                ("item", "int64", (None,)),
                ("x", "float32", (None, DIM)),
            ]
            score = model.predict(FEED)["score"]
            np.testing.assert_array_equal(score, [[2.0] * DIM, [1.5] * DIM])
            np.testing.assert_array_equal(
                model.lookup("users", [[2, 3]]), [[[1.0] * DIM, [0.5] * DIM]]
            )
            view = model.view()
            job.run(2)
            model.update()
            assert model.version().step == 3 and view.version().step == 1
            np.testing.assert_array_equal(model.predict(FEED)["score"][0], [18.0] * DIM)
            np.testing.assert_array_equal(view.predict(FEED)["score"], score)
            assert model.rollback().step == 1 and model.held
            assert model.pin(3).step == 3
            assert model.resume().step == 3 and not model.held
            kinds = [(u.kind, u.step) for u in model.updates()]
            assert kinds == [("applied", 1), ("applied", 3)]
            assert model.stats()["updates"] == 2


def test_a_closed_model_says_so(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    model = serving.Model(tmp_path / "export", job.directory, follow=False)
    view = model.view()
    model.close()
    for use in (
        lambda: model.predict(FEED),
        lambda: model.lookup("users", [2]),
        model.updates,
        model.update,
        model.version,
        model.view,
        model.stats,
    ):
        with pytest.raises(cairn.Error, match="the model was closed"):
            use()
    assert view.version().step == 1
    model.close()


def test_a_closed_model_follows_no_more_while_a_view_of_it_is_left(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    serving.Model(tmp_path / "export", job.directory, follow=False).close()  # starts what all share
    before = set(os.listdir("/proc/self/task"))
    with serving.Model(tmp_path / "export", job.directory) as model:
        view = model.view()
        follower = set(os.listdir("/proc/self/task")) - before
        assert len(follower) == 1
    deadline = time.monotonic() + 20
    while follower & set(os.listdir("/proc/self/task")):  # one that was joined may still be listed
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert view.predict(FEED)["score"].shape == (2, DIM)


def test_a_relative_repository_is_where_it_was_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job("run")
    with job.session:
        job.run(1)
        exported = job.export("export")
        with serving.Model("export", "run", follow=False) as model:
            (tmp_path / "elsewhere").mkdir()
            monkeypatch.chdir(tmp_path / "elsewhere")
            job.run(1)
            model.update()
            assert model.version().step == 2 and model.stats()["last_problem"] == ""
        with serving.Model(exported, job.session._manager.directory, follow=False) as model:
            assert model.version().step == 2


def test_it_follows_by_itself(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
        with serving.Model(tmp_path / "export", job.directory, poll_secs=60) as model:
            for step in range(2, 6):
                job.run(1)
                deadline = time.monotonic() + 20
                while model.version().step != step:
                    assert time.monotonic() < deadline, model.stats()
                    time.sleep(0.005)
                np.testing.assert_array_equal(
                    model.predict(FEED)["score"][0], [step * step * 2] * DIM
                )


def test_a_session_tells_of_each_save(tmp_path):
    told = []
    job = Job(tmp_path / "run", on_saved=told.append)
    with job.session:
        job.run(2)
    assert [(record.step, record.ok) for record in told] == [(0, True), (1, True), (2, True)]


def test_increments_must_be_saved_by_somebody(tmp_path):
    job = Job(tmp_path / "run", save_incremental_checkpoint_steps=None)
    with pytest.raises(cairn.Invalid, match="no session is open"):
        job.export(tmp_path / "export")
    with job.session:
        job.run(1)
        with pytest.raises(cairn.Invalid, match="saves no increments"):
            job.export(tmp_path / "export")
        job.export(tmp_path / "export", save_incr_model=False)
        with pytest.raises(cairn.Invalid, match="a CheckpointManager is wanted, not a str"):
            job.export(tmp_path / "export", session="runs/a")
    assert os.listdir(tmp_path / "export") == ["1"]


def test_an_estimator_exports_what_an_earlier_process_trained(tmp_path):
    """A script that only exports: its estimator was never told to train."""
    users, w = table("users"), np.ones(DIM, np.float32)

    def estimator(directory, increments):
        def model_fn(features, labels, mode, params):
            hook = train.CheckpointSaverHook(
                directory, save_steps=100, incremental_save_steps=increments
            )
            return train.EstimatorSpec(
                mode,
                train_op=lambda: users.assign([features], np.ones((1, DIM))),
                training_chief_hooks=[hook],
            )

        return train.Estimator(model_fn, directory, tables=[users], state={"w": w})

    def receiver():
        feeds = ["user", "item", "x"]
        return train.ServingInputReceiver(graph(), feeds, ["score"], tables={"user": users})

    trained = {name: tmp_path / name for name in ("with", "without")}
    estimator(trained["with"], 1).train(lambda: [(1, None), (2, None)])
    estimator(trained["without"], None).train(lambda: [(1, None), (2, None)])
    estimator(trained["with"], 1).export_saved_model(tmp_path / "export", receiver, True)
    with pytest.raises(cairn.Invalid, match="no increments in .*without"):
        estimator(trained["without"], None).export_saved_model(tmp_path / "export", receiver, True)
    with pytest.raises(cairn.Invalid, match="no increments in .*nothing"):
        estimator(tmp_path / "nothing", 1).export_saved_model(tmp_path / "export", receiver, True)
    assert not (tmp_path / "nothing").exists()
    assert os.listdir(tmp_path / "export") == ["1"]


def test_a_manager_may_save_the_increments(tmp_path):
    job = Job(tmp_path / "run")
    saved = {"state": {"w": job.w}}
    tables = [job.users, job.items]
    with cairn.CheckpointManager(job.directory) as manager:
        made = job.export(tmp_path / "export", session=manager)
        manager.save(1, saved, tables=tables, blocking=True)
        with serving.Model(made, job.directory, follow=False) as model:
            job.users.assign([5], [[3.0] * DIM])
            manager.save(2, saved, tables=tables, kind="cumulative", blocking=True)
            model.update()
            assert model.version().step == 2
            assert model.lookup("users", [5]).tolist() == [[3.0] * DIM]


def test_an_export_for_fulls_says_so_when_offered_an_increment(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(2)
        job.export(tmp_path / "export", save_incr_model=False)
        with serving.Model(tmp_path / "export", job.directory, follow=False) as model:
            assert model.version().step == 0
            assert any("full checkpoints only" in u.message for u in model.updates())


def test_an_estimator_exports(tmp_path):
    users, items, w = table("users"), table("items"), np.ones(DIM, np.float32)

    def model_fn(features, labels, mode, params):
        def train_op():
            users.assign([1], np.full((1, DIM), 3.0, np.float32))
            items.assign([5], np.full((1, DIM), 4.0, np.float32))

        hook = train.CheckpointSaverHook(
            tmp_path / "run", save_steps=100, incremental_save_steps=params["every"]
        )
        return train.EstimatorSpec(mode, train_op=train_op, training_hooks=[hook])

    def receiver():
        return train.ServingInputReceiver(
            graph(), ["user", "item", "x"], ["score"], {"user": users, "item": items}
        )

    def inputs():
        while True:
            yield None, None

    estimator = train.Estimator(
        model_fn, tmp_path / "run", {"every": 1}, tables=[users, items], state={"w": w}
    )
    with pytest.raises(cairn.Invalid, match="no increments"):
        estimator.export_saved_model(tmp_path / "export", receiver, save_incr_model=True)
    estimator.train(inputs, steps=2)
    exported = estimator.export_saved_model(tmp_path / "export", receiver, save_incr_model=True)
    with serving.Model(exported, tmp_path / "run", follow=False) as model:
        assert model.version().step == 2
        np.testing.assert_array_equal(model.predict(FEED)["score"][0], [7.0] * DIM)
    with pytest.raises(cairn.Invalid, match="ServingInputReceiver"):
        estimator.export_saved_model(tmp_path / "export", lambda: None)


def test_guards_refuse_what_is_out_of_range(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
        probe = serving.Probe(FEED, "score", 0, 10)
        with serving.Model(
            tmp_path / "export", job.directory, follow=False, probes=[probe]
        ) as model:
            job.run(2)
            model.update()
            assert model.version().step == 1
            refused = [u for u in model.updates() if u.kind == "refused"]
            assert len(refused) == 1 and "not between 0 and 10" in refused[0].message


def test_what_does_not_fit_is_named(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        with pytest.raises(cairn.Invalid, match="none of feed_names"):
            train.export_saved_model(
                tmp_path / "e", ["user", "item", "x"], ["score"], graph(), {"u": job.users}
            )
        with pytest.raises(cairn.Invalid, match="no table"):
            train.export_saved_model(
                tmp_path / "e", ["user", "item", "x"], ["score"], graph(), {"user": 3}
            )
        job.export(tmp_path / "export")
        with serving.Model(tmp_path / "export", job.directory, follow=False) as model:
            with pytest.raises(cairn.Invalid, match='"user" is missing'):
                model.predict({})
            with pytest.raises(cairn.Invalid, match="no table"):
                model.lookup("unknown", [1])
            with pytest.raises(cairn.Invalid, match="integers"):
                model.lookup("users", [1.5])
            with pytest.raises(cairn.Invalid, match="name"):
                model.lookup(3, [1])
            for wrong in ([1], None, "user"):
                with pytest.raises(cairn.Invalid, match="dict of arrays by name"):
                    model.predict(wrong)
            whole = {"user": [1], "item": [2], "x": [[0.5] * model.inputs[2].shape[1]]}
            assert np.isfinite(model.predict(whole)["score"]).all()
            none = {"user": [], "item": [], "x": np.zeros((0, DIM), np.float32)}
            assert model.predict(none)["score"].shape == (0, DIM)
            with pytest.raises(cairn.Invalid, match="'user' is of datetime64"):
                model.predict({**whole, "user": np.zeros(1, "datetime64[D]")})
            for wrong in (-1, 1.5, "1", True, None):
                with pytest.raises(cairn.Invalid, match="^n "):
                    model.rollback(wrong)
            for wrong in (1.5, True, None):
                with pytest.raises(cairn.Invalid, match="the version's step"):
                    model.pin(wrong)
            with pytest.raises(cairn.Invalid, match="a Version is wanted"):
                model.pin((1,))
            assert not model.held
            with pytest.raises(cairn.Invalid, match="the feed 'user' is no array"):
                model.predict({**FEED, "user": [[1], [2, 3]]})
            with pytest.raises(cairn.Invalid, match="ids is no array"):
                model.lookup("users", [[1], [2, 3]])
            sizes = {"user": [1, 2], "item": [1, 2, 3], "x": np.zeros((2, 4), np.float32)}
            with pytest.raises(cairn.Invalid, match=r"user \[2, .*item \[3, .*belong together"):
                model.predict(sizes)
        for wrong in ({"tables": [1]}, {"variables": [1]}, {"variables": {"w": 1}}):
            with pytest.raises(cairn.Invalid, match=next(iter(wrong))):
                train.export_saved_model(
                    tmp_path / "e", ["user", "item", "x"], ["score"], graph(), **wrong
                )
        with pytest.raises(cairn.Invalid, match="lists of names"):
            train.export_saved_model(tmp_path / "e", None, ["score"], graph())
        for settings in (
            {"cpu_share": "x"},
            {"cpu_share": None},
            {"probes": 5},
            {"job": 5},
            {"threads": 10**12},
            {"keep_versions": True},
            {"keep_versions": 1.5},
            {"probes": [1]},
            {"poll_secs": 0},
            {"poll_secs": float("nan")},
            {"poll_secs": float("inf")},
            {"poll_secs": "1"},
            {"threads": -1},
            {"threads": 1.5},
        ):
            with pytest.raises(cairn.Invalid, match=next(iter(settings))):
                serving.Model(tmp_path / "export", job.directory, follow=False, **settings)
        with pytest.raises(cairn.Invalid, match="a probe's min"):
            probe = serving.Probe(FEED, "score", "a", 1)
            serving.Model(tmp_path / "export", job.directory, follow=False, probes=[probe])
        with pytest.raises(cairn.Error, match="closed"):
            model.version()
    with pytest.raises(cairn.Error, match="no export|no such|not"):
        serving.Model(tmp_path / "run", job.directory)


TRAINER = """
import sys, numpy as np
sys.path.insert(0, {tests!r})
from test_serving import Job
job = Job({directory!r})
with job.session:
    while True:
        job.run(1)
"""


def test_a_trainer_that_is_killed_and_started_again_is_followed(tmp_path):
    directory = str(tmp_path / "run")
    job = Job(directory)
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    program = TRAINER.format(tests=os.path.dirname(__file__), directory=directory)
    with serving.Model(tmp_path / "export", directory) as model:
        last = 0
        for _ in range(3):
            trainer = subprocess.Popen([sys.executable, "-c", program])
            try:
                begun = model.version().step
                deadline = time.monotonic() + 60
                while model.version().step < begun + 3:
                    assert trainer.poll() is None
                    assert time.monotonic() < deadline, model.stats()
                    view = model.view()
                    step = view.version().step
                    assert step >= last, "training never goes back here"
                    last = step
                    np.testing.assert_array_equal(view.lookup("users", [2]), [[step] * DIM])
                    np.testing.assert_array_equal(
                        view.predict(FEED)["score"][0], [2 * step * step] * DIM
                    )
            finally:
                trainer.send_signal(signal.SIGKILL)
                trainer.wait()
        assert model.stats()["refused"] == 0
