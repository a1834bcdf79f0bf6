"""Buckets whose server is set up in another way: the bucket in the host's name, and keys without permission."""

import subprocess

import boto3
import numpy as np
import pytest
import s3_server

import cairn

# Both are versitygw's options, and what is tested is our side.
versitygw = pytest.mark.usefixtures("only_versitygw")


@pytest.fixture
def only_versitygw(monkeypatch):
    monkeypatch.setenv("CAIRN_S3_SERVER", "versitygw")


def use(server, monkeypatch, **instead):
    for variable, value in {**server.environment(), **instead}.items():
        monkeypatch.setenv(variable, value)


@versitygw
def test_the_bucket_may_be_in_the_hosts_name(tmp_path, monkeypatch):
    """Every name under `localhost` is this machine, for libcurl too."""
    server = s3_server.Server(tmp_path, options=["--virtual-domain", "localhost"])
    try:
        # To a server with a domain of its own a path does not say the bucket, and boto3 speaks paths to
        # addresses; so the bucket is made where the server keeps them.
        (server.folder / "hosted").mkdir()
        use(server, monkeypatch, AWS_ENDPOINT_URL=f"http://localhost:{server.port}")
        monkeypatch.setenv("CAIRN_S3_ADDRESSING", "virtual")
        state = {"w": np.arange(3_000_000)}  # large enough for an upload in parts
        cairn.save("s3://hosted/a b/run", state)
        np.testing.assert_array_equal(cairn.load("s3://hosted/a b/run")["w"], state["w"])
        assert cairn.verify("s3://hosted/a b/run").ok
        assert (server.folder / "hosted" / "a b" / "run" / "cairn.json").is_file()
    finally:
        server.stop()


@versitygw
def test_a_key_without_permission_is_told_from_a_wrong_one(tmp_path, monkeypatch):
    users = tmp_path / "users"
    users.mkdir()
    server = s3_server.Server(tmp_path, options=["--iam-dir", str(users)])
    try:
        use(server, monkeypatch)
        boto3.client("s3").create_bucket(Bucket="private")
        cairn.save("s3://private/run", {"x": 1})
        subprocess.run(
            [s3_server.program(), "admin", "--access", s3_server.ACCESS_KEY, "--secret",
             s3_server.SECRET_KEY, "--endpoint-url", server.url, "create-user", "--access", "guest",
             "--secret", "guestsecret", "--role", "user"],
            check=True, capture_output=True,
        )  # fmt: skip
        use(server, monkeypatch, AWS_ACCESS_KEY_ID="guest", AWS_SECRET_ACCESS_KEY="guestsecret")
        with pytest.raises(cairn.PermissionDenied, match="no permission"):
            cairn.CheckpointManager("s3://private/run")
        with pytest.raises(cairn.PermissionDenied, match="no permission"):
            cairn.load("s3://private/run")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(cairn.PermissionDenied, match="AWS_SECRET_ACCESS_KEY"):
            cairn.load("s3://private/run")
    finally:
        server.stop()
