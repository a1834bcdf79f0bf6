"""The training session: when it saves, and where it goes on. Behind cairn.train."""

from __future__ import annotations

import logging
import os
import sys
import time
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _tree
from ._arguments import PathLike
from ._save_schedule import Schedule, seconds_between, steps_between
from ._session_hooks import Scaffold, SessionRunHook, agreed, directory_of, hooks_of
from ._tables_within import refuse_lost_tables, with_tables_within
from ._train_call import TrainCall
from ._wording import a_type
from .errors import Invalid, Mismatch, NotFound, Timeout
from .manager import CheckpointInfo, CheckpointManager, Restored, SaveHandle
from .observe import SavedCallback
from .row_tracked import RowTracked
from .scope import end_iteration_of
from .table import EmbeddingTable, stamp
from .table import tables as all_tables

__all__ = ["MonitoredTrainingSession", "open_sessions"]

# An increment that would hold most of a large table is no saving: a full one takes its place.
_LARGE_ROWS = 100_000
_MOST = 0.5
_LONGEST_CHAIN = 100
# How often a worker looks whether the chief has saved.
_LOOK_SECONDS = 0.2

log = logging.getLogger("cairn")

# The sessions that are open, the innermost last.
open_sessions: List["MonitoredTrainingSession"] = []


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
            entry, saved whole with each checkpoint. Objects with state_dict too. The temporaries of
            a Scope are destroyed after each step.
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
        own = Schedule(
            seconds_between(save_checkpoint_secs, "save_checkpoint_secs"),
            steps_between(save_checkpoint_steps, "save_checkpoint_steps"),
            seconds_between(save_incremental_checkpoint_secs, "save_incremental_checkpoint_secs"),
            steps_between(save_incremental_checkpoint_steps, "save_incremental_checkpoint_steps"),
        )
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            raise Invalid(f"scaffold must be a cairn.train.Scaffold, not {scaffold!r}")
        self.hooks = hooks_of(hooks)
        self._directory, self._schedule, self._scaffold = agreed(
            None if checkpoint_dir is None else directory_of(checkpoint_dir),
            own,
            scaffold,
            self.hooks,
        )
        self.is_chief = bool(is_chief)
        self._max_wait_secs = seconds_between(max_wait_secs, "max_wait_secs") or 0.0
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
        except Mismatch as error:
            self._manager.close()
            raise _other_training(error) from None
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
        before = self._fingerprint()
        for hook in self.hooks:
            hook.end(self)
        self._look_at_save()
        if (
            self._manager is not None
            and self.is_chief
            and self._schedule.saves
            and (
                self.global_step != self._saved_step
                or self._call_is_told_wrongly()
                or self._changed_since_the_save(before)
            )
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
        end_iteration_of(self.state)
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

    def _fingerprint(self) -> Any:
        """Something that differs when hooks change the state at the end; None when that is saved anyway."""
        if self._manager is None or not self.is_chief or not self._schedule.saves:
            return None
        if self.global_step != self._saved_step:
            return None
        if all(type(hook).end is SessionRunHook.end for hook in self.hooks):
            return None
        encoded = _tree.encode(self.state, _tree.Layout())
        return encoded.json, encoded.tensors.digest()

    def _changed_since_the_save(self, before: Any) -> bool:
        """Whether rows changed after the step that was saved last, or hooks changed the state at the
        end: `before` is its fingerprint."""
        assert self._manager is not None
        if self._fingerprint() != before:
            return True
        self._manager._settle()  # rows that the one in flight saves count as changed until then
        self._manager._native.settle()
        if self.tables and not self._manager.can_increment():
            return True  # a table was cleared, and knows no more what changed
        return any(table._native.changed_rows("consecutive") for table in self.tables)

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


def _other_training(error: Mismatch) -> Mismatch:
    """Says what a session's user can do about it; there is no rename and no skip here."""
    what, changed, _ = str(error).partition("Nothing was changed")
    if not changed:  # of tables alone
        what = f"{error}. "
    return Mismatch(
        f"{what}{changed}{'. ' if changed else ''}Give the tables and the state that were saved, or train "
        "in another checkpoint_dir; CheckpointManager.restore(…, strict=False) takes what fits over",
        error.missing,
        error.unexpected,
        error.mismatched,
    )
