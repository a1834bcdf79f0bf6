"""docs/openapi.yaml: whole in itself, and kept by a live master."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from master_process import ROOT, Refused, running_master

CONTRACT = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
METHODS = ("get", "post", "put", "patch", "delete")
ROLES = ("none", "viewer", "user", "admin", "run")


def operations():
    for path, item in CONTRACT["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with running_master(tmp_path_factory.mktemp("master")) as master:
        yield master


def example_path(path):
    """The path with names that fit and that nothing has."""
    return re.sub(r"\{run\}", "1", re.sub(r"\{(?!run\})\w+\}", "nothing", path))


def test_every_reference_leads_somewhere():
    def walk(node):
        if isinstance(node, dict):
            if "$ref" in node:
                target = CONTRACT
                for part in node["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(CONTRACT)


def test_every_operation_says_who_may_and_how_it_fails():
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names)) >= 35
    for path, method, operation in operations():
        assert operation["x-cairn-role"] in ROLES, path
        assert "default" in operation["responses"], f"{method} {path}"
        assert operation["summary"]
        expected = {"none": [], "run": [{"run": []}]}.get(operation["x-cairn-role"])
        assert operation.get("security") == expected, f"{method} {path}"


def test_strangers_get_nothing_but_what_is_for_all(master):
    for path, method, operation in operations():
        role = operation["x-cairn-role"]
        body = {} if "requestBody" in operation else None
        try:
            master.ask(method.upper(), example_path(path), body, token="not a token")
            status = 200
        except Refused as refused:
            status = refused.status
            assert set(refused.body) == {"code", "message", "details"}, f"{method} {path}: {refused}"
        if role == "none":
            assert status != 403 and (status != 401 or path.endswith("/login")), f"{method} {path}"
        elif role == "run":
            # A trial that is not there, and a token that is none, must not be told apart from one that is.
            assert status in (401, 404), f"{method} {path}: {status}"
        else:
            assert status == 401, f"{method} {path}: {status}"


def test_viewers_look_and_change_nothing(master):
    master.post("/api/v1/users", {"username": "looker", "role": "viewer", "password": "correct horse battery"})
    login = master.post("/api/v1/auth/login", {"username": "looker", "password": "correct horse battery"})
    for path, method, operation in operations():
        if operation["x-cairn-role"] not in ("user", "admin"):
            continue
        with pytest.raises(Refused) as refused:
            master.ask(method.upper(), example_path(path), {} if "requestBody" in operation else None, token=login["token"])
        assert refused.value.status == 403, f"{method} {path}: {refused.value}"


def test_unknown_paths_and_methods_are_errors_of_the_contract(master):
    for method, path, status in (("GET", "/api/v1/nothing", 404), ("DELETE", "/api/v1/experiments", 405)):
        with pytest.raises(Refused) as refused:
            master.ask(method, path)
        assert refused.value.status == status
        assert set(refused.value.body) == {"code", "message", "details"}


def test_figures_are_what_prometheus_reads(master):
    text = master.get("/metrics", raw=True)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()


def test_schemathesis_finds_nothing(master, tmp_path):
    """What the contract allows, and what it does not, sent to the live master."""
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    finished = subprocess.run(
        [
            *(program, "run", ROOT / "docs" / "openapi.yaml", "--url", f"http://127.0.0.1:{master.port}"),
            *("--header", f"Authorization: Bearer {master.token()}"),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"),
            *("--phases", "examples,fuzzing", "--max-examples", os.environ.get("CAIRN_SCHEMATHESIS_EXAMPLES", "4")),
            *("--seed", "11", "--generation-database", "none", "--request-timeout", "20", "--workers", "2"),
            # An endless stream, the session's end, routes for tokens that a run has, and an archive, which it cannot make.
            *("--exclude-operation-id", "followEvents", "--exclude-operation-id", "logout", "--exclude-path-regex", "^/(trial/|api/v1/code$)"),
            "--no-color",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=540,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    master.get("/healthz")
    json.dumps(master.get("/api/v1/auth/whoami"))
