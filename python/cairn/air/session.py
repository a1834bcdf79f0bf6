"""Where programs for Ray AIR import session from."""

from ..tune.session import (
    get_checkpoint,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    report,
)

__all__ = [
    "get_checkpoint",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "report",
]
