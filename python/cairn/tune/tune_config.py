"""Where programs for Ray Tune import TuneConfig from."""

from .config import TuneConfig

__all__ = ["TuneConfig"]
