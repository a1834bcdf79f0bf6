"""A real S3 server for tests: versitygw, built by scripts/service."""

import os
import pathlib
import socket
import subprocess
import time

ACCESS_KEY, SECRET_KEY = "test", "testsecret"


def program():
    root = pathlib.Path(__file__).parents[2]
    found = os.environ.get("CAIRN_VERSITYGW") or root / ".cache/services/bin/versitygw"
    assert pathlib.Path(found).is_file(), (
        f"there is no S3 server at {found}: run `scripts/service versitygw`"
    )
    return str(found)


class Server:
    """Runs until stop(). `options` are versitygw's, such as a certificate."""

    def __init__(self, folder, *options, scheme="http"):
        self.folder = pathlib.Path(folder) / "buckets"
        self.folder.mkdir(parents=True)
        for _ in range(5):  # the port may be taken meanwhile
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            with open(self.folder.parent / "server.log", "ab") as log:
                self._process = subprocess.Popen(
                    [program(), "--port", f"127.0.0.1:{self.port}", *options, "posix",
                     str(self.folder)],
                    env={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                    stdout=log, stderr=log,
                )  # fmt: skip
            if self._answers():
                break
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def _answers(self):
        for _ in range(1000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return True
            if self._process.poll() is not None:
                return False
            time.sleep(0.01)
        raise AssertionError("the S3 server does not answer")

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
