"""The click-through example, served while it is trained.

    python examples/ctr/serve.py [--seconds 30] [--directory runs/ctr_served]

Two trainers and two parameter servers train with an increment every second; `cairn serve` follows their repository; a client asks all
the time. After a third of the time the whole training is killed (kill -9) and the same command started again, after two thirds
the server; it ends when new versions were served since. Prints for each second which step is served, how fresh new versions are (from
the commit of a step to the first answer of it), how long requests take beside an update and otherwise, and the AUC of the served
predictions on clicks that nobody trained on.

Every answer names its version. One batch is asked again and again, and two answers of one version must be equal to the bit, across all
losses: an answer made of two versions would differ. Needs the extra `predict` (OpenVINO) and onnx.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from run import find_cairn
from train import auc, clicks

HERE = pathlib.Path(__file__).parent
ASKED = 32  # impressions in the batch that is asked again and again
HELD_OUT = 4000  # impressions that nobody trained on
NEW_VERSIONS = 3  # that are waited for after the training was killed
PATIENCE_SECONDS = 60


class Process:
    """A command that is started, killed with all that it started, and started again."""

    def __init__(self, command, log):
        self._command, self._log = command, log
        self.start()

    def start(self):
        with open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self):
        """As with Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def check(self):
        if self._process.poll() is not None:
            sys.exit(f"{self._command[:3]} ended with {self._process.returncode}: see {self._log}")


class Client:
    """Asks the server over a connection that is kept, and opened again when it broke."""

    def __init__(self, port):
        self._port = port
        self._connection = None

    def infer(self, body):
        """(version, probabilities), or None while nobody answers."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            self._connection.request("POST", "/v2/models/ctr/infer", body)
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            return None
        if answer.status == 503:  # there is no version yet
            return None
        if answer.status != 200:
            sys.exit(f"the server answers {answer.status}: {text.decode()}")
        found = json.loads(text)
        return int(found["model_version"]), found["outputs"][0]["data"]


def request(ids):
    feed = {"name": "rows", "datatype": "INT64", "shape": list(ids.shape), "data": ids.reshape(-1).tolist()}
    return json.dumps({"inputs": [feed]}).encode()


class Watch:
    """What the client sees, request by request."""

    def __init__(self, repository):
        self._repository = pathlib.Path(repository)
        self.answers = {}  # of the batch that is asked again and again, by version
        self.mixtures = 0
        self.first_seen = {}
        self.freshness = []
        self.requests = []  # (begun, seconds)
        self.updates = []  # (committed, first seen)

    def commit_time(self, step):
        for manifest in self._repository.glob(f"*_{step:06d}*/manifest.json"):
            with contextlib.suppress(OSError):
                return manifest.stat().st_ctime  # when it got its name
        return None

    def saw(self, began, seconds, version, answer):
        self.requests.append((began, seconds))
        if self.answers.setdefault(version, answer) != answer:
            self.mixtures += 1
        if version not in self.first_seen:
            now = time.time()
            self.first_seen[version] = now
            committed = self.commit_time(version)
            # What was committed while nobody served does not count as late.
            if committed is not None and len(self.first_seen) > 1 and now - committed < 5:
                self.freshness.append(now - committed)
                self.updates.append((committed, now))

    def split(self):
        """Seconds of the requests beside an update, and of the others."""
        beside, others, updates = [], [], iter(self.updates + [(float("inf"), float("inf"))])
        update = next(updates)
        for began, seconds in self.requests:
            while began > update[1]:
                update = next(updates)
            (beside if began + seconds >= update[0] else others).append(seconds)
        return beside, others


def milliseconds(seconds, percent):
    return f"{1000 * np.percentile(seconds, percent):.2f}" if seconds else "-"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_export(export, training):
    while not any(export.glob("*/*/manifest.json")):
        training.check()
        time.sleep(0.05)


def wait_for_answer(client, body, *processes):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := client.infer(body)) is None:
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            sys.exit("the server does not answer")
        time.sleep(0.02)
    return answer


def run(directory, seconds):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    repository, export = directory / "repository", directory / "export"
    port = free_port()
    train = [find_cairn(), "ps", "run", "--servers", "2", "--trainers", "2", "--dir", str(repository)]
    train += ["--full-secs", "20", "--incremental-secs", "1", "--", sys.executable, str(HERE / "train.py")]
    train += ["--steps", "1000000", "--pause", "0.03", "--export", str(export)]
    serve = [find_cairn(), "serve", "--model", str(export), "--follow", str(repository), "--name", "ctr"]
    serve += ["--listen", f"127.0.0.1:{port}"]
    ids, _ = clicks(0, 10_001, count=ASKED)
    asked = request(ids)
    held_out, labels = clicks(0, 10_000, count=HELD_OUT)
    evaluated = [request(piece) for piece in np.array_split(held_out, 8)]
    watch, client = Watch(repository), Client(port)
    kills = {seconds // 3: "training", 2 * seconds // 3: "server"}

    def ask():
        """Asks once; what is seen goes on record. The version, or None while nobody answers."""
        at, began = time.perf_counter(), time.time()
        answer = client.infer(asked)
        if answer is None:
            return None
        watch.saw(began, time.perf_counter() - at, *answer)
        return answer[0]

    def served_auc():
        pieces = [wait_for_answer(client, body, training, server)[1] for body in evaluated]
        return float(auc(labels, np.concatenate(pieces)))

    training = Process(train, directory / "training.log")
    wait_for_export(export, training)
    server = Process(serve, directory / "serving.log")
    try:
        version, _ = wait_for_answer(client, asked, training, server)
        print(f"{'second':>6} {'step':>7} {'versions':>9} {'fresh ms':>9} {'p50 ms':>7} {'p99 ms':>7} {'AUC':>6}")
        aucs = [served_auc()]
        begun, served_at_kill = time.monotonic(), version
        for second in range(seconds):
            first, fresh = len(watch.requests), len(watch.freshness)
            while time.monotonic() < begun + second + 1:
                if (answered := ask()) is not None:
                    version = answered
            aucs.append(served_auc())
            took = [seconds for _, seconds in watch.requests[first:]]
            newest = watch.freshness[fresh:]
            print(
                f"{second:>6} {version:>7} {len(watch.first_seen):>9} {milliseconds(newest, 50):>9} "
                f"{milliseconds(took, 50):>7} {milliseconds(took, 99):>7} {aucs[-1]:>6.3f}",
                flush=True,
            )
            if killed := kills.get(second):
                print(f"       the {killed} is killed, and started again", flush=True)
                victim = training if killed == "training" else server
                if victim is training:
                    served_at_kill = version
                victim.kill()
                victim.start()
                if killed == "server":
                    wait_for_answer(client, asked, server)
        # What was started again takes its time, on a machine that has other things to do.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(seen > served_at_kill for seen in watch.first_seen) < NEW_VERSIONS:
            training.check()
            server.check()
            if time.monotonic() > deadline:
                sys.exit(f"the training that was started again is not served: see {directory}")
            ask()
        aucs.append(served_auc())
    finally:
        ends = [threading.Thread(target=process.end) for process in (training, server)]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
    beside, others = watch.split()
    print(
        f"\n{len(watch.first_seen)} versions up to step {max(watch.first_seen)} in {len(watch.requests)} answers\n"
        f"freshness: p50 {milliseconds(watch.freshness, 50)} ms, p99 {milliseconds(watch.freshness, 99)} ms\n"
        f"requests beside an update: p50 {milliseconds(beside, 50)} ms, p99 {milliseconds(beside, 99)} ms; "
        f"otherwise: p50 {milliseconds(others, 50)} ms, p99 {milliseconds(others, 99)} ms\n"
        f"AUC of what was served: first {aucs[0]:.3f}, last {aucs[-1]:.3f}\n"
        f"answers made of two versions: {watch.mixtures}"
    )
    if watch.mixtures:
        sys.exit("an answer was made of two versions")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=int, default=30)
    arguments.add_argument("--directory", default="", help="of repository and export; a new one unless named")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(options.directory or temporary, options.seconds)


if __name__ == "__main__":
    main()
