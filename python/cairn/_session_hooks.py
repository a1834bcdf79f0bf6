"""What is put into a training session: hooks around its steps, and how its checkpoints are kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Sequence, Tuple

from . import _location
from ._arguments import PathLike, positive, whole
from ._save_schedule import Schedule, seconds_between, steps_between
from ._wording import a_type
from .errors import Invalid

if TYPE_CHECKING:
    from ._training_session import MonitoredTrainingSession

__all__ = [
    "CheckpointSaverHook",
    "Saver",
    "Scaffold",
    "SessionRunHook",
    "StopAtStepHook",
    "agreed",
    "directory_of",
    "hooks_of",
]


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
        self.checkpoint_dir = directory_of(checkpoint_dir)
        self.schedule = Schedule(
            seconds_between(save_secs, "save_secs"),
            steps_between(save_steps, "save_steps"),
            seconds_between(incremental_save_secs, "incremental_save_secs"),
            steps_between(incremental_save_steps, "incremental_save_steps"),
        )
        if not self.schedule.saves:
            raise Invalid(
                "CheckpointSaverHook: without save_secs, save_steps or an interval of increments "
                "it would save nothing"
            )
        if saver is not None:
            scaffold = Scaffold(saver, saver.incremental_save_restore)
        self.scaffold = scaffold


def directory_of(given: Any) -> PathLike:
    if not isinstance(given, (str, os.PathLike)):
        raise Invalid(f"checkpoint_dir must be a path, not {given!r}")
    return given


def hooks_of(given: Any) -> List[SessionRunHook]:
    if not isinstance(given, Iterable):
        raise Invalid(f"hooks must be a list of SessionRunHooks, not {a_type(given)}")
    hooks = list(given)
    for hook in hooks:
        if not isinstance(hook, SessionRunHook):
            raise Invalid(f"hooks: {a_type(hook)} is no cairn.train.SessionRunHook")
    return hooks


def agreed(
    directory: Optional[PathLike],
    own: Schedule,
    scaffold: Optional[Scaffold],
    hooks: Sequence[SessionRunHook],
) -> Tuple[Optional[PathLike], Schedule, Scaffold]:
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
        elif _location.of_place(directory) != _location.of_place(hook.checkpoint_dir):
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
