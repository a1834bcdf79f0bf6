"""Where programs for Ray Tune import Searcher from."""

from . import Searcher

__all__ = ["Searcher"]
