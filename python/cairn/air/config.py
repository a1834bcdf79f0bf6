"""Where programs for Ray AIR import their settings from."""

from ..tune import CheckpointConfig, FailureConfig, RunConfig

__all__ = ["CheckpointConfig", "FailureConfig", "RunConfig"]
