"""The keys of a result, and what may be in one."""

from __future__ import annotations

import datetime
import functools
import math
import os
import socket
from typing import Any, Dict, Mapping

from .._wording import a_type

DONE = "done"
SHOULD_CHECKPOINT = "should_checkpoint"
TRAINING_ITERATION = "training_iteration"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TIMESTAMP = "timestamp"
TRIAL_ID = "trial_id"
CONFIG = "config"
DATE = "date"
EXPERIMENT_TAG = "experiment_tag"
# By fill_result, whatever a report has under these names.
FILLED_LATER = (TRIAL_ID, CONFIG, DATE, EXPERIMENT_TAG)
# What a tuner puts into results itself.
AUTO_RESULT_KEYS = (
    TRAINING_ITERATION, TIME_THIS_ITER_S, TIME_TOTAL_S, TIMESTAMP, TRIAL_ID, CONFIG, DATE, EXPERIMENT_TAG, DONE,
    SHOULD_CHECKPOINT, "hostname", "iterations_since_restore", "node_ip", "pid", "time_since_restore",
)  # fmt: skip
# What a function returns or yields that is no dict.
DEFAULT_METRIC = "_metric"


def plain_result(metrics: Mapping[str, Any], where: str = "") -> Dict[str, Any]:
    """The result in Python's own numbers, texts and containers; ValueError names what is neither.

    >>> import numpy as np
    >>> plain_result({"loss": np.float32(0.5), "n": {"k": np.int64(3)}})
    {'loss': 0.5, 'n': {'k': 3}}
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(f"metrics must be a dict, not {type(metrics).__name__}")
    return {
        _without_nul(_text(key), where or "metrics"): _plain(value, f"{where}{key}")
        for key, value in metrics.items()
    }


def _text(value: Any) -> str:
    """Of a text of a type of its own what it holds: str() of an Enum's member is the member's name."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def _without_nul(text: str, where: str) -> str:
    """What a master could not store is refused without one too, as cairn.core does."""
    if "\0" in text:
        raise ValueError(f"{where}: the text holds a NUL, which cannot be stored")
    return text


def _is_masked(value: Any) -> bool:
    """NumPy's "masked", which says that it is 0.0."""
    mask = getattr(value, "mask", None)
    return mask is not None and type(value).__name__.startswith("Masked") and bool(mask)


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, str):
            return _without_nul(_text(value), where)
        if type(value) in (bool, int, float) or value is None:
            return value
        for kind in (bool, int, float):
            if isinstance(value, kind):
                return kind(value)
    if isinstance(value, Mapping):
        return plain_result(value, where + "/")
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}/{i}") for i, item in enumerate(value)]
    size = getattr(value, "size", None)
    if callable(size):  # of a tensor of torch's
        size = value.numel() if hasattr(value, "numel") else None
    if getattr(value, "ndim", None) == 0 or size == 1:
        if _is_masked(value):
            return math.nan
        item = getattr(value, "item", None)
        if callable(item):
            inner = item()
            # A number wider than Python's gives itself.
            return _plain(inner if type(inner) is not type(value) else float(inner), where)
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), where)
    raise ValueError(f"{where}: {a_type(value)} cannot be reported")


@functools.lru_cache(maxsize=1)
def _node() -> Dict[str, str]:
    address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which of our addresses it would be
            address = probe.getsockname()[0]
        except OSError:
            pass  # a machine without a network
    return {"hostname": os.uname().nodename, "node_ip": address}


def made_here() -> Dict[str, Any]:
    """The keys that tell which process made a result."""
    return {"pid": os.getpid(), **_node()}


@functools.lru_cache(maxsize=64)
def _date(stamp: int) -> str:
    return datetime.datetime.fromtimestamp(stamp).strftime("%Y-%m-%d_%H-%M-%S")


def fill_result(
    result: Mapping[str, Any], trial_id: str, config: Mapping[str, Any], **more: Any
) -> Dict[str, Any]:
    """With the keys that follow from where it came from; `config` of a result itself is what it was made with."""
    filled = dict(result)
    config = filled.pop(CONFIG, config)
    filled.setdefault(DONE, False)
    filled[TRIAL_ID] = trial_id
    stamp = filled.get(TIMESTAMP)
    if isinstance(stamp, (int, float)):
        filled[DATE] = _date(int(stamp))
    filled[EXPERIMENT_TAG] = trial_id
    filled.update(more)
    filled[CONFIG] = dict(config)
    return filled
