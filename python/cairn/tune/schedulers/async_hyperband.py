"""Where programs for Ray Tune import ASHA from."""

from . import ASHAScheduler, AsyncHyperBandScheduler

__all__ = ["ASHAScheduler", "AsyncHyperBandScheduler"]
