"""Reports of a trial: metrics, progress, a line about what it is doing."""

from __future__ import annotations

import logging
import operator
from typing import Any, Callable, Dict, Mapping, Optional

from .._arguments import text_argument, value_dict
from .._wording import a_type
from ..errors import Invalid
from ._distributed import DistributedContext

log = logging.getLogger("cairn.core")

# As src/trial/report_limits.h has them.
_MAX_GROUP_BYTES = 256
_MAX_STATUS_BYTES = 4096


def whole_steps(value: Any, what: str = "steps_completed") -> int:
    """The number of steps, or Invalid."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or number < 0:
        raise Invalid(f"{what} must be an integer that is not negative, not {value!r}")
    if number >= 1 << 63:
        raise Invalid(f"{what} has more than 64 bits: {number:#x}")
    return number


def _plain_text(value: str, what: str) -> None:
    """Invalid for what no master can store: with and without one the same is refused."""
    text_argument(value, what)
    if "\0" in value:
        raise Invalid(f"{what}: the text holds a NUL, which cannot be stored")


def _limited(value: str, what: str, limit: int) -> None:
    size = len(value.encode())
    if size > limit:
        raise Invalid(f"{what} has {size} bytes; at most {limit} are taken")


def plain_values(given: Optional[Mapping[str, Any]], where: str) -> Dict[str, Any]:
    """Numbers, text and containers of them, as they can be stored and sent; or Invalid, by name."""
    values = value_dict(given, where)

    def check(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise Invalid(f"{path}: keys must be text, not {key!r}")
                _plain_text(key, f"{path}: a key")
                check(item, f"{path}/{key}")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                check(item, f"{path}/{i}")
        elif not isinstance(value, (int, float, str, bool)) and value is not None:
            raise Invalid(f"{path}: {a_type(value)} can be neither stored nor sent")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise Invalid(f"{path}: the integer has more than 64 bits; pass a str")
        elif isinstance(value, str):
            _plain_text(value, path)

    check(values, where)
    return values


class TrainContext:
    """What a trial tells about its training. Only the chief reports. A report is durable when the
    call returns.

    >>> import cairn
    >>> with cairn.core.init(storage="runs/a", keep_last=1, keep_best=1, score="accuracy") as ctx:
    ...     for steps, accuracy in (10, 0.9), (20, 0.8), (30, 0.7):
    ...         ctx.train.set_status("training")
    ...         ctx.train.report_training_metrics(steps, {"loss": 1 - accuracy})
    ...         handle = ctx.checkpoint.save({"steps": steps}, {"steps_completed": steps})
    ...         ctx.train.report_validation_metrics(steps, {"accuracy": accuracy})
    ...         ctx.train.report_metrics("machine", steps, {"gpu_memory": 7.5})
    ...         ctx.train.report_progress(steps / 30)
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     [(info.step, info.metrics) for info in ctx.checkpoint.list()]     # the best and the last
    [(10, {'accuracy': 0.9}), (30, {'accuracy': 0.7})]
    """

    def __init__(
        self,
        distributed: DistributedContext,
        client: Optional[Any],
        on_validation: Callable[[int, Dict[str, Any]], None],
        check_open: Callable[[], None],
    ) -> None:
        self._distributed = distributed
        self._client = client
        self._on_validation = on_validation
        self._check_open = check_open

    def report_training_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports metrics of the training at a step."""
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports metrics of a validation at a step. They count as the score of the checkpoint of
        that step."""
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Reports metrics of a group of your own.

        Args:
            group: "training", "validation" or any other name.
            steps_completed: not negative.
            metrics: {name: number or text}, nested if you like.
        """
        self._check_reporter("report_metrics")
        if not isinstance(group, str) or not group:
            raise Invalid(f"group must be a name, not {group!r}")
        _plain_text(group, "group")
        _limited(group, "group", _MAX_GROUP_BYTES)
        steps = whole_steps(steps_completed)
        values = plain_values(metrics, f"{group} metrics")
        if self._client is not None:
            self._client.report(group, steps, values)
        else:
            log.info("%s metrics at step %d: %s", group, steps, values)
        if group == "validation":
            self._on_validation(steps, values)

    def report_progress(self, progress: float) -> None:
        """Tells how much is done, from 0 to 1."""
        self._check_reporter("report_progress")
        if isinstance(progress, bool) or not isinstance(progress, (int, float)):
            raise Invalid(f"progress must be a number, not {progress!r}")
        if not 0 <= progress <= 1:
            raise Invalid(f"progress must be from 0 to 1, not {progress!r}")
        if self._client is not None:
            self._client.report_progress(float(progress))
        else:
            log.info("progress: %.1f %%", 100 * progress)

    def set_status(self, status: str) -> None:
        """Tells people what the trial is doing, in a line."""
        self._check_reporter("set_status")
        if not isinstance(status, str):
            raise Invalid(f"status must be text, not {status!r}")
        text_argument(status, "status")
        _limited(status, "status", _MAX_STATUS_BYTES)
        if self._client is not None:
            self._client.set_status(status)
        else:
            log.info("status: %s", status)

    def _check_reporter(self, what: str) -> None:
        self._check_open()
        if not self._distributed.is_chief:
            raise Invalid(f"{what}: rank {self._distributed.rank} reports, and only rank 0 may")
