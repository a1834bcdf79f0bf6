"""PyTorch Lightning: checkpoints in a repository (CheckpointIO), periodic saves, exact resume."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path, PurePath
from typing import Any, Dict, List, Mapping, Optional

try:
    import lightning.pytorch as pl
    from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
except ImportError:
    try:
        import pytorch_lightning as pl  # the other name of the same package
        from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
    except ImportError as error:
        raise ImportError(
            f"cairn.integrations.lightning needs Lightning: pip install lightning ({error})"
        ) from error

from .. import _location
from .._arguments import PathLike
from .._random import random_state, set_random_state
from ..errors import Invalid, NotFound
from ..manager import CheckpointManager, SaveHandle
from ..observe import SaveRecord
from ..torch import Loader as _Loader
from ._ranks import gather

__all__ = ["CairnCallback", "CairnCheckpointIO", "Loader"]

log = logging.getLogger("cairn")

_POINTER = "cairn_checkpoint"
_RNG = "cairn_rng"


class CairnCheckpointIO(CheckpointIO):
    """Lightning's checkpoints in a repository: ``Trainer(plugins=[CairnCheckpointIO(directory)])``.

    trainer.save_checkpoint and ModelCheckpoint return when the state is copied; it is written in
    the background. Where Lightning expects its file, a small one that names the checkpoint is put
    when the checkpoint is durable, so that ckpt_path takes the names that Lightning gives, "best"
    and "last". A save to a path that was saved to before takes its place, as with a file: the
    checkpoint before is removed then. ``ckpt_path=io.latest()`` goes on from the newest checkpoint
    that is whole.

    Only rank 0 saves, as Lightning has it; strategies that write checkpoints of their own (FSDP,
    DeepSpeed) do not use this plugin: see cairn.integrations.dcp.

    Args:
        directory: of checkpoints.
        keep_last: how many stay; None (the default) leaves it to ModelCheckpoint's save_top_k.
        options: for CheckpointManager (job, on_saved, …).

    >>> import lightning as pl, torch, cairn
    >>> from cairn.integrations.lightning import CairnCheckpointIO
    >>> class Model(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 1)
    ...     def training_step(self, batch, index):
    ...         return self.layer(batch).sum()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> def train(steps):
    ...     io, saved = CairnCheckpointIO("runs/a"), []
    ...     io.add_callback(lambda record: saved.append(record.step))
    ...     trainer = pl.Trainer(max_steps=steps, plugins=[io], accelerator="cpu", logger=False,
    ...                          enable_progress_bar=False, enable_model_summary=False,
    ...                          enable_checkpointing=False)
    ...     trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 2)), ckpt_path=io.latest())
    ...     trainer.save_checkpoint("last.ckpt")
    ...     io.teardown()                             # as the trainer does at its end
    ...     return saved
    >>> train(2), train(3)
    ([2], [3])
    """

    def __init__(
        self, directory: PathLike, *, keep_last: Optional[int] = None, **options: Any
    ) -> None:
        self.directory = _location.absolute(directory)
        self._options = {"keep_last": keep_last, **options}
        self._callbacks: List[Any] = []
        self._manager: Optional[CheckpointManager] = None
        self._paths: Dict[int, str] = {}  # number of a save → where Lightning expects its file
        self._numbers = 0
        self._last: Optional[SaveHandle] = None

    def latest(self) -> Optional[str]:
        """What to give as ckpt_path: None before the first save."""
        if self._manager is not None:
            return None if self._manager.latest() is None else self.directory
        try:
            with CheckpointManager(self.directory, read_only=True) as manager:
                return None if manager.latest() is None else self.directory
        except NotFound:
            return None

    def add_callback(self, callback: Any) -> None:
        """Calls it with a SaveRecord after every save; see CheckpointManager.add_callback."""
        self._callbacks.append(callback)
        if self._manager is not None:
            self._manager.add_callback(callback)

    def save_checkpoint(
        self, checkpoint: Dict[str, Any], path: PathLike, storage_options: Optional[Any] = None
    ) -> None:
        if storage_options is not None:
            raise Invalid(
                "CairnCheckpointIO takes no storage_options; give them to its constructor"
            )
        manager = self._open()
        where = _location.absolute(path)
        number = self._numbers
        self._numbers += 1
        # On a bucket no file is put: the checkpoint says where Lightning expects it.
        if not self._inside(where) and not _location.is_remote(where):
            self._paths[number] = where
        self._last = manager.save(
            int(checkpoint.get("global_step", 0)),
            _plain(checkpoint),
            metadata={"lightning": {"path": where, "number": number}},
        )

    def load_checkpoint(
        self,
        path: PathLike,
        map_location: Optional[Any] = None,
        weights_only: Optional[bool] = None,
        **_: Any,
    ) -> Dict[str, Any]:
        where = _location.absolute(path)
        manager = self._manager
        opened = manager is None
        if manager is None:
            manager = CheckpointManager(self.directory, read_only=True)
        try:
            id = _find(manager, where)
            if where == self.directory:
                restored = manager.restore()
            elif id is not None:
                restored = manager.restore(id=id)
            elif _location.is_remote(where) or (Path(where) / "manifest.json").is_file():
                restored = manager.restore(path=where)
            else:
                raise NotFound(
                    f"{where} is no checkpoint. Give the repository ({self.directory}) for the "
                    "newest, "
                    "or a path that Lightning saved to"
                )
        finally:
            if opened:
                manager.close()
        if restored is None:
            raise NotFound(f"{self.directory} has no checkpoint yet")
        for line in restored.fallbacks:
            log.warning("a newer checkpoint was passed over: %s", line)
        return dict(restored.state)

    def remove_checkpoint(self, path: PathLike) -> None:
        where = _location.absolute(path)
        manager = self._open()
        manager.wait()  # the file that names it is written when it is durable
        id = _find(manager, where)
        if os.path.isfile(where):
            os.unlink(where)
        if id is not None and any(info.id == id for info in manager.list()):  # else: retention did
            manager.delete(id)

    def teardown(self) -> None:
        """Waits for the save in flight, reports its failure, gives the directory up."""
        if self._manager is not None:
            try:
                self._manager.close()  # whose callbacks still need it
            finally:
                self._manager = None

    def _inside(self, path: str) -> bool:
        return path == self.directory or path.startswith(self.directory + os.sep)

    def _open(self) -> CheckpointManager:
        if self._manager is None:
            self._manager = CheckpointManager(self.directory, **self._options)
            self._manager.add_callback(self._saved)
            for callback in self._callbacks:
                self._manager.add_callback(callback)
        return self._manager

    def _saved(self, record: SaveRecord) -> None:
        """On the watcher's thread: a save is over; the files come in the order of the saves."""
        if not self._paths:
            return
        manager = self._manager
        if not record.ok or manager is None:
            return
        infos = {info.id: info for info in manager.list()}
        info = infos.get(str(record.id))
        if info is None:
            return
        where = self._paths.pop(int(info.metadata["lightning"]["number"]), None)
        if where is None:
            return
        before = infos.get(_read_pointer(where) or "")
        _write_pointer(where, info.id, self.directory)
        # The checkpoint that was saved to this very path: what a link or a copy named is another's.
        if before is not None and before.id != info.id and not before.pinned:
            if before.metadata.get("lightning", {}).get("path") == where:
                manager.delete(before.id)


def _find(manager: CheckpointManager, path: str) -> Optional[str]:
    """The id of the checkpoint that Lightning knows by a path: by the file there, or, when a crash
    came between the checkpoint and its file, by what the checkpoint says."""
    infos = manager.list()
    found = _read_pointer(path)
    if found is not None and any(info.id == found for info in infos):
        return found
    for info in reversed(infos):
        if info.metadata.get("lightning", {}).get("path") == path:
            return info.id
    return found


def _write_pointer(path: str, id: str, repository: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = json.dumps({_POINTER: id, "repository": repository})
    part = f"{path}.part"
    with open(part, "w") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)


def _read_pointer(path: str) -> Optional[str]:
    """The id of the checkpoint that a file names; None when it is no such file."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(4096))
        return str(found[_POINTER])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Lightning's states hold dicts of its own types, and paths."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, PurePath):
        return str(value)
    return value


class Loader(_Loader):
    """cairn.torch.Loader as Lightning wants it: Lightning counts batches and does not ask for one
    after an epoch's last, so the position after that one is the start of the next epoch.

    >>> import torch
    >>> from cairn.integrations.lightning import Loader
    >>> loader = Loader(torch.arange(4), batch_size=2, seed=1)
    >>> batches = iter(loader)
    >>> first, last = next(batches), next(batches)
    >>> state = loader.state_dict()
    >>> state["epoch"], state["next"], loader.sampler is loader
    (1, 0, True)
    """

    def state_dict(self) -> Dict[str, int]:
        state = super().state_dict()
        if self._complete:
            state.update(epoch=self.epoch + 1, next=0)
        return state

    @property
    def sampler(self) -> "Loader":
        """Lightning tells samplers the epoch; after an epoch's end it gives no state back."""
        return self


class CairnCallback(pl.Callback):
    """Saves every n steps, also in the middle of an epoch, with the random states.

    With a plugin: ``Trainer(plugins=[io], callbacks=[CairnCallback(every_n_steps=50)])``,
    then ``trainer.fit(model, ckpt_path=io.latest())``. Given a directory it brings a plugin of its
    own: ``callback = CairnCallback("runs/a", every_n_steps=50)`` and
    ``trainer.fit(model, ckpt_path=callback.latest())``.

    A resume is exact when the data is: a loader with state_dict and load_state_dict, such as the
    Loader of this module, goes on with the next batch.

    Args:
        directory: of checkpoints; None uses the trainer's CairnCheckpointIO.
        every_n_steps: optimizer steps between saves.
        keep_last: how many stay, with a directory.
        options: for CheckpointManager, with a directory.

    >>> import lightning as pl, torch
    >>> from cairn.integrations.lightning import CairnCallback, Loader
    >>> class Model(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(2, 1)
    ...     def training_step(self, batch, index):
    ...         return self.layer(batch).sum()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> def train(steps):
    ...     callback = CairnCallback("runs/a", every_n_steps=2)
    ...     trainer = pl.Trainer(max_steps=steps, callbacks=[callback], accelerator="cpu", logger=False,
    ...                          enable_progress_bar=False, enable_model_summary=False,
    ...                          enable_checkpointing=False)
    ...     start = callback.latest()
    ...     trainer.fit(Model(), Loader(torch.ones(8, 2)), ckpt_path=start)
    ...     return start is None, trainer.global_step
    >>> train(2), train(4)
    ((True, 2), (False, 4))
    """

    def __init__(
        self,
        directory: Optional[PathLike] = None,
        *,
        every_n_steps: int = 100,
        keep_last: Optional[int] = 3,
        **options: Any,
    ) -> None:
        if (
            isinstance(every_n_steps, bool)
            or not isinstance(every_n_steps, int)
            or every_n_steps < 1
        ):
            raise Invalid(f"CairnCallback: every_n_steps must be at least 1, not {every_n_steps!r}")
        self._every = every_n_steps
        self._io: Optional[CairnCheckpointIO] = None
        if directory is not None:
            self._io = CairnCheckpointIO(directory, keep_last=keep_last, **options)
        self._saved_step = -1
        self._rng: Optional[Any] = None

    def latest(self) -> Optional[str]:
        """What to give as ckpt_path: None before the first save."""
        if self._io is None:
            raise Invalid("CairnCallback: give it a directory, or use the plugin's latest()")
        return self._io.latest()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._io is not None:
            trainer.strategy.checkpoint_io = self._io
        elif not isinstance(trainer.strategy.checkpoint_io, CairnCheckpointIO):
            raise Invalid(
                "CairnCallback: the trainer has no CairnCheckpointIO among its plugins; give the "
                "callback a directory or the trainer the plugin"
            )

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._rng is not None:  # data loaders were made meanwhile, and may have drawn from it
            rng, self._rng = self._rng, None
            set_random_state(rng)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        # After an epoch's last batch Lightning's counters stand between two epochs, and it does not
        # find its way back from there; they are right at the end of the epoch.
        # Before the first step batches may be gathered for it, whose gradients no checkpoint has.
        if trainer.global_step == 0 or trainer.is_last_batch:
            return
        if trainer.global_step % self._every == 0:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step % self._every == 0:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer)
        manager = trainer.strategy.checkpoint_io._manager
        if manager is not None:
            manager.wait()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        # Lightning has every process make the checkpoint, and rank 0 write it.
        checkpoint[_RNG] = gather(random_state())

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        self._rng = _own_state(checkpoint.get(_RNG), trainer.global_rank, trainer.world_size)
        self._saved_step = int(checkpoint.get("global_step", -1))

    def _save(self, trainer: Any) -> None:
        if trainer.global_step == self._saved_step:  # batches may be accumulated into one step
            return
        self._saved_step = trainer.global_step
        io = trainer.strategy.checkpoint_io
        trainer.save_checkpoint(os.path.join(io.directory, f"step={trainer.global_step}"))


def _own_state(stored: Any, rank: int, world_size: int) -> Any:
    """The random states of this process, where there were as many of them as there are now."""
    if not isinstance(stored, list):  # rank 0's, of checkpoints from before
        stored = [] if stored is None else [stored]
    if len(stored) == world_size:
        return stored[rank]
    if stored:
        log.warning(
            "the checkpoint has the random states of %d process(es), and there are %d now: they go "
            "on with their own, unlike those of an undisturbed run",
            len(stored),
            world_size,
        )
    return None
