#!/usr/bin/env python3
"""How fast the tuner is: trials, reports, durable checkpoints, start, restart after kill -9, memory; and what a kill costs.

    .venv/test/bin/python bench/tune.py [--trials N] [--peer [PYTHON]] [--rounds R] [--quick] [--only A,B] [--out FILE]

--peer: the same programs run with ray[tune] too, in turn with ours, and the ratios are judged; with the
interpreter of .venv/ray (made by `scripts/venv ray`) or the one that is named. Ray listens on every
address of the machine: it is run in a network and process namespace of its own, which also ends all that
it started (needs root). Everything is on one local disk; Cairn's reports are synced, Ray's are not. Rounds in
which others used more than half a core are left out, and made up for. Prints a table with the targets; writes
tune.json and tune.png into bench/out/.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import operator
import os
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from report import Table, plot
from rounds import Case
from run import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

STEADY, SAVED = 60, 10  # iterations of a trial that is killed, and how often it saves

# One text for both: the names are the same.
PROGRAM = f"STEADY, SAVED = {STEADY}, {SAVED}" + """
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

def steady(config):
    # What it runs and what is answered stands in files of each life of the tuner.
    c = tune.get_checkpoint()
    i = 0
    if c is not None:
        with c.as_directory() as d:
            i = int(open(d + "/i").read())
    mark = where + "/%s-" + os.environ["LIFE"] + "-%d" % config["i"]
    while i < STEADY:
        time.sleep(0.01)
        i += 1
        open(mark % "ran", "a").write("%d\\n" % i)
        if i % SAVED == 0:
            import tempfile
            with tempfile.TemporaryDirectory() as d:
                open(d + "/i", "w").write(str(i))
                tune.report({"i": i}, checkpoint=Checkpoint.from_directory(d))
        else:
            tune.report({"i": i})
        open(mark % "told", "a").write("%d\\n" % i)

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
elif work == "steady":
    run(steady, 4, 2)
    print("SECONDS", 0)
elif work == "record":
    import cairn, json
    native = cairn._native.Tuner.open(where + "/e", False)
    print("RECORD", json.dumps({t["config"]["i"]: len(native.results(t["trial"])) for t in native.trials(False)}))
    native.close()
    print("SECONDS", 0)
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


def environment(life: int = 1) -> dict[str, str]:
    return {
        **os.environ,
        "LIFE": str(life),
        "PYTHONPATH": os.path.join(ROOT, "python"),
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def said(which: str, python: str, work: str, where: str, *more: str, life: int = 1) -> str:
    done = subprocess.run(
        command(which, python, work, where, *more),
        capture_output=True,
        text=True,
        env=environment(life),
    )
    if any(line.startswith("SECONDS ") for line in done.stdout.splitlines()):
        return done.stdout
    raise SystemExit(f"{which} {work} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def word(output: str, name: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith(name + " ")]
    return line[len(name) + 1 :]


def seconds(which: str, python: str, work: str, where: str, *more: str) -> float:
    return float(word(said(which, python, work, where, *more), "SECONDS"))


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


def killed(which: str, python: str, where: str) -> dict[str, float]:
    """kill -9 of the tuner amid four trials, and the same command again: iterations that were run once more although
    a checkpoint had them, and reports that were answered and are gone, or are there twice."""
    os.makedirs(where, exist_ok=True)

    def numbers(name: str, life: int, trial: int) -> list[int]:
        path = pathlib.Path(where, f"{name}-{life}-{trial}")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    first = subprocess.Popen(
        command(which, python, "steady", where),
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # One trial has ended at least, and others are between two checkpoints.
    while sum(len(numbers("told", 1, i)) for i in range(4)) < 2.5 * STEADY:
        if first.poll() is not None:
            raise SystemExit(f"{which} steady ended before it was killed (exit {first.returncode})")
        time.sleep(0.005)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    told = {i: numbers("told", 1, i) for i in range(4)}
    lost = 0
    if which == "cairn":
        record = json.loads(word(said(which, python, "record", where), "RECORD"))
        lost = sum(max(0, max(seen, default=0) - record.get(str(i), 0)) for i, seen in told.items())
    said(which, python, "steady", where, life=2)
    repeated = 0
    for i, seen in told.items():
        saved = max((n for n in seen if n % SAVED == 0), default=0)
        repeated += len([n for n in numbers("ran", 2, i) if n <= saved])
    wrong = 0
    for path in pathlib.Path(where, "e").glob("*/result.json"):
        lines = [json.loads(line)["i"] for line in path.read_text().splitlines()]
        counts = collections.Counter(lines)
        wrong += sum(abs(counts[n] - 1) for n in range(1, STEADY + 1))
    return {"repeated": repeated, "lost": lost + wrong}


# What is measured: words, unit, figure from seconds, and how many times better than Ray it is to be.
ROWS = {
    "noop": ("64 no-op trials × 10 reports, 2 at a time", " s", lambda t: t, 20),
    "reports": ("8 trials × 1,000 reports", " reports/s", lambda t: 8000 / t, 20),
    "saves": (
        "2 trials × 100 reports with 1 MB checkpoints, 2 kept",
        " reports/s",
        lambda t: 200 / t,
        5,
    ),
    "start": ("import to first trial running", " s", lambda t: t, 10),
    "restart": ("kill -9, then process start to first trial running", " s", lambda t: t, 10),
}
FASTEST = 2  # … than its class API with reused actors
REUSED = "ray, class API, actors reused"
MANY = 10_000  # finished trials that are restored within a second
OTHERS = ("kill", "many", "memory")


def busy_seconds() -> float:
    """Of all processors since the machine started."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = [int(x) for x in stat.readline().split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Of this process and all that it started and has seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def adopt_orphans() -> None:
    """What a killed tuner leaves behind becomes ours, so that its time counts as ours."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)  # they end with their tuner
        except ChildProcessError:
            return


class Rounds:
    """Measures round robin until enough rounds were undisturbed. The rows are as those of cairn_bench."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.measurements: list[dict] = []

    def measure(self, what: str, contenders: dict) -> Case:
        """contenders: name → a function that returns the figures of a row."""
        limit = self.options.rounds if self.options.quick else 3 * self.options.rounds
        print(f"  {what}", file=sys.stderr, flush=True)
        good = 0
        for number in range(limit):
            rows = []
            for name, function in contenders.items():
                busy, own, began = busy_seconds(), own_seconds(), time.monotonic()
                figures = function()
                reap_orphans()
                took = time.monotonic() - began
                others = max(0.0, (busy_seconds() - busy) - (own_seconds() - own)) / took
                rows.append(
                    {
                        "what": what,
                        "round": number,
                        "contender": name,
                        "load": os.getloadavg()[0],
                        "others": others,
                        **figures,
                    }
                )
            self.measurements += rows
            good += all(row["others"] <= self.options.max_others for row in rows)
            if good == self.options.rounds:
                break
        return Case(self, what)


def in_folder(which: str, measure) -> dict:
    where = tempfile.mkdtemp(prefix=f"bench-tune-{which}-")
    try:
        return measure(where)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def row(work: str, contenders: dict[str, str], rounds: Rounds, table: Table) -> None:
    name, unit, convert, goal = ROWS[work]

    def function(which: str, program: str):
        def measure(where: str) -> dict:
            if program == "restart":
                return {"seconds": restart(which, contenders[which], where)}
            return {"seconds": seconds(which, contenders[which], program, where)}

        return lambda: in_folder(which, measure)

    runs = {which: function(which, work) for which in contenders}
    if work == "noop" and "ray" in contenders:
        runs[REUSED] = function("ray", "reused")
    case = rounds.measure(work, runs)

    def figure(one: dict) -> float:
        return convert(one["seconds"])

    ours = case.values("cairn", figure)
    table.add(name, ours, unit=unit, conditions=case.conditions())
    for label in list(runs)[1:]:
        # More is better in both: reports a second, or seconds of theirs to ours.
        pair = ("cairn", label) if unit == " reports/s" else (label, "cairn")
        theirs = statistics.median(case.values(label, figure))
        table.add(
            f"{name}: times as fast as {label}",
            case.ratios(*pair, figure),
            at_least=goal if label == "ray" else FASTEST,
            detail=f"{label}: {theirs:.3g}{unit}",
            conditions=case.conditions(),
        )


def kill_rows(contenders: dict[str, str], rounds: Rounds, table: Table) -> None:
    runs = {
        which: lambda which=which: in_folder(which, lambda where: killed(which, contenders[which], where))
        for which in contenders
    }
    case = rounds.measure("kill", runs)
    for figure, name in (
        ("repeated", "kill -9 of the tuner: iterations run again that a checkpoint had"),
        ("lost", "kill -9 of the tuner: reports lost or doubled"),
    ):
        theirs = "".join(
            f"{which}: {statistics.median(case.values(which, operator.itemgetter(figure))):g}"
            for which in list(runs)[1:]
        )
        values = case.values("cairn", operator.itemgetter(figure))
        # Once is once too often.
        table.add(name, [max(values)], at_most=0, detail=theirs, conditions=case.conditions())


def restored(rounds: Rounds, table: Table) -> None:
    trials = rounds.options.trials
    where = tempfile.mkdtemp(prefix="bench-tune-many-")
    try:
        print(f"  making {trials} trials", file=sys.stderr, flush=True)
        seconds("cairn", sys.executable, "many", where, str(trials))
        again = {"cairn": lambda: {"seconds": seconds("cairn", sys.executable, "restore", where)}}
        case = rounds.measure("many", again)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    table.add(
        f"restore of {trials:,} finished trials",
        case.values("cairn", lambda one: one["seconds"]),
        at_most=1 if trials >= MANY else None,
        unit=" s",
        conditions=case.conditions(),
    )


def remembered(rounds: Rounds, table: Table) -> None:
    def measure(where: str) -> dict:
        tuner, worker = memory(sys.executable, where)
        return {"tuner": tuner, "worker": worker}

    case = rounds.measure("memory", {"cairn": lambda: in_folder("memory", measure)})
    for figure, name, most in (
        ("tuner", "memory of the tuner with 8 trials", 80),
        ("worker", "private memory of each trial", 15),
    ):
        values = case.values("cairn", operator.itemgetter(figure))
        table.add(name, values, at_most=most, unit=" MB", conditions=case.conditions())


def compile_package() -> None:
    """As pip does with what it installs, and did with Ray: where PYTHONDONTWRITEBYTECODE is set, each process
    of ours would compile all of it again."""
    package = os.path.join(ROOT, "python", "cairn")
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True)


def versions(contenders: dict[str, str]) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    if "ray" in contenders:
        ask = [contenders["ray"], "-c", "import ray; print(ray.__version__)"]
        found["ray"] = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, help=f"of the experiment that is restored ({MANY})")
    parser.add_argument(
        "--peer",
        nargs="?",
        const=os.path.join(ROOT, ".venv", "ray", "bin", "python"),
        help="an interpreter with ray[tune]; that of .venv/ray",
    )
    parser.add_argument("--only", help=f"some of: {', '.join([*ROWS, *OTHERS])}")
    parser.add_argument("--rounds", type=int, help="undisturbed rounds of each (5)")
    parser.add_argument("--quick", action="store_true", help="small and short: does it all work?")
    parser.add_argument(
        "--max-others", type=float, default=0.5, help="cores that others may use in a round that counts"
    )
    parser.add_argument("--out", type=pathlib.Path, help="the JSON (bench/out/tune.json)")
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.trials = args.trials or (200 if args.quick else MANY)
    if args.peer and not os.access(args.peer, os.X_OK):
        raise SystemExit(f"there is no {args.peer}: run `scripts/venv ray`, or name an interpreter")
    contenders = {"cairn": sys.executable, **({"ray": args.peer} if args.peer else {})}
    wanted = set(args.only.split(",")) if args.only else {*ROWS, *OTHERS}
    if unknown := wanted - {*ROWS, *OTHERS}:
        raise SystemExit(f"--only: there is no {', '.join(sorted(unknown))}")
    compile_package()
    adopt_orphans()
    facts = {**machine(tempfile.gettempdir()), "versions": versions(contenders)}
    rounds, table = Rounds(args), Table()
    for work in [w for w in ROWS if w in wanted]:
        row(work, contenders, rounds, table)
    if "kill" in wanted:
        kill_rows(contenders, rounds, table)
    if "many" in wanted:
        restored(rounds, table)
    if "memory" in wanted:
        remembered(rounds, table)
    show(table, rounds, facts, args.out or pathlib.Path(ROOT, "bench", "out", "tune.json"))


def show(table: Table, rounds: Rounds, facts: dict, out: pathlib.Path) -> None:
    options = rounds.options
    print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory'] / 2**30:.0f} GiB, {facts['file_system']}, "
        f"Linux {facts['kernel']}; {', '.join(' '.join(one) for one in facts['versions'].items())}; rounds with "
        f"more than {options.max_others:g} cores taken by others are left out; memory is not touched before\n"
    )
    table.print()
    record = {
        "machine": facts,
        "options": {
            "trials": options.trials,
            "rounds": options.rounds,
            "quick": options.quick,
            "max_others": options.max_others,
        },
        "results": table.rows,
        "measurements": rounds.measurements,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    drawn = plot(table, out.with_suffix(".png"))
    print(f"written: {out}" + (f", {out.with_suffix('.png')}" if drawn else ""))


if __name__ == "__main__":
    main()
