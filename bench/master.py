#!/usr/bin/env python3
"""Speed of a master as its users and its trials meet it: over HTTP, on SQLite.

    bench/master.py BUILD_DIR [--experiments 10000] [--live 200] [--reports 200] [--json FILE] [--directory DIR]

reports: 16 trials, each with a connection of its own, send durable reports one after the other (report_load); beside them one program inserts
as many rows in transactions of 16 (catalog_bench, the same disk, round robin). list: a page of 50 of 10,000 experiments. idle: the processor
time and the memory of a master whose 200 trials wait for orders, each with a long poll. curve: 100,000 points of a metric, of a trial that
reported three, asked for as 1,000, from the request to the last byte of the answer. (The same without HTTP: bench/catalog.py.)
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONNECTIONS = 16
IDLE_SECONDS = 20


class Master:
    def __init__(self, program, folder, *flags):
        self.folder = pathlib.Path(folder)
        command = [program, "master", "--data-dir", self.folder / "data", "--listen", "127.0.0.1:0", "--slots", "1"]
        self.process = subprocess.Popen(
            [str(word) for word in (*command, *flags)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in self.process.stdout:
            if "http://127.0.0.1:" in line:
                self.port = int(line.split("http://127.0.0.1:")[1].split("/")[0].split()[0])
                break
        else:
            raise SystemExit("the master did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.token = (self.folder / "data" / "token").read_text().strip()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, connection, method, path, body=None, token=None):
        data = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": "application/json"}
        while True:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 429:  # of one user, 500 a second
                time.sleep(0.05)
                continue
            if answer.status >= 300:
                raise SystemExit(f"{method} {path}: {answer.status} {text[:300]}")
            return json.loads(text)

    def join(self, connection, name):
        told = self.ask(connection, "POST", "/trial/v1/join", {"external_id": name})
        base = f"/trial/v1/trials/{told['trial_id']}/runs/{told['run_id']}"
        self.ask(connection, "POST", f"{base}/ready", {"rank": 0}, told["token"])
        return base, told["token"]

    def usage(self):
        """Seconds of processor time, and bytes of memory of its own."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), anonymous

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def reports(master, programs, folder, count, rounds=3):
    """Ratios of the rate of plain rows, and reports a second."""
    runs = [master.join(master.connect(), f"reports-{i}") for i in range(CONNECTIONS)]
    lines = "".join(f"{base} {token}\n" for base, token in runs)

    def timed(*command, told=None):
        words = [str(word) for word in command]
        return subprocess.run(words, input=told, capture_output=True, text=True, check=True).stdout

    ours, ratios = [], []
    for number in range(rounds):
        load = (programs / "report_load", master.port, count, 1 + number * count)
        ours.append(CONNECTIONS * count / float(timed(*load, told=lines)))
        url = f"sqlite:{folder}/plain{number}.db"
        done = timed(programs / "catalog_bench", "append", url, CONNECTIONS * count, CONNECTIONS, 1)
        plain = CONNECTIONS * count / json.loads(done)["plain"][0]
        ratios.append(ours[-1] / plain)
    for base, token in runs:
        master.ask(master.connect(), "POST", f"{base}/exit", {"code": 0}, token)
    return statistics.median(ratios), statistics.median(ours)


def pages(master, experiments, looks=200):
    """Seconds of pages of 50, sorted by time."""

    def create(part):
        connection = master.connect()
        for i in part:
            config = f"name: experiment {i * 7919 % experiments}\nentrypoint: 'true'\n"
            master.ask(connection, "POST", "/api/v1/experiments", {"config": config, "paused": True})

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(create, [range(i, experiments, CONNECTIONS) for i in range(CONNECTIONS)]))
    connection, times = master.connect(), []
    sorts = ("id", "name", "state", "progress", "created", "owner")
    for i in range(looks):
        path = f"/api/v1/experiments?limit=50&offset={i * 50 % experiments}&sort={sorts[i % len(sorts)]}"
        path += "&search=7" if i % 5 == 1 else ""
        began = time.monotonic()
        page = master.ask(connection, "GET", path)
        times.append(time.monotonic() - began)
        assert page["total"] > 0
    return sorted(times)


def curve(programs, folder, points=100_000, looks=40):
    """Seconds of reads of a long curve as 1,000 points, sorted."""
    data = pathlib.Path(folder) / "data"
    data.mkdir(parents=True, mode=0o700)
    url = f"sqlite:{data}/cairn.db"
    subprocess.run([programs / "catalog_bench", "curve", url, str(points)], check=True, stdout=subprocess.DEVNULL)
    master = Master(programs / "cairn", folder)
    try:
        connection, times = master.connect(), []
        headers = {"Authorization": f"Bearer {master.token}"}
        for _ in range(looks):
            began = time.monotonic()
            connection.request("GET", "/api/v1/trials/1/metrics?group=training&name=loss&points=1000", headers=headers)
            answer = connection.getresponse()
            text = answer.read()
            times.append(time.monotonic() - began)
            if answer.status != 200:
                raise SystemExit(f"metrics: {answer.status} {text[:300]}")
        metrics = json.loads(text)["metrics"]
        assert 500 <= len(metrics) <= 1000 and metrics[-1]["steps_completed"] == points
    finally:
        master.stop()
    return sorted(times)


def idle(master, live):
    """The share of a core, and bytes, while `live` trials wait for orders."""
    stop = threading.Event()

    def wait(i):
        connection = master.connect()
        base, token = master.join(connection, f"idle-{i}")
        joined.release()
        seen = 0
        while not stop.is_set():
            answer = master.ask(connection, "GET", f"{base}/preemption?timeout=10&seen={seen}", None, token)
            seen = answer["version"]
        master.ask(connection, "POST", f"{base}/exit", {"code": 0}, token)

    joined = threading.Semaphore(0)
    threads = [threading.Thread(target=wait, args=(i,)) for i in range(live)]
    for thread in threads:
        thread.start()
    for _ in threads:
        joined.acquire()
    time.sleep(2)
    before, _ = master.usage()
    began = time.monotonic()
    time.sleep(IDLE_SECONDS)
    after, memory = master.usage()
    share = (after - before) / (time.monotonic() - began)
    stop.set()
    for thread in threads:
        thread.join()
    return share, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=200)
    parser.add_argument("--reports", type=int, default=2000, help="of each connection, in each of three rounds")
    parser.add_argument("--directory", default=None, help="on the disk that is measured")
    parser.add_argument("--json", default=str(ROOT / "bench/out/master.json"))
    options = parser.parse_args()
    programs = pathlib.Path(options.build).resolve() / "bin"
    results = {}
    with tempfile.TemporaryDirectory(prefix="cairn-bench-master-", dir=options.directory) as folder:
        master = Master(programs / "cairn", folder)
        try:
            results["reports_ratio"], results["reports_per_second"] = reports(
                master, programs, folder, options.reports
            )
            times = pages(master, options.experiments)
            results["page_p50"], results["page_p99"] = times[len(times) // 2], times[len(times) * 99 // 100]
            results["idle_share"], results["idle_bytes"] = idle(master, options.live)
        finally:
            master.stop()
        times = curve(programs, pathlib.Path(folder) / "curve")
        results["curve_p50"], results["curve_p99"] = times[len(times) // 2], times[len(times) * 99 // 100]
    results["load"] = os.getloadavg()[0]
    rows = [
        (f"durable reports over {CONNECTIONS} connections, of plain rows", results["reports_ratio"], "", 0.3, None,
         f"{results['reports_per_second']:,.0f}/s"),
        (f"page of 50 of {options.experiments:,} experiments, p99", 1e3 * results["page_p99"], " ms", None, 20,
         f"p50 {1e3 * results['page_p50']:.1f} ms"),
        ("100,000 points of a metric as 1,000 over REST, p99", 1e3 * results["curve_p99"], " ms", None, 50,
         f"p50 {1e3 * results['curve_p50']:.1f} ms"),
        (f"idle with {options.live} live trials, of a core", 1e2 * results["idle_share"], " %", None, 5, ""),
        (f"idle with {options.live} live trials, memory", results["idle_bytes"] / 1e6, " MB", None, 200, ""),
    ]  # fmt: skip
    good = True
    for what, value, unit, at_least, at_most, detail in rows:
        met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        good = good and met
        target = f">= {at_least}" if at_least is not None else f"<= {at_most}{unit}"
        print(f"{'ok  ' if met else 'MISS'} {what:60} {value:8.2f}{unit:3} ({target}; {detail})")
    print(f"     load {results['load']:.1f}")
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
