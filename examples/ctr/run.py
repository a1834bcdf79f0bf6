"""Runs the click-through example twice: undisturbed, and with a server killed twice.

    python examples/ctr/run.py [--steps 240] [--directory runs/ctr] [--trainer build/dev/bin/ctr_servers]

Two servers and two trainers, a full checkpoint every minute and an increment every few seconds. Both
runs come to the same AUC and, to the bit, to the same tables. With --recovery log nothing is repeated.
Started again with the same --directory both go on where they were; steps that are done are not done
again, and no server is killed in them.
With --trainer the C++ variant (examples/cpp/ctr_servers.cc) trains instead of train.py.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def find_cairn():
    beside = os.environ.get("CAIRN_BIN_DIR")
    program = shutil.which("cairn", path=beside) or shutil.which("cairn")
    if program is None:
        sys.exit("there is no program `cairn` on the PATH")
    return program


def descendants(pid):
    """The processes below one; those that end meanwhile are left out."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
                for child in children.split():
                    yield child
                    yield from descendants(child)


def server_process(supervisor, index):
    """The process of a server, among those below the supervisor."""
    for child in descendants(supervisor):
        try:
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pserver" in words and words[words.index(b"--index") + 1] == str(index).encode():
            return int(child)
    return None


def run(name, options, kills):
    directory = pathlib.Path(options.directory) / name
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "result.json"
    command = [find_cairn(), "ps", "run", "--servers", "2", "--trainers", "2"]
    command += ["--dir", str(directory / "repository")]
    command += ["--full-secs", str(options.full_secs)]
    command += ["--incremental-secs", str(options.incremental_secs)]
    command += ["--incremental-steps", str(options.incremental_steps)]
    command += ["--recovery", options.recovery, "--"]
    command += [options.trainer] if options.trainer else [sys.executable, str(HERE / "train.py")]
    command += ["--steps", str(options.steps), "--pause", str(options.pause)]
    command += ["--output", str(output)]
    events, killed = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            words = line.split()
            if words[:4] == ["[trainer_0]", "goes", "on", "from"] and not killed:
                kills = [kill for kill in kills if kill[0] >= int(words[5])]  # those it had before
                print(line, end="", flush=True)
            elif words[:2] == ["[trainer_0]", "step"]:
                if kills and int(words[2]) >= kills[0][0]:
                    victim = server_process(job.pid, kills[0][1])
                    if victim is not None:
                        os.kill(victim, signal.SIGKILL)
                        kills.pop(0)
                        killed += 1
            elif words[:2] == ["[trainer_0]", "recovered"]:
                events.append(json.loads(line.split(" ", 2)[2]))
            else:
                print(line, end="", flush=True)
    if job.returncode != 0:
        sys.exit(f"the job failed with {job.returncode}")
    if kills:
        sys.exit("the job was over before its servers were killed: give it a --pause, or more --steps")
    return json.loads(output.read_text(encoding="utf-8")), events, killed


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=240)
    arguments.add_argument("--directory", default="")
    arguments.add_argument("--full-secs", type=float, default=60)
    arguments.add_argument("--incremental-secs", type=float, default=2)
    arguments.add_argument("--incremental-steps", type=int, default=0)
    arguments.add_argument("--recovery", default="exact", choices=["exact", "log"])
    arguments.add_argument("--pause", type=float, default=0, help="seconds after each step")
    arguments.add_argument("--trainer", default="", help="a program that trains as train.py does")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        options.directory = options.directory or temporary
        undisturbed, _, _ = run("undisturbed", options, [])
        kills = [(options.steps // 3, 1), (2 * options.steps // 3, 0)]
        disturbed, events, killed = run("disturbed", options, list(kills))
    print(f"\n{'killed at':>10} {'restored from':>14} {'steps repeated':>15} {'seconds lost':>13}")
    for event in events:
        print(
            f"{event['killed_at']:>10} {event['restored']:>14} {event['repeated']:>15} "
            f"{event['seconds']:>13.2f}"
        )
    if options.recovery == "log":
        print(f"{'nobody went back':>40}" if not events else "somebody went back")
    print(f"AUC undisturbed {undisturbed['auc']:.6f}, with {killed} losses {disturbed['auc']:.6f}")
    if killed < len(kills):
        print(
            f"(the run in {options.directory} had steps behind it: remove it to see both losses, or "
            "give another --directory)"
        )
    if undisturbed != disturbed:
        sys.exit("what was learned differs")
    print("what was learned is the same to the bit")


if __name__ == "__main__":
    main()
