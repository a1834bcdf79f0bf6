"""The reader of a training: its epochs, and the way back to a place in one of them."""

from __future__ import annotations

import inspect
import itertools
import logging
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from ._generators import loader_generators, put_states, states_of
from .errors import Error, Invalid, Mismatch

__all__ = ["EpochReader"]

log = logging.getLogger("cairn")

_END = object()


class EpochReader:
    """A user's reader: opens epochs, and finds its place again after a resume."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._calls = callable(reader) and not hasattr(reader, "__iter__")
        if not self._calls and not hasattr(reader, "__iter__"):
            raise Invalid(
                f"reader must be an iterable or a callable that returns one, not a "
                f"{type(reader).__name__}"
            )
        needs, takes = _arguments(reader) if self._calls else (0, False)
        if needs > 1:
            raise Invalid(
                f"reader wants {needs} arguments, and is called with the epoch alone; use a lambda "
                "or functools.partial for the others"
            )
        self._wants_epoch = takes
        self._current: Any = None
        self._at_end = False  # of an epoch that ended before this process began
        self._epoch_generators: Dict[str, Any] = {}  # their states when the epoch began
        # Of a DataLoader that keeps its workers: whether the epoch found them there when it began.
        self.found_workers: Optional[bool] = None

    def check(self, num_epochs: int) -> None:
        """Invalid for a reader that is used up after the first epoch."""
        # Not asked for its iterator: a loader draws random numbers for that.
        if not self._calls and num_epochs > 1 and isinstance(self._reader, Iterator):
            raise Invalid(
                "reader is an iterator and is used up after one epoch; give a list, a loader, or a "
                "callable that returns a new iterable for each epoch"
            )

    def open(self, epoch: int) -> Any:
        if self._calls:
            self._current = self._reader(epoch) if self._wants_epoch else self._reader()
            if not hasattr(self._current, "__iter__"):
                raise Invalid(f"reader returned a {type(self._current).__name__}, no iterable")
        else:
            self._current = self._reader
        return self._current

    def _seekable(self) -> Optional[Any]:
        for candidate in (self._current, self._reader):
            if callable(getattr(candidate, "state", None)) and callable(
                getattr(candidate, "load_state", None)
            ):
                return candidate
        return None

    def state(self) -> Any:
        seekable = self._seekable()
        return None if seekable is None else seekable.state()

    def has_workers(self) -> bool:
        """Whether other processes read: they may be ended by somebody else."""
        count = getattr(self._current, "num_workers", 0)
        return isinstance(count, int) and count > 0

    def draws(self) -> bool:
        """Whether reading on may change random states of this process."""
        return not getattr(self._current, "draws_nothing", False)

    def put_back(self, generators: Mapping[str, Any]) -> None:
        """The loader's own generators to where they were: generators()["now"]."""
        put_states(self._generators(), generators)

    def _generators(self) -> Dict[str, Any]:
        """Those of a DataLoader, which keeps no position of its own."""
        return {} if self._seekable() is not None else loader_generators(self._current)

    def generators(self) -> Optional[Dict[str, Any]]:
        """The states of the loader's own generators when the epoch began, and now."""
        found = self._generators()
        return {"epoch": self._epoch_generators, "now": states_of(found)} if found else None

    def begin(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, from its start; Error when there are none."""
        batches = self._begun(epoch)
        first = next(batches, _END)
        if first is _END and self._at_end:
            # Put to the end of the epoch before: some say so once, and only then begin again.
            batches = self._begun(epoch)
            first = next(batches, _END)
        self._at_end = False
        if first is _END:
            doubt = "can it begin a second time?" if epoch > 0 else "is there any data?"
            raise Error(f"the reader gave no batch in epoch {epoch}: {doubt}")
        return itertools.chain((first,), batches)

    def _begun(self, epoch: int) -> Iterator[Any]:
        current = self.open(epoch)
        if callable(getattr(current, "_cairn_begin_epoch", None)):
            current._cairn_begin_epoch(epoch)  # of whose first epoch somebody may have read
        elif callable(getattr(current, "set_epoch", None)):
            current.set_epoch(epoch)
        self._epoch_generators = states_of(self._generators())
        self.found_workers = _has_workers(current)
        return iter(current)

    def put_workers(self, epoch: int, found: Optional[bool]) -> None:
        """To be called before random states are put back, for an epoch that began before, with its
        `found_workers`. A DataLoader with persistent_workers draws their seed when it starts them:
        an epoch that finds them there draws its order alone, and one that does not draws both."""
        if found is None:
            return
        loader = self.open(epoch)
        if found:
            _start_workers(loader)
        elif _has_workers(loader):  # of a train() before, in this process
            loader._iterator = None

    def put_workers_for_next(self, epoch: int, found: Optional[bool]) -> None:
        """The same when all of the epoch is done: the next one finds them there, unless it gets a
        loader of its own."""
        if found is None:
            return
        loader = self.open(epoch)
        if not self._calls or self.open(epoch) is loader:
            _start_workers(loader)

    def end(self, epoch: int, state: Any, generators: Optional[Mapping[str, Any]] = None) -> None:
        """To where it was when all batches of an epoch were read; the next one begins from there."""
        if state is None and generators is None:
            return
        # What it returns may be who seeks, and is mostly made anew for each epoch; or it has generators
        # that the next epoch's loader has too.
        current = self.open(epoch)
        if generators is not None:
            self._put(generators["now"])
        seekable = self._seekable()
        if state is None or seekable is None:
            return
        if seekable is self._reader or self.open(epoch) is current:  # it goes on with the next epoch
            seekable.load_state(state)
            self._at_end = True

    def _put(self, states: Mapping[str, Any]) -> None:
        other = put_states(self._generators(), states)
        if other:
            raise Mismatch(
                "the reader draws from other random generators than when the checkpoint was made: "
                f"only one of the two has a {' and a '.join(other)}. Give the loader that was given then"
            )

    def resume(
        self, epoch: int, done: int, state: Any, generators: Optional[Mapping[str, Any]] = None
    ) -> Iterator[Any]:
        """The batches of an epoch after the first `done`."""
        current = self.open(epoch)
        self.found_workers = _has_workers(current)
        seekable = self._seekable()
        if seekable is not None and state is not None:
            seekable.load_state(state)
            return iter(current)
        if callable(getattr(current, "set_epoch", None)):
            current.set_epoch(epoch)
        begun = time.perf_counter()
        if generators is not None:
            self._put(generators["epoch"])
        self._epoch_generators = states_of(self._generators())
        batches = iter(current)
        for number in range(done):
            if next(batches, _END) is _END:
                raise Error(
                    f"resume: the reader gave {number} batches of epoch {epoch}, and {done} were "
                    "trained before the restart: it does not give the same data again"
                )
        if generators is not None:
            self._put(generators["now"])
        log.warning(
            "the reader cannot seek (it has no state and load_state): %d batches of epoch %d were "
            "read again and dropped, in %.1f s",
            done,
            epoch,
            time.perf_counter() - begun,
        )
        return batches


def _has_workers(loader: Any) -> Optional[bool]:
    """Whether those of a DataLoader that keeps them are there; None where nobody keeps workers."""
    if not getattr(loader, "persistent_workers", False) or not hasattr(loader, "_iterator"):
        return None
    return loader._iterator is not None


def _start_workers(loader: Any) -> None:
    if _has_workers(loader) is not False:
        return
    iter(loader)
    log.warning(
        "the loader keeps its workers (persistent_workers), and with them random states that nobody "
        "can save: what the dataset draws in them is not what it would have been. The order of the "
        "data is. cairn.torch.Loader resumes exactly in both"
    )


def _arguments(reader: Callable[..., Any]) -> Tuple[int, bool]:
    """How many arguments a call must have, and whether it may have one."""
    try:
        parameters = inspect.signature(reader).parameters.values()
    except (TypeError, ValueError):
        return 0, False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds]
    needed = sum(p.default is inspect.Parameter.empty for p in places)
    rest = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return needed, bool(places) or rest
