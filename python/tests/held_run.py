"""Runs a script that sleeps once in each of its steps, and holds it in the middle until a test has done what it wants to do there.

    HOLD_AFTER=35 HOLD_UNTIL=/path/of/a/file python held_run.py 2_checkpoints.py 0.001

After so many steps it waits for the file, or until its trial is told to stop: then it goes on, and sees that by itself. That it waits
is told by a file of the same name with `.held` behind it: a report alone does not say that the script has asked whether to stop
since. Without the variables it only runs the script.
"""

import os
import runpy
import sys
import time

import cairn

_sleep = time.sleep
_init = cairn.core.init
_contexts = []
_steps = 0


def _hold(seconds):
    global _steps
    _steps += 1
    if _steps == int(os.environ.get("HOLD_AFTER", "0")):
        open(os.environ["HOLD_UNTIL"] + ".held", "w").close()
        while not os.path.exists(os.environ["HOLD_UNTIL"]) and not any(one.preempt.should_preempt() for one in _contexts):
            _sleep(0.01)
    _sleep(seconds)


def _watched(*words, **options):
    _contexts.append(_init(*words, **options))
    return _contexts[-1]


if __name__ == "__main__":
    time.sleep = _hold
    cairn.core.init = _watched
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
