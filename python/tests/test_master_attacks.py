"""What strangers, viewers and trainings must not be able to do to a live master."""

import contextlib
import gzip
import http.client
import io
import json
import os
import random
import socket
import sqlite3
import tarfile
import threading
import time

import pytest
from master_process import EXAMPLES, Refused, running_master

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as master:
        yield master


def archive(*members):
    """A tar.gz of (name, options) pairs; `data` among the options is the file's contents."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, options in members:
            info = tarfile.TarInfo(name)
            options = dict(options)
            data = options.pop("data", b"")
            info.size = len(data)
            for key, value in options.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


GOOD = ("train.py", {"data": b"print(1)\n"})


def bomb():
    """300 MiB of zeros in 300 KB."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as stream:
        info = tarfile.TarInfo("zeros")
        info.size = 300 << 20
        stream.write(info.tobuf())
        for _ in range(300):
            stream.write(bytes(1 << 20))
    return packed.getvalue()


HOSTILE = {
    "absolute name": lambda: archive(("/tmp/cairn-owned", {"data": b"x"})),
    "name that climbs": lambda: archive(("../../cairn-owned", {"data": b"x"})),
    "name that climbs later": lambda: archive(("a/../../cairn-owned", {"data": b"x"})),
    "link to the outside": lambda: archive(("out", {"type": tarfile.SYMTYPE, "linkname": "../../.."})),
    "absolute link": lambda: archive(("out", {"type": tarfile.SYMTYPE, "linkname": "/etc"})),
    "write through a link": lambda: archive(
        ("out", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), ("out/cairn-owned", {"data": b"x"})
    ),
    "hard link to the outside": lambda: archive(("passwd", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})),
    "device": lambda: archive(("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})),
    "pipe": lambda: archive(("pipe", {"type": tarfile.FIFOTYPE})),
    "NUL in a name": lambda: archive(("a", {"pax_headers": {"path": "a\0b"}})),
    "empty name": lambda: archive(("", {"data": b"x"})),
    "long name": lambda: archive(("a/" * 4000 + "b", {"data": b"x"})),
    "no archive": lambda: b"this is no archive at all",
    "nothing": lambda: b"",
    "cut": lambda: archive(GOOD)[:-20],
    "bomb": bomb,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused(master, kind, tmp_path):
    before = set(os.listdir("/tmp"))
    try:
        code = master.post("/api/v1/code", HOSTILE[kind](), headers={"Content-Type": "application/gzip"})
    except Refused as refused:
        assert refused.status in (400, 413), refused
        assert refused.body["message"]
    else:
        # What is not refused must be harmless: it stays inside when it is used.
        files = master.get(f"/api/v1/experiments/{use(master, code['code'])}/code/files")["files"]
        assert all(not file["path"].startswith("/") and ".." not in file["path"].split("/") for file in files)
    assert not [name for name in set(os.listdir("/tmp")) - before if "cairn-owned" in name]


def use(master, code):
    config = "name: a\nentrypoint: 'true'\nsearcher: {name: single, metric: x}\n"
    return master.post("/api/v1/experiments", {"config": config, "code": code, "paused": True})["id"]


def test_damaged_archives_are_refused_or_harmless(master):
    """A set made by flipping bytes of good ones, before and after compression."""
    chosen = random.Random(11)
    good = archive(GOOD, ("data/x.bin", {"data": bytes(range(256)) * 40}), ("link", {"type": tarfile.SYMTYPE, "linkname": "train.py"}))
    plain = gzip.decompress(good)
    for i in range(60):
        raw = bytearray(plain if i % 2 else good)
        for _ in range(chosen.randint(1, 8)):
            raw[chosen.randrange(min(len(raw), 1536))] = chosen.randrange(256)
        body = gzip.compress(bytes(raw)) if i % 2 else bytes(raw)
        try:
            master.post("/api/v1/code", body, headers={"Content-Type": "application/gzip"})
        except Refused as refused:
            assert refused.status in (400, 413), refused
    master.get("/healthz")


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "train.py/../../../x", "..", ".", "%2e%2e", "a\0b"])
def test_files_of_code_are_the_only_ones_that_are_read(master, name):
    experiment = use(master, master.post("/api/v1/code", archive(GOOD), headers={"Content-Type": "application/gzip"})["code"])
    from urllib.parse import quote

    assert master.get(f"/api/v1/experiments/{experiment}/code/file?path=train.py", raw=True) == b"print(1)\n"
    with pytest.raises(Refused) as refused:
        master.get(f"/api/v1/experiments/{experiment}/code/file?path={quote(name, safe='')}", raw=True)
    assert refused.value.status in (400, 404)


@pytest.mark.parametrize("id", ["..", "%2e%2e%2f%2e%2e", "..%2f..", ".hidden", "a%00b", "%ff", "a" * 65, "7;drop%20table", "'%20or%201=1"])
def test_ids_lead_nowhere_else(master, id):
    for kind in ("experiments", "trials", "checkpoints"):
        with pytest.raises((Refused, http.client.InvalidURL)) as refused:
            master.get(f"/api/v1/{kind}/{id}")
        if isinstance(refused.value, Refused):
            assert refused.value.status in (400, 404)


def test_globs_reach_no_further_than_their_experiment(master):
    for globs in (["../*"], ["/*"], ["[" * 200], ["*" * 200 + "x"], ["\\"]):
        body = {"globs": globs, "experiment": use(master, archive_id(master)), "dry_run": True}
        try:
            assert master.post("/api/v1/checkpoints/rm", body)["removed"] == []
        except Refused as refused:
            assert refused.status == 400
    with pytest.raises(Refused) as refused:
        master.post("/api/v1/checkpoints/rm", {"globs": ["*"]})
    assert refused.value.status == 400, "globs need an experiment or a trial"


def archive_id(master):
    return master.post("/api/v1/code", archive(GOOD), headers={"Content-Type": "application/gzip"})["code"]


def test_a_run_touches_its_own_trial_only(master):
    """The token that a training was given, used for another trial and for the API of users."""
    config = "name: a\nentrypoint: 'env; sleep 60'\nsearcher: {name: single, metric: x}\n"
    trials = []
    for _ in range(2):
        experiment = master.post("/api/v1/experiments", {"config": config, "code": archive_id(master)})["id"]
        trials.append(master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0])
    tokens = [environment_of(master, trial["id"])["CAIRN_RUN_TOKEN"] for trial in trials]
    base = "/trial/v1/trials/{}/runs/1"
    mine, other = (base.format(trial["id"]) for trial in trials)
    assert master.get(mine, token=tokens[0])["trial_id"] == trials[0]["id"]
    report = {"sequence": 1, "group": "training", "steps_completed": 1, "metrics": {"x": 1}}
    for attempt in (
        lambda: master.get(other, token=tokens[0]),
        lambda: master.post(other + "/reports", report, token=tokens[0]),
        lambda: master.post(f"/api/v1/trials/{trials[1]['id']}/metrics", {**report, "run_id": 1}, token=tokens[0]),
        lambda: master.get("/api/v1/experiments", token=tokens[0]),
        lambda: master.post(f"/api/v1/trials/{trials[0]['id']}/kill", token=tokens[0]),
        lambda: master.get("/api/v1/users", token=tokens[0]),
    ):
        with pytest.raises(Refused) as refused:
            attempt()
        assert refused.value.status in (401, 403, 404), refused.value
    assert master.reports(trials[1]["id"]) == []
    master.post(mine + "/reports", report, token=tokens[0])
    assert master.reports(trials[0]["id"]) == [(1, 1)]
    master.end_runs()


def test_a_nul_in_what_a_run_or_a_user_sends_stops_nobody(master):
    """A database holds none: an event with one could never be written, nor any that come after it."""
    config = "name: a\nentrypoint: 'env; sleep 60'\nsearcher: {name: single, metric: x}\n"
    code = archive_id(master)
    experiment = master.post("/api/v1/experiments", {"config": config, "code": code})["id"]
    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]
    token = environment_of(master, trial["id"])["CAIRN_RUN_TOKEN"]
    run = f"/trial/v1/trials/{trial['id']}/runs/1"
    report = {"sequence": 1, "group": "training", "steps_completed": 1, "metrics": {"x": 1}}
    for wrong in ({**report, "group": "a\0b"}, {**report, "metrics": {"x\0": 1}}, {**report, "metrics": {"x": "\0"}}):
        for path, body in (
            (run + "/reports", wrong),
            (f"/api/v1/trials/{trial['id']}/metrics", {**wrong, "run_id": 1}),
        ):
            with pytest.raises(Refused) as refused:
                master.post(path, body, token=token)
            assert refused.value.status == 400 and "NUL" in str(refused.value), refused.value
    master.post(run + "/status", {"status": "a\0b"}, token=token)
    master.post(run + "/reports", report, token=token)
    assert master.reports(trial["id"]) == [(1, 1)]
    master.end_runs()


def environment_of(master, trial):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for pid in master.processes(trial):
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
                return {key.decode(): value.decode() for key, _, value in pairs}
        time.sleep(0.02)
    raise AssertionError("the trial has no process")


def raw(master, method, path, headers, body=b""):
    """A request with exactly these headers; status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", master.port, timeout=30)
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, answer.headers, text


def test_cookies_cannot_be_used_by_other_sites(master):
    master.post("/api/v1/users", {"username": "page", "role": "user", "password": PASSWORD})
    login = json.dumps({"username": "page", "password": PASSWORD, "cookie": True})
    status, headers, text = raw(master, "POST", "/api/v1/auth/login", {"Content-Type": "application/json"}, login)
    assert status == 200, text
    assert "token" not in json.loads(text)
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    pair = cookie.split(";")[0]
    status, _, _ = raw(master, "GET", "/api/v1/auth/whoami", {"Cookie": pair})
    assert status == 200
    create = json.dumps({"name": "mine"})
    json_type = {"Content-Type": "application/json"}
    assert raw(master, "POST", "/api/v1/tokens", {"Cookie": pair, **json_type}, create)[0] == 403
    assert raw(master, "POST", "/api/v1/tokens", {"Cookie": pair, "X-Cairn-Request": "1", **json_type}, create)[0] == 201
    assert raw(master, "POST", "/api/v1/auth/logout", {"Cookie": pair, "X-Cairn-Request": "1"}, b"{}")[0] == 200
    assert raw(master, "GET", "/api/v1/auth/whoami", {"Cookie": pair})[0] == 401


@pytest.mark.parametrize("change", [{"password": "staple battery"}, {"active": False}])
def test_who_is_locked_out_and_what_lets_him_in_change_together(tmp_path, change):
    """Cut off between the two, a session would outlive the password that it was opened with."""
    with running_master(tmp_path) as master:
        master.post("/api/v1/users", {"username": "ada", "role": "user", "password": PASSWORD})
        login = {"username": "ada", "password": PASSWORD}
        session = master.post("/api/v1/auth/login", login, token="")["token"]
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "cairn.db")) as database:
            database.execute("CREATE TRIGGER cut BEFORE DELETE ON tokens BEGIN SELECT RAISE(ABORT, 'cut off'); END")
            with pytest.raises(Refused):
                master.ask("PATCH", "/api/v1/users/ada", change)
            database.execute("DROP TRIGGER cut")
        master.kill()
        master.start()
        assert master.get("/api/v1/auth/whoami", token=session)["username"] == "ada"
        assert master.post("/api/v1/auth/login", login, token="")["token"]
        master.ask("PATCH", "/api/v1/users/ada", change)
        for _ in range(2):
            with pytest.raises(Refused, match="^401"):
                master.get("/api/v1/auth/whoami", token=session)
            master.stop()
            master.start()


def test_guessing_passwords_is_slowed_down(master):
    """Last of its user: the name is refused for a while afterwards."""
    master.post("/api/v1/users", {"username": "guessed", "role": "viewer", "password": PASSWORD})
    statuses = []

    def guess(i):
        try:
            master.post("/api/v1/auth/login", {"username": "guessed", "password": f"guess {i}"}, token="")
        except Refused as refused:
            statuses.append(refused.status)

    threads = [threading.Thread(target=guess, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {401, 429} and 429 in statuses
    master.get("/healthz")


def answers_to(master, source, requests):
    """The status lines that so many questions on one connection get from an address of this machine."""
    question = b"GET /healthz HTTP/1.1\r\nHost: master\r\n"
    with socket.create_connection(("127.0.0.1", master.port), timeout=60, source_address=(source, 0)) as connection:
        ask = threading.Thread(
            target=connection.sendall,
            args=((question + b"\r\n") * (requests - 1) + question + b"Connection: close\r\n\r\n",),
        )
        ask.start()
        with connection.makefile("rb") as stream:
            lines = [line.split()[1] for line in stream if line.startswith(b"HTTP/1.1 ")]
        ask.join()
    return lines


def test_a_flood_from_one_address_keeps_nobody_else_out(master):
    deadline = time.monotonic() + 60
    while b"429" not in answers_to(master, "127.0.0.1", 5000):
        assert time.monotonic() < deadline, "nothing was refused"
    assert answers_to(master, "127.0.0.2", 1) == [b"200"]


def test_deactivated_users_and_deleted_tokens_are_out(master):
    master.post("/api/v1/users", {"username": "leaver", "role": "user", "password": PASSWORD})
    session = master.post("/api/v1/auth/login", {"username": "leaver", "password": PASSWORD}, token="")["token"]
    token = master.post("/api/v1/tokens", {"name": "a"}, token=session)
    assert master.get("/api/v1/auth/whoami", token=token["token"])["username"] == "leaver"
    master.ask("DELETE", f"/api/v1/tokens/{token['id']}", token=session)
    with pytest.raises(Refused) as refused:
        master.get("/api/v1/auth/whoami", token=token["token"])
    assert refused.value.status == 401
    second = master.post("/api/v1/tokens", {"name": "b"}, token=session)["token"]
    master.ask("PATCH", "/api/v1/users/leaver", {"active": False})
    for secret in (session, second):
        with pytest.raises(Refused) as refused:
            master.get("/api/v1/auth/whoami", token=secret)
        assert refused.value.status == 401


@pytest.mark.parametrize("how", ["deactivated", "logged out", "token deleted"])
def test_streams_end_with_the_right_to_read_them(master, how):
    """A stream is judged when it is opened, and as long as it lasts."""
    name = "watcher-" + how.replace(" ", "-")
    master.post("/api/v1/users", {"username": name, "role": "viewer", "password": PASSWORD})
    session = master.post("/api/v1/auth/login", {"username": name, "password": PASSWORD}, token="")["token"]
    made = master.post("/api/v1/tokens", {"name": "a"}, token=session)
    secret = made["token"] if how == "token deleted" else session
    config = "name: a\nentrypoint: sleep 100\nsearcher: {name: single, metric: x}\n"
    experiment = master.post("/api/v1/experiments", {"config": config, "code": archive_id(master)})["id"]
    trial = master.wait(f"/api/v1/experiments/{experiment}/trials", lambda page: page["total"] == 1)["trials"][0]["id"]
    streams = []
    for path in ("/api/v1/events", f"/api/v1/trials/{trial}/logs?follow=true"):
        connection = http.client.HTTPConnection("127.0.0.1", master.port, timeout=60)
        connection.request("GET", path, headers={"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        assert answer.status == 200
        streams.append((connection, answer))
    if how == "deactivated":
        master.ask("PATCH", f"/api/v1/users/{name}", {"active": False})
    elif how == "logged out":
        master.post("/api/v1/auth/logout", token=session)
    else:
        master.ask("DELETE", f"/api/v1/tokens/{made['id']}", token=session)
    for connection, answer in streams:
        answer.read()  # to its end: a stream that goes on would wait until the timeout
        connection.close()
    master.end_runs()


def test_large_bodies_of_strangers_are_not_taken(master):
    status, _, _ = raw(master, "POST", "/api/v1/code", {"Content-Type": "application/gzip", "Authorization": "Bearer x"}, bytes(8 << 20))
    assert status == 401
    with pytest.raises(Refused) as refused:
        master.post("/api/v1/experiments", {"config": "a" * (2 << 20)})
    assert refused.value.status in (400, 413)


def test_the_token_file_is_for_its_owner(master):
    path = master.directory / "data" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (master.directory / "data").stat().st_mode & 0o077 == 0


def test_markup_in_names_stays_text(master):
    name = "<script>alert(1)</script>\x1b[31m"
    config = json.dumps({"name": name, "entrypoint": "true", "searcher": {"name": "single", "metric": "x"}})
    experiment = master.post("/api/v1/experiments", {"config": config, "code": archive_id(master), "paused": True})
    assert experiment["name"] == name
    status, headers, _ = raw(master, "GET", f"/api/v1/experiments/{experiment['id']}", {"Authorization": f"Bearer {master.token()}"})
    assert status == 200 and headers["Content-Type"].startswith("application/json")
    assert "\x1b" not in master.cli("e", "show", experiment["id"]).stdout


def test_examples_are_packed_without_what_is_ignored(master, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "code" / "secret.env").write_text("password\n")
    (tmp_path / "code" / ".cairnignore").write_text("*.env\n")
    created = master.cli_json("e", "create", EXAMPLES / "0_start.yaml", tmp_path / "code", "--paused")
    files = master.get(f"/api/v1/experiments/{created['id']}/code/files")["files"]
    assert "train.py" in [file["path"] for file in files]
    assert "secret.env" not in [file["path"] for file in files]
