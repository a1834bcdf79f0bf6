"""Where programs for Ray AIR import Checkpoint from."""

from ..tune import Checkpoint

__all__ = ["Checkpoint"]
