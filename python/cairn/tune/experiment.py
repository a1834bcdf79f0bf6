"""Where programs for Ray Tune import Trial from."""

from .trial import Trial

__all__ = ["Trial"]
