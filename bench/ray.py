#!/usr/bin/env python3
"""What launches on Ray cost beside jobs of Ray alone, on a real Ray head of this machine.

    bench/ray.py BUILD_DIR [--rounds 11] [--launches 200] [--seconds 10] [--json FILE]

start: from the call to the user's first line, launches and plain jobs of Ray (one POST) in turn, medians, and the median of their differences. Each is a process of Python that Ray
starts first, which both wait for. follow: processor time of the launcher, and calls of Ray's head, while launches wait in Ray's queue.
"""

import http.client
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

import cluster_starts

ROOT = pathlib.Path(__file__).resolve().parents[1]
IN_RAY = ROOT / "tests" / "services" / "ray" / "in-ray"


class Counting(http.server.ThreadingHTTPServer):
    """In front of Ray: passes calls on and counts them."""

    daemon_threads = True

    def __init__(self, address):
        super().__init__(("127.0.0.1", 0), Passing)
        self.ray = urllib.parse.urlsplit(address).netloc
        self.calls = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        self.server.calls += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(self.server.ray)
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = handle_any

    def log_message(self, *_):
        pass


def measure(options):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="cairn-bench-ray-", dir="/tmp"))
    proxy = Counting(os.environ["RAY_API_SERVER_ADDRESS"])
    command = cluster_starts.command(options, "ray_bench", directory, proxy.url)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "FOLLOW\n":
            raise SystemExit("bench/ray.py: ray_bench did not come to its end")
        before = proxy.calls
        found = json.loads(process.stdout.readline())
        found["calls_per_second"] = (proxy.calls - before) / found["seconds"]
        process.wait()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
    return found


def main():
    options = cluster_starts.parse(__doc__, rounds=11)
    if "CAIRN_RAY_DIRECTORY" not in os.environ:
        os.execv(IN_RAY, [str(IN_RAY), sys.executable, *sys.argv])
    found = measure(options)
    cluster_starts.judge(options, found, "a job of Ray alone", found["ray_ms"], "", "calls of Ray's head")


if __name__ == "__main__":
    main()
