"""A NameNode and a DataNode in a process of their own, for tests."""

import pathlib
import subprocess
import time

from held_port import HeldPort

PROGRAM = pathlib.Path(__file__).parents[2] / ".cache/services/bin/one-node-hdfs"


class Server:
    def __init__(self, directory):
        assert PROGRAM.exists(), "there is no HDFS to test with: run scripts/service hdfs"
        self._ports = [HeldPort() for _ in range(3)]
        self.rpc, self.http, data = (port.number for port in self._ports)
        self._log = directory / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, directory / "run", str(self.rpc), str(self.http), str(data)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 120
        while "READY" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, "HDFS did not start: " + self._log.read_text()
            time.sleep(0.02)  # it tells by a line in a file

    def url(self, path):
        return f"hdfs://127.0.0.1:{self.http}/{path}"

    def stop(self):
        self._process.kill()
        self._process.wait()
        for port in self._ports:
            port.close()
