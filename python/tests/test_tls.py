"""TLS end to end: the master, the command line, runs that reach the master by TLS, and `cairn serve`."""

import json
import socket
import ssl
import subprocess
import urllib.request

import pytest
from certificates import make_certificates
from master_process import EXAMPLES, PROGRAM, running_master
from test_serve_command import Server, wait_for
from test_serving import Job


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def master(certificates, tmp_path_factory):
    # So deep that no socket file fits there: its runs have to come by the REST address.
    directory = tmp_path_factory.mktemp("master") / ("d" * 100)
    with running_master(directory, certificates=certificates) as running:
        yield running


def test_a_trial_reaches_its_master_by_tls(master):
    words = ["--config", "entrypoint=python3 2_checkpoints.py 0.002"]
    experiment = master.cli_json("e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, *words)["id"]
    assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
    trial = master.trial_of(experiment)["id"]
    assert master.reports(trial) == [(step, step) for step in range(10, 101, 10)]
    assert "100 steps, x = 100" in master.cli("e", "logs", "-f", experiment).stdout


def test_the_command_line_wants_the_authority(master, strangers):
    assert master.cli("e", "ls", "--ca", master.certificates / "ca.crt", CAIRN_MASTER_CA="").returncode == 0
    for ca in (strangers / "ca.crt", ""):
        refused = master.cli("e", "ls", check=False, CAIRN_MASTER_CA=str(ca))
        assert refused.returncode == 1
        assert "certificate" in refused.stderr, refused.stderr
    missing = master.cli("e", "ls", "--ca", "/nonexistent/ca.crt", check=False)
    assert missing.returncode != 0 and "/nonexistent/ca.crt" in missing.stderr
    plain = master.cli("e", "ls", "--master", f"http://127.0.0.1:{master.port}", check=False)
    assert plain.returncode == 1
    assert master.cli("e", "ls").returncode == 0, "it goes on"


def test_cookies_of_a_master_with_tls_are_for_tls_alone(master):
    link = master.line("log in").split()[-1]
    assert link.startswith("https://")
    trust = ssl.create_default_context(cafile=str(master.certificates / "ca.crt"))
    body = json.dumps({"code": link.split("#code=")[1], "cookie": True}).encode()
    request = urllib.request.Request(master.url + "/api/v1/auth/login", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
        assert answer.headers["Set-Cookie"].endswith("; Secure")


def test_a_master_that_cannot_have_tls_says_why(certificates, strangers, tmp_path):
    def start(*flags):
        words = ["master", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0", *flags]
        return subprocess.run(list(map(str, [PROGRAM, *words])), capture_output=True, text=True, timeout=60)

    cert, key = certificates / "server.crt", certificates / "server.key"
    for flags, says in (
        (["--tls-cert", cert], "needs its key"),
        (["--tls-cert", "/nonexistent/a.crt", "--tls-key", key], "/nonexistent/a.crt"),
        (["--tls-cert", cert, "--tls-key", strangers / "server.key"], "is not that of the certificate"),
        (["--tls-ca", cert], "without a certificate"),
    ):
        refused = start(*flags)
        assert refused.returncode in (1, 2) and says in refused.stderr, refused.stderr


def test_serve_by_tls(certificates, strangers, tmp_path, monkeypatch):
    flags = ["--tls-cert", str(certificates / "server.crt"), "--tls-key", str(certificates / "server.key")]
    trust = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust))
    monkeypatch.setattr(urllib.request, "urlopen", opener.open)
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
        server = Server(tmp_path, *flags)
        try:
            assert server.url.startswith("https://")
            job.run(1)
            wait_for(server, 1)
            assert server.ask("/infer", {}, token="wrong")[0] == 401
            host, port = server.url.split("/")[2].split(":")
            other = ssl.create_default_context(cafile=str(strangers / "ca.crt"))
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                with pytest.raises(ssl.SSLCertVerificationError):
                    other.wrap_socket(connection, server_hostname=host)
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"HTTP/" not in hear(connection)
            job.run(1)
            wait_for(server, 2)
        finally:
            server.end()


def hear(connection):
    """All that comes until the other side hangs up."""
    heard = b""
    try:
        while piece := connection.recv(4096):
            heard += piece
    except ConnectionResetError:
        pass
    return heard
