"""Wherever a directory is accepted, a URL of S3 or HDFS is: on real servers, and nothing is made here instead."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import hdfs_server
import numpy as np
import pytest
import s3_server
import torch
import torch.distributed.checkpoint as dcp
from children import command_line
from test_serving import FEED, Job, graph, table

import cairn
import cairn.convert
import cairn.ps
from cairn import tune
from cairn.integrations.dcp import CairnReader, CairnWriter
from cairn.train import CheckpointSaverHook, Estimator, EstimatorSpec, MonitoredTrainingSession

BUCKET = "places"


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    server = s3_server.Server(tmp_path_factory.mktemp("s3"))
    server.make_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    server = hdfs_server.Server(tmp_path_factory.mktemp("hdfs"))
    yield server
    server.stop()


@pytest.fixture(params=["s3", "hdfs", "file"])
def place(request, tmp_path, monkeypatch):
    """A URL of this test's own. It runs where a path of that name would be made, and makes none."""
    if request.param == "s3":
        for variable, value in request.getfixturevalue("s3").environment().items():
            monkeypatch.setenv(variable, value)
        root = f"s3://{BUCKET}/"
    elif request.param == "hdfs":
        root = request.getfixturevalue("hdfs").url("")
    else:
        root = f"file://{tmp_path}/"
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield root + "".join(c if c.isalnum() else "-" for c in request.node.name)
    assert sorted(os.listdir(here)) == []


def cli(*arguments):
    done = subprocess.run([command_line(), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def steps(directory):
    return [c["step"] for c in json.loads(cli("checkpoint", "ls", directory, "--json"))["checkpoints"]]


def fill(directory):
    with cairn.CheckpointManager(directory, keep_last=None) as m:
        for step in (1, 2):
            state = {"w": np.arange(4.0) * step}
            m.save(step, state, files={"words/a.txt": b"a b"}, blocking=True)


def test_the_commands_for_checkpoints(place):
    runs = place + "/runs"
    fill(runs)
    first = runs + "/checkpoint_000001"
    assert "step        2" in cli("checkpoint", "show", runs)
    assert "step        1" in cli("checkpoint", "show", first)
    for where in (runs, first):
        cli("checkpoint", "verify", where)
    assert "w" in cli("checkpoint", "diff", runs, "1", "2")
    assert "w" in cli("checkpoint", "diff", first, runs)
    cli("checkpoint", "export", runs, "1", place + "/plain")
    cli("checkpoint", "import", place + "/plain", place + "/imported", "--step", "5")
    assert cairn.load(place + "/imported")["w"].tolist() == [0, 1, 2, 3]
    cli("checkpoint", "copy", runs, place + "/copied", "--all")
    assert steps(place + "/copied") == [1, 2]
    cli("checkpoint", "pin", runs, "1")
    cli("checkpoint", "unpin", runs, "1")
    cli("checkpoint", "rm", runs, "1", "--yes")
    cli("checkpoint", "gc", runs)
    assert steps(runs) == [2]


def test_merging_and_compacting(place):
    for rank in range(2):
        own = f"{place}/rank_{rank}"
        with cairn.CheckpointManager(own, rank=rank, world_size=2, private=True) as m:
            piece = cairn.Shard(np.arange(4.0) + 4 * rank, (8,), (4 * rank,))
            m.save(3, {"w": piece}, blocking=True)
    cli("checkpoint", "merge", place + "/all", place + "/rank_0", place + "/rank_1")
    assert cairn.load(place + "/all")["w"].tolist() == list(range(8))

    rows = table("compacted")
    with MonitoredTrainingSession(
        place + "/chain", save_checkpoint_steps=100, save_checkpoint_secs=None,
        save_incremental_checkpoint_steps=2, tables=[rows], state={},
    ) as session:  # fmt: skip
        for _ in range(4):
            session.run(lambda step: rows.assign([step], np.full((1, 4), step, np.float32)))
    cli("checkpoint", "compact", place + "/chain")
    kinds = json.loads(cli("checkpoint", "ls", place + "/chain", "--json"))["checkpoints"]
    assert kinds[-1]["kind"] == "full" and kinds[-1]["step"] == 4


def test_the_doctor(place):
    cairn.save(place + "/a", {"w": 1})  # it looks at directories that exist
    assert json.loads(cli("doctor", place, "--size", "8MiB", "--rounds", "1", "--json"))
    if place.startswith("file:"):  # it measures beside plain files
        cli("bench", place, "--size", "4MiB", "--tensors", "2", "--rounds", "1")
    assert cairn.load(place + "/a") == {"w": 1}


def test_states_without_a_manager(place):
    cairn.save(place + "/a", {"w": np.arange(3)})
    cairn.save(place + "/b", {"w": np.arange(3) + 1})
    assert cairn.load(place + "/a")["w"].tolist() == [0, 1, 2]
    assert cairn.verify(place + "/a").ok
    assert cairn.diff(place + "/a", place + "/b").changed == {"w": 1.0}


def test_plain_safetensors(place):
    fill(place + "/runs")
    cli("checkpoint", "export", place + "/runs", place + "/plain")
    scope = cairn.Scope()
    w = scope.parameter("w", np.zeros(4))
    for plain in (place + "/plain", place + "/plain/model.safetensors"):
        assert cairn.load(plain)["w"].tolist() == [0, 2, 4, 6]
        assert cairn.io.read(plain)["w"].tolist() == [0, 2, 4, 6]
        w[:] = 0
        assert cairn.io.load_params(plain, scope).names == ["w"]
        assert w.tolist() == [0, 2, 4, 6]
    cairn.io.load_params(place + "/plain", scope, filename="model.safetensors")
    for missing in ("/nothing", "/nothing.safetensors"):
        with pytest.raises(cairn.NotFound, match="nothing"):
            cairn.load(place + missing)
        with pytest.raises(cairn.NotFound, match="nothing"):
            cairn.io.load_params(place + missing, scope)


def test_files_of_paddle_and_onnx(place, s3, hdfs):
    """Where users of Paddle have them: a directory of one file per variable, a combined one, a graph
    with its weights in a file beside it."""
    golden = pathlib.Path(__file__).parents[2] / "tests/compat/foreign/paddle_3.3"
    upload(golden, place, s3, hdfs)
    for path in ("vars", "model.pdparams", "model.pdopt"):
        here, there = cairn.io.read(golden / path), cairn.io.read(f"{place}/{path}")
        assert here.keys() == there.keys() and len(here) > 1
        for name, array in here.items():
            np.testing.assert_array_equal(array, there[name])
    names = (golden / "combined/names.txt").read_text().split()
    combined = cairn.io.read(f"{place}/combined/params", names=names)
    scope = cairn.Scope()
    for name, array in combined.items():
        scope.parameter(name, np.zeros_like(array))
    cairn.io.load_params(place + "/combined", scope, filename="params", names=names)
    for name, array in combined.items():
        np.testing.assert_array_equal(scope[name], array)


def upload(folder, place, s3, hdfs):
    """By another client's hand."""
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        name = file.relative_to(folder)
        if place.startswith("s3:"):
            target = s3.folder / place.removeprefix("s3://") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        elif place.startswith("hdfs:"):
            import hdfs_native

            client = hdfs_native.Client(f"hdfs://127.0.0.1:{hdfs.rpc}")
            path = f"/{place.rsplit('/', 1)[1]}/{name}"
            client.mkdirs(path.rsplit("/", 1)[0], create_parent=True)
            with client.create(path) as out:
                out.write(file.read_bytes())
        else:
            target = pathlib.Path(place.removeprefix("file://")) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


@pytest.mark.parametrize("filename", [None, "all"])
def test_variables_by_role(place, filename):
    scope = cairn.Scope()
    w = scope.parameter("fc/w", np.arange(6.0))
    saved = cairn.io.save_persistables(place, scope, filename=filename)
    w[:] = 0
    assert cairn.io.load_persistables(place, scope, filename=filename).names == ["fc/w"]
    assert w[5] == 5
    w[:] = 0
    cairn.io.load_params(saved.info.path, scope)
    assert w[5] == 5


def test_inference_models(place):
    feeds = ["user", "item", "x"]
    first = cairn.io.save_inference_model(place + "/model", feeds, ["score"], graph())
    assert first.info.path.startswith(place.removeprefix("file://"))
    # The graph there, with its weights in a file beside it, is a program for the next save.
    cairn.io.save_inference_model(place + "/again", feeds, ["score"], first.path)
    one = np.ones((1, 4), np.float32)
    for where in (place + "/model", place + "/again"):
        program, names, _ = cairn.io.load_inference_model(where)
        assert program.run(dict.fromkeys(names, one))[0].tolist() == [[3.0] * 4]


def test_trainers(place):
    def train():
        model = {"w": np.zeros(2)}

        def step(model, batch):
            model["w"] += batch

        config = cairn.CheckpointConfig(place, step_interval=2)
        cairn.Trainer(model, step, checkpoint_config=config).train(2, [1.0, 2.0, 3.0])
        return model["w"].tolist()

    assert train() == [12, 12]
    assert train() == [12, 12], "the end of the first"


def test_estimators_and_hooks(place):
    def trained(times):
        count = np.zeros(1)

        def model_fn(features, labels, mode):
            def step():
                count[:] += 1

            return EstimatorSpec(mode, loss=1.0, train_op=step)

        estimator = Estimator(model_fn, place + "/model", tables=[], state={"count": count})
        estimator.train(lambda: [(1, 2)] * 100, steps=times)
        return count[0]

    assert trained(3) == 3
    assert trained(2) == 5

    hook = CheckpointSaverHook(place + "/hook", save_steps=2)
    with MonitoredTrainingSession(None, tables=[], state={"a": 1}, hooks=[hook]) as session:
        for _ in range(4):
            session.run(lambda step: None)
    assert steps(place + "/hook")[-1] == 4


def test_models_that_are_served(place):
    job = Job(place + "/job")
    with job.session:
        job.run(2)
        job.export(place + "/models")
    with cairn.serving.Model(place + "/models", place + "/job", follow=False) as model:
        assert model.version().step == 2
        np.testing.assert_array_equal(model.predict(FEED)["score"][0], np.full(4, 8, np.float32))
    with subprocess.Popen(
        [command_line(), "serve", "--model", place + "/models", "--follow", place + "/job",
         "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as server:  # fmt: skip
        said = next((line for line in server.stdout if "http://" in line), "")
        server.terminate()
    assert 'serving "models" at http://' in said
    assert server.returncode == 0


ADAGRAD = cairn.optimizers.Adagrad(0.1)


def test_parameter_servers(place):
    def job(directory, steps, **options):
        servers = [
            cairn.ps.Server(directory, index=i, num_servers=2, incremental_steps=2, **options)
            for i in range(2)
        ]
        client = cairn.ps.Client(directory=directory, num_servers=2)
        rows = client.table("t", 4, optimizer=ADAGRAD)
        while client.step < steps:
            rows.apply_gradients([client.step], np.ones((1, 4)))
            client.end_step({})
        found = rows.rows()
        path = client.save_persistables(directory + "-saved")
        client.close()
        for server in servers:
            server.stop()
        return found, path

    rows, path = job(place + "/a", 5)
    assert len(rows) == 5 and cairn.verify(place + "/a").ok
    assert job(place + "/b", 0, load=path)[0] == rows
    logged = job(place + "/c", 5, recovery="log", log_dir=place + "/log")[0]
    assert logged == rows


TRAIN = """
import cairn, cairn.ps, numpy as np
client = cairn.ps.Client()
rows = client.table("t", 4, optimizer=cairn.optimizers.Adagrad(0.1))
while client.step < 6:
    rows.apply_gradients([client.step, client.trainer_id], np.ones((2, 4)))
    client.end_step({})
client.close()
"""


def test_jobs_with_parameter_servers(place, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    run = ["ps", "run", "--servers", "2", "--trainers", "2", "--full-secs", "0", "--full-steps", "4"]
    cli(*run, "--dir", place, "--recovery", "log", "--", sys.executable, str(script))
    assert steps(place)[-1] == 6
    cli("checkpoint", "verify", place)


def climb(config):
    for i in range(3):
        tune.report({"x": i * config["a"]}, checkpoint=tune.Checkpoint.from_dict({"i": i}))


@pytest.mark.fresh_process
def test_experiments_of_the_tuner(place, tmp_path):
    results = tune.Tuner(
        climb,
        param_space={"a": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(storage_path=place, name="e", verbose=0),
    ).fit()
    assert [r.metrics["x"] for r in results] == [2, 4]
    kept = results[0].checkpoint
    assert kept.to_dict() == {"i": 2}
    assert tune.Checkpoint(kept.path).to_dict() == {"i": 2}
    again = tune.Tuner.restore(place + "/e", climb).fit()
    assert [r.metrics["x"] for r in again] == [2, 4]
    if not place.startswith("file:"):
        files = tune.Checkpoint.from_directory(str(tmp_path))
        with pytest.raises(cairn.Invalid, match="not on this machine"):
            files.to_directory(place + "/files")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_the_core_api(place, tmp_path, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("CAIRN_STORAGE", place)
    storage = place if how == "argument" else None
    with cairn.core.init(storage=storage) as ctx:
        with ctx.checkpoint.store_path({"steps_completed": 5}) as (path, id):
            (path / "x").write_text("five")
    with cairn.core.init(storage=storage) as ctx:
        assert ctx.latest_checkpoint == id
        ctx.checkpoint.download(id, tmp_path / "fetched")
        assert (tmp_path / "fetched" / "x").read_text() == "five"
        if not place.startswith("file:"):
            for call in (
                lambda: ctx.checkpoint.download(id, place + "/fetched"),
                lambda: ctx.checkpoint.upload(place + "/fetched", {"steps_completed": 6}),
            ):
                with pytest.raises(cairn.Invalid, match="not on this machine"):
                    call()
    assert cairn.verify(place).ok


def test_conversions(place, tmp_path):
    torch.save({"w": torch.arange(3.0)}, tmp_path / "model.pt")
    done = cairn.convert.convert(tmp_path / "model.pt", place + "/a", step=4)
    assert done.target == "cairn" and steps(place + "/a") == [4]
    for source in (place + "/a", done.path):
        assert cairn.convert.read(source)["w"].tolist() == [0, 1, 2]
    assert cairn.convert.read(place + "/a", step=4)["w"].tolist() == [0, 1, 2]
    with pytest.raises(cairn.Invalid, match="one checkpoint"):
        cairn.convert.read(done.path, step=4)
    cairn.convert.convert(place + "/a", tmp_path / "back.pt")
    assert torch.load(tmp_path / "back.pt")["w"].tolist() == [0, 1, 2]
    cli("checkpoint", "export", place + "/a", place + "/plain")
    cairn.convert.convert(place + "/plain", place + "/b")
    assert cairn.load(place + "/b")["w"].tolist() == [0, 1, 2]
    with pytest.raises(cairn.NotFound, match="nothing"):
        cairn.convert.read(place + "/nothing")
    if not place.startswith("file:"):
        for name, to in (("/w.pt", None), ("/w.safetensors", None), ("/w", "dcp")):
            with pytest.raises(cairn.Invalid, match="not on this machine"):
                cairn.convert.convert(place + "/a", place + name, to=to)
        with pytest.raises(cairn.Invalid, match="copy it here first"):
            cairn.convert.read(place + "/model.pt")


def test_distributed_checkpoints_of_torch(place):
    model = torch.nn.Linear(2, 1)
    with CairnWriter(place) as writer:
        dcp.save({"model": model, "epoch": 3}, storage_writer=writer, checkpoint_id="40")
    again = {"model": torch.nn.Linear(2, 1), "epoch": 0}
    dcp.load(again, storage_reader=CairnReader(place))
    assert again["epoch"] == 3 and bool((again["model"].weight == model.weight).all())


def scope():
    made = cairn.Scope()
    made.parameter("w", np.ones(2))
    return made


def trainer(path):
    return cairn.Trainer({}, lambda *_: None, checkpoint_config=cairn.CheckpointConfig(path))


def spec(features, labels, mode):
    return EstimatorSpec(mode, loss=1.0, train_op=lambda: None)


TAKERS = {
    "CheckpointManager": lambda path: cairn.CheckpointManager(path),
    "save": lambda path: cairn.save(path, {"a": 1}),
    "load": cairn.load,
    "verify": cairn.verify,
    "diff": lambda path: cairn.diff(path, path),
    "Trainer": lambda path: trainer(path).train(1, [1]),
    "MonitoredTrainingSession": lambda path: MonitoredTrainingSession(
        path, tables=[], state={}
    ).__enter__(),
    "Estimator": lambda path: Estimator(spec, path, tables=[]).train(lambda: [(1, 2)], steps=1),
    "save_params": lambda path: cairn.io.save_params(path, scope()),
    "load_params": lambda path: cairn.io.load_params(path, scope()),
    "read": cairn.io.read,
    "save_inference_model": lambda path: cairn.io.save_inference_model(
        path, ["user", "item", "x"], ["score"], graph()
    ),
    "its program": lambda path: cairn.io.save_inference_model(
        "m", ["user", "item", "x"], ["score"], path
    ),
    "load_inference_model": cairn.io.load_inference_model,
    "export_saved_model": lambda path: cairn.train.export_saved_model(
        path, ["user", "item", "x"], ["score"], graph(), tables={}
    ),
    "serving.Model": lambda path: cairn.serving.Model(path, path, follow=False),
    "ps.Server": cairn.ps.Server,
    "ps.Server(load)": lambda path: cairn.ps.Server("a", load=path),
    "ps.Server(log_dir)": lambda path: cairn.ps.Server("a", recovery="log", log_dir=path),
    "ps.Client": lambda path: cairn.ps.Client(directory=path, num_servers=1),
    "tune": lambda path: tune.Tuner(climb, run_config=tune.RunConfig(storage_path=path)).fit(),
    "Tuner.restore": lambda path: tune.Tuner.restore(path, climb),
    "tune.Checkpoint": tune.Checkpoint,
    "core": lambda path: cairn.core.init(storage=path),
    "convert": lambda path: cairn.convert.convert(path, "x.pt"),
    "CairnWriter": CairnWriter,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_url_that_pathlib_broke_is_refused(taker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cairn.Invalid, match="give URLs as str"):
        TAKERS[taker](pathlib.Path("s3://bucket/runs"))
    assert os.listdir(tmp_path) == []
