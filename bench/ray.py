#!/usr/bin/env python3
"""What launches on Ray cost beside jobs of Ray alone, on a real Ray head of this machine.

    bench/ray.py BUILD_DIR [--rounds 11] [--launches 200] [--seconds 10] [--json FILE]

start: from the call to the user's first line, launches and plain jobs of Ray (one POST) in turn, medians, and the median of their differences. Each is a process of Python that Ray
starts first, which both wait for. follow: processor time of the launcher, and calls of Ray's head, while launches wait in Ray's queue.
"""

import argparse
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

ROOT = pathlib.Path(__file__).resolve().parents[1]
IN_RAY = ROOT / "tests" / "services" / "ray" / "in-ray"
MOST_OVER_MS = 300
MOST_CORE_PERCENT = 5
MOST_CALLS = 2


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
    program = pathlib.Path(options.build) / "bin" / "ray_bench"
    words = [program, directory, options.rounds, options.launches, options.seconds, proxy.url]
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json")
    options = parser.parse_args()
    if "CAIRN_RAY_DIRECTORY" not in os.environ:
        os.execv(IN_RAY, [str(IN_RAY), sys.executable, *sys.argv])
    found = measure(options)
    print(f"submit to user code   {found['start_ms']:8.0f} ms, a job of Ray alone {found['ray_ms']:.0f} ms: {found['over_ms']:+.0f} ms (at most +{MOST_OVER_MS})")
    print(
        f"{found['launches']} queued launches  {found['core_percent']:8.2f} % of a core (at most {MOST_CORE_PERCENT}); "
        f"{found['calls_per_second']:.2f} calls of Ray's head a second (at most {MOST_CALLS})"
    )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found) + "\n")
    good = found["over_ms"] <= MOST_OVER_MS and found["core_percent"] <= MOST_CORE_PERCENT and found["calls_per_second"] <= MOST_CALLS
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
