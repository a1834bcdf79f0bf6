"""Checkpoints of a trial: directories of the user's own files, and states of arrays."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import pathlib
import tempfile
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

from .. import _location, _native
from ..errors import Corruption, Error, Invalid, NotFound
from ..manager import CheckpointInfo, CheckpointManager, Restored, SaveHandle
from . import _files
from ._distributed import DistributedContext
from ._files import Content, Selector
from ._repository import PendingSaves, Repository, find, list_of
from ._train import plain_values, whole_steps

log = logging.getLogger("cairn.core")

PathLike = Union[str, "os.PathLike[str]"]


class DownloadMode(enum.Enum):
    """Who fetches a checkpoint when several ranks want it.

    LocalWorkersShareDownload: all ranks call; the first rank of each machine fetches for the others.
    NoSharedDownload: the rank that calls fetches for itself.

    >>> import cairn
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
    ...         size = (path / "x").write_text("one")
    ...     each_for_itself = cairn.core.DownloadMode.NoSharedDownload
    ...     with ctx.checkpoint.restore_path(id, download_mode=each_for_itself) as path:
    ...         (path / "x").read_text()
    'one'
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class Directory(type(pathlib.Path())):  # type: ignore[misc]
    """A pathlib.Path that may be added to, as if it were text: both are how scripts name files in it.

    >>> Directory("/a") / "b", Directory("/a") + "/b"
    (Directory('/a/b'), '/a/b')
    """

    def __add__(self, text: str) -> str:
        return str(self) + text


def check_metadata(metadata: Optional[Mapping[str, Any]], wanted: bool = True) -> Dict[str, Any]:
    """The metadata as it will be stored; refused when the steps are not in it."""
    values = plain_values(metadata, "metadata")
    if "steps_completed" in values:
        values["steps_completed"] = whole_steps(
            values["steps_completed"], "metadata['steps_completed']"
        )
    elif wanted:
        raise Invalid("metadata must hold 'steps_completed', the number of steps that are done")
    return values


class CheckpointHandle:
    """A checkpoint on its way to the disk.

    Attributes:
        id: of the checkpoint that it will be.

    >>> import cairn
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     handle = ctx.checkpoint.save({"x": 1}, {"steps_completed": 5})
    ...     info = handle.wait()                      # until then training may go on
    ...     info.step, info.id == handle.id, handle.done()
    (5, True, True)
    """

    def __init__(
        self, id: str, save: SaveHandle, repository: Repository, pending: PendingSaves
    ) -> None:
        self.id = id
        self._save = save
        self._repository = repository
        self._pending = pending

    def wait(self) -> CheckpointInfo:
        """Waits until it is durable and reported. Raises what went wrong."""
        info = self._repository.wait(self.id, self._save)
        self._pending.settle(wait=True)
        return info

    def done(self) -> bool:
        """True when it is durable or has failed."""
        return self._save.done()

    def __repr__(self) -> str:
        return f"CheckpointHandle({self.id!r}, {'done' if self.done() else 'in flight'})"


class CheckpointContext:
    """Stores and restores checkpoints of the trial.

    Every checkpoint has metadata, which must hold steps_completed. It is whole or not there: when
    the body of store_path raises, or the process is killed, nothing is published.

    >>> import os, cairn
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     with ctx.checkpoint.store_path({"steps_completed": 10}) as (path, id):
    ...         _ = open(os.path.join(path, "x"), "w").write("ten")
    >>> with cairn.core.init(storage="runs/a") as ctx:
    ...     with ctx.checkpoint.restore_path(ctx.latest_checkpoint) as path:
    ...         open(os.path.join(path, "x")).read(), ctx.latest_checkpoint == id
    ('ten', True)
    """

    def __init__(
        self,
        repository: Repository,
        distributed: DistributedContext,
        client: Optional[Any],
        elsewhere: Optional[Tuple[str, str]] = None,
        chosen: Optional[Tuple[str, Tuple[int, int]]] = None,
    ) -> None:
        self._repository = repository
        self._distributed = distributed
        self._client = client
        self._elsewhere = elsewhere  # (id, repository) of the checkpoint that another trial left
        # The id that the engine chose to begin with, and the generation and sequence of the newest
        # one at that time, which may be another.
        self._chosen = chosen
        self._pending = PendingSaves(repository, self._told)
        self._newest: Optional[Tuple[int, str]] = None  # (steps, id) of the last one stored here
        self._awaiting: Set[str] = set()  # ids whose score is still to come
        # (steps, metrics) of the last validation, without a master: it may come before its checkpoint.
        self._validated: Tuple[int, Dict[str, Any]] = (-1, {})

    # Storing.

    @contextlib.contextmanager
    def store_path(
        self,
        metadata: Optional[Mapping[str, Any]] = None,
        shard: bool = False,
        *,
        awaits_score: bool = False,
    ) -> Iterator[Tuple[Directory, str]]:
        """Yields (path, id): a directory (a pathlib.Path) to write files into, and the id of the
        checkpoint that they become, durably, when the body ends. When it raises, nothing is kept.

        Args:
            metadata: must hold steps_completed. With shard, ranks may give parts of it; what several
                of them give must be equal.
            shard: all ranks call it and write their own files. The same name with the same content
                is stored once; with other content it is refused. Otherwise only the chief calls it.
            awaits_score: a validation of this step will still be reported. Until it comes, or the
                run ends, a master's rules do not judge the checkpoint by its score.
        """
        merged = self._begin(metadata, shard, "store_path")
        id = self._new_id(shard, awaits_score)
        path = self._repository.staging()
        try:
            error: Optional[BaseException] = None
            try:
                yield Directory(path), id
            except BaseException as raised:
                error = raised
            self._agree(shard, error)
            self._store_files(_files_or_error(path), merged, id, shard)
        finally:
            self._repository.end_staging(path)

    def upload(
        self,
        ckpt_dir: Optional[PathLike],
        metadata: Optional[Mapping[str, Any]] = None,
        shard: bool = False,
        selector: Optional[Selector] = None,
        *,
        awaits_score: bool = False,
    ) -> str:
        """Stores the files of a directory as a checkpoint and returns its id.

        Args:
            ckpt_dir: the directory; None, with shard, for a rank that has no files.
            metadata, shard, awaits_score: as for store_path.
            selector: called with each file's name; False leaves it out.

        >>> import pathlib, cairn
        >>> out = pathlib.Path("out")
        >>> out.mkdir()
        >>> sizes = (out / "model.txt").write_text("weights"), (out / "log.txt").write_text("")
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     id = ctx.checkpoint.upload(out, {"steps_completed": 1},
        ...                                selector=lambda name: name != "log.txt")
        ...     with ctx.checkpoint.restore_path(id) as path:
        ...         sorted(file.name for file in path.iterdir())
        ['model.txt']
        """
        merged = self._begin(metadata, shard, "upload")
        id = self._new_id(shard, awaits_score)
        if ckpt_dir is None and not shard:
            raise Invalid("upload: ckpt_dir is None, which only shard=True allows")
        found: Union[Dict[str, Content], Error] = {}
        if ckpt_dir is not None:
            found = _files_or_error(_location.of_this_machine(ckpt_dir, "ckpt_dir"), selector)
        self._store_files(found, merged, id, shard)
        return id

    def save(
        self,
        state: Any,
        metadata: Optional[Mapping[str, Any]] = None,
        *,
        metrics: Optional[Mapping[str, Any]] = None,
        files: Any = None,
        blocking: bool = False,
        awaits_score: bool = False,
    ) -> CheckpointHandle:
        """Stores a state of arrays, tensors and values, as CheckpointManager.save does: it returns
        after a copy at memory speed, and files that did not change are shared. With several ranks
        all of them call it, and cairn.Shard says which piece of an array a rank has. awaits_score as
        for store_path.

        >>> import numpy as np, cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     handle = ctx.checkpoint.save({"w": np.ones(3)}, {"steps_completed": 5})
        ...     handle.wait().step, ctx.checkpoint.restore().state["w"].tolist()
        (5, [1.0, 1.0, 1.0])
        """
        several = self._distributed.size > 1
        merged = self._begin(metadata, several, "save")
        id = self._new_id(several, awaits_score)
        steps = int(merged["steps_completed"])
        self._pending.settle(wait=True)
        manager = self._repository.together()
        self._register(id, steps, self._distributed.size, merged)
        try:
            handle = manager.save(
                steps,
                state,
                metrics={**self._score_of(steps), **(metrics or {})},
                metadata=merged,
                files=files,
                lineage={"registration": id},
            )
        except BaseException as error:
            self._abandon(id, error)
            raise
        self._pending.add(id, handle)
        self._newest = (steps, id)
        result = CheckpointHandle(id, handle, self._repository, self._pending)
        if blocking:
            result.wait()
        return result

    def restore(self, state: Any = None, id: Optional[str] = None, **options: Any) -> Restored:
        """Brings back a state that save stored. Without an id: the last one that this run stored,
        before that the one that it is to begin with. A save that is still being written is waited
        for. As CheckpointManager.restore; NotFound when there is none.

        >>> import numpy as np, cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     handle = ctx.checkpoint.save({"w": np.ones(2)}, {"steps_completed": 5}, blocking=True)
        ...     w = np.zeros(2)
        ...     ctx.checkpoint.restore({"w": w}).step, w.tolist()
        (5, [1.0, 1.0])
        """
        self._pending.settle(wait=True)
        wanted = id or self._latest_id()
        if wanted is None:
            raise NotFound(f"{self._repository.directory}: there is no checkpoint yet")
        info = self._find(wanted)
        if self._distributed.is_chief or self._distributed.size == 1:
            manager = self._repository.alone()
            restored = manager.restore(state, path=info.path, **options)
        else:
            with CheckpointManager(
                os.path.dirname(info.path),
                read_only=True,
                rank=self._distributed.rank,
                world_size=self._distributed.size,
            ) as reader:
                restored = reader.restore(state, path=info.path, **options)
        assert restored is not None
        return restored

    # Restoring.

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        selector: Optional[Selector] = None,
    ) -> Iterator[Directory]:
        """Yields a directory (a pathlib.Path) with the checkpoint's files, compared with their checksums; Corruption
        when one is damaged. Only read there: where the repository is a local directory, it is the
        checkpoint itself.

        Args:
            storage_id: the checkpoint's id.
            download_mode: see DownloadMode.
            selector: called with each file's name; False leaves it out.
        """
        shared = download_mode is DownloadMode.LocalWorkersShareDownload
        shared = shared and self._distributed.size > 1
        fetches = not shared or self._distributed.local_rank == 0
        path, temporary = "", ""
        error: Optional[BaseException] = None
        try:
            if fetches:
                try:
                    info = self._find(storage_id)
                    in_place = selector is None and not _location.is_remote(info.path)
                    path = os.path.join(info.path, "files")
                    if not in_place or not os.path.isdir(path):
                        path = temporary = tempfile.mkdtemp(prefix="cairn-restore-")
                        _files.fetch(info.path, path, selector)
                    else:
                        _files.check(info.path)
                except BaseException as raised:
                    error = raised
                    self._note_damage(storage_id, raised)
            self._agree(shared, error)
            if shared:
                path = self._distributed.broadcast_local(path)
            try:
                yield Directory(path)
            except BaseException as raised:
                error = raised
            self._agree(shared, error)  # and nobody reads any more
        finally:
            if temporary:
                _files.remove_tree(temporary)

    def download(
        self,
        storage_id: str,
        ckpt_dir: PathLike,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        selector: Optional[Selector] = None,
    ) -> None:
        """Copies the checkpoint's files into a directory, which is made when missing; they are
        compared with their checksums.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
        ...         size = (path / "x").write_text("one")
        ...     ctx.checkpoint.download(id, "here")
        >>> open("here/x").read()
        'one'
        """
        shared = download_mode is DownloadMode.LocalWorkersShareDownload
        shared = shared and self._distributed.size > 1
        error: Optional[BaseException] = None
        if not shared or self._distributed.local_rank == 0:
            try:
                target = _location.of_this_machine(ckpt_dir, "ckpt_dir")
                os.makedirs(target, exist_ok=True)
                _files.fetch(self._find(storage_id).path, target, selector)
            except BaseException as raised:
                error = raised
                self._note_damage(storage_id, raised)
        self._agree(shared, error)

    def get_metadata(self, storage_id: str) -> Dict[str, Any]:
        """The metadata that a checkpoint was stored with.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     with ctx.checkpoint.store_path({"steps_completed": 1, "framework": "numpy"}) as (path, id):
        ...         size = (path / "x").write_text("one")
        ...     ctx.checkpoint.get_metadata(id)["framework"]
        'numpy'
        """
        return dict(self._find(storage_id).metadata)

    def list(self) -> List[CheckpointInfo]:
        """The trial's checkpoints, oldest first.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a", keep_last=2) as ctx:
        ...     for steps in range(1, 4):
        ...         handle = ctx.checkpoint.save({"x": steps}, {"steps_completed": steps})
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     [info.step for info in ctx.checkpoint.list()]
        [2, 3]
        """
        self._pending.settle()
        return [info for info in self._repository.list() if not info.foreign]

    def delete(self, storage_id: str) -> None:
        """Removes a checkpoint of this trial. Only the chief may.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     ids = [ctx.checkpoint.save({"x": n}, {"steps_completed": n}, blocking=True).id for n in (1, 2)]
        ...     ctx.checkpoint.delete(ids[0])
        ...     [info.step for info in ctx.checkpoint.list()]
        [2]
        """
        self._check_chief("delete")
        self._pending.settle(wait=True)
        self._repository.owner().delete(storage_id)
        if self._client is not None:
            self._client.checkpoint_deleted(storage_id)

    # What the others need of it.

    def settle(self, wait: bool = False) -> None:
        """Tells the master of saves that are over.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     handle = ctx.checkpoint.save({"x": 1}, {"steps_completed": 1})
        ...     ctx.checkpoint.settle(wait=True)
        ...     handle.done()
        True
        """
        self._pending.settle(wait)

    def add_score(self, steps: int, metrics: Mapping[str, Any]) -> None:
        """A validation at the step of a checkpoint is its score, whichever comes first.

        >>> import cairn
        >>> with cairn.core.init(storage="runs/a") as ctx:
        ...     handle = ctx.checkpoint.save({"x": 1}, {"steps_completed": 1})
        ...     ctx.checkpoint.add_score(1, {"accuracy": 0.9})    # as report_validation_metrics does
        ...     ctx.checkpoint.list()[0].metrics
        {'accuracy': 0.9}
        """
        if self._client is not None:
            return
        self._validated = (steps, {**self._score_of(steps), **metrics})
        if self._newest is None or self._newest[0] != steps:
            return
        self._pending.settle(wait=True)
        self._repository.owner().add_metrics(self._newest[1], metrics)

    def _score_of(self, steps: int) -> Dict[str, Any]:
        return self._validated[1] if self._validated[0] == steps else {}

    def _latest_id(self) -> Optional[str]:
        infos = self.list()
        if self._chosen is not None:
            id, age = self._chosen
            # Asked of the repository: rank 0 may have stored alone.
            if not any((info.generation, info.sequence) > age for info in infos):
                return id
        return infos[-1].id if infos else None

    def _note_damage(self, id: str, error: BaseException) -> None:
        """So that the next start begins with an older checkpoint instead of failing for ever."""
        if not isinstance(error, (Corruption, NotFound)):
            return
        try:
            path = self._find(id).path
        except Error:
            return  # there is no such checkpoint
        try:
            _native.note_damaged(os.path.dirname(path), id, str(error))
            log.warning("%s is damaged; the next start begins with an older checkpoint", path)
        except Error as failure:
            log.warning("the damage of %s was not noted: %s", path, failure)

    def _find(self, id: str) -> CheckpointInfo:
        if not isinstance(id, str) or not id:
            raise Invalid(f"storage_id must be a checkpoint's id, not {id!r}")
        self._pending.settle(wait=id in self._pending)
        info = find(self.list(), id)
        if info is None and self._elsewhere is not None and self._elsewhere[0] == id:
            info = find(list_of(self._elsewhere[1]), id)
        if info is None:
            raise NotFound(f"{self._repository.directory} has no checkpoint {id}")
        return info

    def _check_chief(self, what: str) -> None:
        if not self._distributed.is_chief:
            raise Invalid(
                f"{what}: rank {self._distributed.rank} calls it, and only rank 0 may; "
                "shard=True is for all ranks"
            )

    def _new_id(self, together: bool, awaits_score: bool) -> str:
        id = str(uuid.uuid4())
        if together:
            id = str(self._distributed.broadcast(id))
        if awaits_score:
            self._awaiting.add(id)
        return id

    def _begin(
        self, metadata: Optional[Mapping[str, Any]], together: bool, what: str
    ) -> Dict[str, Any]:
        """The metadata of the checkpoint, refused before a byte is written."""
        if not together:
            self._check_chief(what)
            return check_metadata(metadata)
        mine: Optional[Dict[str, Any]] = None
        error: Optional[BaseException] = None
        try:
            mine = check_metadata(metadata, wanted=False)
        except Error as refused:
            error = refused
        self._agree(together, error)
        merged, problems = _files.merge_metadata(self._distributed.allgather(mine))
        if problems:
            raise Invalid("the ranks do not agree: " + "; ".join(problems))
        return check_metadata(merged)

    def _agree(self, together: bool, error: Optional[BaseException]) -> None:
        """Raises the error; where all ranks take part, one rank's error is everybody's."""
        if together and self._distributed.size > 1:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise error  # the others learn that this rank is gone
            text = None if error is None else f"{type(error).__name__}: {error}"
            said = self._distributed.allgather(text)
            if error is None:
                for rank, failure in enumerate(said):
                    if failure is not None:
                        raise Error(f"rank {rank} failed, so nothing is stored or read: {failure}")
        if error is not None:
            raise error

    def _store_files(
        self, found: Union[Dict[str, Content], Error], merged: Dict[str, Any], id: str, shard: bool
    ) -> None:
        self._agree(shard, found if isinstance(found, Error) else None)
        assert isinstance(found, dict)
        together = shard and self._distributed.size > 1
        files = self._settle_conflicts(found) if together else found
        steps = int(merged["steps_completed"])
        self._pending.settle(wait=True)
        manager = self._repository.together() if together else self._repository.alone()
        self._register(id, steps, self._distributed.size if together else 1, merged)
        try:
            handle = manager.save(
                steps,
                {},
                metrics=self._score_of(steps),
                metadata=merged,
                files=files,
                lineage={"registration": id},
            )
            info = self._repository.wait(id, handle)
        except BaseException as error:
            self._abandon(id, error)
            raise
        self._newest = (steps, id)
        self._told(id, info, None)

    def _settle_conflicts(self, found: Dict[str, Content]) -> Dict[str, Content]:
        """Which of its files this rank stores. Every rank sees the same problems and refuses."""
        names = self._distributed.allgather(list(found))
        problems = _files.find_crossings(names)
        shared = _files.find_shared(names)
        mine = {name: _files.digest(found[name]) for name in found if name in shared}
        problems += _files.find_conflicts(shared, self._distributed.allgather(mine))
        if problems:
            raise Invalid("the ranks' files do not fit together: " + "; ".join(problems))
        rank = self._distributed.rank
        return {n: path for n, path in found.items() if n not in shared or shared[n][0] == rank}

    # What the master is told.

    def _register(self, id: str, steps: int, ranks: int, metadata: Dict[str, Any]) -> None:
        if self._client is not None and self._distributed.is_chief:
            self._client.register_checkpoint(id, steps, ranks, metadata)

    def _abandon(self, id: str, error: BaseException) -> None:
        if self._client is None or not self._distributed.is_chief:
            return
        try:
            self._client.abandon_checkpoint(id, f"{type(error).__name__}: {error}")
        except Error as failure:  # the first error is the one to show
            log.warning("checkpoint %s: the master was not told that it failed: %s", id, failure)

    def _told(self, id: str, info: Optional[CheckpointInfo], error: Optional[Error]) -> None:
        if self._client is None or not self._distributed.is_chief:
            return
        if info is None:
            assert error is not None
            self._abandon(id, error)
            return
        remove = self._client.complete_checkpoint(
            id,
            info.step,
            info.metadata,
            info.metrics,
            info.bytes,
            info.generation,
            info.sequence,
            id in self._awaiting,
        )
        self._awaiting.discard(id)
        for unwanted in remove:
            self._remove(str(unwanted))

    def _remove(self, id: str) -> None:
        try:
            self._repository.owner().delete(id)
        except NotFound:
            pass  # a try before this one did it
        except Error as failure:  # the engine removes it after the run
            log.warning("checkpoint %s was not removed: %s", id, failure)
            return
        self._client.checkpoint_deleted(id)


def _files_or_error(
    directory: str, selector: Optional[Selector] = None
) -> Union[Dict[str, Content], Error]:
    try:
        return _files.files_in(_files.require_directory(directory), selector)
    except Error as error:
        return error
