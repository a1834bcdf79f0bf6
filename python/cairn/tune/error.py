"""Where programs for Ray Tune import TuneError from."""

from .tuner import TuneError

__all__ = ["TuneError"]
