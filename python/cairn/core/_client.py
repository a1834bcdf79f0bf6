"""The run that this process is, as a trial engine sees it."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from typing import Any, Dict, Mapping, Optional, Tuple

from .. import _native
from ..errors import Error
from ._distributed import DistributedContext
from ._info import ClusterInfo, TrialInfo, _id, seed_of


class Run:
    """One start of a trial, connected with its engine.

    Attributes:
        client: speaks the trial protocol; its `preempt` is a flag that the background sets.
        run_id: which start of the trial this is.
        repository: where its checkpoints go.
        job: whose that repository is, or None: whoever's it is.
        latest_checkpoint: the id to begin with, or None.
        latest_repository: where that one is.
    """

    def __init__(self, client: Any, rank: int) -> None:
        self.client = client
        description = client.description
        self.description: Dict[str, Any] = description
        self.run_id = int(description["run_id"])
        self.repository = str(description["repository"])
        self.job: Optional[str] = description.get("job") or None
        self.detached = bool(description.get("detached", False))
        latest = description.get("latest_checkpoint") or {}
        self.latest_checkpoint: Optional[str] = latest.get("id") or None
        self.latest_repository = str(latest.get("repository") or "")
        self._rank = rank

    def ready(self) -> None:
        self.client.ready(self._rank, os.getpid(), socket.gethostname())

    def close(self, code: int, message: str) -> None:
        """Hangs up. A detached run says how it ended: nobody else sees it."""
        try:
            if self.detached and self._rank == 0:
                self.client.exit(code, message)
        finally:
            self.client.close()


def _place(env: Mapping[str, str]) -> Dict[str, Any]:
    """Where the engine is, and whose word its certificate is taken on."""
    return {"url": env["CAIRN_TRIAL_URL"], "ca": env.get("CAIRN_MASTER_CA", "")}


def run_from_env(env: Mapping[str, str], rank: int) -> Run:
    """The run that CAIRN_… variables describe."""
    client = _native.TrialClient.open(
        {
            **_place(env),
            "token": env.get("CAIRN_RUN_TOKEN", ""),
            "trial": env["CAIRN_TRIAL_ID"],
            "run": int(env.get("CAIRN_RUN_ID", "1")),
            "rank": rank,
        }
    )
    return Run(client, rank)


def _default_external_id() -> str:
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "interactive"
    whole = "\0".join([socket.gethostname(), os.getcwd(), *sys.argv])
    # Names of files need not be Unicode; what a master is told has to be.
    shown = os.fsencode(script).decode(errors="replace")
    return f"{shown}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:12]}"


def join(
    env: Mapping[str, str],
    distributed: DistributedContext,
    external_id: Optional[str],
    storage: Optional[str],
) -> Tuple[Run, ClusterInfo]:
    """A process that was started by hand becomes a run of a trial."""
    told: Any = None
    client: Any = None
    if distributed.is_chief:
        try:
            client = _native.TrialClient.join(
                {
                    **_place(env),
                    "token": env["CAIRN_JOIN_TOKEN"],
                    "external_id": external_id
                    or env.get("CAIRN_EXTERNAL_ID")
                    or _default_external_id(),
                    "world_size": distributed.size,
                    "storage": storage or env.get("CAIRN_STORAGE", ""),
                }
            )
            told = {"trial": client.trial, "run": client.run, "token": client.token}
        except Error as error:
            if distributed.size == 1:
                raise
            told = {"error": str(error)}
    told = distributed.broadcast(told)
    if "error" in told:
        raise Error(f"rank 0 could not join: {told['error']}")
    if client is None:
        client = _native.TrialClient.open(
            {**_place(env), "rank": distributed.rank, **told}
        )
    run = Run(client, distributed.rank)
    description = run.description
    info = ClusterInfo(
        master_url=env["CAIRN_TRIAL_URL"],
        latest_checkpoint=run.latest_checkpoint,
        storage=str(description.get("storage", "")),
        trial=TrialInfo(
            trial_id=_id(str(description["trial_id"])),
            experiment_id=_id(str(description["experiment_id"])),
            run_id=run.run_id,
            hparams=dict(description.get("hparams") or {}),
            resume_mode=str(description.get("resume_mode", "fresh")),
            trial_seed=seed_of(str(description["experiment_id"]), str(description["trial_id"])),
        ),
        rank=distributed.rank,
        world_size=distributed.size,
    )
    return run, info
