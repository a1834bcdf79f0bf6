#!/usr/bin/env python3
"""Cairn beside the libraries that people use today: same state, same disk, interleaved rounds.

    bench/peers/run.py [--only cairn,torch.save] [--rounds 5] [--size 2GiB] [--quick]

Beside them, in rounds of their own, the engine from Python and from C++: what Python adds. Both are of
one build (build/dev has the native module of the package and cairn_bench).

Each contender runs in a process of its own; durable means fsync of every file and directory, for
all; loads are cold (caches dropped, which needs root) into memory that is touched. Prints a table;
writes peers.json and peers.png into bench/out/; with --write also docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import contenders  # noqa: E402

NAMES = (
    "cairn",
    "torch.save",
    "safetensors.torch",
    "safetensors.numpy",
    "torch DCP",
    "orbax",
    "paddle.save",
    "numpy.save",
)
ASYNC = ("cairn", "torch DCP", "orbax")
ENGINE = "cairn C++"  # without Python
MOST_OTHERS = 0.5  # cores that others may use in a round that counts
SMALL_COUNT, SMALL_BYTES = 10_000, 4096


class Worker:
    """A contender's process."""

    def __init__(self, name, count, nbytes, seed=1):
        env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'python'}:{HERE}",
            "JAX_PLATFORMS": "cpu",
            "GLOG_minloglevel": "3",
        }
        command = [sys.executable, HERE / "worker.py", name, count, nbytes, seed]
        if name == ENGINE:
            program = ROOT / "build" / "dev" / "bin" / "cairn_bench"
            command = [program, "contender", "--directory", "."]
            command += ["--bytes", count * nbytes, "--variant", count]
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        hello = self._read()
        self.version, self.digest = hello["version"], hello["digest"]

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the contender's process ended")
        return json.loads(line)

    def begin(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def do(self, **command):
        self.begin(**command)
        return self._read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def cpu_of_all():
    fields = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def cpu_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def path_of(directory, name, what):
    return str(directory / f"{name.replace(' ', '-')}-{what}")


def started(names):
    """The contenders that start here, with their versions; the others are named."""
    versions = {}
    for name in names:
        try:
            worker = Worker(name, 1, 4096)
        except (RuntimeError, OSError) as error:
            print(f"  {name}: left out: {error}", file=sys.stderr)
            continue
        versions[name] = worker.version
        worker.close()
    return versions


def in_turn(names, rounds, count, nbytes, label, turning=False):
    """Round robin. Each turn has a process of its own: all states at once do not fit into memory.
    Turning, every second round goes backwards: nobody always comes after the same neighbour."""
    for number in range(rounds):
        for name in list(names)[:: -1 if turning and number % 2 else 1]:
            print(f"  {label} round {number + 1}: {name}", file=sys.stderr, flush=True)
            worker = Worker(name, count, nbytes)
            yield name, worker
            worker.close()


def checked(name, what, reply):
    if "error" in reply:
        raise SystemExit(f"{name}: {what}: {reply['error']}")
    return reply


def measure(names, directory, rounds, count, nbytes, label):
    """Interleaved saves and cold loads; {name: {"save": [...], "load": [...]}}."""
    found = {name: {"save": [], "load": []} for name in names}
    total = count * nbytes
    for name, worker in in_turn(names, rounds, count, nbytes, label):
        path = path_of(directory, name, label)
        checked(name, "save", worker.do(do="save", path=path, touch=total))  # warms it up
        saved = checked(name, "save", worker.do(do="save", path=path, touch=total))
        drop_caches()
        loaded = checked(name, "load", worker.do(do="load", path=path, touch=2 * total))
        if loaded["digest"] != saved["digest"]:
            raise SystemExit(f"{name} loaded other bytes than it saved")
        found[name]["save"].append(saved["seconds"])
        found[name]["load"].append(loaded["seconds"])
        contenders.remove(path)
    return found


def measure_async(names, directory, rounds, count, nbytes):
    found = {
        name: {"blocked": [], "lazy": [], "before": [], "during": [], "seconds": []}
        for name in names
    }
    memcpy = []
    total = count * nbytes
    for name, worker in in_turn(names, rounds, count, nbytes, "async"):
        path = path_of(directory, name, "async")
        checked(name, "async save", worker.do(do="async", path=path, touch=2 * total))
        reply = checked(name, "async save", worker.do(do="async", path=path, touch=2 * total))
        loop = checked(name, "matmul", worker.do(do="matmul", path=path))
        found[name]["blocked"].append(reply["blocked"])
        for key in ("before", "during", "seconds"):
            found[name][key].append(loop[key])
        if name == "cairn":
            lazy = worker.do(do="async", path=path, lazy=True, touch=0)
            found[name]["lazy"].append(checked(name, "lazy save", lazy)["blocked"])
            memcpy.append(checked(name, "memcpy", worker.do(do="memcpy"))["seconds"])
        contenders.remove(path)
    return found, memcpy


def measure_engine(directory, rounds, count, nbytes, label, repeats=3):
    """The engine from Python and from C++, in turns:
    {name: {"save": [...], "blocked": [...], "load": [...]}}, a median of each turn; and in "others" the
    cores that were taken by others meanwhile."""
    names = ("cairn", ENGINE)
    found = {name: {"save": [], "blocked": [], "load": [], "others": []} for name in names}
    total = count * nbytes
    for name, worker in in_turn(names, rounds, count, nbytes, label, turning=True):
        path = path_of(directory, name, label)
        save = {"do": "save", "path": path, "touch": total}
        for _ in range(3):  # until there are removed files to write over
            checked(name, "save", worker.do(**save))
        turn = {"save": [], "blocked": [], "load": []}
        pid, begun = worker.process.pid, time.perf_counter()
        others = cpu_of_all() - cpu_of(pid) - time.process_time()
        for _ in range(repeats):
            os.sync()
            reply = worker.do(do="async", path=path, touch=total)
            turn["blocked"].append(checked(name, "async save", reply)["blocked"])
            os.sync()
            saved = checked(name, "save", worker.do(**save))
            turn["save"].append(saved["seconds"])
            drop_caches()
            loaded = checked(name, "load", worker.do(do="load", path=path, touch=total))
            turn["load"].append(loaded["seconds"])
            if loaded["digest"] != saved["digest"]:
                raise SystemExit(f"{name} loaded other bytes than it saved")
        others = cpu_of_all() - cpu_of(pid) - time.process_time() - others
        found[name]["others"].append(others / (time.perf_counter() - begun))
        for what, seconds in turn.items():
            found[name][what].append(statistics.median(seconds))
        contenders.remove(path)
    return found


def python_part(directory, rounds, count, nbytes):
    """What the engine does of one state, from Python and from C++; {} where one of them does not start."""
    if len(started(("cairn", ENGINE))) < 2:
        return {}
    return {
        f"{count} x {nbytes >> 20} MiB": measure_engine(
            directory, rounds, count, nbytes, "python big"
        ),
        f"{SMALL_COUNT:,} x 4 KiB": measure_engine(
            directory, rounds, SMALL_COUNT, SMALL_BYTES, "python small"
        ),
    }


def try_load(name, count, nbytes, path):
    """What a fresh process reads; some libraries crash on a damaged file."""
    reader = Worker(name, count, nbytes, seed=2)
    try:
        return reader.do(do="load", path=path, touch=0)
    except RuntimeError as error:
        return {"error": str(error)}
    finally:
        reader.kill()


def killed_while_overwriting(name, directory, tries):
    """How often the earlier state (or the new one, whole) was still there."""
    path = path_of(directory, name, "kill")
    choose = random.Random(7)
    count, nbytes = 16, 8 << 20
    probe = Worker(name, count, nbytes)
    old = probe.do(do="save", path=path, touch=0)
    probe.do(do="change")
    new = probe.do(do="save", path=path, touch=0)
    probe.close()
    kept = 0
    for _ in range(tries):
        contenders.remove(path)
        writer = Worker(name, count, nbytes)
        writer.do(do="save", path=path, touch=0)
        writer.do(do="change")
        writer.begin(do="save", path=path, touch=0)
        time.sleep(new["seconds"] * choose.uniform(0.1, 0.9))
        writer.kill()
        kept += try_load(name, count, nbytes, path).get("digest") in (old["digest"], new["digest"])
    return kept


def flipped_byte(name, directory):
    """Whether a flipped byte inside of the largest file is noticed."""
    path = Path(path_of(directory, name, "flip"))
    worker = Worker(name, 4, 8 << 20)
    saved = worker.do(do="save", path=str(path), touch=0)
    worker.close()
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(largest.stat().st_size * 3 // 8)  # inside of a tensor, not between two
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    reply = try_load(name, 4, 8 << 20, str(path))
    if "error" in reply:
        return "detected"
    return "not read" if reply["digest"] == saved["digest"] else "silent"


def rate(total, times):
    return total / statistics.median(times) / 1e9 if times else float("nan")


def table(result):
    rows = [
        "| | version | save durable GB/s | cold load GB/s | 10,000 × 4 KiB save MB/s | load MB/s "
        "| killed while overwriting | flipped byte |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in result["names"]:
        big, small = result["big"].get(name), result["small"].get(name)
        if big is None:
            continue
        kept = result["kept"].get(name)
        shown = "not tried" if kept is None else f"kept {kept} of {result['tries']}"
        rows.append(
            f"| {name} | {result['versions'][name]} | {rate(result['bytes'], big['save']):.2f} | "
            f"{rate(result['bytes'], big['load']):.2f} | "
            f"{1000 * rate(SMALL_COUNT * SMALL_BYTES, small['save']):.0f} | "
            f"{1000 * rate(SMALL_COUNT * SMALL_BYTES, small['load']):.0f} | {shown} | "
            f"{result['flips'].get(name, 'not tried')} |"
        )
    return rows


def async_table(result):
    rows = [
        "| | blocked s | lazy s | matmul during / before | durable after s |",
        "|---|---|---|---|---|",
    ]
    for name, found in result["async"].items():
        lazy = f"{statistics.median(found['lazy']):.4f}" if found["lazy"] else "–"
        kept = statistics.median(d / b for d, b in zip(found["during"], found["before"]))
        rows.append(
            f"| {name} | {statistics.median(found['blocked']):.3f} | {lazy} | {kept:.2f} | "
            f"{statistics.median(found['seconds']):.2f} |"
        )
    return rows


PYTHON_PARTS = (("save", "durable save"), ("blocked", "blocked"), ("load", "cold load"))


def python_table(result):
    rows = ["| | | Python ms | C++ ms | Python / C++ |", "|---|---|---|---|---|"]
    for state, found in result.get("python", {}).items():
        for what, shown in PYTHON_PARTS:
            both = in_quiet_rounds(found, what)
            python, engine = (1e3 * statistics.median(times) for times in zip(*both))
            ratio = statistics.median(a / b for a, b in both)
            rows.append(f"| {state} | {shown} | {python:.1f} | {engine:.1f} | {ratio:.2f} |")
    return rows if len(rows) > 2 else []


def in_quiet_rounds(found, what):
    """[(Python's time, the engine's), ...] of the rounds that nobody disturbed; of all, if there are none."""
    rounds = list(zip(found["cairn"][what], found[ENGINE][what]))
    others = zip(found["cairn"]["others"], found[ENGINE]["others"])
    return [r for r, o in zip(rounds, others) if max(o) <= MOST_OTHERS] or rounds


def python_remarks(result):
    """How many rounds counted."""
    remarks = []
    for state, found in result.get("python", {}).items():
        others = list(zip(found["cairn"]["others"], found[ENGINE]["others"]))
        quiet = sum(max(o) <= MOST_OTHERS for o in others)
        counted = f"{quiet} of {len(others)} rounds count" if quiet else "every round was disturbed"
        remarks.append(
            f"Python beside C++, {state}: {counted}; others used up to {max(map(max, others)):.1f} cores"
        )
    return remarks


def python_targets(result):
    """Python adds at most 5 %."""
    return [
        (
            f"{state} {shown}: C++ / Python",
            0.95,
            statistics.median(b / a for a, b in in_quiet_rounds(found, what)),
        )
        for state, found in result.get("python", {}).items()
        for what, shown in PYTHON_PARTS
    ]


def targets(result):
    """(what, target, measured): ratios within this run."""
    return peer_targets(result) + python_targets(result)


def peer_targets(result):
    big, small = result["big"], result["small"]
    peers = [n for n in big if n != "cairn"]
    middle = {n: {k: statistics.median(v) for k, v in big[n].items()} for n in big}
    little = {n: {k: statistics.median(v) for k, v in small[n].items()} for n in small}
    rows = []
    if "cairn" not in big or not peers:
        return rows
    best_save = min(middle[n]["save"] for n in peers)
    best_load = min(middle[n]["load"] for n in peers)
    rows.append(("durable save / best peer", 1.0, best_save / middle["cairn"]["save"]))
    for peer, target in (("torch.save", 1.4), ("torch DCP", 1.8)):
        if peer in middle:
            rows.append(
                (f"durable save / {peer}", target, middle[peer]["save"] / middle["cairn"]["save"])
            )
    rows.append(("cold verified load / best peer", 1.0, best_load / middle["cairn"]["load"]))
    for peer, target in (
        ("safetensors.torch", 1.0),
        ("safetensors.numpy", 1.0),
        ("torch.save", 4.0),
    ):
        if peer in little:
            for what in ("save", "load"):
                rows.append(
                    (
                        f"10,000 x 4 KiB {what} / {peer}",
                        target,
                        little[peer][what] / little["cairn"][what],
                    )
                )
    asynchronous = result["async"]
    if "torch DCP" in asynchronous and "cairn" in asynchronous:
        mine = statistics.median(asynchronous["cairn"]["blocked"])
        rows.append(
            (
                "blocked: DCP async_save / cairn",
                3.0,
                statistics.median(asynchronous["torch DCP"]["blocked"]) / mine,
            )
        )
        rows.append(
            (
                "lazy: memcpy / blocked",
                10.0,
                statistics.median(result["memcpy"])
                / statistics.median(asynchronous["cairn"]["lazy"]),
            )
        )
        rows.append(
            (
                "matmul kept during a save",
                0.85,
                statistics.median(
                    d / b
                    for d, b in zip(
                        asynchronous["cairn"]["during"], asynchronous["cairn"]["before"]
                    )
                ),
            )
        )
    return rows


def plot(result, out):
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for axis, what, title in (
        (axes[0], "save", "durable save, GB/s"),
        (axes[1], "load", "cold load, GB/s"),
    ):
        names = [n for n in result["names"] if n in result["big"]]
        values = [rate(result["bytes"], result["big"][n][what]) for n in names]
        colors = ["#2a6f4e" if n == "cairn" else "#9aa5ad" for n in names]
        axis.barh(names[::-1], values[::-1], color=colors[::-1])
        axis.set_title(title)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="256 MiB, 2 rounds, 1 try")
    parser.add_argument(
        "--again",
        choices=["async", "python"],
        help="measures this part anew, beside the last run's others",
    )
    parser.add_argument("--directory", default=None, help="on the disk to measure")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("dropping the caches needs root")
    number, unit = re.fullmatch(r"(\d+)\s*([KMG])iB", options.size).groups()
    total = int(number) << {"K": 10, "M": 20, "G": 30}[unit]
    rounds, tries = options.rounds, options.tries
    if options.quick:
        total, rounds, tries = 256 << 20, 2, 1
    names = [n for n in options.only.split(",") if n]
    out = ROOT / "bench" / "out"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory or str(out), prefix="peers-") as scratch:
        directory = Path(scratch)
        count = 64
        load, cpu, wall = os.getloadavg()[0], cpu_of_all(), time.perf_counter()
        each = total // count
        if options.again:
            result = json.loads((out / "peers.json").read_text())
            if result["bytes"] != total:
                raise SystemExit("the last run had another --size; run all parts")
            if options.again == "async":
                running = [n for n in ASYNC if n in result["big"]]
                result["async"], result["memcpy"] = measure_async(
                    running, directory, rounds, count, each
                )
                result["load"] = load
            else:
                result["python"] = python_part(directory, rounds, count, each)
        else:
            versions = started(names)
            big = measure(versions, directory, rounds, count, each, "big")
            small = measure(versions, directory, rounds, SMALL_COUNT, SMALL_BYTES, "small")
            running = [n for n in ASYNC if n in big]
            asynchronous, memcpy = measure_async(running, directory, rounds, count, each)
            python = python_part(directory, rounds, count, each) if "cairn" in big else {}
            result = {
                "names": names,
                "versions": versions,
                "bytes": total,
                "rounds": rounds,
                "tries": tries,
                "big": big,
                "small": small,
                "async": asynchronous,
                "memcpy": memcpy,
                "python": python,
                "kept": {n: killed_while_overwriting(n, directory, tries) for n in big},
                "flips": {n: flipped_byte(n, directory) for n in big},
                "cpu_all": (cpu_of_all() - cpu) / (time.perf_counter() - wall),
                "load": load,
                "kernel": platform.release(),
                "cores": os.cpu_count(),
            }
    (out / "peers.json").write_text(json.dumps(result, indent=1))
    plot(result, out / "peers.png")
    tables = (table(result), async_table(result), python_table(result))
    text = "\n\n".join("\n".join(rows) for rows in tables if rows) + "\n"
    verdicts = [
        f"{what:45} >= {target:<5} {measured:8.2f}  {'pass' if measured >= target else 'MISS'}"
        for what, target, measured in targets(result)
    ]
    setting = (
        f"{total >> 20} MiB as {count} tensors, {rounds} rounds, medians; {result['cores']} cores, "
        f"Linux {result['kernel']}, load before {result['load']:.1f}"
    )
    verdicts += python_remarks(result)
    print(text + "\n" + "\n".join(verdicts) + "\n" + setting)
    if options.write:
        write_page(text, verdicts, setting, out)


def write_page(tables, verdicts, setting, out):
    """The page that people read; written by this program alone."""
    docs = ROOT / "docs"
    shutil.copy(out / "peers.png", docs / "benchmarks.png")
    shutil.copy(out / "peers.json", docs / "benchmarks.json")
    (docs / "benchmarks.md").write_text(
        "# Beside other libraries\n\n"
        "Written by `make bench-peers ARGS=--write`. Same state, same disk, interleaved rounds; durable\n"
        "means that every file and directory was synced, for all; loads are cold, into memory that is\n"
        "touched, and Cairn's compare every checksum. The state changes between Cairn's saves, so that\n"
        "nothing is linked. What killed and flipped mean is in [bench/peers/run.py](../bench/peers/run.py).\n"
        "The last table is the engine alone, called from Python and from C++ in turns, of one build: what\n"
        "Python adds.\n\n"
        f"{setting}. Every round: [benchmarks.json](benchmarks.json).\n\n"
        f"{tables}\n![rates](benchmarks.png)\n\n## Targets\n\n```\n"
        + "\n".join(verdicts)
        + "\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
