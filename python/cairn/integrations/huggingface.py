"""Hugging Face Trainer: a callback that saves into a repository, and the newest state to resume."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import logging
import os
import shutil
from typing import Any, Callable, Dict, Optional, Tuple

try:
    import torch
    import transformers
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError(
        "cairn.integrations.huggingface needs transformers and torch: "
        f"pip install transformers accelerate torch ({error})"
    ) from error

from .. import _location
from .._arguments import PathLike
from .._random import random_state
from ..errors import Error, Invalid, NotFound
from ..manager import CheckpointManager
from ._ranks import gather

__all__ = ["CairnCallback", "latest"]

log = logging.getLogger("cairn")

_MARK = ".cairn-resume"  # in what latest() makes


class CairnCallback(transformers.TrainerCallback):
    """Saves model, optimizer, scheduler, scaler, random states and the trainer's state.

    On every save event of the Trainer (save_strategy, save_steps), and every `save_steps` of its
    own: with ``save_strategy="no"`` the Trainer writes nothing itself and saves cost a copy in
    memory.

        trainer = Trainer(..., callbacks=[CairnCallback("runs/a", save_steps=50)])
        trainer.train(resume_from_checkpoint=latest("runs/a"))

    With several processes rank 0 saves the model, which all hold alike (DDP); sharded models (FSDP,
    DeepSpeed) are refused.

    Args:
        directory: of checkpoints.
        save_steps: also save every so many steps.
        keep_last: how many stay.
        options: for CheckpointManager (job, on_saved, …).

    >>> import torch, transformers
    >>> from cairn.integrations.huggingface import CairnCallback, latest
    >>> class Model(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = torch.nn.Parameter(torch.zeros(1))
    ...     def forward(self, x, labels):
    ...         return {"loss": ((self.w * x - labels) ** 2).mean()}
    >>> data = [{"x": 1.0, "labels": 2.0}] * 8
    >>> def train(steps):
    ...     arguments = transformers.TrainingArguments(
    ...         "out", max_steps=steps, per_device_train_batch_size=2, save_strategy="no", report_to=[],
    ...         disable_tqdm=True, use_cpu=True, logging_strategy="no")
    ...     trainer = transformers.Trainer(Model(), arguments, train_dataset=data,
    ...                                    callbacks=[CairnCallback("runs/a", save_steps=2)])
    ...     start = latest("runs/a")
    ...     _ = trainer.train(resume_from_checkpoint=start)
    ...     return start is None, trainer.state.global_step
    >>> train(2), train(4)
    {'train_runtime': ...}
    {'train_runtime': ...}
    ((True, 2), (False, 4))
    """

    def __init__(
        self,
        directory: PathLike,
        *,
        save_steps: Optional[int] = None,
        keep_last: Optional[int] = 3,
        **options: Any,
    ) -> None:
        if save_steps is not None and (
            isinstance(save_steps, bool) or not isinstance(save_steps, int) or save_steps < 1
        ):
            raise Invalid(f"CairnCallback: save_steps must be at least 1, not {save_steps!r}")
        self._directory = _location.text_of(directory)
        self._save_steps = save_steps
        self._options = {"keep_last": keep_last, **options}
        self._manager: Optional[CheckpointManager] = None
        self._saved_step = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
            raise Invalid(
                "CairnCallback saves models that every process holds whole; with FSDP or DeepSpeed "
                "use cairn.integrations.dcp"
            )
        self._saved_step = state.global_step
        if state.is_world_process_zero and self._manager is None:
            self._manager = CheckpointManager(self._directory, **self._options)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._save_steps is not None and state.global_step % self._save_steps == 0:
            self._save(state, control, **kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save(state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save(state, control, **kwargs)
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.close()

    def _save(
        self,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        if state.global_step == self._saved_step:
            return
        self._saved_step = state.global_step
        random_states = gather(random_state())
        if self._manager is None:
            return
        scaler = getattr(optimizer, "scaler", None)
        self._manager.save(
            state.global_step,
            {
                "model": dict(model.state_dict()),
                "optimizer": None if optimizer is None else optimizer.state_dict(),
                "scheduler": None if lr_scheduler is None else _plain(lr_scheduler.state_dict()),
                "scaler": None if scaler is None else scaler.state_dict(),
                "rng": random_states,
                "trainer": _trainer_state(state, control),
            },
            metadata={"huggingface": {"transformers": transformers.__version__}},
        )


def _trainer_state(state: Any, control: Any) -> str:
    """As TrainerState.save_to_json writes it, with the control's state as of now."""
    copied = dataclasses.replace(state, stateful_callbacks=dict(state.stateful_callbacks or {}))
    if isinstance(control, ExportableState):
        copied.stateful_callbacks[type(control).__name__] = control.state()
    return json.dumps(dataclasses.asdict(copied), indent=2, sort_keys=True)


def _plain(value: Any) -> Any:
    """Schedulers keep their functions, which cannot be stored and are made anew, in their state."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not callable(item)}
    return value


def latest(directory: PathLike, into: Optional[PathLike] = None) -> Optional[str]:
    """A directory for ``resume_from_checkpoint`` with the newest checkpoint that is whole; None
    when there is no checkpoint yet, which is what a first start needs.

    Args:
        directory: of checkpoints.
        into: where the files that the Trainer wants are put, in ``checkpoint-<step>``;
            ``<directory>.resume`` by default, which is removed whole before. Of a place that is
            given, what earlier calls put there is removed, nothing else; a checkpoint of that name
            that the Trainer itself wrote there (save_strategy) is left alone, and refused
            (Invalid). With several processes, call it in each of them: rank 0 writes the files, on
            a disk that all of them see, and the others wait for it, through torch.distributed where
            it is initialised, else through torchrun's store.

    >>> from cairn.integrations.huggingface import latest
    >>> print(latest("runs/a"))                       # trainer.train(resume_from_checkpoint=…)
    None
    """
    where = _location.absolute(directory)
    if into is None and _location.is_remote(where):
        raise Invalid(
            f"{where!r} is on a bucket: say with into= where the files go on this machine"
        )
    given = where + ".resume" if into is None else _location.of_this_machine(into, "into")
    target = os.path.abspath(given)
    return _by_rank_0(lambda: _publish(where, target))


def _by_rank_0(publish: Callable[[], Optional[str]]) -> Optional[str]:
    """What rank 0 gets of it, on all ranks, when rank 0 has it."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == 1:
            return publish()
        return _told(dist.get_rank(), publish, _broadcast)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return publish()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise Invalid(
            "latest: several processes run (RANK, WORLD_SIZE) and torch.distributed, through which "
            "rank 0 would tell the others, is not initialised; make the TrainingArguments first, "
            "which do that, or start with torchrun"
        )
    return _told(rank, publish, _through_store(rank))


def _told(
    rank: int,
    publish: Callable[[], Optional[str]],
    tell: Callable[[Optional[Tuple[str, Optional[str]]]], Tuple[str, Optional[str]]],
) -> Optional[str]:
    if rank != 0:
        what, path = tell(None)
        if what == "error":
            raise Error(f"latest: rank 0 failed: {path}")
        return path
    try:
        path = publish()
    except BaseException as error:
        tell(("error", f"{type(error).__name__}: {error}"))
        raise
    tell(("path", path))
    return path


def _broadcast(said: Any) -> Any:
    values = [said]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


_calls = itertools.count()  # all ranks make the same


def _through_store(rank: int) -> Callable[[Any], Any]:
    """By the store that torchrun has open for its workers before they initialise anything."""
    store = torch.distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=datetime.timedelta(minutes=30),
    )
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"cairn/huggingface/latest/{start}/{next(_calls)}"

    def tell(said: Any) -> Any:
        if rank == 0:
            store.set(key, json.dumps(said))
            return said
        return tuple(json.loads(store.get(key)))

    return tell


def _publish(where: str, target: str) -> Optional[str]:
    """Rank 0: puts the files there, and gives their directory."""
    try:
        with CheckpointManager(where, read_only=True) as manager:
            restored = manager.restore()
    except NotFound:
        return None
    if restored is None:
        return None
    for line in restored.fallbacks:
        log.warning("a newer checkpoint was passed over: %s", line)
    if "huggingface" not in restored.metadata:
        raise Invalid(f"{restored.info.path} was not saved by cairn.integrations.huggingface")
    path = os.path.join(target, f"checkpoint-{restored.step}")
    try:
        if target == f"{where}.resume":  # ours, by its name
            shutil.rmtree(target, ignore_errors=True)
        else:
            _remove_earlier(target)
        os.makedirs(path)
    except NotADirectoryError:
        raise Invalid(
            f"{target}: this, or what it is in, is a file, and latest() needs a directory: give "
            "another place as into="
        ) from None
    except FileExistsError:
        raise Invalid(
            f"{path} is there, and latest() did not put it there: give another place as into="
        ) from None
    with open(os.path.join(path, _MARK), "w", encoding="utf-8") as stream:
        stream.write(f"{restored.info.id}\n")
    _materialise(restored.state, path)
    return path


def _remove_earlier(target: str) -> None:
    """What earlier calls put there. One that is empty is of a call that was killed."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(target)):
            if not entry.name.startswith("checkpoint-") or not entry.is_dir(follow_symlinks=False):
                continue
            mark = os.path.join(entry.path, _MARK)
            with contextlib.suppress(OSError):
                if os.path.lexists(mark):
                    _remove_all_but_the_mark(entry.path)
                    os.unlink(mark)
                os.rmdir(entry.path)


def _remove_all_but_the_mark(path: str) -> None:
    """First of all: whatever a kill leaves of it is marked, or empty."""
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != _MARK:
            os.unlink(entry.path)


def _materialise(state: Dict[str, Any], path: str) -> None:
    """Writes the files that transformers.Trainer resumes from."""
    from safetensors.torch import save_file

    weights: Dict[str, Any] = {}
    seen = set()
    for name, tensor in state["model"].items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue  # tied weights are one tensor, and tied in the model
        seen.add(tensor.data_ptr())
        weights[name] = tensor.detach().contiguous()
    save_file(weights, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    for key, name in (
        ("optimizer", "optimizer.pt"),
        ("scheduler", "scheduler.pt"),
        ("scaler", "scaler.pt"),
    ):
        if state[key] is not None:
            torch.save(state[key], os.path.join(path, name))
    for rank, rng in enumerate(state["rng"]):
        name = "rng_state.pth" if len(state["rng"]) == 1 else f"rng_state_{rank}.pth"
        torch.save(_rng_state(rng), os.path.join(path, name))
    with open(os.path.join(path, "trainer_state.json"), "w", encoding="utf-8") as stream:
        stream.write(state["trainer"] + "\n")


def _rng_state(rng: Dict[str, Any]) -> Dict[str, Any]:
    python, numpy = rng["python"], rng["numpy"]
    state: Dict[str, Any] = {
        "python": (python["version"], tuple(int(w) for w in python["words"]), python["gauss"]),
        "numpy": (
            numpy["bit_generator"],
            numpy["state"]["key"],
            int(numpy["state"]["pos"]),
            int(numpy["has_gauss"]),
            float(numpy["gauss"]),
        ),
        "cpu": rng["torch"],
    }
    if "cuda" in rng:
        state["cuda"] = rng["cuda"] if len(rng["cuda"]) > 1 else rng["cuda"][0]
    return state
