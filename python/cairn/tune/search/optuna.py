"""Where Ray Tune's programs import OptunaSearch from."""

from . import OptunaSearch

__all__ = ["OptunaSearch"]
