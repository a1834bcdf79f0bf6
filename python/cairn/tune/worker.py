"""A worker: one run of a trial, in a process that the zygote forked."""

from __future__ import annotations

import copy
import inspect
import os
import sys
import traceback
from typing import Any, Dict, Mapping, Optional

from .. import _native
from ..errors import Fenced
from . import _output
from . import session as sessions
from ._worker_session import Session, TrialStopped
from .checkpoint import Checkpoint
from .result_keys import DEFAULT_METRIC, DONE, TIME_TOTAL_S, TRAINING_ITERATION
from .trainable import (
    argument_of,
    checkpoint_of,
    is_class_trainable,
    make_trainable,
    wants_checkpoint,
)

_LONGEST_ERROR = 200_000

# Calls of a tuner before it is given up. One whose workers outlive it is started again: two minutes.
_ATTEMPTS = 5
_ATTEMPTS_FROM_AFAR = 80


def open_client(env: Mapping[str, str]) -> Any:
    """The connection to the tuner, by which the run is told what to do and reports."""
    near = env["CAIRN_TRIAL_URL"].startswith("unix:")
    return _native.TrialClient.open(
        {
            "url": env["CAIRN_TRIAL_URL"],
            "token": env["CAIRN_RUN_TOKEN"],
            "trial": env["CAIRN_TRIAL_ID"],
            "run": int(env["CAIRN_RUN_ID"]),
            "describe": False,
            "attempts": _ATTEMPTS if near else _ATTEMPTS_FROM_AFAR,
        }
    )


def run(trainable: Any, settings: Mapping[str, Any], env: Mapping[str, str]) -> int:
    """Runs the trial to its end, a pause or a failure; returns the exit code."""
    client = open_client(env)
    number = int(env["CAIRN_RUN_ID"])
    sessions.listen_for_hurry()
    begun = client.call("/tune/begin", {"pid": os.getpid()})
    session = Session(begun, settings, client, number)
    sessions.set_session(session)
    try:
        if settings["log_files"] is not None:
            _output.send_to_files(session.directory, settings["log_files"])
        if settings["chdir"]:
            _work_in(session.directory)
        if session.stop:
            pass
        elif is_class_trainable(trainable):
            _run_class(trainable, session, begun)
        else:
            _run_function(trainable, session, begun)
        session.close()
        if session.pause:
            client.acknowledge_preemption()
        return 0
    except TrialStopped:
        session.leave()
        session.close()
        if session.pause:
            client.acknowledge_preemption()
        return 0
    except Fenced:
        return 1  # another run has taken over: nothing that is said here counts
    except BaseException as error:
        session.leave()
        if isinstance(error, SystemExit) and error.code in (None, 0):
            session.close()
            return 0
        # A message may hold what no text on record can: half of a character of a file's name.
        text = traceback.format_exc()[-_LONGEST_ERROR:]
        text = text.encode("utf-8", "backslashreplace").decode()
        sys.stderr.write(f"trial {session.trial_id} failed:\n{text}")
        sys.stderr.flush()
        client.call("/tune/failed", {"error": text})
        try:
            session.close()
        except Exception as after:  # the first error is the one that counts
            print(f"cairn.tune: {after}", file=sys.stderr, flush=True)
        return 1


def _work_in(directory: str) -> None:
    """Changes to the trial's directory; what the program imports is found as before."""
    before = os.getcwd()
    sys.path[:] = [os.path.join(before, one) for one in sys.path]
    os.environ["TUNE_ORIG_WORKING_DIR"] = before  # as programs know it
    os.makedirs(directory, exist_ok=True)
    os.chdir(directory)


def _run_function(trainable: Any, session: Session, begun: Mapping[str, Any]) -> None:
    def load(checkpoint: Checkpoint) -> None:
        session.start = checkpoint

    if begun.get("checkpoint"):
        session.restore(begun["checkpoint"], load)
        if session.catch_up() != "continue":
            return
    if session.pause:
        return
    session.enter()
    try:
        # What it does to its hyperparameters is its own affair: those on record stay.
        returned = trainable(copy.deepcopy(session.config))
        if inspect.isgenerator(returned):
            for value in returned:
                if value is not None:
                    sessions.report(_as_result(value))
            returned = None
    finally:
        session.leave()
    if returned is not None:
        sessions.report(_as_result(returned))


def _as_result(value: Any) -> Dict[str, Any]:
    """What a function returned or yielded: a dict, or a number, which may be 0."""
    return dict(value) if isinstance(value, Mapping) else {DEFAULT_METRIC: value}


def _run_class(cls: Any, session: Session, begun: Mapping[str, Any]) -> None:
    session.enter()
    config = copy.deepcopy(session.config)
    trainable = make_trainable(cls, config, session.trial_id, session.directory)
    session.leave()

    def load(checkpoint: Checkpoint) -> None:
        trainable._iteration = session.iteration
        trainable._time_total = session.time_total
        trainable.load_checkpoint(argument_of(checkpoint))

    def save() -> Checkpoint:
        path = session.repository.staging()
        session._staged.append(path)
        return checkpoint_of(trainable.save_checkpoint(path), path)

    decision = "continue"
    if begun.get("checkpoint"):
        session.restore(begun["checkpoint"], load)
        decision = session.catch_up()
    frequency = int(session.settings["checkpoint_frequency"])
    saves = bool(session.settings["saves"])
    try:
        while decision == "continue" and not session.pause:
            session.enter()
            result = trainable.train()
            session.leave()
            iteration = session.iteration + 1
            periodic = frequency > 0 and iteration % frequency == 0
            now = wants_checkpoint(result) or periodic
            values = {k: v for k, v in result.items() if k not in (TRAINING_ITERATION, TIME_TOTAL_S)}
            decision = session.report(
                values,
                save=save if now else None,
                save_at_end=save if saves else None,
            )
            trainable._iteration = session.iteration
            _drop_staged(session)
            if result.get(DONE):
                break
    finally:
        session.leave()
        trainable.stop()


def _drop_staged(session: Session) -> None:
    for path in session._staged:
        session.repository.end_staging(path)
    session._staged = []


def seed_generators(trial: Optional[str]) -> None:
    """Forks of one process would all draw the same numbers. These depend on the trial alone."""
    import random
    import zlib

    seed = zlib.crc32((trial or "").encode())
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
