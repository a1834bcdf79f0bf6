"""Repositories on a bucket: a real S3 server, and boto3 as the independent reader."""

import json
import pathlib
import subprocess
import time

import boto3
import numpy as np
import pytest
from botocore.config import Config
from children import command_line
from s3_server import Server

import cairn
from cairn import _location


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def s3(server):
    return boto3.client(
        "s3", endpoint_url=server.url, aws_access_key_id="test", aws_secret_access_key="testsecret",
        region_name="us-east-1", config=Config(retries={"max_attempts": 2}),
    )  # fmt: skip


@pytest.fixture
def bucket(server, s3, request, monkeypatch):
    words = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    name = f"b-{words[:20]}-{words[-25:]}".strip("-")
    s3.create_bucket(Bucket=name)
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    return name


def cli(*arguments):
    done = subprocess.run([command_line(), *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_save_and_restore(bucket):
    url = f"s3://{bucket}/runs/a"
    w = np.arange(10.0)
    with cairn.CheckpointManager(url, keep_last=2) as m:
        assert m.restore() is None
        for step in range(4):
            m.save(step, {"w": w + step, "name": f"step {step}"})
        m.wait()
        assert m.directory == url
        assert [info.step for info in m.list()] == [2, 3]
    with cairn.CheckpointManager(url) as m:
        r = m.restore({"w": w, "name": None})
    assert r.step == 3 and r.state["name"] == "step 3"
    assert w.tolist() == (np.arange(10.0) + 3).tolist()
    assert r.info.path.startswith(url + "/checkpoint_")


def test_boto3_reads_the_bytes_that_were_saved(bucket, s3):
    from safetensors.numpy import load

    url = f"s3://{bucket}/runs/a"
    rng = np.random.default_rng(7)
    state = {
        "w": rng.standard_normal((512, 512)),
        "large": rng.integers(0, 255, 20_000_000, np.uint8),
    }
    info = cairn.save(url, state)
    prefix = info.path.removeprefix(f"s3://{bucket}/")
    manifest = json.loads(
        s3.get_object(Bucket=bucket, Key=prefix + "/manifest.json")["Body"].read()
    )
    found = {}
    for file in manifest["files"]:
        head = s3.head_object(Bucket=bucket, Key=f"{prefix}/{file['path']}")
        assert head["ContentLength"] == file["bytes"]
        if file["path"].endswith(".safetensors"):
            body = s3.get_object(
                Bucket=bucket, Key=f"{prefix}/{file['path']}", ChecksumMode="ENABLED"
            )
            found.update(load(body["Body"].read()))  # boto3 compares the checksum that it was given
    np.testing.assert_array_equal(found["w"], state["w"])
    np.testing.assert_array_equal(found["large"], state["large"])
    uploads = s3.list_multipart_uploads(Bucket=bucket)
    assert not uploads.get("Uploads")


def test_what_boto3_put_there_is_read(bucket, s3, tmp_path):
    state = {"w": np.arange(5), "x": 1.5}
    info = cairn.save(str(tmp_path / "local"), state)
    root = pathlib.Path(info.path)
    for file in root.rglob("*"):
        if file.is_file():
            s3.upload_file(str(file), bucket, f"moved/{file.relative_to(root)}")
    loaded = cairn.load(f"s3://{bucket}/moved")
    assert loaded["x"] == 1.5 and loaded["w"].tolist() == [0, 1, 2, 3, 4]


def test_load_verify_and_diff_take_urls(bucket):
    one, two = f"s3://{bucket}/one", f"s3://{bucket}/two/"
    first = cairn.save(one, {"w": np.zeros(3)})
    cairn.save(two, {"w": np.ones(3)})
    assert cairn.load(one)["w"].tolist() == [0, 0, 0]
    assert cairn.load(first.path)["w"].tolist() == [0, 0, 0]
    assert cairn.verify(one).ok and cairn.verify(first.path).ok
    assert cairn.diff(one, two).changed == {"w": 1.0}
    with pytest.raises(cairn.Invalid, match="mapped"):
        cairn.load(one, mmap=True)


def test_user_files_are_fetched_when_asked_for(bucket, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    url = f"s3://{bucket}/runs"
    with cairn.CheckpointManager(url) as m:
        m.save(1, {"x": 1}, files={"a/notes.txt": tmp_path / "notes.txt", "b.bin": b"\x00\x01"},
               blocking=True)  # fmt: skip
    with cairn.CheckpointManager(url, read_only=True) as m:
        r = m.restore()
    assert sorted(r.files) == ["a/notes.txt", "b.bin"]
    assert pathlib.Path(r.files["a/notes.txt"]).read_text() == "hello"
    assert pathlib.Path(r.files["b.bin"]).read_bytes() == b"\x00\x01"
    with pytest.raises(KeyError):
        r.files["c"]
    (tmp_path / "src" / "logs").mkdir(parents=True)
    with cairn.CheckpointManager(url) as m:
        m.save(2, {"x": 1}, files=tmp_path / "src", blocking=True)
        r = m.restore()
    assert list(r.files) == ["logs/"] and list(pathlib.Path(r.files["logs/"]).iterdir()) == []


def test_what_was_restored_is_given_although_its_checkpoint_is_gone_by_then(bucket):
    class Module:
        value = 1

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]
            writer.delete(writer.latest().id)  # as retention does, beside a reader

    url = f"s3://{bucket}/runs"
    with cairn.CheckpointManager(url) as writer:
        writer.save(1, {"module": Module()}, files={"a": b"1"}, blocking=True)
        module = Module()
        module.value = 0
        with cairn.CheckpointManager(url, read_only=True) as m:
            restored = m.restore({"module": module})
        assert (restored.step, module.value) == (1, 1)
        with pytest.raises(cairn.NotFound):
            list(restored.files)


def test_trainer_resumes_from_a_bucket(bucket):
    url = f"s3://{bucket}/train"

    def run(epochs):
        model = {"w": np.zeros(1)}

        def step(model, batch):
            model["w"] += batch

        config = cairn.CheckpointConfig(url, step_interval=1)
        summary = cairn.Trainer(model, step, checkpoint_config=config).train(
            epochs, lambda: iter([1.0, 2.0])
        )
        return model["w"][0], summary

    assert run(1)[0] == 3.0
    value, summary = run(3)
    assert value == 9.0 and summary.resumed_from.startswith(url)


def test_paths_of_pathlib_are_not_taken_for_urls(bucket):
    with pytest.raises(cairn.Invalid, match="str"):
        cairn.CheckpointManager(pathlib.Path(f"s3://{bucket}/runs"))
    assert _location.absolute("s3://b/a") == "s3://b/a"
    assert _location.absolute("a").startswith("/")


def test_unknown_scheme_and_missing_bucket_are_clear_errors(bucket):
    with pytest.raises(cairn.Invalid, match="gs://"):
        cairn.CheckpointManager("gs://bucket/runs")
    with pytest.raises(cairn.Error, match="there is no bucket"):
        cairn.CheckpointManager("s3://no-such-bucket-here/runs")
    with pytest.raises(cairn.Error, match="there is no bucket"):
        cairn.CheckpointManager("s3://no-such-bucket-here/runs", read_only=True).restore()


def test_wrong_secret_is_a_permission_error(bucket, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(cairn.PermissionDenied, match="AWS_SECRET_ACCESS_KEY"):
        cairn.CheckpointManager(f"s3://{bucket}/runs")


def test_keys_of_a_profile(bucket, server, monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text(
        "[lab]\naws_access_key_id = test\naws_secret_access_key = testsecret\n"
    )
    (tmp_path / "config").write_text(
        f"[profile lab]\nendpoint_url = {server.url}\nregion = us-east-1\n"
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    cairn.save(f"s3://{bucket}/a", {"x": 1})
    assert cairn.load(f"s3://{bucket}/a") == {"x": 1}


def test_tls_with_an_authority_of_ones_own(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
         str(certificate)], check=True, capture_output=True,
    )  # fmt: skip
    server = Server(tmp_path / "tls", tls=(certificate, key))
    try:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        client = boto3.client("s3", verify=str(certificate))
        client.create_bucket(Bucket="secure")
        with pytest.raises(cairn.Error, match="CA bundle"):
            cairn.save("s3://secure/a", {"x": 1})
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        cairn.save("s3://secure/a", {"w": np.arange(3_000_000)})
        assert cairn.load("s3://secure/a")["w"].sum() == np.arange(3_000_000).sum()
    finally:
        server.stop()


def test_command_line_takes_urls(bucket, tmp_path):
    url = f"s3://{bucket}/runs/a"
    with cairn.CheckpointManager(url, keep_last=None) as m:
        for step in (1, 2):
            m.save(step, {"w": np.arange(4.0) * step}, blocking=True)
    code, out, _ = cli("checkpoint", "ls", url, "--json")
    assert code == 0 and [c["step"] for c in json.loads(out)["checkpoints"]] == [1, 2]
    assert cli("checkpoint", "verify", url)[0] == 0
    local = str(tmp_path / "copy")
    code, out, err = cli("checkpoint", "copy", url, local, "--all")
    assert code == 0, err
    back = f"s3://{bucket}/back"
    assert cli("checkpoint", "copy", local, back, "--all")[0] == 0
    assert cairn.load(back)["w"].tolist() == [0, 2, 4, 6]
    code, _, err = cli("checkpoint", "copy", url, url + "/")
    assert code != 0 and "same repository" in err
    code, _, err = cli("checkpoint", "ls", "gs://x/y")
    assert code != 0 and "s3://bucket/prefix" in err


def test_exports_to_a_bucket_and_imports_from_one(bucket, s3, tmp_path):
    url = f"s3://{bucket}/runs/a"
    state = {"w": np.arange(3_000_000.0), "b": np.ones(3, dtype=np.int32)}
    with cairn.CheckpointManager(url) as m:
        m.save(1, state, files={"vocab/words.txt": b"a b c"}, blocking=True)
    plain = f"s3://{bucket}/plain"
    code, _, err = cli("checkpoint", "export", url, plain)
    assert code == 0, err
    names = [o["Key"] for o in s3.list_objects_v2(Bucket=bucket, Prefix="plain/")["Contents"]]
    assert names == [
        "plain/model.safetensors",
        "plain/model.safetensors.index.json",
        "plain/vocab/words.txt",
    ]
    # An independent reader of the bytes.
    from safetensors.numpy import load

    read = load(s3.get_object(Bucket=bucket, Key="plain/model.safetensors")["Body"].read())
    np.testing.assert_array_equal(read["w"], state["w"])
    code, _, err = cli("checkpoint", "export", url, plain)
    assert code != 0 and "not empty" in err
    for source in (plain, plain + "/", plain + "/model.safetensors"):
        target = str(tmp_path / f"imported-{len(list(tmp_path.iterdir()))}")
        code, _, err = cli("checkpoint", "import", source, target, "--step", "7")
        assert code == 0, err
        back = cairn.load(target)
        np.testing.assert_array_equal(back["w"], state["w"])
        np.testing.assert_array_equal(back["b"], state["b"])
        with cairn.CheckpointManager(target, read_only=True) as m:
            files = list((tmp_path / target / "checkpoint_000007" / "files").rglob("*.txt"))
            assert m.latest().step == 7
        assert len(files) == (0 if source.endswith("model.safetensors") else 1)
    back = f"s3://{bucket}/imported"
    assert cli("checkpoint", "import", plain, back, "--step", "8")[0] == 0
    np.testing.assert_array_equal(cairn.load(back)["w"], state["w"])
    code, _, err = cli(
        "checkpoint", "import", f"s3://{bucket}/nothing", str(tmp_path / "x"), "--step", "1"
    )
    assert code != 0 and "no file or directory" in err
    code, _, err = cli("checkpoint", "import", url, str(tmp_path / "x"), "--step", "1")
    assert code != 0 and "checkpoint copy" in err


def test_upload_limit_slows_the_upload_not_the_caller(bucket):
    state = {"w": np.random.default_rng(1).integers(0, 255, 6 << 20, np.uint8)}
    with cairn.CheckpointManager(f"s3://{bucket}/slow", upload_limit=8 << 20) as m:
        m.save(0, {"x": 1}, blocking=True)
        handle = m.save(1, state)
        stall = handle.stall_seconds
        handle.wait()
        assert handle.durable_seconds - stall > 0.4


def test_doctor_examines_a_bucket(bucket, s3):
    code, out, err = cli("doctor", f"s3://{bucket}/runs")
    assert code == 0 and "create-only puts" in out, err
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket), "it leaves nothing"
    code, _, err = cli("doctor", "s3://no-such-bucket-here/runs")
    assert code != 0 and "there is no bucket" in err


def test_the_core_api_on_a_bucket(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    url = f"s3://{bucket}/trials/1"
    with cairn.core.init(storage=url) as ctx:
        assert ctx.latest_checkpoint is None
        with ctx.checkpoint.store_path({"steps_completed": 5}) as (path, id):
            (pathlib.Path(path) / "deep").mkdir()
            (pathlib.Path(path) / "deep" / "x").write_text("five")
        with pytest.raises(RuntimeError):
            with ctx.checkpoint.store_path({"steps_completed": 6}) as (path, _):
                raise RuntimeError
    assert list(tmp_path.iterdir()) == [], "nothing stays on the local disk"
    with cairn.core.init(storage=url) as ctx:
        assert ctx.latest_checkpoint == id
        with ctx.checkpoint.restore_path(id) as path:
            assert (pathlib.Path(path) / "deep" / "x").read_text() == "five"
        assert ctx.checkpoint.get_metadata(id) == {"steps_completed": 5}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("filename", [None, "all"])
def test_variables_by_role_are_saved_to_and_loaded_from_a_bucket(bucket, filename):
    url = f"s3://{bucket}/params"
    scope = cairn.Scope()
    w = scope.parameter("fc/w", np.arange(6, dtype=np.float32).reshape(2, 3))
    step = scope.persistable("step", np.array([7]))
    saved = cairn.io.save_persistables(url, scope, filename=filename)
    assert saved.names == ["fc/w", "step"] and saved.info.path.startswith(url + "/")
    w[:], step[:] = 0, 0
    loaded = cairn.io.load_persistables(url, scope, filename=filename)
    assert loaded.names == ["fc/w", "step"]
    assert w.ravel().tolist() == [0, 1, 2, 3, 4, 5] and step.tolist() == [7]
    w[:] = 0
    assert cairn.io.load_params(saved.info.path, scope).names == ["fc/w"]
    assert w[1, 2] == 5
    with pytest.raises(cairn.NotFound, match="nothing"):
        cairn.io.load_params(f"s3://{bucket}/nothing", scope)
    with pytest.raises(cairn.Invalid, match="give URLs as str"):
        cairn.io.save_params(pathlib.Path(f"s3://{bucket}/params"), scope)


def test_models_are_exported_to_a_bucket_and_served_from_it(bucket, tmp_path, monkeypatch):
    from test_serving import FEED, Job

    monkeypatch.chdir(tmp_path)  # where a path of that name would be made
    url = f"s3://{bucket}/models"
    job = Job(f"s3://{bucket}/job")
    with job.session:
        job.run(2)
        assert job.export(url).path == url + "/1"
        assert job.export(url).path == url + "/2"
    assert not list(tmp_path.iterdir())
    with cairn.serving.Model(url, f"s3://{bucket}/job", follow=False) as model:
        assert model.version().step == 2
        np.testing.assert_array_equal(model.predict(FEED)["score"][0], np.full(4, 8, np.float32))
    program, feeds, _ = cairn.io.load_inference_model(url + "/1")
    assert feeds == ["user", "item", "x"]
    one = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(program.run(dict.fromkeys(feeds, one))[0], 3 * one)
    program.reload(url + "/2")


def test_a_trainer_beside_a_served_model_tells_it_of_its_commits(bucket, tmp_path):
    """Nothing of a bucket is told by the kernel, and the next look would be in an hour."""
    from test_serving import Job

    models = []
    job = Job(f"s3://{bucket}/job", on_saved=lambda record: [m.notify() for m in models])
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
        with cairn.serving.Model(
            tmp_path / "export", f"s3://{bucket}/job", poll_secs=3600
        ) as model:
            models.append(model)
            for step in (2, 3):
                job.run(1)
                deadline = time.monotonic() + 60
                while model.version().step != step:
                    assert time.monotonic() < deadline, model.stats()
                    time.sleep(0.005)
