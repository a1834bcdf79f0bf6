"""What bench/slurm.py and bench/ray.py do alike: their flags, their targets and the verdict."""

import argparse
import json
import pathlib

MOST_OVER_MS = 300
MOST_CORE_PERCENT = 5
MOST_CALLS = 2


def parse(description, rounds):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--json")
    return parser.parse_args()


def command(options, program, directory, *more):
    words = [pathlib.Path(options.build) / "bin" / program, directory, options.rounds, options.launches, options.seconds, *more]
    return [str(word) for word in words]


def judge(options, found, alone, alone_ms, follow, calls):
    """Prints what was found, keeps it, and ends with whether all targets were reached."""
    print(f"submit to user code   {found['start_ms']:8.0f} ms, {alone} {alone_ms:.0f} ms: {found['over_ms']:+.0f} ms (at most +{MOST_OVER_MS})")
    print(
        f"{found['launches']} queued launches  {found['core_percent']:8.2f} % of a core (at most {MOST_CORE_PERCENT}){follow}; "
        f"{found['calls_per_second']:.2f} {calls} a second (at most {MOST_CALLS})"
    )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found) + "\n")
    good = found["over_ms"] <= MOST_OVER_MS and found["core_percent"] <= MOST_CORE_PERCENT and found["calls_per_second"] <= MOST_CALLS
    raise SystemExit(0 if good else 1)
