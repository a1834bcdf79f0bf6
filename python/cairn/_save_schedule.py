"""When a training session saves: intervals in seconds and steps, and what is due by them."""

from __future__ import annotations

import math
import numbers
from typing import Any, Optional, Tuple

from ._arguments import float_of
from .errors import Invalid


def seconds_between(value: Any, name: str) -> Optional[float]:
    """None and 0 switch it off; everything but a positive number is refused."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's are too
        raise Invalid(f"{name} must be a number or None, not {value!r}")
    number = float_of(value, name)
    if math.isnan(number) or number < 0:
        raise Invalid(f"{name} must not be negative, it is {value!r}; None or 0 switches it off")
    return number if number > 0 else None


def steps_between(value: Any, name: str) -> Optional[int]:
    interval = seconds_between(value, name)
    if interval is not None and not interval.is_integer():
        raise Invalid(f"{name} must be a whole number of steps, not {value!r}")
    return None if interval is None else int(interval)


class Schedule:
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
