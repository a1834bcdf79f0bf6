"""The Core API in one process: without a master, and what a detached run tells one."""

import os
import pathlib
import signal
import socket
import sys
import threading

import numpy as np
import pytest
from children import Child, run

import cairn
from cairn import core
from cairn.core import _client, _preempt, _wire


@pytest.fixture
def storage(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CAIRN_")]:
        if name != "CAIRN_BIN_DIR":
            monkeypatch.delenv(name)
    return str(tmp_path / "run")


def put(path, name, text):
    path = os.path.join(path, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def get(path, name):
    with open(os.path.join(path, name)) as file:
        return file.read()


def store(ctx, steps, **files):
    with ctx.checkpoint.store_path({"steps_completed": steps}) as (path, id):
        for name, text in files.items():
            put(path, name, text)
    return id


def leftovers(storage):
    return [name for name in os.listdir(storage) if "staging" in name]


def test_the_same_command_again_begins_with_the_last_checkpoint(storage):
    with core.init(storage=storage) as ctx:
        assert ctx.latest_checkpoint is None and ctx.info is None
        first = store(ctx, 10, a="ten")
        second = store(ctx, 20, a="twenty")
        assert first != second
    with core.init(storage=storage) as ctx:
        assert ctx.latest_checkpoint == second
        with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
            assert get(path, "a") == "twenty"
        with ctx.checkpoint.restore_path(first) as path:
            assert get(path, "a") == "ten"
        assert ctx.checkpoint.get_metadata(second) == {"steps_completed": 20}
        assert [info.step for info in ctx.checkpoint.list()] == [10, 20]


def test_the_id_that_store_path_yields_is_the_checkpoints(storage):
    with core.init(storage=storage) as ctx:
        id = store(ctx, 1, a="x")
    with cairn.CheckpointManager(storage, read_only=True) as reader:
        assert reader.latest().id == id
    assert cairn.verify(storage).ok


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {"step": 3}, {"steps_completed": -1}, {"steps_completed": "3"},
     {"steps_completed": True}, {"steps_completed": 1.5}, {"steps_completed": 1, "x": object()}, 7],
)  # fmt: skip
def test_metadata_without_steps_is_refused_before_a_byte_is_written(storage, metadata):
    with core.init(storage=storage) as ctx:
        before = sorted(os.listdir(storage))
        entered = False
        with pytest.raises(cairn.Invalid):
            with ctx.checkpoint.store_path(metadata):
                entered = True
        with pytest.raises(ValueError):
            ctx.checkpoint.upload(storage, metadata)
        with pytest.raises(cairn.Invalid):
            ctx.checkpoint.save({"a": 1}, metadata)
        assert not entered
        assert sorted(os.listdir(storage)) == before


def test_a_body_that_raises_leaves_nothing(storage):
    with core.init(storage=storage) as ctx:
        before = sorted(os.listdir(storage))
        with pytest.raises(RuntimeError, match="half-way"):
            with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, _):
                put(path, "half", "x")
                raise RuntimeError("half-way")
        assert not os.path.exists(path)
        assert sorted(os.listdir(storage)) == before
        assert ctx.checkpoint.list() == []
        store(ctx, 2, a="x")  # and the next one works


def test_a_process_killed_in_the_body_leaves_nothing_for_the_next(storage):
    child = Child(
        """
        with cairn.core.init(storage=sys.argv[1]) as ctx:
            with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
                open(path + "/half", "w").write("x")
                print("staged")
                time.sleep(1000)
        """,
        storage,
    )
    child.expect("staged")
    child.kill()
    assert leftovers(storage)
    with core.init(storage=storage) as ctx:
        assert ctx.latest_checkpoint is None
        assert not leftovers(storage)


def test_damaged_files_are_noticed_on_restore(storage, tmp_path):
    with core.init(storage=storage) as ctx:
        id = store(ctx, 1, a="good", b="good")
        put(ctx.checkpoint.list()[0].path, "files/b", "evil")
        with pytest.raises(cairn.Corruption, match="files/b"):
            with ctx.checkpoint.restore_path(id):
                raise AssertionError("the damaged files were handed out")
        with pytest.raises(cairn.Corruption):
            ctx.checkpoint.download(id, tmp_path / "out")
        os.unlink(os.path.join(ctx.checkpoint.list()[0].path, "files/b"))
        with pytest.raises(cairn.Error):
            with ctx.checkpoint.restore_path(id):
                raise AssertionError("a missing file was not missed")


def test_upload_download_and_selectors(storage, tmp_path):
    put(tmp_path / "mine", "a.txt", "a")
    put(tmp_path / "mine", "sub/b.bin", "b")
    with core.init(storage=storage) as ctx:
        id = ctx.checkpoint.upload(tmp_path / "mine", {"steps_completed": 3, "tag": "mine"})
        ctx.checkpoint.download(id, tmp_path / "out")
        assert get(tmp_path / "out", "sub/b.bin") == "b" and get(tmp_path / "out", "a.txt") == "a"
        ctx.checkpoint.download(id, tmp_path / "few", selector=lambda name: name.endswith(".txt"))
        assert os.listdir(tmp_path / "few") == ["a.txt"]
        with ctx.checkpoint.restore_path(id, selector=lambda name: name == "sub/b.bin") as path:
            assert os.listdir(path) == ["sub"]
        assert not os.path.exists(path)
        only = ctx.checkpoint.upload(
            tmp_path / "mine", {"steps_completed": 4}, selector=lambda name: name == "a.txt"
        )
        with ctx.checkpoint.restore_path(only) as path:
            assert os.listdir(path) == ["a.txt"]
        assert ctx.checkpoint.get_metadata(id)["tag"] == "mine"
        with pytest.raises(cairn.NotFound):
            ctx.checkpoint.upload(tmp_path / "none", {"steps_completed": 5})
        with pytest.raises(cairn.Invalid):
            ctx.checkpoint.upload(None, {"steps_completed": 5})


def test_a_checkpoint_without_files_is_one(storage):
    with core.init(storage=storage) as ctx:
        id = store(ctx, 5)
        with ctx.checkpoint.restore_path(id) as path:
            assert os.listdir(path) == []


def test_delete(storage):
    with core.init(storage=storage) as ctx:
        id = store(ctx, 1, a="x")
        ctx.checkpoint.delete(id)
        with pytest.raises(cairn.NotFound):
            ctx.checkpoint.get_metadata(id)
        with pytest.raises(cairn.NotFound):
            ctx.checkpoint.delete(id)


def test_states_go_through_the_engine(storage):
    w = np.arange(5.0)
    with core.init(storage=storage) as ctx:
        handle = ctx.checkpoint.save({"w": w, "epoch": 3}, {"steps_completed": 7})
        w[:] = 0
        assert handle.wait().id == handle.id
    with core.init(storage=storage) as ctx:
        assert ctx.latest_checkpoint == handle.id
        restored = ctx.checkpoint.restore({"w": w, "epoch": None}, id=ctx.latest_checkpoint)
        assert restored.step == 7 and restored.state["epoch"] == 3
        assert w.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("named", [False, True])
def test_restore_waits_for_the_save_in_flight(storage, named):
    with cairn.core.init(storage=storage) as ctx:
        handle = ctx.checkpoint.save({"w": np.full(1 << 22, 7.0)}, {"steps_completed": 1})
        w = np.zeros(1 << 22)
        restored = ctx.checkpoint.restore({"w": w}, id=handle.id if named else None)
        assert restored.info.id == handle.id and w.min() == 7
        handle = ctx.checkpoint.save({"w": w}, {"steps_completed": 2})
        assert ctx.checkpoint.get_metadata(handle.id)["steps_completed"] == 2


def test_a_save_in_flight_at_the_end_is_finished(storage):
    with core.init(storage=storage) as ctx:
        handle = ctx.checkpoint.save({"w": np.ones(1 << 20)}, {"steps_completed": 1})
    assert handle.done()
    with cairn.CheckpointManager(storage, read_only=True) as reader:
        assert reader.latest().id == handle.id


@pytest.mark.parametrize("first", ["checkpoint", "validation", "validation, then save"])
def test_retention_and_scores_without_a_master(storage, first):
    options = {"keep_last": 1, "keep_best": 1, "score": "accuracy"}
    with core.init(storage=storage, **options) as ctx:
        for steps, accuracy in [(1, 0.5), (2, 0.9), (3, 0.1), (4, 0.2)]:
            if first == "checkpoint":
                store(ctx, steps, a=str(steps))
            ctx.train.report_validation_metrics(steps, {"accuracy": accuracy})
            if first == "validation":
                store(ctx, steps, a=str(steps))
            elif first != "checkpoint":
                ctx.checkpoint.save({"a": steps}, {"steps_completed": steps}, blocking=True)
    with cairn.CheckpointManager(storage, read_only=True) as manager:
        assert [info.step for info in manager.list()] == [2, 4]
        assert manager.list()[0].metrics == {"accuracy": 0.9}


def test_a_damaged_checkpoint_is_passed_over_at_the_next_start(storage):
    with core.init(storage=storage) as ctx:
        for steps in (1, 2, 3):
            store(ctx, steps, x=f"value {steps}")
    damaged = os.path.join(storage, "checkpoint_000003", "files", "x")
    with open(damaged, "r+") as file:
        file.write("VALUE")
    os.remove(os.path.join(storage, "checkpoint_000002", "files", "x"))
    with core.init(storage=storage) as ctx:
        with pytest.raises(cairn.Corruption, match="x"):
            with ctx.checkpoint.restore_path(ctx.latest_checkpoint):
                pass
    for _ in range(2):
        with core.init(storage=storage) as ctx:
            assert ctx.checkpoint.get_metadata(ctx.latest_checkpoint) == {"steps_completed": 1}
            with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
                assert open(os.path.join(path, "x")).read() == "value 1"
    with open(damaged, "r+") as file:
        file.write("value")  # a good copy was put back
    with core.init(storage=storage) as ctx:
        assert ctx.checkpoint.get_metadata(ctx.latest_checkpoint) == {"steps_completed": 3}


def test_reports_are_checked(storage, caplog):
    caplog.set_level("INFO", "cairn.core")
    with core.init(storage=storage) as ctx:
        ctx.train.report_training_metrics(steps_completed=1, metrics={"loss": np.float32(0.5)})
        ctx.train.report_metrics("mine", 1, {"deep": {"er": float("nan")}})
        ctx.train.report_progress(0.5)
        ctx.train.set_status("warming up")
        assert "'loss': 0.5" in caplog.text and "warming up" in caplog.text
        for bad in (-1, 1.5, "1", None, True, 2**63):
            with pytest.raises(cairn.Invalid):
                ctx.train.report_training_metrics(bad, {"a": 1})
        # What a master would refuse is refused without one too.
        for bad in (7, {"a": np.ones(2)}, {"a": object()}, {"a": {3: 4}}, {"a": 2**64}, {"a": "\ud800"},
                    {"\ud800": 1}, {"a": "x\0y"}, {"a": {"x\0y": 1}}, {"a": ["\0"]}):  # fmt: skip
            with pytest.raises(cairn.Invalid):
                ctx.train.report_validation_metrics(1, bad)
            metadata = {**bad, "steps_completed": 1} if isinstance(bad, dict) else bad
            with pytest.raises(cairn.Invalid):
                ctx.checkpoint.upload(None, metadata, shard=True)
        for bad in ("", 3, "\ud800", "x\0y", "ü" * 129):
            with pytest.raises(cairn.Invalid, match="group"):
                ctx.train.report_metrics(bad, 1, {"a": 1})
        ctx.train.set_status("x\0y")  # a line for people: a master replaces it
        for bad in ("\ud800", 3, "x" * 4097):
            with pytest.raises(cairn.Invalid, match="status"):
                ctx.train.set_status(bad)
        for bad in (-0.1, 1.1, float("nan"), "x"):
            with pytest.raises(cairn.Invalid):
                ctx.train.report_progress(bad)


@pytest.mark.parametrize("given", [{"preempt_mode": "x"}, {"distributed": 5}, {"external_id": 5}])
def test_what_init_cannot_take_is_named(storage, given):
    with pytest.raises(cairn.Invalid, match=next(iter(given))):
        core.init(storage=storage, **given)
    assert not os.path.exists(storage)


def test_a_score_that_is_no_name_is_refused(storage):
    with pytest.raises(cairn.Invalid, match="score must be a str, not an int"):
        core.init(storage=storage, keep_best=1, score=3)


def test_processes_that_are_forked_below_a_context_end_by_sigterm(tmp_path):
    # Otherwise nobody ends them: multiprocessing waits for them for ever when the program ends.
    out = run(
        """
        import multiprocessing

        def endless(begun):
            begun.set()
            while True:
                time.sleep(1)

        fork = multiprocessing.get_context("fork")
        with cairn.core.init(storage=sys.argv[1]) as ctx:
            begun = fork.Event()
            process = fork.Process(target=endless, args=(begun,), daemon=True)
            process.start()
            begun.wait()
            process.terminate()
            process.join(20)
            print(process.exitcode, ctx.preempt.should_preempt())
        """,
        tmp_path,
    )
    assert out.split() == [str(-signal.SIGTERM), "False"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_set_a_flag_and_nothing_else(storage, number):
    before = signal.getsignal(number)
    with core.init(storage=storage) as ctx:
        assert ctx.preempt.should_preempt() is False
        os.kill(os.getpid(), number)
        assert ctx.preempt.should_preempt() is True
        assert ctx.preempt.should_preempt() is True
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_is_what_it_always_was(storage):
    with pytest.raises(KeyboardInterrupt):
        with core.init(storage=storage):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)


def test_a_script_that_is_stopped_goes_on_where_it_was(storage):
    script = """
        with cairn.core.init(storage=sys.argv[1]) as ctx:
            start = 0
            if ctx.latest_checkpoint:
                start = ctx.checkpoint.get_metadata(ctx.latest_checkpoint)["steps_completed"]
            print("from", start)
            for step in range(start, 1000):
                with ctx.checkpoint.store_path({"steps_completed": step + 1}) as (path, id):
                    open(path + "/x", "w").write(str(step + 1))
                if step == start + 2:
                    print("three")
                if ctx.preempt.should_preempt():
                    break
            print("left after", step + 1)
        """
    child = Child(script, storage)
    child.expect("from 0")
    child.expect("three")
    os.kill(child.pid, signal.SIGTERM)
    status, out, err = child.end()
    assert status == 0, err
    done = int(out.split()[-1])
    child = Child(script, storage)
    child.expect(f"from {done}")
    child.expect("three")
    child.kill()
    child = Child(script, storage)
    line = child.line()
    assert line.startswith("from ") and int(line.split()[1]) >= done + 3
    child.kill()


def test_storage_is_named_by_the_variable_or_the_script(tmp_path, storage):
    code = "with cairn.core.init() as ctx: print(ctx.storage)"
    os.environ.pop("CAIRN_STORAGE", None)
    assert run("os.chdir(sys.argv[1])\n" + code, tmp_path).strip() == str(
        tmp_path / "cairn-interactive"
    )
    named = "os.environ['CAIRN_STORAGE'] = sys.argv[1]\n" + code
    assert run(named, tmp_path / "there").strip() == str(tmp_path / "there")
    script = tmp_path / "my_train.py"
    script.write_text("import cairn\nwith cairn.core.init() as ctx:\n    print(ctx.storage)\n")
    code = "import runpy; os.chdir(sys.argv[1]); sys.argv = ['my_train.py']; runpy.run_path('my_train.py')"
    assert run(code, tmp_path).strip() == str(tmp_path / "cairn-my_train")


def test_two_living_scripts_do_not_share_a_directory(storage):
    with core.init(storage=storage):
        with pytest.raises(cairn.Unavailable, match=str(os.getpid())):
            core.init(storage=storage)
    core.init(storage=storage).close()


def test_a_closed_context_stores_and_reports_nothing(storage):
    with core.init(storage=storage) as ctx:
        id = store(ctx, 10, a="ten")
    with core.init(storage=storage) as owner:
        for late in (
            lambda: store(ctx, 20, a="twenty"),
            lambda: ctx.checkpoint.save({"w": np.ones(3)}, {"steps_completed": 20}),
            lambda: ctx.checkpoint.delete(id),
            lambda: ctx.train.report_training_metrics(steps_completed=20, metrics={"x": 1}),
            lambda: ctx.train.report_progress(1.0),
        ):
            with pytest.raises(cairn.Error, match="this context is closed"):
                late()
        assert [info.step for info in owner.checkpoint.list()] == [10]
    with pytest.raises(cairn.Error, match="this context is closed"):
        store(ctx, 20, a="twenty")  # also when nobody owns it
    with ctx.checkpoint.restore_path(id) as path:  # reading harms nobody
        assert get(path, "a") == "ten"
    assert leftovers(storage) == []


def test_cluster_info_comes_from_the_variables_of_the_run(storage, monkeypatch):
    assert cairn.get_cluster_info() is None
    monkeypatch.setenv("CAIRN_TRIAL_URL", "unix:/x")
    monkeypatch.setenv("CAIRN_TRIAL_ID", "12")
    monkeypatch.setenv("CAIRN_EXPERIMENT_ID", "exp-a")
    monkeypatch.setenv("CAIRN_RUN_ID", "3")
    monkeypatch.setenv("CAIRN_HPARAMS", '{"lr": 0.1}')
    info = cairn.get_cluster_info()
    assert info.trial.trial_id == 12 and info.trial.experiment_id == "exp-a"
    assert info.trial.hparams == {"lr": 0.1} and info.trial.resume_mode == "fresh"
    assert info.latest_checkpoint is None
    assert info.trial.trial_seed == 1166166508  # as in C++
    monkeypatch.setenv("CAIRN_TRIAL_SEED", "77")
    assert cairn.get_cluster_info().trial.trial_seed == 77
    monkeypatch.setenv("CAIRN_LATEST_CHECKPOINT", "abc")
    assert cairn.get_cluster_info().trial.resume_mode == "resume"
    monkeypatch.setenv("CAIRN_RESUME_MODE", "continue")
    assert cairn.get_cluster_info().trial.resume_mode == "continue"
    for damaged in ("{", "[1]", "3"):
        monkeypatch.setenv("CAIRN_HPARAMS", damaged)
        with pytest.raises(cairn.Invalid):
            cairn.get_cluster_info()


def test_an_engine_that_is_not_there_is_named(storage, monkeypatch):
    monkeypatch.setenv("CAIRN_TRIAL_URL", "gopher://x")
    monkeypatch.setenv("CAIRN_TRIAL_ID", "12")
    with pytest.raises(cairn.Invalid, match="gopher"):
        core.init()


class Engine:
    """Stands for the client of a trial engine and keeps what it is told."""

    def __init__(self, repository, latest=None):
        self.description = {
            "run_id": 1, "repository": repository, "detached": True, "trial_id": "5",
            "experiment_id": "1", "latest_checkpoint": latest and {"id": latest},
        }  # fmt: skip
        self.trial, self.run, self.token = "5", 1, "own"
        self.preempt = False
        self.acknowledged = 0
        self.exits = []
        self.completed = []  # arguments of each: id, steps, …, awaits_score
        self.fails = ""  # the call that is refused
        self.lines = []  # (from_stderr, text) of what was written
        self.sends = False

    def start_log(self, rank):
        self.sends = True

    def log(self, from_stderr, text):
        assert self.sends
        self.lines.append((from_stderr, text))

    def end_log(self):
        assert not self.exits, "a run that said how it ended sends no more lines"
        self.sends = False

    def join(self, options):
        return self

    def exit(self, code, message):
        self.exits.append((code, message))

    def acknowledge_preemption(self):
        self._call("acknowledge_preemption")
        self.acknowledged += 1

    def complete_checkpoint(self, *args, **kwargs):
        self._call("complete_checkpoint")
        self.completed.append(args)
        return []

    def _call(self, name):
        if self.fails == name:
            raise cairn.Unavailable(f"{name}: the engine is away")

    def ready(self, rank, pid, host):
        self._call("ready")

    def register_checkpoint(self, *args, **kwargs):
        pass

    def abandon_checkpoint(self, *args, **kwargs):
        pass

    def close(self):
        pass


@pytest.fixture
def detached(storage, monkeypatch):
    """Starts detached runs: gives a function that makes an engine, which core.init then joins."""
    monkeypatch.setenv("CAIRN_TRIAL_URL", "unix:/x")
    monkeypatch.setenv("CAIRN_JOIN_TOKEN", "secret")

    def begin(latest=None):
        engine = Engine(storage, latest)
        monkeypatch.setattr(_client._native, "TrialClient", engine)
        return engine

    return begin


def test_a_detached_run_that_ended_well_says_so(detached):
    engine = detached()
    with core.init() as ctx:
        store(ctx, 1, a="x")
    assert engine.exits == [(0, "")]


def test_what_a_detached_run_writes_is_sent_and_the_streams_are_given_back(detached, capsys):
    engine, streams = detached(), (sys.stdout, sys.stderr)
    with pytest.raises(ValueError):
        with core.init():
            print("a line")
            print("a warning", file=sys.stderr)
            raise ValueError("the end")
    assert (sys.stdout, sys.stderr) == streams
    print("nobody's")
    out, err = "".join(t for e, t in engine.lines if not e), "".join(t for e, t in engine.lines if e)
    assert out == "a line\n" and err.startswith("a warning\n") and err.endswith("ValueError: the end\n")
    assert capsys.readouterr().out == "a line\nnobody's\n", "where it always went"
    engine = detached()
    with core.init(send_output=False):
        print("at home")
    assert engine.lines == []


def test_a_fork_leaves_the_run_to_its_parent(detached):
    engine = detached()
    with core.init() as ctx:
        store(ctx, 1, a="x")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = "nothing"
            try:
                with pytest.raises(cairn.Error, match="fork"):
                    ctx.train.report_training_metrics(1, {"a": 1})
                with pytest.raises(cairn.Error, match="fork"):
                    store(ctx, 2, a="y")
                with pytest.raises(KeyError):
                    with ctx:  # an exception that leaves the block, as in the parent's code
                        raise KeyError
                ctx.close()
                said = repr(engine.exits)
            except BaseException as error:
                said = repr(error)
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reading, 10_000).decode() == "[]"
        os.close(reading), os.close(writing)
        store(ctx, 2, a="y")
        assert [info.step for info in ctx.checkpoint.list()] == [1, 2]
    assert engine.exits == [(0, "")]


def test_a_detached_run_has_a_name_whatever_its_command_is(detached, monkeypatch):
    engine = detached()
    named = []
    monkeypatch.setattr(engine, "join", lambda options: named.append(options) or engine)
    monkeypatch.setattr(sys, "argv", ["/x/tr\udcffain.py", "--name=\udcff"])
    with core.init():
        pass
    assert named[0]["external_id"].encode().startswith("tr\ufffdain.py-".encode())
    with pytest.raises(cairn.Invalid, match="external_id"):
        core.init(external_id=5)


def test_a_checkpoint_may_await_its_score(detached, tmp_path):
    engine = detached()
    (tmp_path / "file").write_text("x")
    with core.init() as ctx:
        store(ctx, 1, a="x")
        with ctx.checkpoint.store_path({"steps_completed": 2}, awaits_score=True) as (path, _):
            pathlib.Path(path, "a").write_text("x")
        ctx.checkpoint.upload(tmp_path, {"steps_completed": 3}, awaits_score=True)
        ctx.checkpoint.save({"w": np.ones(3)}, {"steps_completed": 4}, awaits_score=True).wait()
        ctx.checkpoint.save({"w": np.ones(3)}, {"steps_completed": 5}).wait()
    assert [(args[1], args[-1]) for args in engine.completed] == [
        (1, False), (2, True), (3, True), (4, True), (5, False),
    ]  # fmt: skip


def test_a_detached_run_stopped_by_a_signal_is_not_complete(detached):
    engine = detached()
    with pytest.raises(SystemExit) as stopped:
        with core.init() as ctx:
            signal.raise_signal(signal.SIGTERM)
            assert ctx.preempt.should_preempt()
    assert stopped.value.code == 143
    assert [code for code, _ in engine.exits] == [143]
    engine = detached()
    ctx = core.init()
    signal.raise_signal(signal.SIGTERM)
    ctx.close()
    assert [code for code, _ in engine.exits] == [143]
    assert engine.acknowledged == 0


@pytest.mark.parametrize("given, code", [(0, 0), (None, 0), (3, 3), ("what went wrong", 1)])
def test_a_detached_run_tells_the_code_that_the_script_exits_with(detached, given, code):
    engine = detached()
    with pytest.raises(SystemExit) as left:
        with core.init():
            sys.exit(given)
    assert left.value.code == given
    assert [told for told, _ in engine.exits] == [code]


def test_a_detached_run_that_leaves_with_0_after_a_signal_is_not_complete(detached):
    engine = detached()
    with pytest.raises(SystemExit) as left:
        with core.init():
            signal.raise_signal(signal.SIGTERM)
            sys.exit(0)
    assert left.value.code == 143
    assert [told for told, _ in engine.exits] == [143]


def test_a_detached_run_that_failed_says_why(detached):
    engine = detached()
    with pytest.raises(RuntimeError):
        with core.init():
            raise RuntimeError("no data")
    assert engine.exits == [(1, "RuntimeError: no data")]
    engine = detached()
    engine.fails = "ready"
    with pytest.raises(cairn.Unavailable):
        core.init()
    assert [code for code, _ in engine.exits] == [1] and "ready" in engine.exits[0][1]


def test_a_detached_run_whose_last_checkpoint_failed_is_not_complete(detached):
    engine = detached()
    with pytest.raises(cairn.Unavailable):
        with core.init() as ctx:
            engine.fails = "complete_checkpoint"
            ctx.checkpoint.save({"w": np.ones(3)}, {"steps_completed": 1})
    assert [code for code, _ in engine.exits] == [1]
    assert "complete_checkpoint" in engine.exits[0][1]


def test_a_preemption_counts_as_acknowledged_when_the_engine_was_told(detached):
    engine = detached()
    with core.init() as ctx:
        signal.raise_signal(signal.SIGTERM)
        assert ctx.preempt.should_preempt()  # by the signal alone: there is nothing to acknowledge
        assert engine.acknowledged == 0
        engine.preempt = True
        assert ctx.preempt.should_preempt() and ctx.preempt.should_preempt()
        assert engine.acknowledged == 1
    assert engine.exits == [(0, "")]

    engine = detached()
    with pytest.raises(SystemExit):
        with core.init() as ctx:
            signal.raise_signal(signal.SIGTERM)
            assert ctx.preempt.should_preempt()
            engine.preempt = True  # too late: nobody acknowledges it
    assert [code for code, _ in engine.exits] == [143]

    engine = detached()
    engine.preempt, engine.fails = True, "acknowledge_preemption"
    with core.init() as ctx:
        with pytest.raises(cairn.Unavailable):
            ctx.preempt.should_preempt()
        engine.fails = ""
        assert ctx.preempt.should_preempt()
        assert engine.acknowledged == 1


def test_restore_begins_with_what_the_engine_chose(detached):
    detached()
    with core.init() as ctx:
        ids = [
            ctx.checkpoint.save({"n": n}, {"steps_completed": n}, blocking=True).id for n in (1, 2)
        ]
    detached(latest=ids[0])
    with core.init() as ctx:
        assert ctx.latest_checkpoint == ids[0]
        assert ctx.checkpoint.restore().state["n"] == 1
        ctx.checkpoint.save({"n": 3}, {"steps_completed": 3}, blocking=True)
        assert ctx.checkpoint.restore().state["n"] == 3


@pytest.mark.parametrize("hello", [b"[" * 4000, b'{"rank": Infinity, "size": 2}', b"\xff", b"7"])
def test_nothing_that_a_stranger_sends_stops_the_chief(tmp_path, hello):
    path = tmp_path / "chief"
    options = {"size": 2, "chief": f"file:{path}", "token": "secret", "timeout": 30}
    made = []
    thread = threading.Thread(
        target=lambda: made.append(core.DistributedContext(rank=0, **options))
    )
    thread.start()
    while not path.exists():
        assert thread.is_alive()
    host, port = path.read_text().split()[0].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as stranger:
        _wire.receive(stranger)
        _wire.send(stranger, hello)
        assert stranger.recv(1) == b""  # sent away
    with core.DistributedContext(rank=1, **options) as worker:
        thread.join()
        assert worker.rank == 1
    made[0].close()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_on_several_machines_need_a_secret(rank):
    with pytest.raises(cairn.Invalid, match="CAIRN_CHIEF_TOKEN"):
        core.DistributedContext(rank=rank, size=2, chief="0.0.0.0:0", timeout=0.1)


def test_a_worker_takes_the_chiefs_acknowledgement_for_its_own():
    class Chief:  # rank 1's view of it
        rank, size, is_chief = 1, 2, False

        def broadcast(self, value):
            return (True, True)

    engine = Engine("")  # has not told this rank yet
    preempt = _preempt.PreemptContext(
        Chief(), core.PreemptMode.WorkersAskChief, _preempt.SignalFlag(), engine
    )
    assert preempt.should_preempt() and preempt.acknowledged
    assert engine.acknowledged == 0  # the chief tells the engine


def test_empty_directories_are_kept(tmp_path):
    with core.init(storage=tmp_path / "run") as ctx:
        with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
            os.makedirs(f"{path}/assets/none")
            open(f"{path}/x", "w").write("x")
        with ctx.checkpoint.restore_path(id) as path:
            assert os.path.isdir(f"{path}/assets/none")
        ctx.checkpoint.download(id, tmp_path / "out")
        assert os.listdir(tmp_path / "out" / "assets" / "none") == []
        seen = []
        again = ctx.checkpoint.upload(
            tmp_path / "out", {"steps_completed": 2}, selector=lambda n: seen.append(n) or n != "x"
        )
        assert sorted(seen) == ["assets/none/", "x"]
        ctx.checkpoint.download(again, tmp_path / "other")
        assert os.listdir(tmp_path / "other") == ["assets"]


def test_paths_and_ranks_as_scripts_for_determined_use_them(storage):
    with core.init(storage=storage) as ctx:
        with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
            assert isinstance(path, pathlib.Path)
            with path.joinpath("state").open("w") as file:
                file.write("1")
            (path / "deep").mkdir()
            with open(path + "/deep/more", "w") as file:
                file.write("2")
        with ctx.checkpoint.restore_path(id) as path:
            assert path.joinpath("state").read_text() == "1"
            assert open(os.path.join(path, "deep", "more")).read() == "2"
            assert open(f"{path}/state").read() == "1"
        ranks = ctx.distributed
        assert (ranks.get_rank(), ranks.get_size()) == (0, 1)
        assert (ranks.get_local_rank(), ranks.get_num_agents()) == (0, 1)
