"""Counts the kills of tuners for `make torture SUITE=tune`: who was killed, and what was on record last."""

import os
import re

LOG = "CAIRN_TUNE_KILL_LOG"  # names a file: a line for each kill


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
