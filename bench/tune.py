#!/usr/bin/env python3
"""How fast the tuner is: trials, reports, durable checkpoints, start, restart after kill -9, memory.

    .venv/test/bin/python bench/tune.py [--trials N] [--peer [PYTHON]] [--rounds R] [--only A,B] [--out FILE]

--peer: the same programs run with ray[tune] too, in turn with ours, and the ratios are printed; with the
interpreter of .venv/ray (made by `scripts/venv ray`) or the one that is named. Ray listens on every
address of the machine: it is run in a network and process namespace of its own, which also ends all that
it started (needs root). Everything is on one local disk; Cairn's reports are synced, Ray's are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# One text for both: the names are the same.
PROGRAM = """
import os, sys, time
began = time.time()
which, work, where = sys.argv[1:4]
if which == "ray":
    from ray import tune
    from ray.tune import Checkpoint
    import ray
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False,
             _node_ip_address="127.0.0.1", object_store_memory=100_000_000)
else:
    from cairn import tune
    from cairn.tune import Checkpoint

def mark(config):
    open(where + "/span-%d" % config["i"], "a").write(repr(time.time()) + "\\n")

def spanned(n):
    # From the first report to the last: the start of processes is measured elsewhere.
    times = [float(t) for name in os.listdir(where) if name.startswith("span-")
             for t in open(where + "/" + name)]
    return (max(times) - min(times)) * n / (n - 1)

def noop(config):
    if config["i"] == 0 and not os.path.exists(where + "/first"):
        open(where + "/first", "w").write(repr(time.time()))
    n = config.get("reports", 10)
    for i in range(n):
        tune.report({"i": i})
        if n == 1000 and i in (0, n - 1):
            mark(config)

def saves(config):
    import tempfile
    data = bytearray(os.urandom(1 << 20))
    for i in range(100):
        data[i] ^= 1
        with tempfile.TemporaryDirectory() as d:
            with open(d + "/data", "wb") as f:
                f.write(data)
            tune.report({"i": i}, checkpoint=Checkpoint.from_directory(d))
        if i in (0, 99):
            mark(config)

def slow(config):
    c = tune.get_checkpoint()
    open(where + "/running-%d" % time.time_ns(), "w").write(repr(time.time()))
    for i in range(100000):
        time.sleep(0.02)
        tune.report({"i": i})

class Noop(tune.Trainable):
    def setup(self, config):
        self.i = 0
    def step(self):
        self.i += 1
        return {"i": self.i, "done": self.i == 10}
    def reset_config(self, config):
        self.setup(config)
        return True

def run(f, n, at_a_time, name="e", reuse_actors=None, **more):
    checkpoints = tune.CheckpointConfig(num_to_keep=2) if f is saves else None
    if which == "ray" and tune.Tuner.can_restore(where + "/" + name):
        # Ours goes on by the same name.
        return tune.Tuner.restore(where + "/" + name, f).fit()
    t = tune.Tuner(f, param_space={"i": tune.grid_search(list(range(n))), **more},
                   tune_config=tune.TuneConfig(max_concurrent_trials=at_a_time,
                                               reuse_actors=reuse_actors),
                   run_config=tune.RunConfig(name=name, storage_path=where, verbose=0,
                                             checkpoint_config=checkpoints))
    began = time.time()
    t.fit()
    return time.time() - began

if work == "noop":
    print("SECONDS", run(noop, 64, 2))
elif work == "reused":
    print("SECONDS", run(Noop, 64, 2, reuse_actors=True))
elif work == "reports":
    run(noop, 8, 8, reports=1000)
    print("SECONDS", spanned(1000))
elif work == "saves":
    run(saves, 2, 2)
    print("SECONDS", spanned(100))
elif work == "start":
    run(noop, 1, 1)
    print("SECONDS", float(open(where + "/first").read()) - began)
elif work == "slow":
    run(slow, 2, 2)
elif work == "many":
    n = int(sys.argv[4])
    print("SECONDS", run(noop, n, 8, reports=1))
elif work == "restore":
    began = time.time()
    tune.Tuner.restore(where + "/e", noop).fit()
    print("SECONDS", time.time() - began)
"""


# A network of its own with nothing but the loopback, and the end of all processes with the first.
ALONE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
         "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]  # fmt: skip


def command(which: str, python: str, work: str, where: str, *more: str) -> list[str]:
    program = os.path.join(where, "program.py")
    os.makedirs(where, exist_ok=True)
    with open(program, "w") as file:
        file.write(PROGRAM)
    alone = ALONE if which == "ray" else []
    return [*alone, python, program, which, work, where, *more]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.path.join(ROOT, "python"),
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def seconds(which: str, python: str, work: str, where: str, *more: str) -> float:
    done = subprocess.run(
        command(which, python, work, where, *more),
        capture_output=True,
        text=True,
        env=environment(),
    )
    for line in done.stdout.splitlines():
        if line.startswith("SECONDS "):
            return float(line.split()[1])
    raise SystemExit(f"{which} {work} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def restart(which: str, python: str, where: str) -> float:
    """kill -9 of the tuner; then from the start of the process to the first trial that runs again."""
    def running() -> set[str]:
        return {n for n in os.listdir(where) if n.startswith("running-")}

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            command(which, python, "slow", where),
            env=environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    first = start()
    while len(running()) < 2:
        time.sleep(0.01)
    time.sleep(1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = running()
    began = time.time()
    second = start()
    while not running() - before:
        time.sleep(0.001)
    name = sorted(running() - before)[0]
    time.sleep(0.05)
    elapsed = float(open(os.path.join(where, name)).read()) - began
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    return elapsed


def memory(python: str, where: str) -> tuple[float, float]:
    """MB of the tuner with 8 living trials, and of each trial beyond the process it was forked from."""
    program = PROGRAM.replace("run(slow, 2, 2)", "run(slow, 8, 8)")
    path = os.path.join(where, "memory.py")
    os.makedirs(where, exist_ok=True)
    with open(path, "w") as file:
        file.write(program)
    process = subprocess.Popen(
        [python, path, "cairn", "slow", where], env=environment(), start_new_session=True
    )

    def field(pid: int, name: str) -> float:
        for line in open(f"/proc/{pid}/smaps_rollup"):
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1000
        return 0.0

    def children(pid: int) -> list[int]:
        return [
            int(p)
            for t in os.listdir(f"/proc/{pid}/task")
            for p in open(f"/proc/{pid}/task/{t}/children").read().split()
        ]

    while len([n for n in os.listdir(where) if n.startswith("running-")]) < 8:
        time.sleep(0.02)
    time.sleep(2)
    [zygote] = children(process.pid)
    tuner = field(process.pid, "Rss")
    own = [field(pid, "Private_Dirty") for pid in children(zygote)]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return tuner, statistics.mean(own)


# What is measured: words, unit, figure from seconds, and how many times better than Ray it is to be.
ROWS = {
    "noop": ("64 no-op trials × 10 reports, 2 at a time", "s", lambda t: t, 20),
    "reports": ("8 trials × 1,000 reports", "reports/s", lambda t: 8000 / t, 20),
    "saves": (
        "2 trials × 100 reports with 1 MB checkpoints, 2 kept",
        "reports/s",
        lambda t: 200 / t,
        5,
    ),
    "start": ("import to first trial running", "s", lambda t: t, 10),
    "restart": ("kill -9, then process start to first trial running", "s", lambda t: t, 10),
}
FASTEST = 2  # … than its class API with reused actors


def measure(which: str, python: str, work: str) -> float:
    where = tempfile.mkdtemp(prefix=f"bench-tune-{which}-")
    try:
        if work == "restart":
            return restart(which, python, where)
        return seconds(which, python, work, where)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def row(work: str, contenders: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Measures and prints one."""
    name, unit, convert, goal = ROWS[work]
    runs = [(which, which, work) for which in contenders]
    if work == "noop" and "ray" in contenders:
        runs.append(("ray, class API, actors reused", "ray", "reused"))
    figures: dict[str, list[float]] = {label: [] for label, _, _ in runs}
    for _ in range(rounds):
        for label, which, program in runs:
            figures[label].append(convert(measure(which, contenders[which], program)))
    medians = {label: statistics.median(found) for label, found in figures.items()}
    ours = medians["cairn"]
    spread = f"({min(figures['cairn']):.2f} … {max(figures['cairn']):.2f})"
    print(f"{name:58} {ours:10.2f} {unit}  {spread}", flush=True)
    for label, theirs in list(medians.items())[1:]:
        ratio = ours / theirs if unit == "reports/s" else theirs / ours
        wanted = goal if label == "ray" else FASTEST
        print(f"    {label:54} {theirs:10.2f} {unit}  {ratio:6.1f} × (wanted: {wanted} ×)", flush=True)
    return figures


def restored(trials: int) -> float:
    where = tempfile.mkdtemp(prefix="bench-tune-many-")
    seconds("cairn", sys.executable, "many", where, str(trials))
    took = seconds("cairn", sys.executable, "restore", where)
    print(f"{f'restore of {trials} finished trials':58} {took:10.2f} s", flush=True)
    shutil.rmtree(where, ignore_errors=True)
    return took


def remembered() -> tuple[float, float]:
    where = tempfile.mkdtemp(prefix="bench-tune-memory-")
    tuner, worker = memory(sys.executable, where)
    shutil.rmtree(where, ignore_errors=True)
    print(f"{'memory of the tuner with 8 trials':58} {tuner:10.1f} MB")
    print(f"{'private memory of each trial':58} {worker:10.1f} MB")
    return tuner, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trials", type=int, default=1000, help="of the experiment that is restored"
    )
    parser.add_argument(
        "--peer",
        nargs="?",
        const=os.path.join(ROOT, ".venv", "ray", "bin", "python"),
        help="an interpreter with ray[tune]; that of .venv/ray",
    )
    parser.add_argument("--only", help="some of: noop, reports, saves, start, restart, many, memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="JSON")
    args = parser.parse_args()
    if args.peer and not os.access(args.peer, os.X_OK):
        raise SystemExit(f"there is no {args.peer}: run `scripts/venv ray`, or name an interpreter")
    contenders = {"cairn": sys.executable, **({"ray": args.peer} if args.peer else {})}
    wanted = set(args.only.split(",")) if args.only else {*ROWS, "many", "memory"}
    if unknown := wanted - {*ROWS, "many", "memory"}:
        raise SystemExit(f"--only: there is no {', '.join(sorted(unknown))}")
    report: dict[str, object] = {"rounds": args.rounds, "figures": {}}
    print(f"load average {os.getloadavg()[0]:.1f} before; medians of {args.rounds} rounds")
    for work in [w for w in ROWS if w in wanted]:
        report["figures"][work] = row(work, contenders, args.rounds)  # type: ignore[index]
    if "many" in wanted:
        report["trials"] = args.trials
        report["restore_s"] = restored(args.trials)
    if "memory" in wanted:
        report["tuner_mb"], report["worker_mb"] = remembered()
    if args.out:
        with open(args.out, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
