"""The checkpoints of a trial: one repository, written by the chief alone or by all ranks together."""

from __future__ import annotations

import os
import tempfile
import uuid
from typing import Any, Dict, List, Mapping, Optional

from .. import _location
from ..errors import Error, Fenced, NotFound, Unavailable
from ..manager import CheckpointInfo, CheckpointManager, SaveHandle
from ._distributed import DistributedContext
from ._files import remove_tree

_STAGING = ".cairn-staging"
_STAGING_TRIES = 100
_JOIN_SECONDS = 120.0


class Repository:
    """Opens the repository as the saves want it.

    A checkpoint of the chief alone must not wait for ranks that do not know of it, and one of all
    ranks must wait for every one of them. A repository has one writer, so the chief's manager is
    opened anew, with one participant or with all, when the kind of save changes.
    """

    def __init__(
        self, directory: str, distributed: DistributedContext, options: Mapping[str, Any]
    ) -> None:
        self.directory = directory
        self._distributed = distributed
        self._options = dict(options)
        self._manager: Optional[CheckpointManager] = None
        self._together = False
        self._closed = False
        self._pid = os.getpid()

    def alone(self) -> CheckpointManager:
        """The chief's manager for saves of its own, and for retention."""
        assert self._distributed.is_chief
        if self._manager is None or (self._together and self._distributed.size > 1):
            self._open(together=False)
        assert self._manager is not None
        return self._manager

    def together(self) -> CheckpointManager:
        """This rank's manager for a save of all ranks, which all of them are about to make."""
        if self._distributed.size == 1:
            return self.alone()
        ready = self._manager is not None and self._together
        if not all(self._distributed.allgather(ready)):
            self._open(together=True)
        assert self._manager is not None
        return self._manager

    def owner(self) -> CheckpointManager:
        """The chief's manager, however it is open: for what it may do without the others."""
        return self.alone() if self._manager is None else self._manager

    def check_open(self) -> None:
        """Another process may own the repository by now: what is closed writes nothing more."""
        if self._closed:
            raise Error("this context is closed: nothing is stored or reported any more")
        if os.getpid() != self._pid:
            raise Error(
                f"this context is of process {self._pid}, and this is a fork of it: only that one stores "
                "and reports"
            )

    def _open(self, together: bool) -> None:
        self.check_open()
        if self._manager is not None:
            last, self._manager = self._manager, None
            last.close()
        ranks = self._distributed.size if together else 1
        if together:
            self._distributed.barrier()  # the last writer has given up its lock
        self._together = together
        self._manager = CheckpointManager(
            self.directory,
            rank=self._distributed.rank if together else 0,
            world_size=ranks,
            join_deadline=_JOIN_SECONDS,
            **self._options,
        )

    def wait(self, id: str, handle: SaveHandle) -> CheckpointInfo:
        """Waits until the save is durable.

        When the chief has opened the repository anew before another rank looked, that rank is told
        that it was overtaken: then it asks whether the checkpoint counts.
        """
        try:
            return handle.wait()
        except Fenced:
            info = None if self._distributed.is_chief else find(list_of(self.directory), id)
            if info is None:
                raise
            return info

    def list(self) -> List[CheckpointInfo]:
        """All checkpoints, oldest first; none when nothing was ever written."""
        if self._manager is not None:
            return self._manager.list()
        return list_of(self.directory)

    def sweep_staging(self) -> None:
        """Removes what killed processes left half-written. For the writer, before any rank stages."""
        if not _location.is_remote(self.directory):
            remove_tree(os.path.join(self.directory, _STAGING))

    def staging(self) -> str:
        """A new directory for the user's files, on the same disk where there is one."""
        self.check_open()
        if _location.is_remote(self.directory):
            return tempfile.mkdtemp(prefix="cairn-staging-")
        root = os.path.join(os.path.abspath(self.directory), _STAGING)
        path = os.path.join(root, f"rank_{self._distributed.rank}-{uuid.uuid4()}")
        for _ in range(_STAGING_TRIES):
            try:
                os.makedirs(path)
                return path
            except FileNotFoundError:
                pass  # another rank that left has just taken the parent away
        raise Unavailable(f"{path} cannot be made: {root} goes away again and again")

    def end_staging(self, path: str) -> None:
        remove_tree(path)
        if os.path.basename(os.path.dirname(path)) != _STAGING:
            return  # the system's directory for temporary files
        try:
            os.rmdir(os.path.dirname(path))  # of the last rank to leave
        except OSError:
            pass

    def close(self) -> None:
        self._closed = True
        if self._manager is not None:
            last, self._manager = self._manager, None
            last.close()


def list_of(directory: str) -> List[CheckpointInfo]:
    try:
        with CheckpointManager(directory, read_only=True) as reader:
            return reader.list()
    except NotFound:
        return []


def find(infos: List[CheckpointInfo], id: str) -> Optional[CheckpointInfo]:
    for info in infos:
        if info.id == id:
            return info
    return None


class PendingSaves:
    """Saves in the background whose end has to be told to somebody."""

    def __init__(self, repository: Repository, tell: Any) -> None:
        self._repository = repository
        self._tell = tell
        self._pending: Dict[str, SaveHandle] = {}

    def add(self, id: str, handle: SaveHandle) -> None:
        self._pending[id] = handle

    def __contains__(self, id: str) -> bool:
        return id in self._pending

    def settle(self, wait: bool = False) -> None:
        """Tells of those that are over; with `wait`, of all."""
        for id, handle in list(self._pending.items()):
            if not wait and not handle.done():
                continue
            del self._pending[id]
            try:
                info = self._repository.wait(id, handle)
            except Error as error:
                self._tell(id, None, error)
                raise
            self._tell(id, info, None)
