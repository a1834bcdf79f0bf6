"""Random generators of a training's own: where they are, and their states."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from . import _tree

__all__ = ["generators_in", "loader_generators", "put_states", "states_of"]

# Where torch's DataLoader and its samplers have one.
_OF_LOADERS = (
    ("generator",),
    ("sampler", "generator"),
    ("batch_sampler", "generator"),
    ("batch_sampler", "sampler", "generator"),
)


def generators_in(state: Any, name: str = "", depth: int = 0) -> Dict[str, Any]:
    """The generators that stand in a nested state, by name."""
    if isinstance(state, dict):
        items: Any = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        return {name: state} if _is_generator(state) else {}
    found: Dict[str, Any] = {}
    if depth < _tree.MAX_DEPTH:
        for key, item in items:
            if not isinstance(item, (str, int, float)):
                found.update(generators_in(item, _tree.join(name, key), depth + 1))
    return found


def loader_generators(loader: Any) -> Dict[str, Any]:
    """The generators that a loader draws the order of its examples and the seeds of its workers
    from, by where they are; each once."""
    found: Dict[str, Any] = {}
    for path in _OF_LOADERS:
        owner: Any = loader
        for attribute in path:
            owner = getattr(owner, attribute, None)
        if _is_torch(owner) and all(owner is not other for other in found.values()):
            found[".".join(path)] = owner
    return found


def states_of(generators: Mapping[str, Any]) -> Dict[str, Any]:
    """Their states now, in a form that can be saved."""
    return {name: _tree.rng_state(each) for name, each in generators.items()}


def put_states(generators: Mapping[str, Any], states: Mapping[str, Any]) -> List[str]:
    """Puts back what states_of gave. Gives the names that only one side has."""
    for name, generator in generators.items():
        if name in states:
            _tree.set_rng(generator, states[name])
    return sorted(generators.keys() ^ states.keys())


def _is_torch(value: Any) -> bool:
    return _tree.fits_rng(value, "torch")


def _is_generator(value: Any) -> bool:
    return _is_torch(value) or _tree.rng_kind(value) is not None
