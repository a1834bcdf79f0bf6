"""Where programs for Ray Tune import ConcurrencyLimiter from."""

from . import ConcurrencyLimiter

__all__ = ["ConcurrencyLimiter"]
