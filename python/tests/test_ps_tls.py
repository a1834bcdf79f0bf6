"""A job with several parameter servers, all by TLS and with a token: real processes, one of which is killed."""

import contextlib
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from certificates import make_certificates
from children import command_line
from held_port import HeldPort

import cairn
import cairn.ps

STEPS = 24
TOKEN = "secret"


class Servers:
    """Two `cairn pserver`."""

    def __init__(self, tmp_path, certificates):
        self.directory = str(tmp_path / "repository")
        (tmp_path / "token").write_text(TOKEN + "\n")
        self._log = open(tmp_path / "servers.log", "ab")
        self._common = ["--dir", self.directory, "--servers", "2", "--trainers", "1", "--full-secs", "0"]
        self._common += ["--full-steps", "10", "--incremental-steps", "3", "--token-file", str(tmp_path / "token")]
        self._common += ["--tls-cert", str(certificates / "server.crt"), "--tls-key", str(certificates / "server.key")]
        self._common += ["--tls-ca", str(certificates / "ca.crt")]
        self.ports = [HeldPort(), HeldPort()]
        self.processes = {}
        for index in range(2):
            self.start(index)

    def start(self, index):
        command = [command_line(), "pserver", "--index", str(index), "--listen", f"127.0.0.1:{self.ports[index].number}"]
        self.processes[index] = subprocess.Popen([*command, *self._common], stderr=self._log)

    def kill(self, index):
        self.processes[index].send_signal(signal.SIGKILL)
        self.processes[index].wait()

    def end(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for port in self.ports:
            port.close()
        self._log.close()


def train(directory, ca, lose=None):
    """The rows after all steps, and how often it went back. `lose` is called at the middle."""
    client = cairn.ps.Client(directory=directory, num_servers=2, token=TOKEN, ca=ca, reconnect_timeout=60.0)
    table = client.table("t", 4, optimizer=cairn.optimizers.Adagrad(0.1))
    back = 0
    while client.step < STEPS:
        step = client.step
        try:
            if step == STEPS // 2 and lose is not None:
                lose()
                lose = None
            ids = np.random.default_rng(step).integers(0, 50, 16)
            table.apply_gradients(ids, np.sin(table.lookup(ids) + ids[:, None]))
            client.end_step()
        except cairn.ps.RolledBack:
            back += 1
    rows = table.rows()
    client.close()
    return rows, back


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "ours")


def test_servers_that_speak_tls_meet_save_and_come_back(certificates, tmp_path):
    ca = str(certificates / "ca.crt")
    results = []
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
        servers = Servers(tmp_path / name, certificates)
        try:

            def lose(servers=servers):
                # Something to come back to: servers that could not speak to each other would have saved nothing.
                deadline = time.monotonic() + 60
                while not any(c.step > 0 for c in cairn.CheckpointManager(servers.directory, read_only=True).list()):
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                servers.kill(1)
                servers.start(1)

            results.append(train(servers.directory, ca, lose if name == "disturbed" else None))
        finally:
            servers.end()
    assert results[0][0] == results[1][0] and len(results[0][0]) > 20
    assert [back for _, back in results] == [0, 1], "all went back to the checkpoint"


def test_strangers_are_turned_away(certificates, tmp_path):
    theirs = make_certificates(tmp_path / "theirs")
    servers = Servers(tmp_path, certificates)
    try:
        for settings in (
            {"token": TOKEN, "ca": str(theirs / "ca.crt")},
            {"token": TOKEN, "ca": ""},
            {"token": "wrong", "ca": str(certificates / "ca.crt")},
        ):
            with pytest.raises(cairn.Error):
                cairn.ps.Client(directory=servers.directory, num_servers=2, reconnect_timeout=1.5, **settings)
        train(servers.directory, str(certificates / "ca.crt"))
    finally:
        servers.end()


def test_a_key_of_another_certificate_is_named(certificates, tmp_path):
    theirs = make_certificates(tmp_path / "theirs")
    command = [command_line(), "pserver", "--dir", str(tmp_path / "r"), "--tls-cert", str(certificates / "server.crt")]
    command += ["--tls-key", str(theirs / "server.key"), "--tls-ca", str(certificates / "ca.crt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    # 3: whoever starts servers need not try again.
    assert done.returncode == 3 and "is not that of the certificate" in done.stderr, done.stderr
