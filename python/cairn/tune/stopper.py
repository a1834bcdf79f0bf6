"""Where Ray Tune's programs import stoppers from; they are in cairn.tune.stoppers."""

from .stoppers import *  # noqa: F403
from .stoppers import __all__ as __all__
