"""Calls of Estimator.train: what a session's checkpoints say of them."""

from __future__ import annotations

from typing import Optional


class TrainCall:
    """One call of Estimator.train: from where to where, and which of it is done. A session keeps in
    its checkpoints where a call began that is not done: whoever makes the same call again, in another
    process, goes on with the batch after the last that counts."""

    def __init__(self, steps: Optional[int], max_steps: Optional[int]) -> None:
        self._steps = steps
        self._max_steps = max_steps
        self._stored: Optional[int] = None
        self._idle = False
        self._done = False
        self.began = 0
        self.end: Optional[int] = max_steps

    def begin(self, stored: Optional[int], step: int) -> None:
        """A session begins at `step`; `stored`: where the call that its checkpoint is of began."""
        self._stored = stored
        # It has nothing to do: a call before the one that is not done.
        self._idle = self._max_steps is not None and step >= self._max_steps
        self.began = step if stored is None else stored
        if self._steps is not None:
            if step - self.began >= self._steps:
                self.began = step  # another call than the stored one
            self.end = self.began + self._steps

    def go_back(self, step: int) -> None:
        """The job is at `step` again. Before this call: as if it began there."""
        self.began = min(self.began, step)
        self._done = False

    def finish(self) -> None:
        """There is no more data, or somebody asked to stop."""
        self._done = True

    def is_over(self, step: int) -> bool:
        return self.end is not None and step >= self.end

    def unfinished(self, step: int) -> Optional[int]:
        """What a checkpoint of `step` says; None: no call is under way."""
        if self._idle:
            return self._stored
        return None if self._done or self.is_over(step) else self.began
