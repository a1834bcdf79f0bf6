#!/usr/bin/env python3
"""How fast the tuner is: trials, reports, durable checkpoints, start, restart after kill -9, memory.

    .venv/test/bin/python bench/tune.py [--trials N] [--peer PYTHON] [--rounds R] [--out FILE]

--peer names an interpreter that has ray[tune]: the same programs run there, in turn with ours, and the
ratios are printed. Everything is on one local disk; Cairn's reports are synced, Ray's are not.
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
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
else:
    from cairn import tune
    from cairn.tune import Checkpoint

def noop(config):
    if config["i"] == 0 and not os.path.exists(where + "/first"):
        open(where + "/first", "w").write(repr(time.time()))
    for i in range(config.get("reports", 10)):
        tune.report({"i": i})

def saves(config):
    import tempfile
    for i in range(50):
        with tempfile.TemporaryDirectory() as d:
            with open(d + "/data", "wb") as f:
                f.write(os.urandom(1 << 20))
            tune.report({"i": i}, checkpoint=Checkpoint.from_directory(d))

def slow(config):
    c = tune.get_checkpoint()
    open(where + "/running-%d" % os.getpid(), "w").write(repr(time.time()))
    for i in range(100000):
        time.sleep(0.02)
        tune.report({"i": i})

def run(f, n, at_a_time, name="e", **more):
    checkpoints = tune.CheckpointConfig(num_to_keep=2) if f is saves else None
    t = tune.Tuner(f, param_space={"i": tune.grid_search(list(range(n))), **more},
                   tune_config=tune.TuneConfig(max_concurrent_trials=at_a_time),
                   run_config=tune.RunConfig(name=name, storage_path=where, verbose=0,
                                             checkpoint_config=checkpoints))
    began = time.time()
    t.fit()
    return time.time() - began

if work == "noop":
    print("SECONDS", run(noop, 64, 2))
elif work == "reports":
    print("SECONDS", run(noop, 8, 8, reports=1000))
elif work == "saves":
    print("SECONDS", run(saves, 2, 2))
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


def command(which: str, python: str, work: str, where: str, *more: str) -> list[str]:
    program = os.path.join(where, "program.py")
    os.makedirs(where, exist_ok=True)
    with open(program, "w") as file:
        file.write(PROGRAM)
    return [python, program, which, work, where, *more]


def seconds(which: str, python: str, work: str, where: str, *more: str) -> float:
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    done = subprocess.run(
        command(which, python, work, where, *more), capture_output=True, text=True, env=env
    )
    for line in done.stdout.splitlines():
        if line.startswith("SECONDS "):
            return float(line.split()[1])
    raise SystemExit(f"{which} {work} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def restart(which: str, python: str, where: str) -> float:
    """kill -9 of the tuner; then from the start of the process to the first trial that runs again."""
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}

    def running() -> set[str]:
        return {n for n in os.listdir(where) if n.startswith("running-")}

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            command(which, python, "slow", where),
            env=env,
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
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    process = subprocess.Popen(
        [python, path, "cairn", "slow", where], env=env, start_new_session=True
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trials", type=int, default=1000, help="of the experiment that is restored"
    )
    parser.add_argument("--peer", help="an interpreter with ray[tune]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="JSON")
    args = parser.parse_args()
    contenders = {"cairn": sys.executable}
    if args.peer:
        contenders["ray"] = args.peer
    rows = {
        "noop": ("64 no-op trials × 10 reports, 2 at a time", "s", lambda t: t),
        "reports": ("8 trials × 1,000 reports", "reports/s", lambda t: 8000 / t),
        "saves": (
            "2 trials × 50 reports with 1 MB checkpoints, 2 kept",
            "reports/s",
            lambda t: 100 / t,
        ),
        "start": ("import to first trial running", "s", lambda t: t),
        "restart": ("kill -9, then process start to first trial running", "s", lambda t: t),
    }
    figures: dict[str, dict[str, list[float]]] = {w: {c: [] for c in contenders} for w in rows}
    for _ in range(args.rounds):
        for work, (_, _, convert) in rows.items():
            for which, python in contenders.items():
                where = tempfile.mkdtemp(prefix=f"bench-tune-{which}-")
                took = (
                    restart(which, python, where)
                    if work == "restart"
                    else seconds(which, python, work, where)
                )
                figures[work][which].append(convert(took))
                shutil.rmtree(where, ignore_errors=True)
    print(f"load average {os.getloadavg()[0]:.1f}, medians of {args.rounds} rounds")
    for work, (name, unit, _) in rows.items():
        ours = statistics.median(figures[work]["cairn"])
        line = f"{name:58} {ours:10.2f} {unit}"
        if "ray" in contenders:
            theirs = statistics.median(figures[work]["ray"])
            ratio = ours / theirs if unit == "reports/s" else theirs / ours
            line += f"   Ray {theirs:10.2f}   {ratio:6.1f} ×"
        print(line)
    where = tempfile.mkdtemp(prefix="bench-tune-many-")
    seconds("cairn", sys.executable, "many", where, str(args.trials))
    restored = seconds("cairn", sys.executable, "restore", where)
    print(f"{f'restore of {args.trials} finished trials':58} {restored:10.2f} s")
    shutil.rmtree(where, ignore_errors=True)
    where = tempfile.mkdtemp(prefix="bench-tune-memory-")
    tuner, worker = memory(sys.executable, where)
    shutil.rmtree(where, ignore_errors=True)
    print(f"{'memory of the tuner with 8 trials':58} {tuner:10.1f} MB")
    print(f"{'private memory of each trial':58} {worker:10.1f} MB")
    if args.out:
        with open(args.out, "w") as file:
            json.dump(
                {
                    "figures": figures,
                    "restore_s": restored,
                    "trials": args.trials,
                    "tuner_mb": tuner,
                    "worker_mb": worker,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
