"""How workers of a tuner are started: by which command, as which jobs of a cluster, with what in hand."""

from __future__ import annotations

import math
import os
import pickle
import socket
import sys
from typing import Any, Dict, List, Mapping

from .. import _location
from .config import RunConfig
from .trainable import name_of, resources_of


def payload(trainable: Any, settings: Dict[str, Any], name_creator: Any = None) -> bytes:
    """What workers are handed: the trainable, all that they have to know, and who names trials."""
    try:
        import cloudpickle
    except ImportError:
        raise ImportError(
            "cairn.tune hands trainables to its workers with cloudpickle: pip install cloudpickle"
        ) from None

    try:
        pickled = cloudpickle.dumps(trainable)
    except Exception as error:  # whatever an object's own way to be pickled raises
        raise TypeError(
            f"{name_of(trainable)!r} cannot be handed to workers, because of something that it "
            f"refers to ({type(error).__name__}: {error}): make that inside of the trainable"
        ) from error
    named = None if name_creator is None else cloudpickle.dumps(name_creator)
    return pickle.dumps(
        {
            "path": list(sys.path),
            "argv": list(sys.argv),
            # Within: it is made where the path is known, and only if somebody asks for a name.
            "settings": {**settings, "name_creator": named},
            "trainable": pickled,
        }
    )


def cluster_jobs(run: RunConfig, directory: str, trainable: Any) -> Dict[str, Any]:
    """How workers are started as jobs of Slurm or Ray, and find this process."""
    where = run.launch_dir
    if where is None:
        if _location.is_remote(directory):
            raise ValueError(
                "launch_dir must name a directory that the nodes share: the experiment is in "
                f"{directory}"
            )
        where = os.path.join(_location.absolute(directory), "launches")
    return {
        "launcher": run.launcher,
        "worker": _worker_command(),
        "directory": os.fspath(where),
        "host": run.host or socket.gethostname(),
        "resources": {
            **asked_for(str(run.launcher), resources_of(trainable)),
            **{str(k): word(v) for k, v in (run.resources or {}).items()},
        },
    }


def asked_for(launcher: str, wanted: Mapping[str, float]) -> Dict[str, str]:
    """What tune.with_resources says, in the words of the launcher."""
    cpus, gpus = wanted.get("CPU"), wanted.get("GPU", 0.0)
    asked: Dict[str, str] = {}
    if launcher == "ray":
        if cpus is not None:
            asked["num_cpus"] = f"{cpus:g}"
        if gpus > 0:
            asked["num_gpus"] = f"{gpus:g}"
        return asked
    if cpus is not None:
        asked["cpus_per_task"] = str(max(1, math.ceil(cpus)))
    if gpus > 0:
        if gpus < 1:
            raise ValueError(f"each trial wants {gpus:g} of a GPU, and Slurm gives whole ones: ask for 1")
        asked["gres"] = f"gpu:{gpus:g}"
    return asked


def word(value: Any) -> str:
    """A resource as sbatch takes it; a list is one word a line, a dict one name=value."""
    if isinstance(value, dict):
        value = [f"{name}={amount}" for name, amount in value.items()]
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _worker_command() -> List[str]:
    return _python("from cairn.tune.remote_worker import main; main()")


def zygote_command() -> List[str]:
    # Imports may take long: until it listens, SIGIO ends it when the tuner does and with it descriptor 4.
    watch = (
        "import fcntl, os, select; fcntl.fcntl(4, fcntl.F_SETOWN, os.getpid()); "
        "fcntl.fcntl(4, fcntl.F_SETFL, fcntl.fcntl(4, fcntl.F_GETFL) | os.O_ASYNC); "
        "select.select([4], [], [], 0)[0] and os._exit(1)"
    )
    return _python("from cairn.tune.zygote import main; main()", watch)


def _python(command: str, first: str = "pass") -> List[str]:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # Without the working directory, whose files may be called as Python's own: the tuner's path follows.
    code = f"{first}; import sys; sys.path[:] = [{package!r}, *filter(None, sys.path)]; {command}"
    return [sys.executable, "-c", code]
