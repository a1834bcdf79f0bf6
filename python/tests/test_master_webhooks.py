"""Webhooks: what a master tells to a URL when trials change their states."""

import hashlib
import hmac
import http.server
import json
import queue
import socket
import threading

import pytest
from master_process import EXAMPLES, Refused, running_master


class Listener:
    """Keeps what it is told; refuses the first delivery."""

    def __init__(self, refuses=True):
        self.told = queue.Queue()
        self.paths = queue.Queue()  # the same, with where it was sent
        self.refused = [] if refuses else [None]
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                good = bool(outer.refused)
                if not good:
                    outer.refused.append(json.loads(body)["id"])
                self.send_response(204 if good else 503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if good:
                    outer.told.put((self.headers["X-Cairn-Signature"], body))
                    outer.paths.put((self.path, self.headers["X-Cairn-Signature"], body))

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def listener():
    listener = Listener()
    yield listener
    listener.close()


def test_an_end_is_told_with_a_signature_and_again_after_a_refusal(tmp_path, listener):
    with running_master(tmp_path) as master:
        hook = master.post("/api/v1/webhooks", {"url": listener.url, "states": ["COMPLETED"], "events": ["state"]})
        assert "secret" not in master.get(f"/api/v1/webhooks/{hook['id']}")
        create = ["e", "create", EXAMPLES / "0_start.yaml", EXAMPLES]
        experiment = str(master.cli_json(*create)["id"])
        assert master.cli("e", "wait", experiment).stdout.split() == [experiment, "COMPLETED"]
        signature, body = listener.told.get(timeout=60)
        told = json.loads(body)
        assert told["state"] == "COMPLETED" and str(told["experiment"]) == experiment
        assert listener.refused == [told["id"]], "the one that was refused comes again"
        fields = dict(field.split("=", 1) for field in signature.split(","))
        signed = fields["t"].encode() + b"." + body
        expected = hmac.new(hook["secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(fields["sha256"], expected)
        done = master.wait(f"/api/v1/webhooks/{hook['id']}", lambda answer: answer["pending"] == 0)
        assert [d["delivered"] for d in done["deliveries"]] == [True]
        assert listener.told.empty(), "told once"


def test_each_change_of_state_is_told_whatever_became_of_the_trial_since(tmp_path):
    """Also when they are looked at late, and by a URL beside one that never answers."""
    listener = Listener(refuses=False)
    with socket.create_server(("127.0.0.1", 0)) as silent, running_master(tmp_path) as master:
        states = ["QUEUED", "RUNNING", "PAUSED", "COMPLETED"]
        master.post("/api/v1/webhooks", {"url": f"http://127.0.0.1:{silent.getsockname()[1]}/", "states": states})
        master.post("/api/v1/webhooks", {"url": listener.url, "states": states, "events": ["state"]})
        create = ["e", "create", EXAMPLES / "2_checkpoints.yaml", EXAMPLES, "--config", "entrypoint=python3 2_checkpoints.py 0.001"]
        trials = []
        for _ in range(3):
            experiment = master.cli_json(*create, "--paused")["id"]
            master.cli("e", "activate", experiment)
            trials.append(master.trial_of(experiment)["id"])
            master.wait_state(experiment, "COMPLETED")
            master.cli("e", "continue", experiment)
            master.wait(f"/api/v1/trials/{trials[-1]}/runs", lambda page: len(page["runs"]) == 2 and not page["runs"][1]["live"])
        changes = {}  # by their ids: one whose answer came too late is told again
        while len(changes) < 6 * len(trials):
            body = json.loads(listener.told.get(timeout=60)[1])
            changes.setdefault(body["id"], body)
        told = {}
        for body in changes.values():
            told.setdefault(body["trial"], []).append(body["state"])
        assert told == {trial: ["QUEUED", "RUNNING", "COMPLETED"] * 2 for trial in trials}
    listener.close()


def test_the_end_of_a_search_is_told_once_besides_those_of_its_trials(tmp_path):
    listener = Listener(refuses=False)
    with running_master(tmp_path) as master:
        create = ["e", "create", EXAMPLES / "3_hpsearch.yaml", EXAMPLES, "--config", "entrypoint=/bin/true"]
        hooks = {}
        for name, events in (("both", {}), ("experiments", {"events": ["experiment"]})):
            hook = master.post("/api/v1/webhooks", {"url": f"{listener.url}/{name}", "states": ["COMPLETED", "ERROR"], **events})
            hooks[name] = hook["id"]
        assert master.get(f"/api/v1/webhooks/{hooks['both']}")["events"] == ["state", "experiment"]
        experiment = master.cli_json(*create)["id"]
        trials = master.wait_state(experiment, "COMPLETED")["trials"]
        # Killed before they were told, or after: all are, and one that comes again has the same id.
        master.kill()
        master.start()
        said = {"both": {}, "experiments": {}}
        while len(said["both"]) < trials + 1 or not said["experiments"]:
            path, _, body = listener.paths.get(timeout=60)
            one = json.loads(body)
            said[path.rsplit("/", 1)[1]][one["id"]] = one
        (told,) = said["experiments"].values()
        assert (told["event"], told["experiment"], told["state"], told["trials"]) == ("experiment", experiment, "COMPLETED", trials)
        assert "trial" not in told
        assert [id for id, one in said["both"].items() if one["event"] == "experiment"] == [told["id"]]
        done = master.wait(f"/api/v1/webhooks/{hooks['experiments']}", lambda answer: answer["pending"] == 0)
        assert [one["event"] for one in done["deliveries"]] == ["experiment"]
        with pytest.raises(Refused, match="events"):
            master.post("/api/v1/webhooks", {"url": listener.url, "events": ["trial"]})
    listener.close()


@pytest.mark.parametrize("url", ["http://a\r\nX: y/", "http://a b/", "https://a\t/", "http://a\x7f/"])
def test_a_url_that_is_none_is_refused(tmp_path, url):
    with running_master(tmp_path) as master:
        with pytest.raises(Refused, match="url must hold no spaces and no line breaks"):
            master.post("/api/v1/webhooks", {"url": url})
