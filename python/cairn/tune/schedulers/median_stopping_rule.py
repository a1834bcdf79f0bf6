"""Where programs for Ray Tune import the median rule from."""

from . import MedianStoppingRule

__all__ = ["MedianStoppingRule"]
