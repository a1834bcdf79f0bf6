"""Whether saving holds the training up too much, and the interval that would be right."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .trainer import CheckpointConfig

MOST_OF_THE_TIME = 0.05
# Fewer saves, or less time, say nothing yet: the first save also makes directories and memory.
FEWEST_SAVES = 3
LEAST_SECONDS = 1.0


def cost_warning(
    config: CheckpointConfig,
    saves: int,
    stall_seconds: float,
    seconds: float,
    steps: int,
    epoch_steps: int,
) -> Optional[str]:
    """The warning, when saving took more than a twentieth of the time.

    Args:
        saves: made so far, which held the training up for `stall_seconds` together.
        seconds: since the training began, or went on; `steps` were made in them.
        epoch_steps: of the longest epoch that ended; 0: none did.
    """
    if saves < FEWEST_SAVES or seconds < LEAST_SECONDS:
        return None
    share = stall_seconds / seconds
    if share <= MOST_OF_THE_TIME:
        return None
    per_save = stall_seconds / saves
    # A stall of s after every n seconds of training is a share s / (n + s) of the time.
    between = per_save * (1 - MOST_OF_THE_TIME) / MOST_OF_THE_TIME
    per_step = max(seconds - stall_seconds, 1e-9) / max(steps, 1)
    remedy = []
    if config.save_seconds is not None and config.save_seconds < between:
        remedy.append(f"save_seconds={math.ceil(between + per_save)}")
    wanted = math.ceil(between / per_step)
    if epoch_steps and wanted > epoch_steps:
        # Step 0 of an epoch is always saved: what is longer than an epoch is counted in epochs.
        epochs = math.ceil(wanted / epoch_steps)
        if epochs > config.epoch_interval:
            remedy.append(f"epoch_interval={epochs}")
        if epoch_steps > config.step_interval:
            remedy.append(f"step_interval={epoch_steps}")
    elif wanted > config.step_interval:
        remedy.append(f"step_interval={wanted}")
    return (
        f"saving takes {100 * share:.0f} % of the training time ({per_save:.3f} s each); "
        f"{' and '.join(remedy) or 'a longer interval'} would keep it under "
        f"{100 * MOST_OF_THE_TIME:.0f} %"
    )
