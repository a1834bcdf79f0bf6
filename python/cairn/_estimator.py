"""The Estimator: a model function, trained in sessions. Behind cairn.train."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from typing import (
    Any,
    Callable,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from ._arguments import PathLike, positive
from ._export import ExportedModel, ServingInputReceiver
from ._export import export as _export
from ._location import text_of
from ._session_hooks import Scaffold, SessionRunHook
from ._train_call import TrainCall
from ._training_session import MonitoredTrainingSession
from ._wording import a_type
from .errors import Invalid, NotFound
from .manager import CheckpointManager
from .row_tracked import RowTracked
from .table import EmbeddingTable, names_made

log = logging.getLogger("cairn")

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
]


class ModeKeys:
    """What a model function is called for.

    >>> import cairn
    >>> def model_fn(features, labels, mode, params):
    ...     assert mode == cairn.train.ModeKeys.TRAIN
    ...     return cairn.train.EstimatorSpec(mode, train_op=lambda: 0.5)
    >>> e = cairn.train.Estimator(model_fn, "runs/a", tables=[])
    >>> e.train(lambda: [(None, None)]).last_loss
    0.5
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


# What a model function may take, by name.
_GIVEN = ("features", "labels", "mode", "params")


@dataclasses.dataclass
class EstimatorSpec:
    """What a model function gives for one batch.

    Attributes:
        mode: ModeKeys.TRAIN.
        loss: of the batch, a number; or a callable that gives it, called after train_op.
        train_op: does the step; called without arguments, or with the global step if it takes one.
            What it returns is the loss, unless loss is given.
        training_hooks, training_chief_hooks: SessionRunHooks; those of the first batch count.
        scaffold: likewise.

    >>> import numpy as np, cairn
    >>> w = np.zeros(1)
    >>> def model_fn(features, labels, mode):
    ...     def train_op(step):
    ...         w[:] += 0.5 * (labels - w)
    ...     return cairn.train.EstimatorSpec(mode, loss=lambda: float((labels - w[0]) ** 2),
    ...                                      train_op=train_op,
    ...                                      training_hooks=[cairn.train.StopAtStepHook(2)])
    >>> e = cairn.train.Estimator(model_fn, "runs/a", tables=[], state={"w": w})
    >>> e.train(lambda: [(None, 1.0)] * 10).last_loss
    0.0625
    """

    mode: str
    loss: Any = None
    train_op: Optional[Callable[..., Any]] = None
    training_hooks: Sequence[SessionRunHook] = ()
    training_chief_hooks: Sequence[SessionRunHook] = ()
    scaffold: Optional[Scaffold] = None


class Estimator:
    """Trains what a model function describes; goes on where the last training ended.

    Args:
        model_fn: called for each batch with (features, labels, mode, params), or with those of
            them that it takes; gives an EstimatorSpec.
        model_dir: where checkpoints are.
        params: for the model function.
        tables: None: every table of this process.
        state: dense variables; see MonitoredTrainingSession.
        pservers: see MonitoredTrainingSession. When the job goes back, input_fn is called again and
            read up to where it went back to.

    >>> import numpy as np, cairn
    >>> w = np.zeros(1)
    >>> def model_fn(features, labels, mode, params):
    ...     def train_op():
    ...         w[:] += params["rate"] * (labels - w)
    ...     return cairn.train.EstimatorSpec(mode, train_op=train_op)
    >>> def input_fn():
    ...     while True:
    ...         yield None, np.ones(1)
    >>> e = cairn.train.Estimator(model_fn, "runs/a", {"rate": 0.5}, tables=[], state={"w": w})
    >>> e.train(input_fn, steps=2).global_step
    2
    >>> w.tolist()
    [0.75]
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: PathLike,
        params: Optional[Mapping[str, Any]] = None,
        *,
        tables: Optional[Sequence[Union[EmbeddingTable, RowTracked]]] = None,
        state: Any = None,
        save_checkpoint_secs: Optional[float] = 600,
        save_checkpoint_steps: Optional[int] = None,
        pservers: Any = None,
    ) -> None:
        if not callable(model_fn):
            raise Invalid("model_fn must be callable")
        self._model_fn = model_fn
        self._takes = _parameters_of(model_fn)
        self.model_dir = model_dir
        if params is not None and not isinstance(params, Mapping):
            raise Invalid(f"params must be a dict, not {a_type(params)}")
        self.params = dict(params or {})
        self.global_step = 0
        self.last_loss: Any = None
        self._tables = tables
        self._state = state
        self._pservers = pservers
        self._full = (save_checkpoint_secs, save_checkpoint_steps)
        # Whether the last training of this process saved increments; None: there was none.
        self._increments: Optional[bool] = None
        self._called = False  # the model function was

    def train(
        self,
        input_fn: Callable[[], Iterable[Tuple[Any, Any]]],
        steps: Optional[int] = None,
        max_steps: Optional[int] = None,
        hooks: Sequence[SessionRunHook] = (),
    ) -> "Estimator":
        """Trains for `steps` further steps, up to step `max_steps`, or until the data ends.

        A call that did not return, because the process was killed, is gone on with by the same call
        in another process: batches of input_fn that count already are read and passed over, and
        `steps` are counted from where it began. A script with several calls gives each of them
        `max_steps`: those that were done then find nothing left to do.

        Args:
            input_fn: gives an iterable of (features, labels), the same batches each time.
            steps, max_steps: at most one of them.
            hooks: further SessionRunHooks.
        """
        if steps is not None and max_steps is not None:
            raise Invalid("train: give steps or max_steps, not both")
        steps, max_steps = positive(steps, "steps"), positive(max_steps, "max_steps")
        batches = _Batches(input_fn)
        first = batches.at(0)
        if first is _END:
            raise Invalid("train: input_fn gave no data")
        session = self._session(self._spec(first), hooks)
        session._call = call = TrainCall(steps, max_steps)
        with session:
            self._increments = session.increments
            done = session.global_step - call.began
            if done > 0 and not call.is_over(session.global_step):
                log.info("train goes on after batch %d: it began at step %d", done, call.began)
                if batches.at(done - 1) is _END:
                    log.warning("train: input_fn gives fewer than the %d batches it gave before", done)

            def run(step: int) -> Any:
                call.go_back(step)
                return _run_spec(self._spec(batches.at(step - call.began)), step)

            over = False
            while not over:
                step = session.global_step
                if (
                    session.should_stop()
                    or call.is_over(step)
                    or batches.at(step - call.began) is _END
                ):
                    over = session._finish_call()
                    continue
                self.last_loss = session.run(run)
            self.global_step = session.global_step
        return self

    def export_saved_model(
        self,
        export_dir_base: PathLike,
        serving_input_receiver_fn: Callable[[], ServingInputReceiver],
        save_incr_model: bool = False,
    ) -> ExportedModel:
        """Exports what it trained for serving, into a new numbered directory.

        Args:
            export_dir_base: the directory above it.
            serving_input_receiver_fn: gives a :class:`ServingInputReceiver`: the graph, its feeds
                and targets, and which of the feeds are rows of tables.
            save_incr_model: as for :func:`export_saved_model`. The training must have saved
                increments (a CheckpointSaverHook with incremental_save_secs); where an earlier
                process trained, there must be some in model_dir.

        >>> import onnx.parser, cairn
        >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
        ...     'g (float[n, 2] user) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (user, w) }')
        >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
        >>> def model_fn(features, mode):
        ...     return cairn.train.EstimatorSpec(mode, train_op=lambda: users.assign(features, [[1, 2]]))
        >>> e = cairn.train.Estimator(model_fn, "runs/a", tables=[users]).train(lambda: [([7], None)])
        >>> made = e.export_saved_model("export", lambda: cairn.train.ServingInputReceiver(
        ...     graph, ["user"], ["y"], tables={"user": users}))
        >>> made.version
        1
        """
        if save_incr_model:
            self._check_increments()
        given = serving_input_receiver_fn()
        if not isinstance(given, ServingInputReceiver):
            raise Invalid(
                "serving_input_receiver_fn must give a cairn.train.ServingInputReceiver, not a "
                f"{type(given).__name__}"
            )
        return _export(export_dir_base, given, save_incr_model)

    def _check_increments(self) -> None:
        if self._increments or (self._increments is None and _has_increments(self.model_dir)):
            return
        if self._increments is None:
            why = (
                "this estimator was not trained in this process, and there are no increments in "
                f"{text_of(self.model_dir)!r}"
            )
        else:
            why = "this estimator saves no increments"
        raise Invalid(
            f"save_incr_model=True, and {why}: train it with a CheckpointSaverHook that has "
            "incremental_save_secs, or export with save_incr_model=False"
        )

    def _spec(self, batch: Any) -> EstimatorSpec:
        features, labels = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        given = {
            "features": features,
            "labels": labels,
            "mode": ModeKeys.TRAIN,
            "params": self.params,
        }
        taken = given if self._takes is None else {k: given[k] for k in self._takes if k in given}
        made = len(names_made())
        spec = self._model_fn(**taken)
        if self._called and len(names_made()) > made:
            raise Invalid(
                f"model_fn makes table {names_made()[-1]!r} each time it is called, which is once for "
                "every batch: it would be trained on one batch and never saved. Make tables "
                "once, outside of it"
            )
        self._called = True
        if not isinstance(spec, EstimatorSpec):
            raise Invalid(f"model_fn must give an EstimatorSpec, not a {type(spec).__name__}")
        if not callable(spec.train_op):
            raise Invalid("EstimatorSpec: train_op must be a callable that does the step")
        return spec

    def _session(
        self, spec: EstimatorSpec, hooks: Sequence[SessionRunHook]
    ) -> MonitoredTrainingSession:
        every: List[SessionRunHook] = [*spec.training_hooks, *spec.training_chief_hooks, *hooks]
        return MonitoredTrainingSession(
            self.model_dir,
            save_checkpoint_secs=self._full[0],
            save_checkpoint_steps=self._full[1],
            hooks=every,
            scaffold=spec.scaffold,
            tables=self._tables,
            state=self._state,
            pservers=self._pservers,
        )


def _has_increments(directory: PathLike) -> bool:
    try:
        with CheckpointManager(directory, read_only=True) as manager:
            return any(info.kind != "full" and not info.foreign for info in manager.list())
    except NotFound:
        return False


_END = object()


class _Batches:
    """The batches of an input function by their number. Going back begins anew."""

    def __init__(self, input_fn: Callable[[], Iterable[Tuple[Any, Any]]]) -> None:
        if not callable(input_fn):
            raise Invalid(f"input_fn must be a function that gives batches, not {a_type(input_fn)}")
        self._input_fn = input_fn
        self._rest = self._begun()
        self._number = -1
        self._batch: Any = None

    def _begun(self) -> Iterator[Any]:
        given = self._input_fn()
        try:
            return iter(given)
        except TypeError:
            raise Invalid(
                f"input_fn must give an iterable of batches, not {a_type(given)}"
            ) from None

    def at(self, number: int) -> Any:
        """_END: the data ends before it."""
        if number < self._number:
            self._rest, self._number = self._begun(), -1
        while self._number < number:
            self._batch = next(self._rest, _END)
            self._number += 1
        return self._batch


def _parameters_of(model_fn: Callable[..., Any]) -> Optional[List[str]]:
    """The names it takes; None: all."""
    parameters = inspect.signature(model_fn).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for p in parameters:
        if p.kind in named and p.default is p.empty and p.name not in _GIVEN:
            raise Invalid(
                f"model_fn takes {p.name!r}, and is given {', '.join(_GIVEN)} by these names"
            )
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters]


def _run_spec(spec: EstimatorSpec, step: int) -> Any:
    assert spec.train_op is not None
    takes = inspect.signature(spec.train_op).parameters
    result = spec.train_op(step) if takes else spec.train_op()
    if spec.loss is None:
        return result
    return spec.loss() if callable(spec.loss) else spec.loss
