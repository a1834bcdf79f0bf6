"""A real S3 server for tests, built by scripts/service: versitygw, or with CAIRN_S3_SERVER=minio MinIO."""

import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import boto3
from held_port import HeldPort

ACCESS_KEY, SECRET_KEY = "test", "testsecret"


def kind():
    named = os.environ.get("CAIRN_S3_SERVER", "versitygw")
    assert named in ("versitygw", "minio"), (
        f"CAIRN_S3_SERVER is {named}: it may be versitygw or minio"
    )
    return named


def program():
    root = pathlib.Path(__file__).parents[2]
    found = os.environ.get(f"CAIRN_{kind().upper()}") or root / ".cache/services/bin" / kind()
    assert pathlib.Path(found).is_file(), (
        f"there is no S3 server at {found}: run `scripts/service {kind()}`"
    )
    return str(found)


class Server:
    """Runs until stop(). `tls`: a certificate and its key, PEM files; `options`: versitygw's own."""

    def __init__(self, folder, tls=None, options=()):
        self.folder = pathlib.Path(folder) / "buckets"
        self.folder.mkdir(parents=True)
        self._ports = [HeldPort(), HeldPort()]  # MinIO wants a second one
        self.port = self._ports[0].number
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        command, environment = self._command(tls, list(options))
        with open(self.folder.parent / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        assert self._answers(), f"the S3 server does not start: see {self.folder.parent}/server.log"

    def make_bucket(self, name):
        boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        ).create_bucket(Bucket=name)

    def _command(self, tls, options):
        address = f"127.0.0.1:{self.port}"
        if kind() == "versitygw":
            options += ["--cert", str(tls[0]), "--key", str(tls[1])] if tls else []
            return (
                [program(), "--port", address, *options, "posix", str(self.folder)],
                {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            )
        certificates = self.folder.parent / "certificates"
        certificates.mkdir(exist_ok=True)
        if tls:
            shutil.copy(tls[0], certificates / "public.crt")
            shutil.copy(tls[1], certificates / "private.key")
        console = f"127.0.0.1:{self._ports[1].number}"
        return (
            [program(), "server", "--quiet", "--certs-dir", str(certificates), "--address", address,
             "--console-address", console, str(self.folder)],
            {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_BROWSER": "off",
             "HOME": str(self.folder.parent)},
        )  # fmt: skip

    def _answers(self):
        for _ in range(12000):
            if self._process.poll() is not None:
                return False
            if self._is_ready():
                return True
            time.sleep(0.01)
        raise AssertionError("the S3 server does not answer")

    def _is_ready(self):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        if kind() == "versitygw":
            return True
        try:  # MinIO accepts before it can serve
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/minio/health/ready", timeout=5)
            return True
        except urllib.error.HTTPError as error:
            return error.code == 400  # plain HTTP to a server with a certificate
        except OSError:
            return False

    def environment(self):
        """The variables of a process that uses it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": str(self.folder.parent / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder.parent / "no-credentials"),
        }

    def stop(self):
        self._process.kill()
        self._process.wait()
        for port in self._ports:
            port.close()
