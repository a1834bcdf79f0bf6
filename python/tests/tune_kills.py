"""Aims and counts the kills of tuners for `make torture SUITE=tune`: who was killed, and what was on record last."""

import os
import re
import time

LOG = "CAIRN_TUNE_KILL_LOG"  # names a file: a line for each kill
AIMS = "CAIRN_TUNE_AIMS"  # the steps to aim at, with spaces between; all of them when it is not said
AIM_SECONDS = 1.0

# What can be the last that is on record: each is a moment after which the next life has to go on in a way of its own.
# Others (a suggestion, a choice) are written in one piece with what follows from them, most of the time.
STEPS = (
    "opened",
    "run_started",
    "run_ready",
    "report",
    "checkpoint_completed",
    "checkpoint_pinned",
    "pause_requested",
    "preempt_acknowledged",
    "run_exited",
    "activated",
    "paused",
    "end",
)


def wait_for_a_step(generator, experiment, seconds):
    """Waits before a kill: for a time at random or, where kills are counted, every other time for a step at random,
    since most of the time nothing happens. A kill may strike a little later than it was aimed."""
    if LOG not in os.environ or generator.random() < 0.5:
        time.sleep(generator.uniform(0.0, seconds))
        return
    aim = generator.choice(os.environ.get(AIMS, "").split() or STEPS)
    until = time.monotonic() + AIM_SECONDS
    while last_event(experiment / "events") != aim and time.monotonic() < until:
        pass


def never_hit(counts):
    """The steps that no kill of these struck after; keys as note_kill writes them."""
    hit = {kind.rpartition(" after ")[2] for kind in counts}
    return [step for step in STEPS if step not in hit]


def note_kill(target, experiment):
    """Call it after the kill, before anything else writes into the experiment's directory."""
    if LOG not in os.environ:
        return
    with open(os.environ[LOG], "a") as log:
        log.write(f"{target} killed after {last_event(experiment / 'events')}\n")


def last_event(journal):
    """The kind of the last whole event, for notes of the tuner what they say."""
    segments = sorted(journal.glob("*.journal")) if journal.is_dir() else []
    found = "nothing"
    for segment in segments[-2:]:  # the last may be empty
        for body in re.split(rb"cjf1", segment.read_bytes()):
            kind = re.findall(rb'"kind":"([a-z_]+)","run":', body)
            what = re.findall(rb'"what":"([a-z_]+)"', body)
            if kind:
                found = (what[-1] if kind[-1] == b"note" and what else kind[-1]).decode()
    return found
