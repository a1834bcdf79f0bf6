"""Models that follow a training job: exported once, then as new as its checkpoints."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _arrays, _location
from ._arguments import PathLike, positive, rank_number, real, seconds, text_argument, whole
from ._wording import a_type
from .errors import Invalid, Unavailable
from .inference import Signature, _native_module, _plugin, _signatures, described_feeds

__all__ = ["LookupClient", "Model", "Probe", "Update", "Version", "View"]

_LONGEST_WAIT = 86400.0  # a look a day costs nothing, and nobody waits that long for an answer


class Version(NamedTuple):
    """Which checkpoint is served.

    >>> import cairn
    >>> version = cairn.serving.Version(step=40, id="5f0c…")
    >>> step, id = version
    >>> step
    40
    """

    step: int
    id: str


@dataclasses.dataclass(frozen=True)
class Probe:
    """A guard: what the model must give before a version is shown.

    Attributes:
        feeds: as for :meth:`Model.predict`.
        output: a target.
        min, max: every element of it lies between them; NaN never does.

    >>> import onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 1] user) => (float[n, 1] score) { score = Sigmoid (user) }')
    >>> users = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.SGD())
    >>> made = cairn.train.export_saved_model("export", ["user"], ["score"], graph, {"user": users})
    >>> def save(weight):
    ...     with cairn.CheckpointManager("runs/a", keep_last=None) as m:
    ...         users.assign([7], [[weight]])
    ...         return m.save(len(m.list()), {}, tables=[users]).wait()
    >>> info = save(0.0)
    >>> known = cairn.serving.Probe({"user": [7]}, "score", min=0.1, max=0.9)
    >>> with cairn.serving.Model(made, "runs/a", probes=[known], follow=False) as model:
    ...     info = save(100.0)                       # a score of 1
    ...     model.update()
    ...     model.version().step, [update.kind for update in model.updates()]
    (0, ['applied', 'refused'])
    """

    feeds: Mapping[str, Any]
    output: str
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class Update:
    """What happened to a checkpoint.

    Attributes:
        kind: "applied"; "refused" (damaged, not fitting, or a guard), "passed over" (of another
            job, of an abandoned branch, of a broken chain, an increment that is not wanted),
            "abandoned": the version before stays, or an older one takes its place; "unreachable":
            the repository (no id) cannot be read, or the checkpoint cannot be taken, for now.
        id, step: of the checkpoint.
        full: applied, and all rows were read.
        rows: that were read; `changed` of them were not as before.
        seconds: from seeing it to serving it.
        message: why not.

    >>> import onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 1] user) => (float[n, 1] score) { score = Sigmoid (user) }')
    >>> users = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.SGD())
    >>> made = cairn.train.export_saved_model("export", ["user"], ["score"], graph, {"user": users})
    >>> rows = users.lookup([7, 8])
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     info = m.save(40, {}, tables=[users]).wait()
    >>> with cairn.serving.Model(made, "runs/a", follow=False) as model:
    ...     [update] = model.updates()
    >>> update.kind, update.step, update.full, update.rows
    ('applied', 40, True, 2)
    """

    kind: str
    id: str
    step: int
    full: bool
    rows: int
    changed: int
    seconds: float
    message: str


def _outputs(found: Any) -> Dict[str, np.ndarray]:
    return {
        name: _arrays.make("numpy", stored, tuple(shape), data, {}, name)
        for _, name, stored, shape, data in found
    }


def _array(value: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise Invalid(f"{what} is no array: {error}") from None


def _flat(ids: Any) -> Tuple[np.ndarray, Tuple[int, ...]]:
    ids = _array(ids, "lookup: ids")
    if ids.size and ids.dtype.kind not in "iu":
        raise Invalid(f"lookup: ids must be integers, not {ids.dtype}")
    return np.ascontiguousarray(ids.reshape(-1), dtype=np.int64), ids.shape


def _rows(native: Any, dims: Mapping[str, int], table: str, ids: Any) -> np.ndarray:
    text_argument(table, "the table's name")
    flat, shape = _flat(ids)
    out = np.empty((flat.size, dims.get(table, 1)), np.float32)
    native.lookup(table, flat, out)
    return out.reshape(*shape, out.shape[1])


class View:
    """One version of a model, for calls that belong together. Made by :meth:`Model.view`.

    >>> import onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 1] user) => (float[n, 1] score) { score = Neg (user) }')
    >>> users = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.SGD())
    >>> made = cairn.train.export_saved_model("export", ["user"], ["score"], graph, {"user": users})
    >>> users.assign([7], [[2.0]])
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     info = m.save(40, {}, tables=[users]).wait()
    >>> with cairn.serving.Model(made, "runs/a") as model:
    ...     view = model.view()                      # whatever is committed meanwhile
    ...     view.version().step, view.lookup("users", [7]).item(), view.predict({"user": [7]})["score"].item()
    (40, 2.0, -2.0)
    """

    def __init__(self, native: Any, dims: Mapping[str, int], dtypes: Mapping[str, str]) -> None:
        self._native = native
        self._dims = dims
        self._dtypes = dtypes

    def version(self) -> Version:
        """(step, id) of the checkpoint that it is of."""
        found = self._native.version()
        return Version(found["step"], found["id"])

    def lookup(self, table: str, ids: Any) -> np.ndarray:
        """As :meth:`Model.lookup`."""
        return _rows(self._native, self._dims, table, ids)

    def predict(self, feeds: Mapping[str, Any]) -> Dict[str, np.ndarray]:
        """As :meth:`Model.predict`."""
        described, keep = described_feeds(feeds, self._dtypes)
        found = self._native.predict(described)
        del keep
        return _outputs(found)


class Model:
    """Serves an export with the newest tables and variables of a training job's repository.

    It follows the repository in the background: each checkpoint is prepared aside and becomes
    visible in one switch, rows and dense variables together. A bad one changes nothing. All methods
    may be called from many threads.

    Args:
        export_dir: what export_saved_model gave, or the directory above it (the newest is taken).
        repository: the training job's checkpoint directory, or its URL.
        keep_versions: that stay beside the newest, to go back to.
        poll_secs: how often to look, besides being told by the file system.
        check_finite: refuse updates with NaN or infinite weights.
        probes: guards; see :class:`Probe`.
        cpu_share: of a core, for updates that take long.
        threads: of one prediction; None: OpenVINO's choice.
        follow: False: what is there now, and with each :meth:`update`.
        require_version: False: wait for the first checkpoint in the background; until then calls
            raise Unavailable.
        job: whose repository it must be; None: the one that is found first.

    >>> import numpy as np, onnx.parser, cairn
    >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] user) => (float[n, 2] score) <float[2] w = {1, 10}> '
    ...     '{ score = Mul (user, w) }')
    >>> users = cairn.EmbeddingTable("users", 2, optimizer=cairn.optimizers.SGD())
    >>> made = cairn.train.export_saved_model("export", ["user"], ["score"], graph, {"user": users})
    >>> trainer = cairn.CheckpointManager("runs/a", keep_last=None)
    >>> def train(step, weight):
    ...     users.assign([7], np.full((1, 2), weight))
    ...     return trainer.save(step, {}, tables=[users]).wait()
    >>> info = train(1, 1.0)
    >>> model = cairn.serving.Model("export", "runs/a", follow=False)
    >>> model.tables, model.fixed_weights            # no checkpoint has w: it stays as exported
    ({'users': 2}, ['w'])
    >>> model.lookup("users", [7]).tolist(), model.predict({"user": [7]})["score"].tolist()
    ([[1.0, 1.0]], [[1.0, 10.0]])
    >>> info = train(2, 2.0)
    >>> model.update()                               # by itself with follow=True; notify() hurries it
    >>> model.version().step, [version.step for version in model.versions()]
    (2, [1, 2])
    >>> model.rollback().step, model.held, model.resume().step, model.pin(1).step
    (1, True, 2, 1)
    >>> model.view().predict({"user": [7]})["score"].tolist()
    [[1.0, 10.0]]
    >>> [update.kind for update in model.updates()], model.stats()["updates"]
    (['applied', 'applied'], 2)
    >>> model.close()
    >>> trainer.close()
    """

    def __init__(
        self,
        export_dir: PathLike,
        repository: PathLike,
        *,
        keep_versions: int = 2,
        poll_secs: float = 1.0,
        check_finite: bool = True,
        probes: Sequence[Probe] = (),
        cpu_share: float = 0.5,
        threads: Optional[int] = None,
        follow: bool = True,
        require_version: bool = True,
        job: Optional[str] = None,
    ) -> None:
        if whole(keep_versions, "keep_versions") < 0:
            raise Invalid(f"keep_versions must not be negative, it is {keep_versions}")
        guards = []
        keep = []
        if not isinstance(probes, Sequence):
            raise Invalid(f"probes must be a list of cairn.serving.Probe, not {a_type(probes)}")
        for probe in probes:
            if not isinstance(probe, Probe):
                raise Invalid(f"probes: a cairn.serving.Probe is wanted, not {a_type(probe)}")
            described, memory = described_feeds(probe.feeds, {})
            keep.append(memory)
            guards.append(
                (
                    described,
                    text_argument(probe.output, "a probe's output"),
                    real(probe.min, "a probe's min"),
                    real(probe.max, "a probe's max"),
                )
            )
        self._native = _native_module().Served.open(
            {
                "export_dir": _location.text_of(export_dir),
                "repository": _location.text_of(repository),
                "job": "" if job is None else text_argument(job, "job"),
                "plugin": _plugin(),
                "threads": rank_number(positive(threads, "threads") or 0, "threads"),
                "keep_versions": int(keep_versions),
                "poll_secs": min(seconds(poll_secs, "poll_secs"), _LONGEST_WAIT),
                "check_finite": bool(check_finite),
                "cpu_share": real(cpu_share, "cpu_share"),
                "follow": bool(follow),
                "require_version": bool(require_version),
                "probes": guards,
            }
        )
        self._dims = self._native.tables
        self.inputs: List[Signature] = _signatures(self._native.inputs)
        self.outputs: List[Signature] = _signatures(self._native.outputs)
        self._dtypes = {feed.name: feed.dtype for feed in self.inputs}

    @property
    def tables(self) -> Dict[str, int]:
        """Name → weights of a row."""
        return dict(self._dims)

    @property
    def fixed_weights(self) -> List[str]:
        """Weights of the graph that no checkpoint has: they stay as exported."""
        return list(self._native.fixed_weights)

    def view(self) -> View:
        """The version that is visible now, for several calls."""
        return View(self._native.view(), self._dims, self._dtypes)

    def lookup(self, table: str, ids: Any) -> np.ndarray:
        """The rows of `ids`, float32; the default for ids that have none."""
        return _rows(self._native, self._dims, table, ids)

    def predict(self, feeds: Mapping[str, Any]) -> Dict[str, np.ndarray]:
        """The targets by name. Inputs that are rows of a table are given as int64 ids.

        Raises:
            Invalid: a feed is missing, not known, or of a wrong dtype or shape; it is named.
        """
        described, keep = described_feeds(feeds, self._dtypes)
        found = self._native.predict(described)
        del keep
        return _outputs(found)

    def version(self) -> Version:
        """(step, id) of the checkpoint that is served."""
        found = self._native.version()
        return Version(found["step"], found["id"])

    def versions(self) -> List[Version]:
        """Those that are kept, oldest first."""
        return [Version(v["step"], v["id"]) for v in self._native.versions()]

    def rollback(self, n: int = 1) -> Version:
        """Serves the n-th version before, until :meth:`resume`."""
        if whole(n, "n") < 0:
            raise Invalid(f"n must not be negative, it is {n}: resume() serves the newest again")
        self._native.rollback(n)
        return self.version()

    def pin(self, version: Any) -> Version:
        """Serves a kept version, until :meth:`resume`: an id, a step, or a Version."""
        if isinstance(version, tuple):
            if len(version) != 2:
                raise Invalid(f"pin: an id, a step or a Version is wanted, not {version!r}")
            version = version[1]
        if isinstance(version, str):
            self._native.pin(version)
        else:
            self._native.pin_step(whole(version, "the version's step"))
        return self.version()

    def resume(self) -> Version:
        """Serves the newest again, and those to come."""
        self._native.resume()
        return self.version()

    @property
    def held(self) -> bool:
        """Whether rollback or pin holds a version."""
        return bool(self._native.held())

    def notify(self) -> None:
        """A trainer beside it has committed something.

        >>> import onnx.parser, cairn
        >>> graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
        ...     'g (float[n, 1] user) => (float[n, 1] score) { score = Neg (user) }')
        >>> users = cairn.EmbeddingTable("users", 1, optimizer=cairn.optimizers.SGD())
        >>> made = cairn.train.export_saved_model("export", ["user"], ["score"], graph, {"user": users})
        >>> with cairn.serving.Model(made, "runs/a", require_version=False) as model:
        ...     with cairn.CheckpointManager("runs/a", on_saved=lambda record: model.notify()) as trainer:
        ...         handle = trainer.save(1, {}, tables=[users])      # it is served as soon as it is durable
        """
        self._native.notify()

    def update(self) -> None:
        """Looks for something new now. Only with follow=False."""
        self._native.update()

    def updates(self) -> List[Update]:
        """What happened since the last call (the last 10,000)."""
        return [Update(**event) for event in self._native.events()]

    def stats(self) -> Dict[str, Any]:
        """Counters: updates, refused, rows_applied, update_seconds, newest_step, reachable …"""
        return dict(self._native.stats())

    def close(self) -> None:
        """Ends following."""
        self._native.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class LookupClient:
    """Asks ``cairn serve --grpc`` for rows, without text in between.

    Calls from several threads take turns; a connection that broke is opened again.

    Args:
        address: host and port.
        token: that the server asks for; None: CAIRN_TOKEN, if set.
        ca: PEM file of who signed the server's certificate: then with TLS.
        server_name: in the certificate, where it is not the address's.
        timeout: seconds for a call, with its connection where there is none.
        max_answer_bytes: of the largest answer that is taken.

    Raises:
        Unavailable: nobody answers, or there is no version yet.

    >>> import cairn
    >>> def rows_of(users, items, address="127.0.0.1:8001"):
    ...     client = cairn.serving.LookupClient(address, token="secret", timeout=0.1)
    ...     version, tables = client.lookup_together({"users": users, "items": items})  # one version
    ...     return client.lookup("users", users, dim=16)                    # or of one table alone
    >>> try:
    ...     rows_of([1, 2, 3], [7], "127.0.0.1:1")
    ... except cairn.Unavailable:
    ...     print("nobody serves there")
    nobody serves there
    """

    def __init__(
        self,
        address: str,
        *,
        token: Optional[str] = None,
        ca: Optional[PathLike] = None,
        server_name: str = "",
        timeout: float = 5.0,
        max_answer_bytes: int = 256 << 20,
    ) -> None:
        try:
            from . import _ps
        except ImportError as error:
            raise Unavailable(
                f"lookups by gRPC are not in this installation ({error}). They need gRPC (Debian: "
                "libgrpc++1.51; to build: libgrpc++-dev)"
            ) from None
        what = "max_answer_bytes"
        self._native = _ps.LookupClient(
            {
                "address": text_argument(address, "address"),
                "token": (
                    os.environ.get("CAIRN_TOKEN", "")
                    if token is None
                    else text_argument(token, "token")
                ),
                "ca": "" if ca is None else os.fspath(ca),
                "server_name": text_argument(server_name, "server_name"),
                "timeout": min(seconds(timeout, "timeout"), _LONGEST_WAIT),
                "max_answer_bytes": positive(whole(max_answer_bytes, what), what),
            }
        )

    def lookup(self, table: str, ids: Any, *, dim: int = 0) -> np.ndarray:
        """The rows of the ids as float32; the table's default where there is no row.

        Args:
            dim: that the rows must have; 0: whichever.
        """
        return self._ask([(table, ids, dim)])[2][0]

    def lookup_together(self, ids: Mapping[str, Any]) -> Tuple[Version, Dict[str, np.ndarray]]:
        """Rows of several tables, by table, all of the version that is named."""
        if not isinstance(ids, Mapping):
            raise Invalid(f"lookup: a dict of ids by table is wanted, not {a_type(ids)}")
        names = list(ids)
        step, checkpoint, rows = self._ask([(name, ids[name], 0) for name in names])
        return Version(step, checkpoint), dict(zip(names, rows))

    def _ask(self, asked: Sequence[Tuple[str, Any, int]]) -> Tuple[int, str, List[np.ndarray]]:
        for table, _, dim in asked:
            text_argument(table, "the table's name")
            if not 0 <= whole(dim, "dim") < 1 << 32:
                raise Invalid(f"dim must be from 0 to 2**32 - 1, not {dim}")
        flat = [_flat(ids) for _, ids, _ in asked]
        step, checkpoint, rows = self._native.lookup(
            [(table, ids, dim) for (table, _, dim), (ids, _) in zip(asked, flat)]
        )
        shaped = [r.reshape(*shape, r.shape[1]) for r, (_, shape) in zip(rows, flat)]
        return step, checkpoint, shaped
