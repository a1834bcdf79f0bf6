"""`cairn serve`: a process that is asked over HTTP, killed, and started again."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from children import command_line
from test_serving import DIM, Job

import cairn


class Server:
    """A running `cairn serve`."""

    def __init__(
        self, tmp_path, *arguments, name="m", token="secret", model=None, follow=None, cwd=None
    ):
        self._log = open(tmp_path / "serve.log", "a+")
        environment = {**os.environ, "CAIRN_TOKEN": token}
        named = [] if name is None else ["--name", name]
        self.process = subprocess.Popen(
            [
                command_line(),
                "serve",
                "--model",
                str(tmp_path / "export") if model is None else model,
                "--follow",
                str(tmp_path / "run") if follow is None else follow,
            ]
            + ["--listen", "127.0.0.1:0", *named, *arguments],
            stderr=self._log,
            env=environment,
            cwd=cwd,
        )
        self.wait(self.urls)
        self.url = self.urls()[-1]

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def urls(self):
        """Those that it has said."""
        return [w for line in self.log().splitlines() for w in line.split() if "/v2/models/" in w]

    def wait(self, happened):
        """Looks until something of it is so."""
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log()
            time.sleep(0.01)

    def ask(self, path, body=None, token="secret", scheme="Bearer"):
        headers = {"Authorization": f"{scheme} {token}"}
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path):
        """A page of the server, not of the model."""
        request = urllib.request.Request(
            self.url.split("/v2/")[0] + path, headers={"Authorization": "Bearer secret"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def infer(self):
        feed = [
            {"name": "user", "datatype": "INT64", "shape": [1], "data": [1]},
            {"name": "item", "datatype": "INT64", "shape": [1], "data": [5]},
            {"name": "x", "datatype": "FP32", "shape": [1, DIM], "data": [0] * DIM},
        ]
        status, answer = self.ask("/infer", {"inputs": feed})
        return status, json.loads(answer)

    def end(self, by=signal.SIGTERM):
        self.process.send_signal(by)
        code = self.process.wait(timeout=30)
        self._log.close()
        return code


def wait_for(server, step):
    deadline = time.monotonic() + 60
    while True:
        status, answer = server.infer()
        if status == 200 and int(answer["model_version"]) >= step:
            return answer
        assert time.monotonic() < deadline, (status, answer)
        time.sleep(0.01)


def test_an_export_for_fulls_says_once_that_it_passes_over_increments(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export", save_incr_model=False)
        job.run(1)
        server = Server(tmp_path)
        try:
            job.run(2)
            job.session.save(full=True).wait()
            wait_for(server, 3)  # having looked at all before it
            told = [line for line in server.log().splitlines() if "passed over" in line]
            assert len(told) == 1, server.log()
            assert "it is an increment, and the model was exported for full checkpoints" in told[0]
        finally:
            assert server.end() == 0


def test_a_server_follows_is_killed_and_follows_again(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
        server = Server(tmp_path)
        try:
            job.run(1)
            answer = wait_for(server, 1)
            assert answer["outputs"][0]["data"] == [2.0] * DIM
            job.run(1)
            assert wait_for(server, 2)["outputs"][0]["data"] == [8.0] * DIM
            status, rows = server.ask("/tables/users/lookup", np.array([2, 77], np.int64).tobytes())
            assert status == 200
            np.testing.assert_array_equal(
                np.frombuffer(rows, np.float32).reshape(2, DIM), [[2.0] * DIM, [0.5] * DIM]
            )
            assert server.ask("/infer", {}, token="wrong")[0] == 401
            assert server.ask("/infer", b"{")[0] == 400
            assert server.end(signal.SIGKILL) == -signal.SIGKILL
            (tmp_path / "serve.log").unlink()
            server = Server(tmp_path)
            job.run(1)
            assert wait_for(server, 3)["outputs"][0]["data"] == [18.0] * DIM
            assert json.loads(server.ask("/rollback", b"")[1])["held"] is True
        finally:
            if server.process.poll() is None:
                server.end()
        assert server.process.returncode == 0


def test_every_prediction_is_of_one_version_while_the_server_is_killed(tmp_path):
    """Rows of both tables and the weight of step n are n, so that its score is 2 n²."""
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
        job.run(1)
        running = [Server(tmp_path)]
        answers, strange, stop = [], [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    status, answer = running[-1].infer()
                except (OSError, http.client.HTTPException):
                    time.sleep(0.01)  # killed just now
                    continue
                if status == 503:
                    time.sleep(0.01)  # started just now, and still loading
                    continue
                if status != 200:
                    strange.append((status, answer))
                    return
                answers.append((int(answer["model_version"]), answer["outputs"][0]["data"]))

        askers = [threading.Thread(target=ask) for _ in range(2)]
        for asker in askers:
            asker.start()
        try:
            for life in range(4):
                deadline, first = time.monotonic() + 60, len(answers)
                while len({version for version, _ in answers[first:]}) < 6:
                    assert not strange and time.monotonic() < deadline, (life, strange)
                    job.run(1)  # under its predictions
                if life == 3:
                    break
                running[-1].process.kill()
                running[-1].process.wait(timeout=30)
                (tmp_path / "serve.log").unlink()
                running.append(Server(tmp_path))
        finally:
            stop.set()
            for asker in askers:
                asker.join()
            if running[-1].process.poll() is None:
                running[-1].end()
    assert not strange
    def score(step):
        return float(np.float32(2 * step) * np.float32(step))

    mixed = [each for each in answers if each[1] != [score(each[0])] * DIM]
    assert not mixed, mixed[:5]
    assert len(answers) >= 24


def test_an_update_out_of_the_probes_range_is_not_served(tmp_path):
    inputs = [
        {"name": "user", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "item", "datatype": "INT64", "shape": [1], "data": [5]},
        {"name": "x", "datatype": "FP32", "shape": [1, DIM], "data": [[0] * DIM]},
    ]
    probes = tmp_path / "probes.json"
    probes.write_text(
        json.dumps({"probes": [{"inputs": inputs, "output": "score", "min": 0, "max": 10}]})
    )
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
        server = Server(tmp_path, "--probes", str(probes))
        try:
            job.run(2)  # scores 2, then 8
            wait_for(server, 2)
            job.run(1)  # 18
            server.wait(lambda: "is not between 0 and 10" in server.log())
            assert server.infer()[1]["model_version"] == "2", "the one before stays"
            # It is counted after it is said.
            server.wait(lambda: b"cairn_serving_refused_total 1" in server.get("/metrics"))
            job.w[:] = 0
            job.session.run(lambda step: None)  # in its range again
            assert wait_for(server, 4)["outputs"][0]["data"] == [0.0] * DIM
        finally:
            assert server.end() == 0


@pytest.mark.parametrize(
    "text, says",
    [
        ("{", "is no JSON"),
        ('{"probes": [{"inputs": [], "output": "score"}]}', "probes[0]: min and max: are missing"),
        ('{"probes": [{"inputs": [], "output": "score", "min": 0}]}', '"user" is missing'),
    ],
)
def test_probes_that_cannot_be_are_refused_at_the_start(tmp_path, text, says):
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
    (tmp_path / "probes.json").write_text(text)
    done = subprocess.run(
        [command_line(), "serve", "--model", str(tmp_path / "export")]
        + ["--follow", str(tmp_path / "run"), "--probes", str(tmp_path / "probes.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and says in done.stderr, done.stderr


@pytest.mark.parametrize("scheme", ["s3", "hdfs"])
def test_a_silent_store_holds_up_neither_the_start_nor_the_end(tmp_path, monkeypatch, scheme):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        url = "s3://bucket/run" if scheme == "s3" else f"hdfs://127.0.0.1:{port}/run"
        server = Server(tmp_path, follow=url)
        try:
            silent.accept()  # it is being asked
            assert json.loads(server.get("/v2/health/live"))["live"] is True
            assert server.infer()[0] == 503
        finally:
            assert server.end() == 0  # within less than a request may be silent


def test_more_than_a_thousand_silent_clients_hold_nobody_up(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    server = Server(tmp_path)
    silent = []
    try:
        wait_for(server, 1)
        host, port = server.url.split("/")[2].split(":")
        while len(silent) < 1500:
            silent.append(socket.create_connection((host, int(port)), timeout=30))
        assert server.infer()[0] == 200
    finally:
        for client in silent:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert server.end() == 0


@pytest.mark.parametrize("place", ["s4://bucket/run", "s3://"])
def test_a_place_that_cannot_be_is_refused_at_the_start(tmp_path, place):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    done = subprocess.run(
        [command_line(), "serve", "--model", str(tmp_path / "export"), "--follow", place]
        + ["--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and place in done.stderr, done.stderr


def test_every_error_of_the_protocol_has_its_field(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    server = Server(tmp_path, "--max-request", "1MB")
    try:
        big = b"[" * (40 << 20)  # far over the limit: answered, and not reset
        for path, body, status in [
            ("/nothing", None, 404),
            ("/infer", None, 405),
            ("/infer", b"{", 400),
            ("/infer", b"x" * ((1 << 20) + 1), 413),
            ("/infer", big, 413),
        ]:
            found, answer = server.ask(path, body)
            said = json.loads(answer)
            assert found == status and said["error"] == said["message"], (path, said)
            assert set(said) == {"error", "code", "message", "details"}
    finally:
        assert server.end() == 0


@pytest.mark.parametrize("name", ["a b", "50%", "what?#", "größe", "%41"])
def test_the_address_that_is_printed_can_be_asked_whatever_the_name_is(tmp_path, name):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    server = Server(tmp_path, name=name)
    try:
        assert server.url.endswith("/v2/models/" + urllib.parse.quote(name, safe="")), server.url
        status, answer = server.ask("")
        assert status == 200 and json.loads(answer)["name"] == name
    finally:
        assert server.end() == 0


def test_the_metrics_are_what_prometheus_takes(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(2)
        job.export(tmp_path / "export")
        server = Server(tmp_path)
        try:
            wait_for(server, 2)
            server.ask("/tables/users/lookup", b"12345678")
            server.ask("/tables/users/lookup", b"1234567")
            page = server.get("/metrics")
        finally:
            assert server.end() == 0
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    values = dict(line.rsplit(" ", 1) for line in page.decode().splitlines() if line[0] != "#")
    assert values["cairn_serving_version_step"] == "2"
    assert values["cairn_serving_lag_steps"] == values["cairn_serving_lag_seconds"] == "0"
    assert values["cairn_serving_rows_applied_total"] == "3"
    assert float(values["cairn_serving_last_update_seconds"]) > 0
    assert values['cairn_serving_request_seconds_bucket{kind="lookup",le="+Inf"}'] == "2"
    assert values['cairn_serving_request_errors_total{kind="lookup"}'] == "1"
    assert int(values['cairn_serving_request_seconds_count{kind="predict"}']) > 0


def test_the_directory_one_is_in_has_its_name(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    for inside, model in [("export", "."), ("export/1", "../"), ("export/1", ".")]:
        server = Server(tmp_path, name=None, model=model, cwd=tmp_path / inside)
        try:
            assert server.url.endswith("/v2/models/export"), server.url
        finally:
            assert server.end() == 0
            (tmp_path / "serve.log").unlink()


def test_the_token_of_a_file_is_asked_for_by_a_scheme_in_any_case(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.run(1)
        job.export(tmp_path / "export")
    (tmp_path / "token").write_bytes(b"from a file\r\n")
    server = Server(tmp_path, "--token-file", str(tmp_path / "token"))
    try:
        for scheme in ["Bearer", "bearer", "BEARER"]:
            assert server.ask("", token="from a file", scheme=scheme)[0] == 200, scheme
            assert server.ask("", token="secret", scheme=scheme)[0] == 401, scheme
        assert server.ask("", token="from a file", scheme="Basic")[0] == 401
    finally:
        assert server.end() == 0
    (tmp_path / "token").write_bytes(b"\n")
    done = subprocess.run(
        [command_line(), "serve", "--model", str(tmp_path / "export")]
        + ["--follow", str(tmp_path / "run"), "--token-file", str(tmp_path / "token")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "has no token" in done.stderr, done.stderr


def test_what_is_missing_is_said(tmp_path):
    done = subprocess.run(
        [
            command_line(),
            "serve",
            "--model",
            str(tmp_path / "no"),
            "--follow",
            str(tmp_path / "run"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "export" in done.stderr


@pytest.mark.parametrize("flag", ["--poll=0", "--cpu-share=0", "--threads=-1"])
def test_a_bad_flag_is_a_usage_error(flag):
    done = subprocess.run(
        [command_line(), "serve", "--model", "x", "--follow", "y", flag],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2


def test_rows_are_looked_up_by_grpc(tmp_path):
    job = Job(tmp_path / "run")
    with job.session:
        job.export(tmp_path / "export")
        server = Server(tmp_path, "--grpc", "127.0.0.1:0", "--max-request", "40MB")
        try:
            job.run(1)
            wait_for(server, 1)
            line = next(line for line in server.log().splitlines() if "by gRPC at" in line)
            client = cairn.serving.LookupClient(line.split()[-1], token="secret", timeout=60)
            np.testing.assert_array_equal(
                client.lookup("users", [[2, 77]]), [[[1.0] * DIM, [0.5] * DIM]]
            )
            version, rows = client.lookup_together({"users": [1], "items": [5, 6]})
            assert version.step == 1 and rows["items"].shape == (2, DIM)
            assert client.lookup("users", []).shape == (0, DIM)
            with pytest.raises(cairn.NotFound, match=r"asks\[0\]\.table"):
                client.lookup("nothing", [1])
            with pytest.raises(cairn.Invalid, match=r"asks\[0\]\.dim"):
                client.lookup("users", [1], dim=DIM + 1)
            with pytest.raises(cairn.Invalid, match="integers"):
                client.lookup("users", [1.5])
            for call in (lambda: client.lookup(5, [1]), lambda: client.lookup_together([1]),
                         lambda: client.lookup("users", [1], dim=-1),
                         lambda: client.lookup("users", [1], dim="4")):  # fmt: skip
                with pytest.raises(cairn.Invalid, match="name|dict of ids|dim"):
                    call()
            for wrong in ({"timeout": 0}, {"timeout": float("nan")}, {"address": 5}):
                with pytest.raises(cairn.Invalid, match=next(iter(wrong))):
                    cairn.serving.LookupClient(**{"address": line.split()[-1], **wrong})
            with pytest.raises(cairn.NoSpace, match=r"asks\[0\]\.ids"):
                client.lookup("users", np.zeros(70_000_000 // (DIM * 4), np.int64))
            with pytest.raises(cairn.NoSpace, match="at most 41943040; .*--max-request"):
                client.lookup("users", np.zeros(6_000_000, np.int64))
            modest = cairn.serving.LookupClient(
                line.split()[-1], token="secret", timeout=60, max_answer_bytes=4096
            )
            with pytest.raises(cairn.NoSpace, match="4096 bytes that are taken here"):
                modest.lookup("users", np.zeros(400, np.int64))
            stranger = cairn.serving.LookupClient(line.split()[-1], token="wrong", timeout=60)
            with pytest.raises(cairn.Error, match="token"):
                stranger.lookup("users", [1])
            job.run(1)
            wait_for(server, 2)
            assert client.lookup_together({"users": [1]})[0].step == 2
        finally:
            server.end()
