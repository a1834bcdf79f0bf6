"""docs/openapi.yaml: whole in itself, and kept by a live master."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

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


def sent_by_schemathesis(contract, master, token, directory, *options):
    """What the contract allows, and what it does not, sent to the live master."""
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    finished = subprocess.run(
        [
            *(program, "run", contract, "--url", f"http://127.0.0.1:{master.port}"),
            *("--header", f"Authorization: Bearer {token}"),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"),
            *("--phases", "examples,fuzzing", "--max-examples", os.environ.get("CAIRN_SCHEMATHESIS_EXAMPLES", "4")),
            *("--seed", "11", "--generation-database", "none", "--request-timeout", "20", "--workers", "2", "--no-color"),
            *options,
        ],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=540,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    master.get("/healthz")
    json.dumps(master.get("/api/v1/auth/whoami"))


def test_schemathesis_finds_nothing(master, tmp_path):
    # Without an endless stream, the session's end, routes for tokens that a run has, and an archive, which it cannot make.
    without = "--exclude-operation-id", "followEvents", "--exclude-operation-id", "logout"
    regex = "--exclude-path-regex", "^/(trial/|api/v1/code$)"
    sent_by_schemathesis(ROOT / "docs" / "openapi.yaml", master, master.token(), tmp_path, *without, *regex)


def test_schemathesis_finds_nothing_with_the_token_of_a_run(master, tmp_path):
    """The routes of the trial protocol, as the living run of a detached trial asks them."""
    run = master.post("/trial/v1/join", {"external_id": "odd", "storage": str(tmp_path / "storage")})
    contract = copy.deepcopy(CONTRACT)
    contract["paths"] = {path: item for path, item in contract["paths"].items() if path.startswith("/trial/v1/trials/")}
    assert len(contract["paths"]) >= 15
    base = f"/trial/v1/trials/{run['trial_id']}/runs/{run['run_id']}"
    registered = str(uuid.UUID(int=7))
    master.ask("POST", f"{base}/checkpoints", {"registration": registered, "steps_completed": 1, "ranks": 1}, token=run["token"])
    # Only this run's token is known; what the paths name beside it is there, or nowhere.
    for name, values in (("trial", [run["trial_id"]]), ("run", [run["run_id"]]), ("checkpoint", [registered, "nowhere"])):
        contract["components"]["parameters"][name]["schema"] = {"enum": values}
    path = tmp_path / "runs.yaml"
    path.write_text(yaml.safe_dump(contract))
    # The long poll waits, as it should, and what ends the run comes last.
    without = "--exclude-operation-id", "runPreemption", "--exclude-operation-id", "runExit"
    sent_by_schemathesis(path, master, run["token"], tmp_path, *without)
    # The run has lived through all of it, and its sender counts on.
    described = master.ask("GET", base, token=run["token"])
    following = described["next_sequence"]
    report = {"sequence": following, "group": "training", "steps_completed": 1, "metrics": {"x": 1}}
    assert master.ask("POST", f"{base}/reports", report, token=run["token"]) == {"sequence": following, "duplicate": False}
    assert master.ask("POST", f"{base}/exit", {"code": 0}, token=run["token"])["state"] == "COMPLETED"
