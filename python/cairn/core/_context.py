"""core.init: what a training script is given."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Dict, Optional

from .. import _location, _native
from .._arguments import text_argument
from .._wording import a_type
from ..errors import Error, Invalid
from ._checkpoint import CheckpointContext
from ._client import Run, join, run_from_env
from ._distributed import DistributedContext
from ._info import ClusterInfo, info_from
from ._output import Output
from ._preempt import PreemptContext, PreemptMode, SignalFlag
from ._repository import Repository
from ._train import TrainContext

log = logging.getLogger("cairn.core")

# Parts of Determined's context that are not here, and what to write instead.
_INSTEAD = {
    "searcher": "a script trains to its end, and the master asks it to stop by ctx.preempt.should_preempt(); "
    "progress is ctx.train.report_progress(f)",
    "profiler": "report what you measure: ctx.train.report_metrics('machine', steps, {…})",
    "experimental": "nothing of it is here",
}

_EXIT_TERMINATED = 143  # 128 + SIGTERM, as a shell says it


def default_storage() -> str:
    """Where checkpoints go when nobody says: ./cairn-<script name>."""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    name = os.path.splitext(script)[0]
    return f"cairn-{name}" if name and not name.startswith("-") else "cairn-interactive"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _code_of(error: BaseException) -> int:
    """What the process exits with when nobody catches the error."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


class Context:
    """What core.init gives: see the attributes.

    Attributes:
        train: TrainContext, reports.
        checkpoint: CheckpointContext, stores and restores.
        preempt: PreemptContext, whether to stop.
        distributed: DistributedContext, the other ranks.
        info: ClusterInfo, or None without a master.
        latest_checkpoint: the id of the checkpoint to begin with, or None. Set with and without a
            master: start the same command again, and it is the last checkpoint that was stored.
        hparams: the hyperparameters; empty without a master.
        storage: the repository of the checkpoints.

    >>> import numpy as np, cairn
    >>> def train(steps):
    ...     with cairn.core.init(storage="runs/a") as ctx:
    ...         w, start = np.zeros(2), 0
    ...         if ctx.latest_checkpoint is not None:
    ...             start = ctx.checkpoint.restore({"w": w}).step
    ...         for step in range(start, steps):
    ...             w += 1
    ...             ctx.train.report_training_metrics(steps_completed=step + 1, metrics={"loss": 0.5})
    ...             handle = ctx.checkpoint.save({"w": w}, {"steps_completed": step + 1})
    ...             if ctx.preempt.should_preempt():
    ...                 break
    ...         return start, w.tolist()
    >>> train(2), train(3)
    ((0, [2.0, 2.0]), (2, [3.0, 3.0]))
    """

    def __init__(
        self,
        *,
        storage: Optional[str],
        distributed: Optional[DistributedContext],
        preempt_mode: PreemptMode,
        external_id: Optional[str],
        send_output: bool,
        options: Dict[str, Any],
    ) -> None:
        self._signals = SignalFlag()
        self._output: Optional[Output] = None
        self._own_distributed = distributed is None
        self._run: Optional[Run] = None
        self._closed = False
        self._pid = os.getpid()
        self._signals.install()
        try:
            self._open(storage, distributed, preempt_mode, external_id, options)
            if send_output and self._run is not None and self._run.detached:
                self._output = Output(self._run.client, self.distributed.rank)
        except BaseException as error:
            self._end(1, _said(error))
            raise

    def _open(
        self,
        storage: Optional[str],
        distributed: Optional[DistributedContext],
        preempt_mode: PreemptMode,
        external_id: Optional[str],
        options: Dict[str, Any],
    ) -> None:
        self.distributed = distributed or DistributedContext.from_env()
        self.info: Optional[ClusterInfo] = info_from(os.environ)
        if self.info is not None:
            self._run = run_from_env(os.environ, self.distributed.rank)
        elif os.environ.get("CAIRN_TRIAL_URL") and os.environ.get("CAIRN_JOIN_TOKEN"):
            self._run, self.info = join(os.environ, self.distributed, external_id, storage)
        client = self._run.client if self._run is not None else None
        if self._run is not None:
            self.storage = _location.absolute(self._run.repository)
            # The engine decides what stays, and a stale process of an older run is fenced out.
            # Where another's checkpoints are, nothing is taken for the trial's.
            options = {
                "keep_last": None,
                "job": self._run.job,
                "run": self._run.run_id,
                "takeover": True,
            }
        else:
            self.storage = _location.absolute(
                storage or os.environ.get("CAIRN_STORAGE") or default_storage()
            )
        repository = self._repository = Repository(self.storage, self.distributed, options)
        latest: Optional[str] = None
        age = (0, 0)  # of the newest checkpoint that was there before this run
        error: Optional[str] = None
        if self.distributed.is_chief:
            try:
                newest = repository.alone().latest()
                if newest is not None:
                    latest, age = newest.id, (newest.generation, newest.sequence)
                if self._run is None:  # otherwise the engine passes over what is damaged
                    latest = _native.newest_whole(self.storage)
                repository.sweep_staging()
            except Error as failure:
                error = f"rank 0: {failure}"
                if self.distributed.size == 1:
                    raise
        latest, age, error = self.distributed.broadcast((latest, age, error))
        if error is not None:
            raise Error(error)
        elsewhere = None
        if self._run is not None:
            latest = self._run.latest_checkpoint
        chosen = None if latest is None else (latest, (age[0], age[1]))
        if self._run is not None:
            if latest is not None and self._run.latest_repository:
                elsewhere = (latest, self._run.latest_repository)
        self.latest_checkpoint = latest
        self.hparams: Dict[str, Any] = {} if self.info is None else self.info.trial.hparams
        self.checkpoint = CheckpointContext(repository, self.distributed, client, elsewhere, chosen)
        self.train = TrainContext(
            self.distributed, client, self.checkpoint.add_score, repository.check_open
        )
        self.preempt = PreemptContext(self.distributed, preempt_mode, self._signals, client)
        if self._run is not None:
            self._run.ready()

    def close(self) -> None:
        """Waits for checkpoints in flight and gives everything back. Raises what went wrong.

        >>> import cairn
        >>> ctx = cairn.core.init(storage="runs/a")
        >>> handle = ctx.checkpoint.save({"x": 1}, {"steps_completed": 1})
        >>> ctx.close()
        >>> handle.done()
        True
        """
        if not self._closed and not self._is_forked():
            self._finish()

    def _is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened it: the run, its threads and connections
        are that one's, and it has not ended."""
        return os.getpid() != self._pid

    def _finish(self) -> int:
        """Closes a run whose script did not fail. Gives the code that the process must exit with."""
        code, message = 0, ""
        if self._run is not None and self._signals.raised and not self.preempt.acknowledged:
            # Told by a signal alone: code 0 would say that the trial is complete.
            code, message = _EXIT_TERMINATED, "stopped by a signal"
        try:
            self.checkpoint.settle(wait=True)
        except BaseException as error:
            code, message = 1, _said(error)
            raise
        finally:
            self._end(code, message)
        return code

    def _end(self, code: int, message: str) -> None:
        self._closed = True
        self._signals.remove()
        repository = getattr(self, "_repository", None)
        try:
            if repository is not None:
                repository.close()
        except BaseException as error:
            if code == 0:
                code, message = 1, _said(error)
            raise
        finally:
            if self._output is not None:  # a run that said how it ended sends no more lines
                self._output.close()
            if self._run is not None:
                self._run.close(code, message)
            if self._own_distributed and hasattr(self, "distributed"):
                self.distributed.close()

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._is_forked():
            return
        code = 0 if error is None else _code_of(error)
        if code == 0:
            if not self._closed:
                code = self._finish()
            if code != 0:
                raise SystemExit(code)
            return
        try:
            self.checkpoint.settle(wait=True)
        except Error as failure:  # the first error is the one to show
            print(f"cairn: a checkpoint failed as well: {failure}", file=sys.stderr)
        if self._output is not None:
            self._output.add_error(error)
        try:
            self._end(code, _said(error))
        except Error as failure:
            print(f"cairn: {failure}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"the context of core.init has no {name}{hint}")

    def __repr__(self) -> str:
        return f"Context({self.storage!r}, {self.distributed!r})"


def init(
    *,
    storage: Optional[str] = None,
    checkpoint_storage: Optional[str] = None,
    distributed: Optional[DistributedContext] = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    keep_last: Optional[int] = 3,
    keep_best: Optional[int] = None,
    score: Optional[str] = None,
    order: str = "max",
    keep_every: Optional[int] = None,
    external_id: Optional[str] = None,
    send_output: bool = True,
) -> Context:
    """Connects a training script with what runs it. Use it as a context manager.

    Started by a master (or any trial engine), it reports there, and its checkpoints go where the
    experiment says. Without one the same script works alone: checkpoints go to a local directory,
    SIGTERM, SIGUSR1 and Ctrl-C ask it to stop (should_preempt), and the same command started again
    goes on from the last checkpoint. With CAIRN_TRIAL_URL and CAIRN_JOIN_TOKEN set, a process that
    was started by hand joins a master (detached mode).

    Args:
        storage: directory or URL of the checkpoints. None: CAIRN_STORAGE, or ./cairn-<script name>.
            Under a master the experiment decides.
        checkpoint_storage: the same, as scripts for Determined call it.
        distributed: the ranks. None: from the variables of Cairn's launcher, torchrun or MPI.
        preempt_mode: who asks whether to stop; see PreemptMode.
        keep_last, keep_best, score, order, keep_every: which checkpoints stay, as for
            CheckpointManager. Under a master the experiment decides.
        external_id: in detached mode, what the trial is called for its owner: the same id again is
            the same trial. None: CAIRN_EXTERNAL_ID, or a name made of the command and directory.
        send_output: in detached mode, whether what the script writes to sys.stdout and sys.stderr
            (and loggers write there) goes to the master as the trial's log, too. Nothing waits for
            that: of a master that is away for long, lines get lost, and the log says how many.

    >>> import cairn
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     ctx.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
    ...     print(ctx.latest_checkpoint, ctx.distributed.rank, ctx.info)
    None 0 None
    """
    if storage is not None and checkpoint_storage is not None:
        raise Invalid("storage and checkpoint_storage are two names of one thing: give one")
    storage = checkpoint_storage if storage is None else storage
    if external_id is not None:
        text_argument(external_id, "external_id")
    if distributed is not None and not isinstance(distributed, DistributedContext):
        raise Invalid(f"distributed must be a DistributedContext, not {a_type(distributed)}")
    try:
        mode = PreemptMode(preempt_mode)
    except ValueError:
        raise Invalid(f"preempt_mode must be a PreemptMode, not {preempt_mode!r}") from None
    return Context(
        storage=None if storage is None else _location.text_of(storage),
        distributed=distributed,
        preempt_mode=mode,
        external_id=external_id,
        send_output=bool(send_output),
        options={
            "keep_last": keep_last,
            "keep_best": keep_best,
            "score": score,
            "order": order,
            "keep_every": keep_every,
        },
    )
