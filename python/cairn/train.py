"""The training session that TensorFlow's and DeepRec's users know, with full and incremental
checkpoints: MonitoredTrainingSession, Saver, Scaffold, CheckpointSaverHook, Estimator; and exports of
what they train for serving."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from ._arguments import PathLike
from ._estimator import Estimator, EstimatorSpec, ModeKeys
from ._export import ExportedModel, ServingInputReceiver
from ._export import export as _export
from ._session_hooks import (
    CheckpointSaverHook,
    Saver,
    Scaffold,
    SessionRunHook,
    StopAtStepHook,
)
from ._training_session import MonitoredTrainingSession, open_sessions
from ._wording import a_type
from .errors import Invalid
from .manager import CheckpointManager
from .table import EmbeddingTable

__all__ = [
    "CheckpointSaverHook",
    "Estimator",
    "EstimatorSpec",
    "ExportedModel",
    "ModeKeys",
    "MonitoredTrainingSession",
    "Saver",
    "Scaffold",
    "ServingInputReceiver",
    "SessionRunHook",
    "StopAtStepHook",
    "export_saved_model",
]


def export_saved_model(
    dir: PathLike,
    feed_names: Sequence[str],
    target_names: Sequence[str],
    program: Any,
    tables: Optional[Mapping[str, EmbeddingTable]] = None,
    save_incr_model: bool = False,
    *,
    session: Any = None,
    variables: Optional[Mapping[str, str]] = None,
    example_inputs: Optional[Sequence[Any]] = None,
    dynamic_axes: Optional[Mapping[str, Mapping[int, str]]] = None,
) -> ExportedModel:
    """Exports a model for :class:`cairn.serving.Model` and ``cairn serve``: the graph cut down to
    what the targets need, its dense weights, and which table feeds which input.

    Args:
        dir: the export becomes its next numbered subdirectory.
        feed_names, target_names, program, example_inputs, dynamic_axes: as for
            :func:`cairn.io.save_inference_model`.
        tables: {input: table}: inputs that are rows of a table. The served model is given int64 ids
            in their place.
        save_incr_model: the export loads full checkpoints and increments; False: full ones only.
        session: that trains it, or the :class:`cairn.ps.Client` of a job with parameter servers;
            None: the session that is open. With save_incr_model it must save increments. A training
            that saves them itself gives its :class:`cairn.CheckpointManager`.
        variables: {weight of the graph: variable of the checkpoints}, where names differ. Others are
            found by their name, alone or behind the last "/" (a session's state {"fc.weight": …} is
            stored as "state/fc.weight").

    >>> import numpy as np, onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] user) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (user, w) }')
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> w = np.array([1.0, 10.0], np.float32)
    >>> with cairn.train.MonitoredTrainingSession("runs/a", tables=[users], state={"w": w},
    ...                                           save_incremental_checkpoint_secs=5) as session:
    ...     session.run(lambda step: users.assign([7], [[1.0, 2.0]]))
    ...     made = cairn.train.export_saved_model("export", ["user"], ["y"], graph, {"user": users},
    ...                                           save_incr_model=True)
    >>> with cairn.serving.Model(made, "runs/a", follow=False) as model:
    ...     model.predict({"user": [7]})["y"].tolist()
    [[1.0, 20.0]]
    """
    if session is None and open_sessions:
        session = open_sessions[-1]
    if save_incr_model and session is None:
        raise Invalid(
            "save_incr_model=True, and no session is open: export within one that has "
            "save_incremental_checkpoint_secs, give the CheckpointManager that saves increments as "
            "session=…, or export with save_incr_model=False"
        )
    if save_incr_model and not _saves_increments(session):
        raise Invalid(
            "save_incr_model=True, and the session saves no increments: set "
            "save_incremental_checkpoint_secs, or export with save_incr_model=False"
        )
    given = ServingInputReceiver(
        program,
        feed_names,
        target_names,
        tables or {},
        variables or {},
        example_inputs,
        dynamic_axes,
    )
    return _export(dir, given, save_incr_model)


def _saves_increments(session: Any) -> bool:
    if isinstance(session, CheckpointManager):
        return True  # it saves what it is told
    if not hasattr(session, "increments"):
        raise Invalid(
            "session: a MonitoredTrainingSession, a cairn.ps.Client or a CheckpointManager is wanted, "
            f"not {a_type(session)}"
        )
    return bool(session.increments)
