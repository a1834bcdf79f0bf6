"""The training session and its hooks: when it saves, and where it goes on. Behind cairn.train."""

from __future__ import annotations

import logging
import math
import numbers
import os
import sys
import time
import weakref
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

from ._arguments import PathLike, positive, whole
from ._tables_within import refuse_lost_tables, with_tables_within
from ._wording import a_type
from .errors import Invalid, NotFound, Timeout
from .manager import CheckpointInfo, CheckpointManager, Restored, SaveHandle
from .observe import SavedCallback
from .row_tracked import RowTracked
from .table import EmbeddingTable, stamp
from .table import tables as all_tables

__all__ = [
    "CheckpointSaverHook",
    "MonitoredTrainingSession",
    "Saver",
    "Scaffold",
    "SessionRunHook",
    "StopAtStepHook",
    "TrainCall",
    "open_sessions",
]

# An increment that would hold most of a large table is no saving: a full one takes its place.
_LARGE_ROWS = 100_000
_MOST = 0.5
_LONGEST_CHAIN = 100
# How often a worker looks whether the chief has saved.
_LOOK_SECONDS = 0.2

log = logging.getLogger("cairn")

# The sessions that are open, the innermost last.
open_sessions: List["MonitoredTrainingSession"] = []


def _interval(value: Any, name: str) -> Optional[float]:
    """None and 0 switch it off; everything but a positive number is refused."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's are too
        raise Invalid(f"{name} must be a number or None, not {value!r}")
    if math.isnan(value) or value < 0:
        raise Invalid(f"{name} must not be negative, it is {value!r}; None or 0 switches it off")
    return float(value) if value > 0 else None


def _steps(value: Any, name: str) -> Optional[int]:
    interval = _interval(value, name)
    if interval is not None and not interval.is_integer():
        raise Invalid(f"{name} must be a whole number of steps, not {value!r}")
    return None if interval is None else int(interval)


class Saver:
    """How checkpoints are kept.

    Args:
        sharded: each process writes its own rows; they always do.
        incremental_save_restore: increments are saved, and restored with the full ones below them.
        max_to_keep: full checkpoints that stay, with the newest increment; None keeps all.
        chain: "cumulative" increments hold what changed since the full one, "consecutive" what
            changed since the save before.
        quantize: rows of increments with 8 bits a number; how far they are off is told by
            :meth:`MonitoredTrainingSession.quantization_error`. With pservers they must be started
            with it too.
        compress_keys: the tables' keys as zstd.

    >>> import cairn
    >>> cairn.train.Saver(incremental_save_restore=True).max_to_keep
    5
    """

    def __init__(
        self,
        sharded: bool = True,
        incremental_save_restore: bool = False,
        max_to_keep: Optional[int] = 5,
        *,
        chain: str = "cumulative",
        quantize: bool = False,
        compress_keys: bool = False,
    ) -> None:
        if chain not in ("cumulative", "consecutive"):
            raise Invalid(f"chain must be 'cumulative' or 'consecutive', not {chain!r}")
        self.sharded = bool(sharded)
        self.incremental_save_restore = bool(incremental_save_restore)
        self.max_to_keep = positive(max_to_keep, "max_to_keep")
        self.chain = chain
        self.quantize = bool(quantize)
        self.compress_keys = bool(compress_keys)


class Scaffold:
    """Puts a saver into a session. Both must say the same of increments.

    >>> import cairn
    >>> saver = cairn.train.Saver(incremental_save_restore=True)
    >>> scaffold = cairn.train.Scaffold(saver=saver, incremental_save_restore=True)
    """

    def __init__(
        self, saver: Optional[Saver] = None, incremental_save_restore: bool = False
    ) -> None:
        if saver is not None and not isinstance(saver, Saver):
            raise Invalid(f"saver must be a cairn.train.Saver, not {type(saver).__name__}")
        self.incremental_save_restore = bool(incremental_save_restore)
        self.saver = saver or Saver(incremental_save_restore=self.incremental_save_restore)
        if self.saver.incremental_save_restore != self.incremental_save_restore:
            raise Invalid(
                "incremental_save_restore: the Scaffold says "
                f"{self.incremental_save_restore}, its Saver {self.saver.incremental_save_restore}; "
                "set both"
            )


class SessionRunHook:
    """Called around the steps of a session; subclasses override what they need.

    >>> import cairn
    >>> class Told(cairn.train.SessionRunHook):
    ...     def begin(self):
    ...         print("begin")
    ...     def after_create_session(self, session):
    ...         print("restored step", session.global_step)
    ...     def before_run(self, session):
    ...         print("before step", session.global_step)
    ...     def after_run(self, session, result):
    ...         print("after it:", result)
    ...     def end(self, session):
    ...         print("end")
    >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[], hooks=[Told()]) as session:
    ...     loss = session.run(lambda step: 0.5)
    begin
    restored step 0
    before step 0
    after it: 0.5
    end
    """

    def begin(self) -> None:
        """Before the session restores."""

    def after_create_session(self, session: "MonitoredTrainingSession") -> None:
        """The session has restored."""

    def before_run(self, session: "MonitoredTrainingSession") -> None:
        """Before each step."""

    def after_run(self, session: "MonitoredTrainingSession", result: Any) -> None:
        """After each step was counted, before what is due is saved."""

    def end(self, session: "MonitoredTrainingSession") -> None:
        """At the end of a session without an error, before the last save."""


class StopAtStepHook(SessionRunHook):
    """Asks the session to stop when it has done so many steps in all.

    >>> import cairn
    >>> hook = cairn.train.StopAtStepHook(last_step=3)
    >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[], hooks=[hook]) as session:
    ...     while not session.should_stop():
    ...         session.run(lambda step: None)
    >>> session.global_step
    3
    """

    def __init__(self, last_step: int) -> None:
        self._last = whole(last_step, "last_step")

    def after_create_session(self, session: "MonitoredTrainingSession") -> None:
        if session.global_step >= self._last:
            session.request_stop()

    def after_run(self, session: "MonitoredTrainingSession", result: Any) -> None:
        if session.global_step >= self._last:
            session.request_stop()


class CheckpointSaverHook(SessionRunHook):
    """Says when to save, where a session's own arguments do not.

    Args:
        checkpoint_dir: as the session's.
        save_secs, save_steps: between full checkpoints; either suffices.
        saver, scaffold: one of them may be given.
        incremental_save_secs, incremental_save_steps: between increments; None or 0: none.

    One interval at least must be given: it takes the place of the session's.

    >>> import cairn
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> hook = cairn.train.CheckpointSaverHook("runs/a", save_steps=4, incremental_save_steps=1)
    >>> with cairn.train.MonitoredTrainingSession(tables=[users], hooks=[hook]) as session:
    ...     for _ in range(5):
    ...         rows = session.run(lambda step: users.lookup([step]))
    >>> with cairn.CheckpointManager("runs/a", read_only=True) as m:
    ...     [(info.step, info.kind) for info in m.list()]
    [(0, 'full'), (4, 'full'), (5, 'increment')]
    """

    def __init__(
        self,
        checkpoint_dir: PathLike,
        save_secs: Optional[float] = None,
        save_steps: Optional[int] = None,
        saver: Optional[Saver] = None,
        scaffold: Optional[Scaffold] = None,
        incremental_save_secs: Optional[float] = None,
        incremental_save_steps: Optional[int] = None,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise Invalid("CheckpointSaverHook: give saver or scaffold, not both")
        if saver is not None and not isinstance(saver, Saver):
            raise Invalid(f"saver must be a cairn.train.Saver, not {a_type(saver)}")
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            raise Invalid(f"scaffold must be a cairn.train.Scaffold, not {a_type(scaffold)}")
        self.checkpoint_dir = _directory(checkpoint_dir)
        self.schedule = _Schedule(
            _interval(save_secs, "save_secs"),
            _steps(save_steps, "save_steps"),
            _interval(incremental_save_secs, "incremental_save_secs"),
            _steps(incremental_save_steps, "incremental_save_steps"),
        )
        if not self.schedule.saves:
            raise Invalid(
                "CheckpointSaverHook: without save_secs, save_steps or an interval of increments "
                "it would save nothing"
            )
        if saver is not None:
            scaffold = Scaffold(saver, saver.incremental_save_restore)
        self.scaffold = scaffold


class _Schedule:
    """When a full checkpoint or an increment is due. Time is passed in; nothing is reset unless
    something was saved."""

    def __init__(
        self,
        full_secs: Optional[float],
        full_steps: Optional[int],
        increment_secs: Optional[float],
        increment_steps: Optional[int],
    ) -> None:
        self.full = (full_secs, full_steps)
        self.increment = (increment_secs, increment_steps)
        self._last_full = (0.0, 0)
        self._last_any = (0.0, 0)

    @property
    def increments(self) -> bool:
        return self.increment != (None, None)

    @property
    def saves(self) -> bool:
        return self.full != (None, None) or self.increments

    def start(
        self, now: float, step: int, full_step: Optional[int] = None, full_age: float = 0.0
    ) -> None:
        """A session begins here, saved or restored; the full checkpoint that it stands on is of
        `full_step`, and so many seconds of training old."""
        self._last_any = (now, step)
        self._last_full = (now - full_age, step if full_step is None else full_step)

    def full_age(self, now: float) -> float:
        """Seconds of training since the last full checkpoint."""
        return now - self._last_full[0]

    @property
    def moments(self) -> Tuple[Tuple[float, int], Tuple[float, int]]:
        """Of the last saves. They are put back when a save turns out to have failed."""
        return self._last_full, self._last_any

    @moments.setter
    def moments(self, moments: Tuple[Tuple[float, int], Tuple[float, int]]) -> None:
        self._last_full, self._last_any = moments

    def due(self, now: float, step: int) -> Optional[str]:
        """ "full", "increment" or None. Both: the full one."""
        if _passed(self.full, self._last_full, now, step):
            return "full"
        return "increment" if _passed(self.increment, self._last_any, now, step) else None

    def saved(self, kind: str, now: float, step: int) -> None:
        self._last_any = (now, step)
        if kind == "full":
            self._last_full = (now, step)


def _passed(
    interval: Tuple[Optional[float], Optional[int]],
    last: Tuple[float, int],
    now: float,
    step: int,
) -> bool:
    secs, steps = interval
    by_time = secs is not None and now - last[0] >= secs
    by_step = steps is not None and step - last[1] >= steps
    return step > last[1] and (by_time or by_step)


def _directory(given: Any) -> PathLike:
    if not isinstance(given, (str, os.PathLike)):
        raise Invalid(f"checkpoint_dir must be a path, not {given!r}")
    return given


def _hooks(given: Any) -> List[SessionRunHook]:
    if not isinstance(given, Iterable):
        raise Invalid(f"hooks must be a list of SessionRunHooks, not {a_type(given)}")
    hooks = list(given)
    for hook in hooks:
        if not isinstance(hook, SessionRunHook):
            raise Invalid(f"hooks: {a_type(hook)} is no cairn.train.SessionRunHook")
    return hooks


class TrainCall:
    """One call of Estimator.train: from where to where, and which of it is done. A session keeps in
    its checkpoints where a call began that is not done: whoever makes the same call again, in another
    process, goes on with the batch after the last that counts."""

    def __init__(self, steps: Optional[int], max_steps: Optional[int]) -> None:
        self._steps = steps
        self._max_steps = max_steps
        self._stored: Optional[int] = None
        self._idle = False
        self._done = False
        self.began = 0
        self.end: Optional[int] = max_steps

    def begin(self, stored: Optional[int], step: int) -> None:
        """A session begins at `step`; `stored`: where the call that its checkpoint is of began."""
        self._stored = stored
        # It has nothing to do: a call before the one that is not done.
        self._idle = self._max_steps is not None and step >= self._max_steps
        self.began = step if stored is None else stored
        if self._steps is not None:
            if step - self.began >= self._steps:
                self.began = step  # another call than the stored one
            self.end = self.began + self._steps

    def go_back(self, step: int) -> None:
        """The job is at `step` again. Before this call: as if it began there."""
        self.began = min(self.began, step)
        self._done = False

    def finish(self) -> None:
        """There is no more data, or somebody asked to stop."""
        self._done = True

    def is_over(self, step: int) -> bool:
        return self.end is not None and step >= self.end

    def unfinished(self, step: int) -> Optional[int]:
        """What a checkpoint of `step` says; None: no call is under way."""
        if self._idle:
            return self._stored
        return None if self._done or self.is_over(step) else self.began


class MonitoredTrainingSession:
    """Runs training steps; saves full checkpoints and increments of tables and state when they are
    due, in the background; restores the newest on entry.

    Args:
        checkpoint_dir: where checkpoints are; None saves nothing.
        save_checkpoint_secs, save_checkpoint_steps: between full checkpoints; None or 0: not by it.
        save_incremental_checkpoint_secs, save_incremental_checkpoint_steps: between increments,
            which hold the rows that changed since their full one; None or 0: no increments.
        hooks: SessionRunHooks.
        scaffold: whose Saver says what is kept.
        is_chief: others restore and save nothing. They wait until the chief has saved its first
            checkpoint, at most `max_wait_secs`, and then raise :class:`cairn.Timeout`.
        tables: None: every table made in this process (cairn.tables()). RowTracked arrays may be
            among them, and get row increments too.
        state: dense variables and values of your own: nested, as for CheckpointManager; filled on
            entry, saved whole with each checkpoint. Objects with state_dict too.
        pservers: addresses of parameter servers, or a :class:`cairn.ps.Client`: tables and dense
            variables are on them (``client.table(…)``), and they save when they were told to, with
            `state` (values and arrays) as it is at the end of each step. When a process of the job
            is lost and all go back, run() goes back too: it calls its step function with an
            earlier step, and the state of then.
        takeover: do not wait for a living process that trains here and cannot be stopped: fence it
            out, so that it can save nothing more.
        on_saved: called with a SaveRecord after every save, as CheckpointManager does; with
            ``lambda record: model.notify()`` a :class:`cairn.serving.Model` beside it looks at once.

    >>> import numpy as np, cairn
    >>> table = cairn.EmbeddingTable("a", 2, optimizer=cairn.optimizers.SGD(1.0),
    ...                              initializer=cairn.initializers.Constant(0))
    >>> def step(global_step):
    ...     table.apply_gradients([global_step % 3], np.ones((1, 2)))
    >>> for _ in range(2):                               # the second session goes on
    ...     with cairn.train.MonitoredTrainingSession("runs/a", tables=[table]) as sess:
    ...         for _ in range(3):
    ...             sess.run(step)
    ...         sess.global_step
    3
    6
    >>> table.lookup([0]).tolist()
    [[-2.0, -2.0]]
    """

    def __init__(
        self,
        checkpoint_dir: Optional[PathLike] = None,
        save_checkpoint_secs: Optional[float] = 600,
        save_checkpoint_steps: Optional[int] = None,
        save_incremental_checkpoint_secs: Optional[float] = None,
        save_incremental_checkpoint_steps: Optional[int] = None,
        hooks: Sequence[SessionRunHook] = (),
        scaffold: Optional[Scaffold] = None,
        is_chief: bool = True,
        tables: Optional[Sequence[Union[EmbeddingTable, RowTracked]]] = None,
        state: Any = None,
        *,
        pservers: Any = None,
        max_wait_secs: float = 7200,
        takeover: bool = False,
        on_saved: Optional[SavedCallback] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        own = _Schedule(
            _interval(save_checkpoint_secs, "save_checkpoint_secs"),
            _steps(save_checkpoint_steps, "save_checkpoint_steps"),
            _interval(save_incremental_checkpoint_secs, "save_incremental_checkpoint_secs"),
            _steps(save_incremental_checkpoint_steps, "save_incremental_checkpoint_steps"),
        )
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            raise Invalid(f"scaffold must be a cairn.train.Scaffold, not {scaffold!r}")
        self.hooks = _hooks(hooks)
        self._directory, self._schedule, self._scaffold = _agreed(
            None if checkpoint_dir is None else _directory(checkpoint_dir),
            own,
            scaffold,
            self.hooks,
        )
        self.is_chief = bool(is_chief)
        self._max_wait_secs = _interval(max_wait_secs, "max_wait_secs") or 0.0
        self._servers: Any = None
        if pservers is not None:
            from ._server_session import ServerSession  # wants gRPC

            if tables:
                raise Invalid("tables: with pservers they are the client's: client.table(…)")
            if on_saved is not None:
                raise Invalid(
                    "on_saved: with pservers the servers save, and tell nobody here; cairn ps run "
                    "--notify URL tells a cairn serve"
                )
            self._servers = ServerSession(pservers, self._directory)
            self._directory, tables = None, ()
        # Of later ones nothing was restored: with tables=None, run refuses them.
        self._known = weakref.WeakSet(all_tables()) if tables is None else None
        self.tables = with_tables_within(all_tables() if tables is None else tables, state)
        names = [table.name for table in self.tables if isinstance(table, EmbeddingTable)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Invalid(
                f"tables: {', '.join(map(repr, twice))} is there more than once; give the tables "
                "that belong to this session"
            )
        self.state = {} if state is None else state
        self.global_step = 0
        self.restored: Optional[Restored] = None
        self._clock = clock
        self._on_saved = on_saved
        self._takeover = bool(takeover)
        self._stop = False
        self._manager: Optional[CheckpointManager] = None
        self._handle: Optional[SaveHandle] = None
        self._opened = False
        self._closed = False
        self._chain = 0  # increments since the last full one
        self._full_step: Optional[int] = None  # of the full one that was restored, or stood on
        self._full_age = 0.0  # of that, in seconds of training
        self._saved_step = -1
        self._before: Any = None  # what the save in flight changed of these, should it fail
        self._call: Optional[TrainCall] = None  # the Estimator's
        self._saved_call: Optional[int] = None  # what the last save said about it

    # The session's life ----------

    def __enter__(self) -> "MonitoredTrainingSession":
        if self._opened and not self._closed:
            raise Invalid("the session is open already")
        self._closed = False
        try:
            self._begin()
        except BaseException:
            self._closed = True
            if self._manager is not None:
                manager, self._manager = self._manager, None
                manager.__exit__(*sys.exc_info())
            raise
        self._opened = True
        open_sessions.append(self)
        return self

    def _begin(self) -> None:
        for hook in self.hooks:
            hook.begin()
        if self._servers is not None:
            self._servers.begin(self)
        if self._directory is not None:
            self._open()
        self._schedule.start(self._clock(), self.global_step, self._full_step, self._full_age)
        if self._call is not None:
            self._call.begin(self._saved_call, self.global_step)
        if self._manager is not None and self.is_chief and self.restored is None:
            self._save("full")
        for hook in self.hooks:
            hook.after_create_session(self)

    def _open(self) -> None:
        place = os.fspath(self._directory)  # type: ignore[arg-type]
        most = self._max_wait_secs
        deadline = time.monotonic() + most
        waits = False
        while not self._restore():
            if time.monotonic() >= deadline:
                raise Timeout(
                    f"the chief has saved nothing in {place!r} within {most:g} s (max_wait_secs). "
                    "Is it running, with is_chief=True, and is the directory shared by all workers?"
                )
            if not waits:
                log.warning(
                    "waiting for the chief's first checkpoint in %r, at most %g s", place, most
                )
                waits = True
            time.sleep(_LOOK_SECONDS)  # nothing tells when the chief has saved
        self._stamp()

    def _restore(self) -> bool:
        """False: this is not the chief, and there is nothing of it yet."""
        saver = self._scaffold.saver
        try:
            self._manager = CheckpointManager(
                self._directory,  # type: ignore[arg-type]
                keep_last=None if saver.max_to_keep is None else 1,
                keep_fulls=saver.max_to_keep,
                read_only=not self.is_chief,
                takeover=self._takeover and self.is_chief,
                on_saved=self._on_saved,
            )
        except NotFound:
            if self.is_chief:
                raise
            return False
        self._manager._may_grow = ()  # values; the state has the dense variables
        try:
            self.restored = self._manager.restore({"state": self.state}, tables=self.tables)
            refuse_lost_tables(self.restored, self.tables)
        except BaseException:
            self._manager.close()
            raise
        if self.restored is None and not self.is_chief:
            self._manager.close()
            self._manager = None
            return False
        if self.restored is not None:
            self.state = self.restored.state["state"]
            self.global_step = self._saved_step = self.restored.step
            self._stand_on(self.restored.info, self._manager.list())
            told = self.restored.metadata.get("session", {})
            self._full_age = float(told.get("full_age_seconds", 0.0))
            self._saved_call = told.get("train_began")
        return True

    def _stand_on(self, info: CheckpointInfo, there: List[CheckpointInfo]) -> None:
        """The chain goes on: it is as long, and its full checkpoint as old, as before."""
        increments = [i for i in there if i.kind != "full" and i.base == info.base]
        self._chain = len(increments)
        fulls = [i.step for i in there if i.id == (info.base or info.id)]
        self._full_step = fulls[0] if fulls else info.step

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self in open_sessions:
            open_sessions.remove(self)
        if self._closed:
            return
        self._closed = True
        try:
            if error is None:
                self._end()
        finally:
            if self._manager is not None:
                manager, self._manager = self._manager, None
                manager.__exit__(kind, error, trace)

    def _end(self) -> None:
        if self._servers is not None:
            self._servers.end(self)
            return
        for hook in self.hooks:
            hook.end(self)
        self._look_at_save()
        if (
            self._manager is not None
            and self.is_chief
            and self._schedule.saves
            and (self.global_step != self._saved_step or self._call_is_told_wrongly())
        ):
            self._save("increment" if self._schedule.increments else "full")
            assert self._handle is not None
            self._handle.wait()

    def close(self) -> None:
        """Ends the session as leaving its ``with`` block does.

        >>> import cairn
        >>> session = cairn.train.MonitoredTrainingSession("runs/a", tables=[]).__enter__()
        >>> session.run(lambda step: None)
        >>> session.close()                              # and saves what was not saved yet
        >>> with cairn.CheckpointManager("runs/a", read_only=True) as m:
        ...     m.latest().step
        1
        """
        self.__exit__(None, None, None)

    # Steps ----------

    def run(self, step_fn: Callable[..., Any]) -> Any:
        """Calls `step_fn(global_step)`, counts the step, saves what is due; gives what it gave."""
        if not callable(step_fn):
            raise Invalid(f"run: step_fn must be callable, not {a_type(step_fn)}")
        self._check_open()
        if self._servers is not None:
            return self._servers.run(self, step_fn)
        for hook in self.hooks:
            hook.before_run(self)
        result = step_fn(self.global_step)
        self._refuse_late_tables()
        self.global_step += 1
        self._stamp()
        for hook in self.hooks:
            hook.after_run(self, result)
        if self._manager is not None and self.is_chief:
            self._look_at_save()
            due = self._schedule.due(self._clock(), self.global_step)
            if due is not None:
                self._save(due)
        return result

    def _look_at_save(self) -> None:
        """Releases the rows of a save that is over. One that failed has saved nothing: what was due
        is due again, and not when the next interval is over."""
        if self._handle is None or not self._handle.done():
            return
        handle, self._handle = self._handle, None
        assert self._manager is not None
        self._manager._native.settle()
        if handle._outcome()[1] is not None:
            self._schedule.moments, self._chain, self._saved_step, self._saved_call = self._before

    def _call_is_told_wrongly(self) -> bool:
        """Whether the last checkpoint takes the Estimator's call for one that is not done."""
        return self._call is not None and self._unfinished() != self._saved_call

    def _finish_call(self) -> bool:
        """The Estimator's call has no more to do. False: the job went back, and it has."""
        assert self._call is not None
        self._call.finish()
        return self._servers is None or bool(self._servers.finish_call(self))

    def _unfinished(self) -> Optional[int]:
        """The step at which the Estimator's call of train began, while that is not done."""
        return None if self._call is None else self._call.unfinished(self.global_step)

    @property
    def increments(self) -> bool:
        """Whether it saves increments.

        >>> import cairn
        >>> with cairn.train.MonitoredTrainingSession("runs/a", save_incremental_checkpoint_secs=5,
        ...                                           tables=[]) as session:
        ...     session.increments
        True
        """
        if self._servers is not None:
            return self._servers.increments()
        return self._directory is not None and self.is_chief and self._schedule.increments

    def should_stop(self) -> bool:
        """Whether a hook, or somebody else, asked to stop.

        >>> import cairn
        >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[]) as session:
        ...     while not session.should_stop():
        ...         session.run(lambda step: session.request_stop())
        >>> session.global_step
        1
        """
        return self._stop

    def request_stop(self) -> None:
        """Lets should_stop say so.

        >>> import cairn
        >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[]) as session:
        ...     session.request_stop()
        ...     session.should_stop()
        True
        """
        self._stop = True

    @property
    def client(self) -> Any:
        """The :class:`cairn.ps.Client`, with pservers.

        >>> import cairn, cairn.ps
        >>> with cairn.ps.Server("runs/a") as server:
        ...     addresses = [f"127.0.0.1:{server.port}"]
        ...     with cairn.train.MonitoredTrainingSession("runs/a", pservers=addresses) as session:
        ...         users = session.client.table("users", 2, optimizer=cairn.optimizers.SGD())
        ...         session.run(lambda step: users.lookup([step])).shape
        (1, 2)
        """
        return None if self._servers is None else self._servers.client

    def save(self, full: bool = True) -> Optional[SaveHandle]:
        """Saves now, whatever is due. With pservers: asks for it at the end of the next step.

        >>> import cairn
        >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[users]) as session:
        ...     rows = session.run(lambda step: users.lookup([7]))
        ...     info = session.save(full=False).wait()
        >>> info.kind, info.tables[0]["rows"]
        ('increment', 1)
        """
        if self._servers is not None:
            self._servers.client.save(full)
            return None
        self._check_open()
        if self._manager is None or not self.is_chief:
            raise Invalid("this session saves nothing: it has no checkpoint_dir, or is not chief")
        return self._save("full" if full else "increment")

    def quantization_error(self) -> Tuple[float, float]:
        """Of the last save, if it was an increment with 8 bits a number (Saver.quantize): the greatest
        error of a number, and the greatest in parts of its row's largest. Waits for that save. With
        pservers: of the last increment that is over, the greatest on any of them.

        >>> import cairn
        >>> users = cairn.EmbeddingTable("users", 4, optimizer=cairn.optimizers.SGD())
        >>> saver = cairn.train.Saver(incremental_save_restore=True, quantize=True, compress_keys=True)
        >>> scaffold = cairn.train.Scaffold(saver, incremental_save_restore=True)
        >>> with cairn.train.MonitoredTrainingSession("runs/a", save_incremental_checkpoint_secs=60,
        ...                                           scaffold=scaffold, tables=[users]) as session:
        ...     session.run(lambda step: users.assign([7], [[0.1, 0.2, 0.3, 0.4]]))
        ...     info = session.save(full=False).wait()
        ...     absolute, relative = session.quantization_error()
        >>> 0 < absolute < 0.002, 0 < relative < 0.005
        (True, True)
        """
        self._check_open()
        if self._servers is not None:
            return self._servers.client.quantization_error()
        if self._manager is None:
            raise Invalid("this session saves nothing: it has no checkpoint_dir")
        self._manager._settle()
        self._manager._native.settle()
        return self._manager.quantization_error()

    def _check_open(self) -> None:
        if self._closed:
            raise Invalid("the session was closed: a step of it would never be saved")
        if not self._opened:
            raise Invalid(
                "the session is not open: nothing was restored, and nothing would be saved; use it "
                "as `with MonitoredTrainingSession(…) as sess:`"
            )

    def _refuse_late_tables(self) -> None:
        """tables=None means every table, and rows that nobody saves would be lost in silence."""
        if self._known is None or self._manager is None or not self.is_chief:
            return
        late = [table.name for table in all_tables() if table not in self._known]
        if late:
            raise Invalid(
                f"table {late[0]!r} was made after the session and would not be saved. Make tables "
                "before it, and once: not in a step or model function, which is called again and "
                "again; or name those that the session saves: tables=[…]"
            )

    def _stamp(self) -> None:
        stamp(self.tables, self.global_step)

    def _save(self, kind: str) -> SaveHandle:
        manager = self._manager
        assert manager is not None
        saver = self._scaffold.saver
        if kind == "increment" and (not self._can_increment() or self._wants_new_base()):
            kind = "full"
        now = self._clock()
        unfinished = self._unfinished()
        told = {} if kind == "full" else {"full_age_seconds": self._schedule.full_age(now)}
        if unfinished is not None:
            told["train_began"] = unfinished
        handle = manager.save(
            self.global_step,
            {"state": self.state},
            metadata={"session": told} if told else None,
            tables=self.tables,
            kind=kind if kind == "full" else saver.chain,
            quantize=saver.quantize and kind != "full",
            compress_keys=saver.compress_keys,
        )
        self._look_at_save()  # the one before, which the save waited for
        self._before = self._schedule.moments, self._chain, self._saved_step, self._saved_call
        self._schedule.saved(kind, now, self.global_step)
        self._chain = 0 if kind == "full" else self._chain + 1
        self._saved_step, self._saved_call = self.global_step, unfinished
        self._handle = handle
        return handle

    def _can_increment(self) -> bool:
        assert self._manager is not None
        self._manager._settle()  # the one in flight decides
        self._manager._native.settle()
        return bool(self.tables) and self._manager.can_increment()

    def _wants_new_base(self) -> bool:
        chain = self._scaffold.saver.chain
        if chain == "consecutive" and self._chain >= _LONGEST_CHAIN:
            return True
        rows = sum(table.size() for table in self.tables)
        changed = sum(table._native.changed_rows(chain) for table in self.tables)
        return rows >= _LARGE_ROWS and changed > _MOST * rows


def _agreed(
    directory: Optional[PathLike],
    own: _Schedule,
    scaffold: Optional[Scaffold],
    hooks: Sequence[SessionRunHook],
) -> Tuple[Optional[PathLike], _Schedule, Scaffold]:
    """The directory, the intervals and the scaffold, wherever they were given. What disagrees is
    refused: increments that somebody counts on must not be missing in silence."""
    savers = [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]
    if len(savers) > 1:
        raise Invalid("hooks: more than one CheckpointSaverHook")
    schedule = own
    if savers:
        hook = savers[0]
        if directory is None:
            directory = hook.checkpoint_dir
        elif str(directory) != str(hook.checkpoint_dir):
            raise Invalid(
                f"checkpoint_dir: the session has {str(directory)!r}, its CheckpointSaverHook "
                f"{str(hook.checkpoint_dir)!r}"
            )
        if own.increments and hook.schedule.increment != own.increment:
            raise Invalid(
                "increments: the session and its CheckpointSaverHook give different intervals; "
                "set one of them"
            )
        schedule = hook.schedule
        if hook.scaffold is not None and scaffold is not None and hook.scaffold is not scaffold:
            if hook.scaffold.incremental_save_restore != scaffold.incremental_save_restore:
                raise Invalid(
                    "incremental_save_restore: the session's scaffold says "
                    f"{scaffold.incremental_save_restore}, its CheckpointSaverHook's "
                    f"{hook.scaffold.incremental_save_restore}; set both"
                )
        scaffold = scaffold or hook.scaffold
    if scaffold is None:
        scaffold = Scaffold(incremental_save_restore=schedule.increments)
    if scaffold.incremental_save_restore and not schedule.increments:
        raise Invalid(
            "incremental_save_restore is set and no interval: set "
            "save_incremental_checkpoint_secs (or incremental_save_secs of the "
            "CheckpointSaverHook), or leave the switch off"
        )
    if schedule.increments and not scaffold.incremental_save_restore:
        raise Invalid(
            "increments are asked for, and the scaffold's incremental_save_restore is off: set it "
            "in Scaffold and Saver"
        )
    return directory, schedule, scaffold
