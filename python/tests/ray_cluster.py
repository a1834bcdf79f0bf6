"""The real Ray beside which these tests run: tests/services/ray/in-ray scripts/pytest python/tests/test_ray*.py"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

PATIENCE_SECONDS = 120


class Ray:
    def __init__(self):
        assert "CAIRN_RAY_DIRECTORY" in os.environ, "there is no Ray to test with: run this by tests/services/ray/in-ray"
        self.address = os.environ["RAY_API_SERVER_ADDRESS"]
        self.programs = pathlib.Path(os.environ["CAIRN_RAY_BIN"])

    def ask(self, path, method="GET"):
        request = urllib.request.Request(self.address + path, method=method)
        request.add_header("Authorization", "Bearer " + os.environ["RAY_AUTH_TOKEN"])
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)

    def jobs(self, *states):
        """Submitted jobs that are in one of the states, the living ones when none is named."""
        wanted = states or ("PENDING", "RUNNING")
        return [job for job in self.ask("/api/jobs/") if job["type"] == "SUBMISSION" and job["status"] in wanted]

    def stop(self, job):
        """As people do it."""
        subprocess.run([self.programs / "ray", "job", "stop", "--no-wait", job], check=True, capture_output=True, timeout=PATIENCE_SECONDS)

    def kill(self, node):
        """Everything of a node, with SIGKILL."""
        while found := [*self._processes_of(node)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def reachable(self):
        try:
            self.ask("/api/version")
        except OSError:
            return False
        return True

    def start(self, node):
        """"head" or "second"."""
        subprocess.run([pathlib.Path(os.environ["CAIRN_RAY_DIRECTORY"]) / "start", node], check=True)

    @staticmethod
    def _processes_of(node):
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"CAIRN_RAY_NODE={node}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)

    def until(self, what, predicate, patience=PATIENCE_SECONDS):
        deadline = time.monotonic() + patience
        while not (answer := predicate()):
            assert time.monotonic() < deadline, f"in vain: {what}\n{self.ask('/api/jobs/')}"
            time.sleep(0.1)  # it tells when it is asked
        return answer
