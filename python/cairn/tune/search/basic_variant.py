"""Where Ray Tune's programs import BasicVariantGenerator from."""

from . import BasicVariantGenerator

__all__ = ["BasicVariantGenerator"]
