"""Where programs for Ray Tune import what schedulers derive from."""

from . import FIFOScheduler, TrialScheduler

__all__ = ["FIFOScheduler", "TrialScheduler"]
