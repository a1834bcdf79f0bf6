"""Where programs for Ray Tune import population based training from."""

from . import PopulationBasedTraining

__all__ = ["PopulationBasedTraining"]
