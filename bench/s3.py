#!/usr/bin/env python3
"""Speed of repositories on a bucket, against boto3's transfer manager in the same run.

    bench/s3.py BUILD_DIR [--bytes 1073741824] [--rounds 5] [--checkpoints 10000] [--json FILE]

A versitygw is started for it (scripts/service versitygw). put and get: one object, the same part size
and number of connections for both, round robin, medians. Peak memory: of the process that puts and gets,
and what a save that makes no snapshot and a restore in place take above the state, of as many bytes.
stall: what the caller of save waits for, on a bucket and on a local disk. Run by the Python of .venv/test.
"""

import argparse
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/tests")]

PART = 8 << 20
CONNECTIONS = 8
MIB = 1 << 20


def others_cpu():
    """Seconds of CPU that the machine has used so far."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(x) for x in stat.readline().split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, program, url, size):
        self.program, self.url, self.size = program, url, size

    def run(self, *arguments):
        done = subprocess.run(
            [self.program, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    def put(self, name):
        return self.run("put", self.url, name, self.size, PART, CONNECTIONS)

    def whole(self, what):
        return self.run(what, self.url + "-whole", self.size, PART, CONNECTIONS)

    def get(self, name):
        return self.run("get", self.url, name, self.size, PART, CONNECTIONS)


class Sink(io.RawIOBase):
    """Takes bytes at any offset and keeps none: a file's cost is not the network's."""

    def writable(self):
        return True

    def seekable(self):
        return True

    def seek(self, *_):
        return 0

    def write(self, data):
        return len(data)


def transfer_rounds(bench, client, bucket, rounds):
    import boto3.s3.transfer

    config = boto3.s3.transfer.TransferConfig(
        multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=CONNECTIONS
    )
    data = os.urandom(PART) * (bench.size // PART + 1)
    data = memoryview(data)[: bench.size]
    rows = {"put": [], "get": [], "boto3 put": [], "boto3 get": []}
    peak = 0
    for i in range(rounds):
        before, began = others_cpu(), time.monotonic()
        ours = bench.put(f"ours-{i}")
        rows["put"].append(ours["seconds"])
        begin = time.monotonic()
        client.upload_fileobj(io.BytesIO(data), bucket, f"theirs-{i}", Config=config)
        rows["boto3 put"].append(time.monotonic() - begin)
        back = bench.get(f"ours-{i}")
        rows["get"].append(back["seconds"])
        begin = time.monotonic()
        client.download_fileobj(bucket, f"theirs-{i}", Sink(), Config=config)
        rows["boto3 get"].append(time.monotonic() - begin)
        peak = max(peak, ours["peak_bytes"], back["peak_bytes"])
        client.delete_object(Bucket=bucket, Key=f"bench/ours-{i}")
        client.delete_object(Bucket=bucket, Key=f"theirs-{i}")
        used = (others_cpu() - before) / (time.monotonic() - began)
        print(f"  round {i + 1}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in rows.items())
              + f"; cores busy {used:.1f}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    return {name: statistics.median(times) for name, times in rows.items()}, peak


def stalls(url, directory, rounds):
    """Median of what save() holds its caller up for, in seconds: on the bucket, on the disk."""
    import numpy as np

    import cairn

    state = {"w": np.zeros(64 * MIB, np.uint8)}
    times = {url: [], directory: []}
    managers = {where: cairn.CheckpointManager(where, keep_last=1) for where in times}
    for i in range(rounds + 1):
        for where, manager in managers.items():
            state["w"][::4096] = i
            handle = manager.save(i, state)
            # Also for the removal of the one before: a further save would wait for it. Trainings save seldom.
            manager.wait()
            if i > 0:  # the first allocates
                times[where].append(handle.stall_seconds)
    for manager in managers.values():
        manager.close()
    return statistics.median(times[url]), statistics.median(times[directory])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("build")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--json", default=str(ROOT / "bench/out/s3.json"))
    options = parser.parse_args()
    import boto3
    from s3_server import Server

    program = str(pathlib.Path(options.build).resolve() / "bin/s3_bench")
    with tempfile.TemporaryDirectory(prefix="cairn-bench-s3-") as folder:
        server = Server(folder)
        try:
            os.environ.update(server.environment())
            client = boto3.client("s3")
            client.create_bucket(Bucket="bench")
            bench = Bench(program, "s3://bench/bench", options.bytes)
            print(f"{options.bytes / MIB:.0f} MiB, parts of {PART // MIB} MiB, {CONNECTIONS} connections, "
                  f"boto3 {boto3.__version__}, medians of {options.rounds} rounds")  # fmt: skip
            medians, peak = transfer_rounds(bench, client, "bench", options.rounds)
            bound = CONNECTIONS * PART + 64 * MIB
            saved, restored = bench.whole("save"), bench.whole("restore")
            s3_stall, disk_stall = stalls("s3://bench/stall", folder + "/stall", options.rounds)
            bench.run("fill", "s3://bench/many", options.checkpoints)
            listed = bench.run("list", "s3://bench/many")
        finally:
            server.stop()
    assert listed["count"] == options.checkpoints, listed
    result = {
        "put_seconds": medians["put"], "get_seconds": medians["get"],
        "put_ratio": medians["boto3 put"] / medians["put"],
        "get_ratio": medians["boto3 get"] / medians["get"],
        "peak_bytes": peak, "peak_bound_bytes": bound,
        "save_peak_bytes": saved["peak_bytes"], "restore_peak_bytes": restored["peak_bytes"],
        "stall_s3": s3_stall, "stall_disk": disk_stall,
        "checkpoints": options.checkpoints, "list_names_seconds": listed["names_seconds"],
        "list_seconds": listed["seconds"], "bytes": options.bytes, "load": os.getloadavg()[0],
    }  # fmt: skip
    print(f"put   {result['put_ratio']:.2f} x boto3 (wanted: 1.2)")
    print(f"get   {result['get_ratio']:.2f} x boto3 (wanted: 1.2)")
    print(f"peak  put and get {peak / MIB:.0f} MiB, a save {saved['peak_bytes'] / MIB:.0f} MiB and a restore "
          f"{restored['peak_bytes'] / MIB:.0f} MiB above the state (bound: {bound / MIB:.0f} MiB)")  # fmt: skip
    print(
        f"stall {s3_stall * 1e3:.1f} ms on the bucket, {disk_stall * 1e3:.1f} ms on the disk (wanted: within 10 %)"
    )
    print(f"list  {options.checkpoints} checkpoints: names {listed['names_seconds']:.2f} s, "
          f"with all manifests and notes {listed['seconds']:.2f} s (wanted: 2)")  # fmt: skip
    pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
