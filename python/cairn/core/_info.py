"""What a process that a master (or any trial engine) started can know about itself."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Dict, Mapping, Optional, Union

from ..errors import Invalid
from ._distributed import rank_and_size


def _id(text: str) -> Union[int, str]:
    """Ids that are numbers are numbers to a script: it may have stored them as such."""
    return int(text) if text.isdigit() and str(int(text)) == text else text


def seed_of(experiment: str, trial: str) -> int:
    """The trial_seed of a trial that nobody gave one."""
    hash = 2166136261  # FNV-1a, as src/trial/core_info.cc has it
    for byte in f"{experiment}/{trial}".encode():
        hash = (hash ^ byte) * 16777619 % 2**32
    return hash >> 1


@dataclasses.dataclass(frozen=True)
class TrialInfo:
    """The trial that this process runs.

    Attributes:
        trial_id: the same after a pause, a restart, a resume; another one when the trial was
            continued as a new one.
        experiment_id: the experiment that the trial belongs to.
        run_id: which start of the trial this is, from 1.
        hparams: the hyperparameters.
        resume_mode: "fresh"; "resume": this trial ran before and goes on; "continue": it begins with
            the checkpoint of another trial.
        trial_seed: for the script's generators, in [0, 2**31): the same in all runs and ranks of the
            trial. A function of the experiment's seed and the trial's number.

    >>> import cairn
    >>> info = cairn.get_cluster_info()
    >>> rate = 0.1 if info is None else info.trial.hparams["lr"]     # also without a master
    >>> rate
    0.1
    """

    trial_id: Union[int, str]
    experiment_id: Union[int, str]
    run_id: int
    hparams: Dict[str, Any]
    resume_mode: str
    trial_seed: int


@dataclasses.dataclass(frozen=True)
class ClusterInfo:
    """What get_cluster_info gives.

    Attributes:
        master_url: where the trial engine listens.
        latest_checkpoint: the id of the checkpoint to begin with, or None.
        storage: where the experiment's checkpoints are.
        trial: about the trial.
        rank, world_size: of this process among the trial's.

    >>> import cairn
    >>> info = cairn.get_cluster_info()
    >>> print("alone" if info is None else f"trial {info.trial.trial_id} of {info.master_url}")
    alone
    """

    master_url: str
    latest_checkpoint: Optional[str]
    storage: str
    trial: TrialInfo
    rank: int
    world_size: int


def info_from(env: Mapping[str, str]) -> Optional[ClusterInfo]:
    """From the environment of a run; None without CAIRN_TRIAL_URL and CAIRN_TRIAL_ID."""
    if not env.get("CAIRN_TRIAL_URL") or not env.get("CAIRN_TRIAL_ID"):
        return None
    try:
        hparams = json.loads(env.get("CAIRN_HPARAMS") or "{}")
        run = int(env.get("CAIRN_RUN_ID", "1"))
        rank, size = rank_and_size(env)
        experiment = env.get("CAIRN_EXPERIMENT_ID", "")
        seed = int(env.get("CAIRN_TRIAL_SEED") or seed_of(experiment, env["CAIRN_TRIAL_ID"]))
    except ValueError as error:
        raise Invalid(f"the variables of this run are damaged: {error}") from None
    if not isinstance(hparams, dict):
        raise Invalid(f"CAIRN_HPARAMS is no JSON object: {env['CAIRN_HPARAMS']!r}")
    latest = env.get("CAIRN_LATEST_CHECKPOINT") or None
    mode = env.get("CAIRN_RESUME_MODE") or ("fresh" if latest is None else "resume")
    return ClusterInfo(
        master_url=env["CAIRN_TRIAL_URL"],
        latest_checkpoint=latest,
        storage=env.get("CAIRN_STORAGE", ""),
        trial=TrialInfo(
            trial_id=_id(env["CAIRN_TRIAL_ID"]),
            experiment_id=_id(experiment),
            run_id=run,
            hparams=hparams,
            resume_mode=mode,
            trial_seed=seed,
        ),
        rank=rank,
        world_size=size,
    )


def get_cluster_info() -> Optional[ClusterInfo]:
    """About the run that this process is part of; None when nobody manages it.

    Scripts that run everywhere use ctx.latest_checkpoint, which is also set without a cluster.

    >>> import cairn
    >>> cairn.get_cluster_info() is None
    True
    """
    return info_from(os.environ)
