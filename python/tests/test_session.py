"""MonitoredTrainingSession, Estimator and the switches that must agree."""

import pathlib
import random
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from children import command_line

import cairn
from cairn.train import (
    CheckpointSaverHook,
    Estimator,
    EstimatorSpec,
    MonitoredTrainingSession,
    Saver,
    Scaffold,
    StopAtStepHook,
)

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "incremental_session.py"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Training:
    """Each step changes a row, a dense variable and a counter."""

    def __init__(self):
        self.clock = Clock()
        self.table = cairn.EmbeddingTable(
            "t",
            4,
            optimizer=cairn.optimizers.Adagrad(0.1, initial_accumulator_value=1),
            initializer=cairn.initializers.Constant(1.0),
        )
        self.state = {"dense": np.zeros(2), "count": 0}

    def step(self, step):
        self.table.apply_gradients([step % 10], np.full((1, 4), 2.0, np.float32))
        self.state["dense"] += 1.5 * (step + 1)
        self.state["count"] += 1
        self.clock.now += 1
        return step

    def session(self, directory, **options):
        settings = {
            "save_checkpoint_secs": 60,
            "save_incremental_checkpoint_secs": 20,
            "tables": [self.table],
            "state": self.state,
            "clock": self.clock,
            **options,
        }
        return MonitoredTrainingSession(directory, **settings)

    def rows(self):
        return {
            key: (row["weights"].tolist(), row["accumulator"].tolist(), row["frequency"])
            for key, row in self.table.rows().items()
        }


def kinds(directory):
    with cairn.CheckpointManager(directory, read_only=True) as m:
        return [(info.kind, info.step) for info in m.list()]


def scaffold(chain="cumulative", keep=None):
    saver = Saver(incremental_save_restore=True, max_to_keep=keep, chain=chain)
    return Scaffold(saver, incremental_save_restore=True)


def test_full_and_increments_are_saved_when_due(tmp_path):
    t = Training()
    with t.session(tmp_path, scaffold=scaffold()) as sess:
        for _ in range(85):
            sess.run(t.step)
    assert kinds(tmp_path) == [
        ("full", 0), ("increment", 20), ("increment", 40), ("full", 60), ("increment", 80),
        ("increment", 85),
    ]  # fmt: skip


def test_an_increment_holds_the_rows_that_changed_since_its_full_one(tmp_path):
    t = Training()
    with t.session(tmp_path, scaffold=scaffold(), save_incremental_checkpoint_secs=3) as sess:
        for _ in range(4):
            sess.run(t.step)
    from safetensors.numpy import load_file

    keys = load_file(tmp_path / "increment_000003" / "__lookup_table__" / "rank_0.safetensors")
    assert sorted(keys["t/keys"].tolist()) == [0, 1, 2]
    assert keys["t/values"].shape == (3, 4)


@pytest.mark.parametrize("chain", ["cumulative", "consecutive"])
def test_a_session_goes_on_as_if_nothing_had_happened(tmp_path, chain):
    whole = Training()
    with whole.session(tmp_path / "whole") as sess:
        for _ in range(150):
            sess.run(whole.step)
    for stop in (7, 33, 65, 121, 150):
        t = Training()
        try:
            with t.session(tmp_path / "c", scaffold=scaffold(chain, 5)) as sess:
                while sess.global_step < stop:
                    sess.run(t.step)
                if stop < 150:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    assert t.rows() == whole.rows()
    assert t.state["dense"].tolist() == whole.state["dense"].tolist()
    assert t.state["count"] == 150


def test_without_increments_there_are_full_ones_only(tmp_path):
    for off in (None, 0):
        t = Training()
        with t.session(tmp_path / str(off), save_incremental_checkpoint_secs=off) as sess:
            for _ in range(61):
                sess.run(t.step)
        assert kinds(tmp_path / str(off)) == [("full", 0), ("full", 60), ("full", 61)]


@pytest.mark.parametrize("bad", [-1, -0.5, float("nan"), "20", True, [1]])
@pytest.mark.parametrize(
    "name",
    ["save_checkpoint_secs", "save_checkpoint_steps", "save_incremental_checkpoint_secs",
     "save_incremental_checkpoint_steps"],
)  # fmt: skip
def test_bad_intervals_are_refused_by_name(tmp_path, name, bad):
    with pytest.raises(cairn.Invalid, match=name):
        MonitoredTrainingSession(tmp_path, tables=[], **{name: bad})
    assert list(tmp_path.iterdir()) == []


def test_the_three_switches_must_agree(tmp_path):
    on = Saver(incremental_save_restore=True)
    with pytest.raises(cairn.Invalid, match="Saver"):
        Scaffold(saver=on)
    with pytest.raises(cairn.Invalid, match="Saver"):
        Scaffold(saver=Saver(), incremental_save_restore=True)
    with pytest.raises(cairn.Invalid, match="no interval"):
        MonitoredTrainingSession(tmp_path, scaffold=Scaffold(on, True), tables=[])
    with pytest.raises(cairn.Invalid, match="is off"):
        MonitoredTrainingSession(
            tmp_path, scaffold=Scaffold(), save_incremental_checkpoint_secs=1, tables=[]
        )
    hook = CheckpointSaverHook(tmp_path, save_secs=60, scaffold=Scaffold(on, True))
    with pytest.raises(cairn.Invalid, match="no interval"):
        MonitoredTrainingSession(tmp_path, hooks=[hook], tables=[])
    hook = CheckpointSaverHook(tmp_path, save_secs=60, incremental_save_secs=5)
    with pytest.raises(cairn.Invalid, match="is off"):
        MonitoredTrainingSession(tmp_path, hooks=[hook], scaffold=Scaffold(), tables=[])
    with pytest.raises(cairn.Invalid, match="different"):
        MonitoredTrainingSession(
            tmp_path, hooks=[hook], save_incremental_checkpoint_secs=7, tables=[]
        )
    with pytest.raises(cairn.Invalid, match="checkpoint_dir"):
        MonitoredTrainingSession(tmp_path / "other", hooks=[hook], tables=[])


def test_two_tables_of_one_name_are_refused(tmp_path):
    a, b = Training(), Training()
    with pytest.raises(cairn.Invalid, match="'t'"):
        MonitoredTrainingSession(tmp_path, tables=[a.table, b.table])


def test_a_dense_variable_called_like_a_table_is_refused(tmp_path):
    training = Training()
    with cairn.CheckpointManager(tmp_path) as manager:
        with pytest.raises(cairn.Invalid, match='"t" is a table and a dense variable; rename one'):
            manager.save(1, {"t": np.ones(2)}, tables=[training.table])
        manager.save(1, {"u": np.ones(2)}, tables=[training.table], blocking=True)


def test_by_default_all_tables_of_the_process_are_saved(tmp_path):
    script = """
        import sys, numpy as np, cairn
        made = [cairn.EmbeddingTable(n, 2, optimizer=cairn.optimizers.SGD(1.0)) for n in "ab"]
        with cairn.train.MonitoredTrainingSession(sys.argv[1]) as sess:
            sess.run(lambda step: [t.lookup([1, 2]) for t in made])
        print(sorted(t.name for t in sess.tables))
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "c")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.strip() == "['a', 'b']"


def test_a_stop_hook_stops(tmp_path):
    t = Training()
    with t.session(tmp_path, hooks=[StopAtStepHook(7)]) as sess:
        while not sess.should_stop():
            sess.run(t.step)
    assert sess.global_step == 7
    with t.session(tmp_path, hooks=[StopAtStepHook(7)]) as sess:
        assert sess.should_stop()


def test_an_estimator_trains_with_increments_and_goes_on(tmp_path):
    def trained(directory, parts):
        t = Training()

        def model_fn(features, labels, mode, params):
            both = scaffold(keep=5)
            hook = CheckpointSaverHook(
                params["model_dir"], save_steps=40, scaffold=both, incremental_save_steps=10
            )
            return EstimatorSpec(
                mode,
                loss=lambda: float(labels),
                train_op=t.step,
                training_chief_hooks=[hook],
                scaffold=both,
            )

        def input_fn():
            while True:
                yield None, 1.0

        for steps in parts:
            estimator = Estimator(
                model_fn, directory, {"model_dir": directory}, tables=[t.table], state=t.state
            )
            estimator.train(input_fn, steps=steps)
            assert estimator.last_loss == 1.0
        assert estimator.global_step == sum(parts)
        return t.rows(), t.state["count"]

    assert trained(tmp_path / "a", [95]) == trained(tmp_path / "b", [12, 50, 33])
    assert ("increment", 10) not in kinds(tmp_path / "a")  # its full one went, and it with it
    assert kinds(tmp_path / "a")[-1] == ("increment", 95)


def test_a_model_function_that_gives_something_else_is_refused(tmp_path):
    estimator = Estimator(lambda features: 3, tmp_path / "m", tables=[])
    with pytest.raises(cairn.Invalid, match="EstimatorSpec"):
        estimator.train(lambda: [(1, 2)], steps=1)
    with pytest.raises(cairn.Invalid, match="no data"):
        estimator.train(lambda: [], steps=1)


KILLED = """
import os, sys, numpy as np, cairn
table = cairn.EmbeddingTable("t", 4, optimizer=cairn.optimizers.Adagrad(0.1, 1.0),
                             initializer=cairn.initializers.Constant(1.0))
state = {"dense": np.zeros(2)}
kill = int(sys.argv[2])
def step(n):
    if n == kill:
        os.kill(os.getpid(), 9)
    table.apply_gradients([n % 10], np.full((1, 4), 2.0, np.float32))
    state["dense"] += n
with cairn.train.MonitoredTrainingSession(
    sys.argv[1], save_checkpoint_secs=None, save_checkpoint_steps=40,
    save_incremental_checkpoint_steps=5, tables=[table], state=state) as sess:
    while sess.global_step < 120:
        sess.run(step)
rows = sorted((k, v.tolist()) for k, v in table.items())
print(rows, state["dense"].tolist())
"""


def test_killed_at_any_step_the_same_command_goes_on(tmp_path):
    def run(directory, kill):
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(directory), str(kill)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    expected = run(tmp_path / "whole", -1).stdout
    for kill in (3, 17, 44, 46, 80, 119):
        assert run(tmp_path / "c", kill).returncode == -9
    last = run(tmp_path / "c", -1)
    assert last.returncode == 0, last.stderr
    assert last.stdout == expected


ESTIMATED = """
import os, sys, numpy as np, cairn
directory, kill, how = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0),
                             initializer=cairn.initializers.Constant(0))
def model_fn(features, labels, mode):
    def train_op(step):
        if step == kill:
            os.kill(os.getpid(), 9)
        table.apply_gradients([features], np.full((1, 2), labels, np.float32))
    return cairn.train.EstimatorSpec(mode, train_op=train_op)
def batches(day):
    return lambda: ((i % 10, float(100 * day + i)) for i in range(40))
estimator = cairn.train.Estimator(model_fn, directory, tables=[table], save_checkpoint_secs=None,
                                  save_checkpoint_steps=5)
for day, options in enumerate(how):
    estimator.train(batches(day), **options)
print(estimator.global_step, table.lookup(np.arange(10), create=False)[:, 0].tolist())
"""


@pytest.mark.parametrize(
    "how",
    ["[{}]", "[{'steps': 33}]", "[{'max_steps': 40}]", "[{'max_steps': 17}, {'max_steps': 45}]"],
)
def test_an_estimator_that_was_killed_goes_on_in_its_data(tmp_path, how):
    def run(directory, kill):
        command = [sys.executable, "-c", ESTIMATED, str(directory), str(kill), how]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    expected = run(tmp_path / "whole", -1).stdout
    assert expected
    for kill in (3, 8, 22, 31):
        assert run(tmp_path / "c", kill).returncode == -9
    last = run(tmp_path / "c", -1)
    assert last.returncode == 0, last.stderr
    assert last.stdout == expected


@pytest.mark.parametrize("ends", [{}, {"steps": 10}, {"max_steps": 10}], ids=["data", "steps", "max"])
def test_a_call_that_returned_is_not_gone_on_with(tmp_path, ends):
    """Also when the checkpoint of its last step was made before it was known to be the last."""
    trained = []

    def model_fn(features, mode):
        return EstimatorSpec(mode, train_op=lambda: trained.append(features))

    def estimator():  # as another process makes it
        return Estimator(
            model_fn, tmp_path, tables=[], save_checkpoint_secs=None, save_checkpoint_steps=5
        )

    estimator().train(lambda: range(10), **ends)
    estimator().train(lambda: range(100, 103))
    assert trained == [*range(10), 100, 101, 102]


def test_data_that_became_less_is_told(tmp_path, caplog):
    def model_fn(features, mode):
        def train_op(step):
            if step == 7:
                raise KeyboardInterrupt
            trained.append(features)

        return EstimatorSpec(mode, train_op=train_op)

    trained = []
    estimator = Estimator(
        model_fn, tmp_path, tables=[], save_checkpoint_secs=None, save_checkpoint_steps=5
    )
    with pytest.raises(KeyboardInterrupt):
        estimator.train(lambda: range(10))
    estimator.train(lambda: range(3))
    assert trained == list(range(7))
    assert "input_fn gives fewer than the 5 batches it gave before" in caplog.text


@pytest.mark.parametrize("how", [[], ["--estimator"]])
def test_the_example_survives_kills(tmp_path, how):
    def run(directory, kill):
        command = [sys.executable, str(EXAMPLE), "--dir", str(directory), "--steps", "60"]
        command += ["--sleep", "0.005", "--full-secs", "0.1", "--increment-secs", "0.03"]
        return subprocess.run(
            [*command, "--kill-at", str(kill), *how], capture_output=True, text=True, check=False
        )

    expected = run(tmp_path / "whole", -1).stdout.splitlines()[-1]
    for kill in (5, 31, 58):
        assert run(tmp_path / "c", kill).returncode == -9
    last = run(tmp_path / "c", -1)
    assert last.returncode == 0, last.stderr
    assert last.stdout.splitlines()[-1] == expected
    assert expected.startswith("values 0.656270 ")
    # The same command after the end has nothing left to do, and says so.
    over = run(tmp_path / "c", -1)
    assert over.returncode == 0, over.stderr
    assert over.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize("language", ["python", "cpp"])
def test_the_example_survives_kills_at_random_moments(tmp_path, language):
    def command(directory):
        if language == "cpp":
            return [pathlib.Path(command_line()).with_name("incremental_session"), str(directory), "60"]
        times = ["--sleep", "0.01", "--full-secs", "0.1", "--increment-secs", "0.03"]
        return [sys.executable, str(EXAMPLE), "--dir", str(directory), "--steps", "60", *times]

    begun = time.monotonic()
    whole = subprocess.run(command(tmp_path / "whole"), capture_output=True, text=True, check=True)
    took = time.monotonic() - begun
    expected = whole.stdout.splitlines()[-1]
    assert expected.startswith("values 0.656270 ")
    moments = random.Random(20)
    for _ in range(4):
        with subprocess.Popen(command(tmp_path / "c"), stdout=subprocess.DEVNULL) as child:
            try:
                child.wait(moments.uniform(0, took))
            except subprocess.TimeoutExpired:
                child.kill()
        assert child.returncode in (0, -9)
    last = subprocess.run(command(tmp_path / "c"), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert last.stdout.splitlines()[-1] == expected


def test_a_worker_waits_for_the_chiefs_first_checkpoint(tmp_path, caplog):
    directory = tmp_path / "c"
    worker = {"w": np.zeros(3)}
    seen = []

    def work():
        with MonitoredTrainingSession(
            directory, tables=[], state=worker, is_chief=False, max_wait_secs=60
        ) as sess:
            seen.append((sess.global_step, worker["w"].tolist()))

    thread = threading.Thread(target=work)
    thread.start()
    while not any("waiting for the chief's first checkpoint" in line for line in caplog.messages):
        assert thread.is_alive()
    with MonitoredTrainingSession(directory, tables=[], state={"w": np.ones(3)}):
        thread.join()
    assert seen == [(0, [1.0, 1.0, 1.0])]


@pytest.mark.parametrize("empty", [False, True])
def test_a_worker_whose_chief_never_comes_says_so(tmp_path, empty):
    directory = tmp_path / "c"
    if empty:
        cairn.CheckpointManager(directory).close()
    with pytest.raises(cairn.Timeout, match="the chief has saved nothing in .*is_chief=True"):
        with MonitoredTrainingSession(directory, tables=[], is_chief=False, max_wait_secs=0.01):
            pass


def test_a_closed_session_counts_no_steps(tmp_path):
    session = cairn.train.MonitoredTrainingSession(str(tmp_path / "run"), state={"w": np.zeros(1)})
    with session:
        session.run(lambda step: step)
    with pytest.raises(cairn.Invalid, match="closed"):
        session.run(lambda step: step)
    assert session.global_step == 1
    session.close()


def test_a_session_that_was_never_opened_counts_no_steps(tmp_path):
    t = Training()
    session = t.session(tmp_path / "run")
    with pytest.raises(cairn.Invalid, match="with"):
        session.run(t.step)
    with pytest.raises(cairn.Invalid, match="with"):
        session.save()
    assert session.global_step == 0
    assert not (tmp_path / "run").exists()


def test_a_session_is_open_once_at_a_time(tmp_path):
    t = Training()
    with t.session(tmp_path) as session:
        session.run(t.step)
        with pytest.raises(cairn.Invalid, match="open already"):
            session.__enter__()
        session.run(t.step)
    with session:  # one after the other is fine
        session.run(t.step)
    assert session.global_step == 3
    assert kinds(tmp_path)[-1][1] == 3


def test_a_session_that_cannot_begin_gives_the_directory_up(tmp_path):
    class Fails(cairn.train.SessionRunHook):
        def after_create_session(self, session):
            raise RuntimeError("mine")

    for options, error in (
        ({"state": {"x": object()}}, cairn.Invalid),
        ({"hooks": [Fails()]}, RuntimeError),
    ):
        t = Training()
        failed = t.session(tmp_path, **options)
        with pytest.raises(error):
            failed.__enter__()
    t = Training()
    with t.session(tmp_path) as session:
        session.run(t.step)


@pytest.mark.parametrize(
    "hook, named",
    [
        (lambda: CheckpointSaverHook(None, save_secs=1), "checkpoint_dir"),
        (lambda: CheckpointSaverHook("c"), "save_secs"),
        (lambda: CheckpointSaverHook("c", save_secs=0, save_steps=None), "save_secs"),
        (lambda: CheckpointSaverHook("c", save_secs=1, saver=5), "saver"),
        (lambda: CheckpointSaverHook("c", save_secs=1, scaffold=5), "scaffold"),
        (lambda: CheckpointSaverHook("c", save_steps=float("inf")), "save_steps"),
        (lambda: StopAtStepHook("7"), "last_step"),
        (lambda: MonitoredTrainingSession("c", hooks=[5], tables=[]), "hooks"),
        (lambda: MonitoredTrainingSession("c", hooks=StopAtStepHook(1), tables=[]), "hooks"),
        (lambda: MonitoredTrainingSession("c", hooks=None, tables=[]), "hooks"),
        (lambda: MonitoredTrainingSession(5, tables=[]), "checkpoint_dir"),
        (lambda: MonitoredTrainingSession("c", tables=5), "tables"),
        (lambda: Estimator(lambda x, mode: None, "c"), "'x'.*features"),
        (lambda: Estimator(lambda mode: None, "c", ["rate"]), "params"),
    ],
)
def test_what_would_save_nothing_or_fail_later_is_refused_by_name(hook, named):
    with pytest.raises(cairn.Invalid, match=named):
        hook()


def test_settings_may_be_numbers_of_numpy(tmp_path):
    t = Training()
    saver = Saver(max_to_keep=np.int64(2))
    with t.session(
        tmp_path,
        save_checkpoint_secs=np.float32(60),
        save_checkpoint_steps=np.int64(2),
        save_incremental_checkpoint_secs=None,
        scaffold=Scaffold(saver),
        hooks=[StopAtStepHook(np.int64(4))],
    ) as session:
        while not session.should_stop():
            session.run(t.step)
    assert kinds(tmp_path) == [("full", 2), ("full", 4)]


def _ends(input_fn, **options):
    def model_fn(features, mode):
        return EstimatorSpec(mode, train_op=lambda: None)

    return Estimator(model_fn, None, tables=[]).train(input_fn, **options)


def test_a_batch_that_is_none_is_a_batch():
    assert _ends(lambda: [None, None, None]).global_step == 3
    assert _ends(lambda: [None] * 9, steps=np.int64(4)).global_step == 4


@pytest.mark.parametrize("input_fn", [[1], lambda: None, lambda: []], ids=["list", "none", "empty"])
def test_an_input_function_without_data_is_refused(input_fn):
    with pytest.raises(cairn.Invalid, match="input_fn"):
        _ends(input_fn)


def test_restarts_do_not_put_a_full_checkpoint_off(tmp_path):
    """Killed before every due full one, a chain would grow for ever."""
    for last in (4, 8, 12):
        t = Training()
        with t.session(
            tmp_path,
            save_checkpoint_secs=None,
            save_checkpoint_steps=6,
            save_incremental_checkpoint_secs=None,
            save_incremental_checkpoint_steps=2,
            scaffold=scaffold("consecutive"),
        ) as session:
            while session.global_step < last:
                session.run(t.step)
    assert [step for kind, step in kinds(tmp_path) if kind == "full"] == [0, 6, 12]


def test_restarts_do_not_put_a_full_checkpoint_off_by_time_either(tmp_path):
    for run in range(3):
        t = Training()
        t.clock.now = 1000.0 * run  # what passes in between is no training
        with t.session(tmp_path, save_incremental_checkpoint_secs=10, scaffold=scaffold()) as session:
            for _ in range(40):
                session.run(t.step)
    assert [step for kind, step in kinds(tmp_path) if kind == "full"] == [0, 60, 120]


FULL_DISK = """
import resource, signal, sys, numpy as np, cairn
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
now = [0.0]
table = cairn.EmbeddingTable("t", 4, optimizer=cairn.optimizers.SGD(1.0))
def step(n):
    table.apply_gradients([n], np.ones((1, 4), np.float32))
    now[0] += 1
with cairn.train.MonitoredTrainingSession(
    sys.argv[1], save_checkpoint_secs=60, save_incremental_checkpoint_secs=20, tables=[table],
    clock=lambda: now[0]) as sess:
    sess._handle.wait()
    for _ in range(19):
        sess.run(step)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    sess.run(step)                               # the increment of step 20
    while not sess._handle.done():
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    try:
        sess.run(step)
        print("silence")
    except cairn.NoSpace:
        print("told at", sess.global_step)
    sess.run(step)
    print("saved", sess._handle.wait().step)
"""


def test_what_failed_in_the_background_is_due_again_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "told at 21\nsaved 22\n", done.stderr


def test_restarts_do_not_make_a_chain_longer_than_it_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(cairn._training_session, "_LONGEST_CHAIN", 3)
    for last in range(2, 12, 2):  # two increments a run
        t = Training()
        with t.session(
            tmp_path,
            save_checkpoint_secs=None,
            save_incremental_checkpoint_secs=None,
            save_incremental_checkpoint_steps=1,
            scaffold=scaffold("consecutive"),
        ) as session:
            while session.global_step < last:
                session.run(t.step)
    assert [step for kind, step in kinds(tmp_path) if kind == "full"] == [0, 4, 8]


def test_a_table_that_is_made_later_is_refused_not_lost(tmp_path):
    def step(global_step):
        late.apply_gradients([global_step], np.ones((1, 2)))

    with MonitoredTrainingSession(tmp_path / "run") as session:
        late = cairn.EmbeddingTable("late", 2, optimizer=cairn.optimizers.SGD(1.0))
        with pytest.raises(cairn.Invalid, match="table 'late' was made after the session"):
            session.run(step)
    with MonitoredTrainingSession(tmp_path / "run", tables=[]) as session:
        other = cairn.EmbeddingTable("other", 2, optimizer=cairn.optimizers.SGD(1.0))
        session.run(lambda step: other.lookup([step]))  # the session's own are named


def test_a_model_function_that_makes_tables_is_refused(tmp_path):
    def model_fn(features, mode):
        table = cairn.EmbeddingTable("rows", 2, optimizer=cairn.optimizers.SGD(1.0))
        return cairn.train.EstimatorSpec(mode, train_op=lambda: table.lookup([features]).sum())

    estimator = cairn.train.Estimator(model_fn, tmp_path / "run")
    with pytest.raises(cairn.Invalid, match="model_fn makes table 'rows' each time"):
        estimator.train(lambda: [1, 2, 3])


def test_rows_that_nobody_asks_for_are_not_dropped(tmp_path):
    table = cairn.EmbeddingTable("rows", 2, optimizer=cairn.optimizers.SGD(1.0))
    with MonitoredTrainingSession(tmp_path / "run", tables=[table]) as session:
        session.run(lambda step: table.lookup([step]))
    with pytest.raises(cairn.Mismatch, match="the rows of 'rows', and no tables are given") as lost:
        with MonitoredTrainingSession(tmp_path / "run", tables=[]):
            pass
    assert lost.value.unexpected == ["rows"]
    with MonitoredTrainingSession(tmp_path / "run", tables=[table]) as session:
        assert session.global_step == 1


def test_a_step_that_is_no_function_is_refused(tmp_path):
    with MonitoredTrainingSession(tmp_path / "run", tables=[]) as session:
        with pytest.raises(cairn.Invalid, match="step_fn must be callable, not a NoneType"):
            session.run(None)
        assert session.global_step == 0


def rows_of(table):
    return {key: row["weights"].tolist() for key, row in table.rows().items()}


@pytest.mark.parametrize("increments", [False, True])
@pytest.mark.parametrize("change", ["assign", "erase", "evict", "in a hook"])
def test_what_changes_rows_after_the_last_step_is_saved_too(tmp_path, change, increments):
    """The last step was saved already when the block is left."""

    def made():
        return cairn.EmbeddingTable(
            "t",
            2,
            optimizer=cairn.optimizers.SGD(1.0),
            eviction=cairn.GlobalStepEvict(steps_to_live=1),
        )

    table = made()
    changes = {
        "assign": lambda: table.assign([1], [[5.0, 5.0]]),
        "erase": lambda: table.erase([1]),
        "evict": lambda: table.evict(3),
        "in a hook": lambda: None,
    }

    class Last(cairn.train.SessionRunHook):
        def end(self, session):
            if change == "in a hook":
                table.assign([1], [[7.0, 7.0]])

    settings = {"save_checkpoint_steps": 1, "hooks": [Last()]}
    if increments:
        settings = {"save_incremental_checkpoint_steps": 1, "hooks": [Last()]}
    with MonitoredTrainingSession(tmp_path / "run", tables=[table], **settings) as session:
        for _ in range(3):
            session.run(lambda step: table.apply_gradients([step], [[1.0, 1.0]]))
        changes[change]()
    after = made()
    with MonitoredTrainingSession(tmp_path / "run", tables=[after]) as session:
        assert session.global_step == 3
        assert rows_of(after) == rows_of(table)


def test_a_table_that_was_cleared_after_the_last_step_comes_back_empty(tmp_path):
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0))
    with MonitoredTrainingSession(tmp_path / "run", tables=[table]) as session:
        session.run(lambda step: table.assign([1], [[5.0, 5.0]]))
    for _ in range(2):
        with MonitoredTrainingSession(tmp_path / "run", tables=[table]):
            table.clear()
    with MonitoredTrainingSession(tmp_path / "run", tables=[table]) as session:
        assert (session.global_step, table.size()) == (1, 0)


def test_a_session_without_changes_after_its_last_save_saves_no_more(tmp_path):
    table = cairn.EmbeddingTable("t", 2, optimizer=cairn.optimizers.SGD(1.0))
    for _ in range(2):
        with MonitoredTrainingSession(
            tmp_path / "run", save_checkpoint_steps=1, tables=[table]
        ) as session:
            if session.global_step == 0:
                session.run(lambda step: table.apply_gradients([step], [[1.0, 1.0]]))
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [info.step for info in manager.list()] == [0, 1]


@pytest.mark.parametrize(
    "settings, encodes",
    [({}, True), ({"is_chief": False}, False), ({"save_checkpoint_secs": None}, False)],
)
def test_only_a_session_that_saves_looks_at_what_hooks_changed(tmp_path, settings, encodes):
    class Counted:
        calls = 0

        def state_dict(self):
            self.calls += 1
            return {"w": 1}

        def load_state_dict(self, state):
            pass

    class Last(cairn.train.SessionRunHook):
        def end(self, session):
            pass

    def session(**settings):
        state = {"counted": counted}
        return MonitoredTrainingSession(tmp_path / "run", tables=[], state=state, hooks=[Last()], **settings)  # fmt: skip

    counted = Counted()
    with session() as first:
        first.run(lambda step: None)
    with session(**settings) as again:
        assert again.global_step == 1
        before = counted.calls
    assert (counted.calls > before) == encodes


@pytest.mark.parametrize("changes", [False, True])
def test_a_hooks_end_makes_a_save_of_what_it_changed_alone(tmp_path, changes):
    """A finished training that is started again and again must not push out its older checkpoints."""

    class Last(cairn.train.SessionRunHook):
        def end(self, session):
            session.state["w"] += changes

    for _ in range(3):
        state = {"w": np.zeros(2)}
        with MonitoredTrainingSession(
            tmp_path / "run", save_checkpoint_steps=1, tables=[], state=state, hooks=[Last()]
        ) as session:
            while session.global_step < 2:
                session.run(lambda step: None)
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [info.step for info in manager.list()] == ([1, 2, 2, 2, 2] if changes else [0, 1, 2])
        assert manager.restore().state["state"]["w"].tolist() == 2 * [3.0 * changes]


def test_a_state_may_be_one_array(tmp_path):
    w = np.zeros(2)

    def step(number):
        w[:] += 1

    for steps in (2, 4):
        with MonitoredTrainingSession(tmp_path / "run", tables=[], state=w) as session:
            assert w.tolist() == 2 * [session.global_step]
            while session.global_step < steps:
                session.run(step)
        w = np.zeros(2)
    with cairn.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [info.step for info in manager.list()][-2:] == [2, 4]


def test_a_checkpoint_of_another_training_is_refused_with_what_a_session_can_do(tmp_path):
    with MonitoredTrainingSession(tmp_path / "run", tables=[], state={"w": np.zeros(2)}) as session:
        session.run(lambda step: None)
    with pytest.raises(cairn.Mismatch) as told:
        MonitoredTrainingSession(tmp_path / "run", tables=[], state={"w": np.zeros(3)}).__enter__()
    assert "another checkpoint_dir" in str(told.value)
    assert "rename" not in str(told.value)
    assert told.value.mismatched == ["state/w: stored F64 [2], wanted F64 [3]"]


def test_a_hooks_directory_may_be_written_otherwise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hook = CheckpointSaverHook("./run/", save_steps=1)
    with MonitoredTrainingSession(str(tmp_path / "run"), tables=[], hooks=[hook]) as session:
        session.run(lambda step: None)
    hook = CheckpointSaverHook("other", save_steps=1)
    with pytest.raises(cairn.Invalid, match="checkpoint_dir"):
        MonitoredTrainingSession("run", tables=[], hooks=[hook])
