"""Trainable: a trial as a class, and helpers around trainables."""

from __future__ import annotations

import functools
import inspect
import math
import os
import tempfile
import time
from typing import Any, Callable, Dict, Mapping, Optional, Union

from .checkpoint import Checkpoint
from .result_keys import (
    DONE,
    SHOULD_CHECKPOINT,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    TIMESTAMP,
    TRAINING_ITERATION,
)

__all__ = ["Trainable", "with_parameters", "with_resources"]


_place = ("default", "")  # trial_id and logdir of what is made next


def make_trainable(cls: Any, config: Mapping[str, Any], trial_id: str, logdir: str) -> "Trainable":
    """An object of a class that knows where it is from the start."""
    global _place
    before, _place = _place, (trial_id, logdir)
    try:
        made: Trainable = cls(dict(config))
    finally:
        _place = before
    made.trial_id, made.logdir = trial_id, logdir  # also of a class with an __init__ of its own
    return made


class Trainable:
    """A trial as a class: override setup, step, save_checkpoint and load_checkpoint.

    save_checkpoint(checkpoint_dir) writes files there and returns None, the directory, or a path
    inside of it; or it returns a dict. load_checkpoint gets the same kind back.

    >>> class Counter(Trainable):
    ...     def setup(self, config):
    ...         self.n = config["start"]
    ...     def step(self):
    ...         self.n += 1
    ...         return {"n": self.n}
    ...     def save_checkpoint(self, checkpoint_dir):
    ...         return {"n": self.n}
    ...     def load_checkpoint(self, checkpoint):
    ...         self.n = checkpoint["n"]
    ...     def reset_config(self, new_config):
    ...         self.n = new_config["start"]
    ...         return True
    ...     def cleanup(self):
    ...         print("closes its files")
    >>> t = Counter({"start": 5})
    >>> t.train()["n"], t.training_iteration, t.iteration, t.get_config()
    (6, 1, 1, {'start': 5})
    >>> again = Counter({"start": 0})
    >>> again.restore(t.save())
    >>> again.train()["n"], again.training_iteration
    (7, 2)
    >>> again.reset({"start": 9}), again.train()["n"], again.trial_name, again.trial_resources
    (True, 10, 'default', {'CPU': 1})
    >>> again.stop()
    closes its files
    """

    def __init__(self, config: Optional[Mapping[str, Any]] = None) -> None:
        self.config: Dict[str, Any] = dict(config or {})
        self._iteration = 0
        self._time_total = 0.0
        self._since_restore = 0
        # Known in setup, and without every subclass having to take them.
        self.trial_id, self.logdir = _place
        self.setup(self.config)

    # To be overridden.

    def setup(self, config: Dict[str, Any]) -> None:
        """Called once, before the first step."""

    def step(self) -> Dict[str, Any]:
        """One iteration; returns its result. `done: True` in it ends the trial, `should_checkpoint:
        True` makes a checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def save_checkpoint(self, checkpoint_dir: str) -> Union[None, str, Dict[str, Any]]:
        """Saves the state."""
        raise NotImplementedError(f"{type(self).__name__} has no save_checkpoint()")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Brings it back."""
        raise NotImplementedError(f"{type(self).__name__} has no load_checkpoint()")

    def reset_config(self, new_config: Dict[str, Any]) -> bool:
        """Takes on other hyperparameters, to be reused for another trial (TuneConfig(reuse_actors=True)) as if
        setup had just been called with them; trial_id and logdir are that trial's already. False: cannot,
        and the trial has another object, in a process of its own."""
        return False

    def cleanup(self) -> None:
        """Called at the end."""

    def get_config(self) -> Dict[str, Any]:
        """The hyperparameters."""
        return self.config

    # What is done with it.

    @property
    def training_iteration(self) -> int:
        """How many steps are done, over all runs of the trial."""
        return self._iteration

    @property
    def iteration(self) -> int:
        """The same as training_iteration."""
        return self._iteration

    @property
    def trial_name(self) -> str:
        """The trial's name for people, as get_trial_name() gives it; outside of a trial its id."""
        from . import session

        within = session._session
        return within.trial_name if within is not None and within.trial_id == self.trial_id else self.trial_id

    @property
    def trial_resources(self) -> Dict[str, float]:
        """What each trial takes, as with_resources said it; one CPU if it said nothing."""
        return resources_of(self) or {"CPU": 1}

    def train(self) -> Dict[str, Any]:
        """One step, with the usual keys in its result."""
        began = time.time()
        result = self.step()
        if not isinstance(result, Mapping):
            raise ValueError(f"step() must return a dict, not {type(result).__name__}")
        elapsed = time.time() - began
        self._iteration += 1
        self._since_restore += 1
        self._time_total += elapsed
        filled = dict(result)
        filled.setdefault(TIME_THIS_ITER_S, elapsed)
        filled[TIME_TOTAL_S] = self._time_total
        filled[TRAINING_ITERATION] = self._iteration
        filled.setdefault(TIMESTAMP, int(began))
        filled.setdefault(DONE, False)
        return filled

    def save(self, checkpoint_dir: Optional[str] = None) -> Checkpoint:
        """The state as a checkpoint (not committed: the tuner does that)."""
        path = checkpoint_dir or tempfile.mkdtemp(prefix="cairn-checkpoint-")
        made = checkpoint_of(self.save_checkpoint(path), path)
        made._counters = (self._iteration, self._time_total)
        return made

    def restore(self, checkpoint: Union[Checkpoint, str, "os.PathLike[str]"]) -> None:
        """Brings back a checkpoint that save gave, or a committed one, or its directory."""
        given = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        if given._info is not None:
            about = given._info.metadata.get("tune") or {}
            self._iteration = int(given._info.step)
            self._time_total = float(about.get("time_total_s") or 0.0)
        elif given._counters is not None:
            self._iteration, self._time_total = given._counters
        self._since_restore = 0
        self.load_checkpoint(argument_of(given))

    def reset(self, new_config: Mapping[str, Any]) -> bool:
        """For another trial: True when reset_config said so."""
        if not self.reset_config(dict(new_config)):
            return False
        self.config = dict(new_config)
        self._iteration = 0
        self._time_total = 0.0
        self._since_restore = 0
        return True

    def stop(self) -> None:
        """Called when the trial's process ends it: calls cleanup."""
        self.cleanup()


def checkpoint_of(returned: Any, directory: str) -> Checkpoint:
    """What save_checkpoint returned, as a checkpoint; ValueError for a path outside of the directory."""
    if isinstance(returned, Mapping):
        made = Checkpoint.from_dict(returned)
        made._directory = directory  # files that it wrote beside
        return made
    made = Checkpoint()
    made._directory = directory
    if returned is None:
        return made
    if not isinstance(returned, (str, os.PathLike)):
        raise ValueError(
            "save_checkpoint must return None, the directory, a path inside of it or a dict, not "
            f"{type(returned).__name__}"
        )
    root = os.path.realpath(directory)
    path = os.path.realpath(os.path.join(root, os.fspath(returned)))
    if path != root and not path.startswith(root + os.sep):
        raise ValueError(
            f"save_checkpoint returned {os.fspath(returned)!r}, which is not inside of {directory!r}"
        )
    inside = os.path.relpath(path, root)
    if inside != ".":
        made.__dict__["_about"] = {"inside": inside}
    return made


def argument_of(checkpoint: Checkpoint) -> Any:
    """What load_checkpoint gets: of the kind that save_checkpoint gave."""
    if checkpoint._kind == "dict":
        return checkpoint.to_dict()
    about = dict(checkpoint.__dict__.get("_about", {}))
    if checkpoint._info is not None:
        about = checkpoint._info.metadata.get("tune") or {}
    inside = about.get("inside")
    return os.path.join(checkpoint.path, inside) if inside else checkpoint.path


def is_class_trainable(trainable: Any) -> bool:
    return inspect.isclass(trainable) and issubclass(trainable, Trainable)


def name_of(trainable: Any) -> str:
    """By which an experiment knows its trainable again."""
    inner = getattr(trainable, "_cairn_name", None)
    if inner:
        return str(inner)
    if isinstance(trainable, functools.partial):
        return name_of(trainable.func)
    return str(getattr(trainable, "__name__", type(trainable).__name__))


def saves_on_demand(trainable: Any) -> bool:
    return is_class_trainable(trainable) and (
        trainable.save_checkpoint is not Trainable.save_checkpoint
    )


def can_be_reset(trainable: Any) -> bool:
    return is_class_trainable(trainable) and trainable.reset_config is not Trainable.reset_config


def with_parameters(trainable: Union[Callable[..., Any], type], **parameters: Any) -> Any:
    """The trainable with large objects handed over: to a function as arguments, to a class as
    arguments of setup. Workers share them; they are sent once.

    >>> def f(config, data=None):
    ...     return {"n": len(data)}
    >>> with_parameters(f, data=[1, 2, 3])({})
    {'n': 3}
    """
    if is_class_trainable(trainable):
        base: Any = trainable

        class Bound(base):  # type: ignore[misc, valid-type]
            def setup(self, config: Dict[str, Any]) -> None:
                base.setup(self, config, **parameters)

        Bound.__name__ = name_of(base)
        Bound.__qualname__ = Bound.__name__
        Bound._cairn_name = Bound.__name__
        return Bound
    if not callable(trainable):
        raise ValueError(f"a function or a Trainable class is wanted, not {trainable!r}")
    bound: Any = functools.partial(trainable, **parameters)
    bound._cairn_resources = resources_of(trainable)
    return bound


def with_resources(trainable: Any, resources: Any) -> Any:
    """Says what each trial takes: {"cpu": 2} lets half as many run at a time, {"gpu": 1} gives each a GPU of
    its own (CUDA_VISIBLE_DEVICES says which), {"gpu": 0.5} one that two trials share, {"gpu": 0} none. In
    Slurm and Ray each job is asked for with that, where RunConfig(resources=…) does not say it.

    >>> from cairn import tune
    >>> def train(config):
    ...     tune.report({"cpus": tune.get_trial_resources()["CPU"]})
    >>> run = tune.RunConfig(storage_path="runs", verbose=0)
    >>> tune.Tuner(with_resources(train, {"cpu": 2}), run_config=run).fit()[0].metrics["cpus"]
    2.0
    """
    if not isinstance(resources, Mapping):
        raise ValueError(
            f"resources must be a dict such as {{'cpu': 2}}, the same for all trials, not {resources!r}"
        )
    own = resources.get("custom_resources") or {}
    given = {str(k).upper(): v for k, v in resources.items() if k != "custom_resources"}
    amounts = {str(name): float(amount) for name, amount in {**given, **own}.items()}
    if not all(0 <= amount < math.inf for amount in amounts.values()):
        raise ValueError(f"resources must be numbers and not negative: {amounts}")
    gpus = amounts.get("GPU", 0.0)
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"of more than one GPU whole ones are given: {gpus:g} cannot be")
    if is_class_trainable(trainable):
        made: Any = type(name_of(trainable), (trainable,), {"_cairn_name": name_of(trainable)})
    else:
        made = functools.partial(trainable)
    made._cairn_resources = amounts
    return made


def resources_of(trainable: Any) -> Dict[str, float]:
    return dict(getattr(trainable, "_cairn_resources", {}) or {})


def wants_checkpoint(result: Mapping[str, Any]) -> bool:
    return bool(result.get(SHOULD_CHECKPOINT))


