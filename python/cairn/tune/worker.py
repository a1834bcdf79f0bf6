"""A worker: one run of a trial, in a process that the zygote forked."""

from __future__ import annotations

import copy
import inspect
import os
import sys
import traceback
from typing import Any, Dict, Mapping, NoReturn, Optional

from .. import _native
from ..errors import Fenced
from . import _output
from . import session as sessions
from ._reused_workers import Kept
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


class NotReset(Exception):
    """The object of another trial cannot be used for this one."""


def begin(trainable: Any, settings: Mapping[str, Any], env: Mapping[str, str]) -> int:
    """Runs a trial in this process, which was forked for it; returns the exit code."""
    os.environ.update(env)
    seed_generators(env.get("CAIRN_TRIAL_ID"))
    return run(trainable, settings, env)


def begin_again_and_again(
    trainable: Any, settings: Mapping[str, Any], env: Mapping[str, str], kept: Kept
) -> int:
    """The same for one trial after the other, as long as each leaves an object that the next can use."""
    now: Optional[Mapping[str, str]] = env
    code = 0
    while now is not None:
        os.environ.update(now)
        seed_generators(now.get("CAIRN_TRIAL_ID"))
        try:
            code = run(trainable, settings, now, kept)
        except NotReset:
            kept.refuse()
            return 0
        sessions.set_session(None)
        _output.flush()
        for name in now:
            os.environ.pop(name, None)
        now = kept.next_run() if code == 0 and kept.trainable is not None else None
    last = kept.take()
    if last is not None:
        last.stop()
    return code


def run(
    trainable: Any,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    kept: Optional[Kept] = None,
) -> int:
    """Runs the trial to its end, a pause or a failure; returns the exit code."""
    client = open_client(env)
    try:
        return _run(trainable, settings, env, client, kept)
    finally:
        if kept is not None:  # otherwise the process ends
            client.close()


def _run(
    trainable: Any,
    settings: Mapping[str, Any],
    env: Mapping[str, str],
    client: Any,
    kept: Optional[Kept],
) -> int:
    number = int(env["CAIRN_RUN_ID"])
    process = os.getpid()
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
            _run_class(trainable, session, begun, kept)
        else:
            _run_function(trainable, session, begun)
        if os.getpid() != process:
            _end_fork(None)
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
    except NotReset:
        session.close()
        raise
    except Fenced:
        return 1  # another run has taken over: nothing that is said here counts
    except BaseException as error:
        if os.getpid() != process:
            _end_fork(error)
        session.leave()
        if isinstance(error, SystemExit) and error.code in (None, 0):
            session.close()
            return 0
        # A message may hold what no text on record can: half of a character of a file's name.
        text = traceback.format_exc()[-_LONGEST_ERROR:]
        text = text.encode("utf-8", "backslashreplace").decode()
        _output.tell(f"trial {session.trial_id} failed:\n{text}")
        client.call("/tune/failed", {"error": text})
        try:
            session.close()
        except Exception as after:  # the first error is the one that counts
            _output.tell(f"cairn.tune: {after}\n")
        return 1


def _end_fork(error: Optional[BaseException]) -> NoReturn:
    """The user's code made a process that came out of the trainable: it is not the trial, and the run, its
    checkpoints and its connection are another's. It ends as a process does."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            _output.tell(error.code + "\n")
    elif error is not None:
        _output.tell(traceback.format_exc())
    _output.flush()
    os._exit(code & 0xFF)


_began_in: Optional[str] = None


def _work_in(directory: str) -> None:
    """Changes to the trial's directory; what the program imports is found as before."""
    global _began_in
    before = _began_in = _began_in or os.getcwd()
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


def _object_for(cls: Any, session: Session, kept: Optional[Kept]) -> Any:
    """An object of the class: a new one, or one of another trial that takes on this one's config."""
    config = copy.deepcopy(session.config)
    used = kept.take() if kept is not None else None
    session.enter()
    if used is None:
        made = make_trainable(cls, config, session.trial_id, session.directory)
    else:
        made = used
        made.trial_id, made.logdir = session.trial_id, session.directory
        if not made.reset(config):
            session.leave()
            made.stop()
            raise NotReset
    session.leave()
    return made


def _run_class(
    cls: Any, session: Session, begun: Mapping[str, Any], kept: Optional[Kept]
) -> None:
    trainable = _object_for(cls, session, kept)

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
    whole = False  # not left in the middle of a step
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
        whole = True
    finally:
        session.leave()
        if kept is not None and whole:
            kept.trainable = trainable
        else:
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
