"""What is on record of an experiment, and whether what is given goes on with it."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any, Dict, List, Mapping

from . import search_space, stoppers
from ._changes import changed_keys
from ._worker_starts import word
from .config import CLUSTERS, CheckpointConfig, FailureConfig, RunConfig, TuneConfig
from .search_policy import SearchPolicy
from .trainable import is_class_trainable, name_of

NOT_RECORDED = "a function"


def describe(
    trainable: Any,
    space: Mapping[str, Any],
    policy: SearchPolicy,
    tune: TuneConfig,
    run: RunConfig,
    prefix: str,
) -> Dict[str, Any]:
    """What is on record of an experiment."""
    failures = run.failure_config
    checkpoints = run.checkpoint_config
    assert failures is not None and checkpoints is not None
    stop = None if run.stop is None else stoppers.as_stopper(run.stop).describe()
    return {
        "format": 1,
        "trainable": name_of(trainable),
        "kind": kind_of(trainable),
        "keys": flat_keys(space),
        "prefix": prefix,
        "space": search_space.describe(space)[0],
        "order": search_space.domain_paths(space),
        "policy": policy.describe(),
        "tune_config": {
            name: getattr(tune, name)
            for name in ("metric", "mode", "num_samples", "max_concurrent_trials", "time_budget_s")
        }
        | ({"chdir_to_trial_dir": True} if tune.chdir_to_trial_dir else {}),
        "run_config": {
            "stop": NOT_RECORDED if stop is None and run.stop is not None else stop,
            "failure_config": dataclasses.asdict(failures),
            "checkpoint_config": dataclasses.asdict(checkpoints),
            "verbose": run.verbose,
            "log_to_file": run.log_to_file,
            "launcher": run.launcher,
            "resources": {k: word(v) for k, v in (run.resources or {}).items()} or None,
            "launch_dir": None if run.launch_dir is None else os.fspath(run.launch_dir),
            "host": run.host,
            "master": run.master,
        },
    }


def recorded_run(known: Mapping[str, Any], new_stop: Any) -> RunConfig:
    """As it is on record, but for another stop, if one is given."""
    recorded = dict(known.get("run_config") or {})
    stop = recorded.get("stop")
    if new_stop is not None:
        stop = None
    elif stop == NOT_RECORDED:
        raise ValueError(
            "the experiment's stop is a function of yours, which is not on record: give it again, "
            "as run_config=RunConfig(stop=…) to restore, as stop=… to extend"
        )
    return RunConfig(
        stop=new_stop if stop is None else stoppers.from_description(stop),
        failure_config=FailureConfig(**recorded.get("failure_config", {})),
        checkpoint_config=CheckpointConfig(**recorded.get("checkpoint_config", {})),
        verbose=int(recorded.get("verbose", 1)),
        log_to_file=recorded.get("log_to_file", False),
        launcher=recorded.get("launcher"),
        resources=recorded.get("resources"),
        launch_dir=recorded.get("launch_dir"),
        host=recorded.get("host"),
        master=recorded.get("master"),
    )


def refuse_another(
    known: Mapping[str, Any],
    directory: str,
    trainable: Any,
    space: Mapping[str, Any],
    policy: SearchPolicy,
    run: RunConfig,
    new_scheduler: bool,
) -> None:
    """Raises where what is given cannot go on with the experiment that is on record."""
    name = name_of(trainable)
    if known["trainable"] != name:
        raise ValueError(
            f"the experiment in {directory} was made with the trainable "
            f"{known['trainable']!r}, not {name!r}"
        )
    kind = kind_of(trainable)
    if known.get("kind", kind) != kind:
        raise ValueError(
            f"the experiment in {directory} was made with a {known['kind']} that is called {name!r}, "
            f"and this is a {kind}: give the experiment another name"
        )
    failures = (known.get("run_config") or {}).get("failure_config") or {}
    allowed = run.failure_config.max_failures
    if "failure_config" in run._given and failures.get("max_failures", allowed) != allowed:
        raise ValueError(
            f"failure_config has max_failures={allowed}, and the experiment in {directory} was made "
            f"with {failures['max_failures']}, which its trials began with: leave failure_config out to go on "
            "with that, or give the experiment another name"
        )
    launcher = (known.get("run_config") or {}).get("launcher")
    if (launcher if launcher in CLUSTERS else None) != (
        run.launcher if run.launcher in CLUSTERS else None
    ):
        raise ValueError(
            f"the experiment in {directory} was begun with launcher={launcher!r}: go on with that"
        )
    keys = flat_keys(space)
    if list(known["keys"]) != keys:
        raise ValueError(
            f"the experiment in {directory} has the hyperparameters {list(known['keys'])}, "
            f"and param_space has {keys}: they must be the same; leave param_space out to go on with what is "
            "on record"
        )
    for what, change in policy.changes(known.get("policy") or {}).items():
        if what == "scheduler" and new_scheduler:
            continue
        raise ValueError(
            f"{what} is another one than the experiment in {directory} was made with ({change}): what "
            f"was decided so far follows from that; leave {what} out to go on with it, or give the "
            "experiment another name"
        )


def warn_of_changes(known: Mapping[str, Any], directory: str, space: Mapping[str, Any]) -> None:
    """The trials that are there stay what they are: whoever edited the program has to know."""
    changed = changed_keys(search_space.describe(space)[0], known.get("space") or {})
    if changed:
        warnings.warn(
            f"param_space has other values of {', '.join(map(repr, changed))} than the experiment in "
            f"{directory} was made with: its trials keep what they have, and only trials that are "
            "still to come are drawn from it; give another name to begin anew",
            stacklevel=3,
        )


def flat_keys(space: Mapping[str, Any], prefix: str = "") -> List[str]:
    """The keys of a search space, nested ones with "/"."""
    keys: List[str] = []
    for key, value in space.items():
        if isinstance(value, Mapping) and "grid_search" not in value and "__domain__" not in value:
            keys += flat_keys(value, f"{prefix}{key}/") or [f"{prefix}{key}"]
        else:
            keys.append(f"{prefix}{key}")
    return sorted(keys)


def kind_of(trainable: Any) -> str:
    return "class" if is_class_trainable(trainable) else "function"
