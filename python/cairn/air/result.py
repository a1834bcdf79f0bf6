"""Where programs for Ray AIR import Result from."""

from ..tune import Result

__all__ = ["Result"]
