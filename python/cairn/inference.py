"""Models for inference: cut down, saved, loaded and run. Behind cairn.io."""

from __future__ import annotations

import contextlib
import dataclasses
import io as _io
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from . import _arrays, _location
from ._arguments import PathLike, positive
from ._restore import CheckpointInfo
from ._wording import a_type
from .errors import Invalid, Unavailable

__all__ = [
    "InferenceProgram",
    "SavedInferenceModel",
    "Signature",
    "load_inference_model",
    "save_inference_model",
]

# A serialized model holds less than 2 GB; modules with more weights are exported through files.
_MOST_INLINE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Signature:
    """A feed or a target.

    Attributes:
        name: of the tensor.
        dtype: its name in NumPy.
        shape: with None where any size will do.

    >>> import onnx.parser, cairn
    >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (x, w) }')
    >>> cairn.io.save_inference_model("model", ["x"], ["y"], model).feeds
    [Signature(name='x', dtype='float32', shape=(None, 2))]
    """

    name: str
    dtype: str
    shape: Tuple[Optional[int], ...]


@dataclasses.dataclass(frozen=True)
class SavedInferenceModel:
    """What save_inference_model wrote.

    Attributes:
        path: of model.onnx; params.safetensors lies beside it.
        feeds, targets: the signature.
        nodes, pruned_nodes: operators that were kept, and that were not.
        weights, bytes: in params.safetensors.
        left_out: weights that the targets do not need.
        info: of the checkpoint that holds it.

    >>> import onnx.parser, cairn
    >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] x) => (float[n, 2] y, float[n, 2] loss) '
    ...     '<float[2] w = {1, 10}, float[2] wanted = {0, 1}> '
    ...     '{ y = Mul (x, w)  loss = Sub (y, wanted) }')
    >>> saved = cairn.io.save_inference_model("model", ["x"], ["y"], model)
    >>> saved.nodes, saved.pruned_nodes, saved.weights, saved.left_out
    (1, 1, ['w'], ['wanted'])
    """

    path: str
    feeds: List[Signature]
    targets: List[Signature]
    nodes: int
    pruned_nodes: int
    weights: List[str]
    bytes: int
    left_out: List[str]
    info: CheckpointInfo


def _native_module() -> Any:
    try:
        from . import _predict
    except ImportError as error:
        raise Unavailable(
            f"this build of Cairn has no inference models ({error}); install libonnx-dev and "
            "libprotobuf-dev (Debian) and build it again"
        ) from None
    return _predict


def _signatures(found: Sequence[Tuple[str, str, Tuple[int, ...]]]) -> List[Signature]:
    out = []
    for name, stored, shape in found:
        dtype = _arrays._BY_STORED[stored]
        out.append(Signature(name, dtype, tuple(None if d < 0 else d for d in shape)))
    return out


def save_inference_model(
    dirname: PathLike,
    feed_names: Sequence[str],
    target_names: Sequence[str],
    program: Any = None,
    *,
    example_inputs: Optional[Sequence[Any]] = None,
    dynamic_axes: Optional[Mapping[str, Mapping[int, str]]] = None,
) -> SavedInferenceModel:
    """Saves what predicting needs: the graph from the feeds to the targets, and its weights.

    Loss, metrics, optimizer and unused branches are cut off; dropout and batch normalisation are in
    inference mode. The program itself is not changed.

    Args:
        dirname: a directory for this model alone; a later save replaces it.
        feed_names: the inputs. Inner tensors of an ONNX model can be named too.
        target_names: the outputs. For a torch module: names for what forward returns, in order.
        program: an ONNX model (a path, bytes, or an onnx.ModelProto), or a torch.nn.Module.
        example_inputs: of a torch module's forward, one for each feed.
        dynamic_axes: of a torch module: {feed: {axis: name}} where any size will do.

    >>> import numpy as np, onnx.parser, cairn
    >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (x, w) }')
    >>> saved = cairn.io.save_inference_model("model", ["x"], ["y"], model)
    >>> program, feeds, fetches = cairn.io.load_inference_model("model")
    >>> program.run({"x": np.ones((1, 2), np.float32)})
    [array([[ 1., 10.]], dtype=float32)]
    """
    for names in (feed_names, target_names):
        if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
            raise Invalid("feed_names and target_names are lists of names")
    with contextlib.ExitStack() as scratch:
        model, path = graph_of(
            program, feed_names, target_names, example_inputs, dynamic_axes, scratch
        )
        found = _native_module().save(
            directory=_location.text_of(dirname),
            model=model,
            model_path=path,
            feed_names=[str(n) for n in feed_names],
            target_names=[str(n) for n in target_names],
            persistables=_buffers(program),
        )
    return SavedInferenceModel(
        path=found["model_path"],
        feeds=_signatures(found["inputs"]),
        targets=_signatures(found["outputs"]),
        nodes=found["nodes"],
        pruned_nodes=found["pruned_nodes"],
        weights=found["weights"],
        bytes=found["bytes"],
        left_out=found["left_out"],
        info=CheckpointInfo(**found["info"]),
    )


def _buffers(program: Any) -> List[str]:
    """The names of a torch module's weights that are not learned."""
    torch = _arrays.torch_or_none()
    if torch is None or not isinstance(program, torch.nn.Module):
        return []
    return [name for name, _ in program.named_buffers()]


def graph_of(
    program: Any,
    feed_names: Sequence[str],
    target_names: Sequence[str],
    example_inputs: Optional[Sequence[Any]],
    dynamic_axes: Optional[Mapping[str, Mapping[int, str]]],
    scratch: contextlib.ExitStack,
) -> Tuple[bytes, str]:
    """The serialized ONNX model of a program, or the path of a file with it that lives as long as
    `scratch`."""
    torch = _arrays.torch_or_none()
    if torch is not None and isinstance(program, torch.nn.Module):
        if example_inputs is None or len(example_inputs) != len(feed_names):
            raise Invalid(
                "example_inputs: a torch module needs one for each feed, to be traced with"
            )
        exported = _export(program, feed_names, target_names, example_inputs, dynamic_axes or {})
        return _serialized(exported, program, scratch)
    if example_inputs is not None or dynamic_axes is not None:
        raise Invalid("example_inputs and dynamic_axes are for torch modules")
    if isinstance(program, (str, os.PathLike)):
        return b"", _location.text_of(program)
    if isinstance(program, (bytes, bytearray)):
        return bytes(program), ""
    if hasattr(program, "SerializeToString"):
        return program.SerializeToString(), ""
    if program is None:
        raise Invalid(
            "program: a Scope has no graph; give an ONNX model (path, bytes or ModelProto) or a "
            "torch module with example_inputs"
        )
    raise Invalid(
        f"program: {a_type(program)} is no model; an ONNX model (path, bytes or "
        "ModelProto) or a torch module is"
    )


def _export(
    module: Any,
    feed_names: Sequence[str],
    target_names: Sequence[str],
    example_inputs: Sequence[Any],
    dynamic_axes: Mapping[str, Mapping[int, str]],
) -> Any:
    """torch's own exporter, in inference mode; the module's modes are as before afterwards."""
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise Unavailable(
            "torch's ONNX exporter needs onnxscript: pip install onnx onnxscript"
        ) from None
    unknown = sorted(set(dynamic_axes) - set(feed_names))
    if unknown:
        raise Invalid(f"dynamic_axes: {unknown[0]!r} is not among feed_names")
    shapes = [dict(dynamic_axes.get(name, {})) or None for name in feed_names]
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with _quiet_exporter():
            # Not optimised: constants would be folded into weights that are then no longer the module's.
            return torch.onnx.export(
                module,
                tuple(example_inputs),
                input_names=list(feed_names),
                output_names=list(target_names),
                dynamic_shapes=tuple(shapes) if any(shapes) else None,
                dynamo=True,
                optimize=False,
                verbose=False,
            )
    except Exception as error:
        raise Invalid(f"torch cannot export the module to ONNX: {error}") from error
    finally:
        for part, training in modes:
            part.training = training


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """What torch says at every export is of no use to whoever saves a model: that torchvision is not
    installed, and that the same name was given to axes of the same size."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used")
            yield
    finally:
        registry.setLevel(level)


def _serialized(exported: Any, module: Any, scratch: contextlib.ExitStack) -> Tuple[bytes, str]:
    """What torch exported, or the path of a file with it that lives as long as `scratch`."""
    tensors = [*module.parameters(), *module.buffers()]
    if sum(t.numel() * t.element_size() for t in tensors) <= _MOST_INLINE_BYTES:
        out = _io.BytesIO()
        exported.save(out)
        return out.getvalue(), ""
    folder = scratch.enter_context(tempfile.TemporaryDirectory(prefix="cairn-export-"))
    path = os.path.join(folder, "model.onnx")
    exported.save(path, external_data=True)
    return b"", path


def _from_plain(value: Any, name: str, dtype: Optional[str]) -> np.ndarray:
    """Numbers in lists have no dtype of their own: they become what the model wants, where that holds
    them."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise Invalid(f"the feed {name!r} is no array: {error}") from None
    wanted = None if dtype is None or not hasattr(np, dtype) else np.dtype(dtype)
    if wanted is None or array.dtype == wanted or array.dtype.kind not in "iuf":
        return array
    if array.size == 0:  # NumPy takes an empty list for floats
        return array.astype(wanted)
    if wanted.kind == "f" or (wanted.kind in "iu" and array.dtype.kind in "iu"):
        taken = array.astype(wanted)
        if wanted.kind == "f" or (taken == array).all():
            return taken
    return array


def described_feeds(
    feeds: Mapping[str, Any], dtypes: Mapping[str, str]
) -> Tuple[List[Tuple[Any, ...]], List[Any]]:
    """What the native module takes, and what must live until it has. `dtypes`: of feeds that are given
    without one, as plain numbers."""
    if not isinstance(feeds, Mapping):
        raise Invalid(f"feeds must be a dict of arrays by name, not {a_type(feeds)}")
    described: List[Tuple[Any, ...]] = []
    keep = []
    for given, value in feeds.items():
        name = str(given)
        if not _arrays.is_array(value):
            value = _from_plain(value, name, dtypes.get(name))
        source = _arrays.source(value, name)
        meaning = _arrays.meaning(source.note)
        if meaning is not None:  # its bytes would pass for other numbers
            raise Invalid(f"the feed {name!r} is of {meaning}, which no model takes")
        described.append(
            (name, source.stored, source.shape, source.address, None, None, False, "model")
        )
        keep.append(source.keep)
    return described, keep


class InferenceProgram:
    """A loaded model. `run` may be called from many threads. Made by load_inference_model.

    >>> import numpy as np, onnx.parser, cairn
    >>> def save(w):
    ...     model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...         f'g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {{1, {w}}}> {{ y = Mul (x, w) }}')
    ...     return cairn.io.save_inference_model("model", ["x"], ["y"], model)
    >>> saved = save(10)
    >>> program, _, _ = cairn.io.load_inference_model("model")
    >>> program.run({"x": np.ones((1, 2), np.float32)})[0].tolist(), program.info.id == saved.info.id
    ([[1.0, 10.0]], True)
    >>> saved = save(20)
    >>> program.reload()
    >>> program.run({"x": np.ones((1, 2), np.float32)})[0].tolist(), program.graph_reads
    ([[1.0, 20.0]], 1)
    """

    def __init__(self, native: Any, dirname: str) -> None:
        self._native = native
        self._dirname = dirname
        self.feeds = _signatures(native.inputs)
        self.targets = _signatures(native.outputs)
        self._dtypes = {feed.name: feed.dtype for feed in self.feeds}

    @property
    def info(self) -> CheckpointInfo:
        """Of the checkpoint whose weights it runs with."""
        return CheckpointInfo(**self._native.info)

    @property
    def graph_reads(self) -> int:
        """How often the graph was read: once, unless OpenVINO had folded weights away as it read."""
        return int(self._native.graph_reads)

    def run(self, feed: Mapping[str, Any]) -> List[np.ndarray]:
        """The targets for these feeds, in the order of the targets. Feeds are arrays of the dtypes of
        :attr:`feeds`, or plain numbers and lists of them, which have none of their own.

        Raises:
            Invalid: a feed is missing, not known, or of a wrong dtype or shape; it is named.
        """
        described, keep = described_feeds(feed, self._dtypes)
        out = []
        for _, name, stored, shape, data in self._native.run(described):
            out.append(_arrays.make("numpy", stored, tuple(shape), data, {}, name))
        del keep
        return out

    def reload(self, dirname: Optional[PathLike] = None) -> None:
        """Takes the weights of the newest save in the directory; the graph must be the same and is
        not read again. Calls of `run` that have begun finish with the weights they began with."""
        self._native.reload("" if dirname is None else _location.text_of(dirname))

    def __repr__(self) -> str:
        feeds = ", ".join(f.name for f in self.feeds)
        targets = ", ".join(t.name for t in self.targets)
        return f"<cairn inference program ({feeds}) -> ({targets})>"


def load_inference_model(
    dirname: PathLike, *, threads: Optional[int] = None
) -> Tuple[InferenceProgram, List[str], List[str]]:
    """Loads a model for running: (program, feed names, fetch names). Every checksum is compared.

    Args:
        dirname: of the model.
        threads: of one run; None: OpenVINO's choice.

    >>> import numpy as np, onnx.parser, cairn
    >>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> '
    ...     'g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 10}> { y = Mul (x, w) }')
    >>> saved = cairn.io.save_inference_model("model", ["x"], ["y"], model)
    >>> program, feeds, fetches = cairn.io.load_inference_model("model", threads=1)
    >>> feeds, fetches
    (['x'], ['y'])
    >>> [y] = program.run({"x": np.ones((3, 2), np.float32)})
    >>> y.shape
    (3, 2)
    """
    count = positive(threads, "threads") or 0
    module = _native_module()
    program = InferenceProgram(
        module.Model.load(_location.text_of(dirname), _plugin(), count),
        _location.text_of(dirname),
    )
    return program, [f.name for f in program.feeds], [t.name for t in program.targets]


def _plugin() -> str:
    """The runtime's plugin, after OpenVINO itself is in the process: it is found by name then."""
    named = os.environ.get("CAIRN_PREDICT_PLUGIN")
    if named:
        return named
    path = Path(__file__).with_name("libcairn_openvino.so")
    if not path.is_file():
        raise Unavailable(
            "this build of Cairn has no runtime for inference models; build it where OpenVINO is "
            "installed: pip install openvino"
        )
    try:
        import openvino  # noqa: F401
    except ImportError:
        raise Unavailable(
            "running inference models needs OpenVINO: pip install 'cairn[predict]'"
        ) from None
    return str(path)
