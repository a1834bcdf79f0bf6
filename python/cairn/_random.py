"""The global random states of the process: Python's, NumPy's and, where it is used, torch's."""

from __future__ import annotations

import random
from typing import Any, Dict, Mapping, Tuple

import numpy as np

from . import _arrays
from ._tree import Stateful


def random_state() -> Dict[str, Any]:
    """The states now, in a form that can be saved."""
    version, words, gauss = random.getstate()
    state: Dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    torch = _arrays.torch_or_none()
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Puts back what random_state gave."""
    python = state["python"]
    random.setstate((python["version"], tuple(int(w) for w in python["words"]), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch = _arrays.torch_or_none()
    if torch is None:
        return
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def host_states() -> Tuple[Any, Any, Any]:
    """The states of this machine's generators, to be put back in this process: quick to take."""
    torch = _arrays.torch_or_none()
    words = None if torch is None else torch.get_rng_state()
    return random.getstate(), np.random.get_state(legacy=False), words


def put_host_states(states: Tuple[Any, Any, Any]) -> None:
    """Puts back what host_states gave."""
    python, numpy, words = states
    random.setstate(python)
    np.random.set_state(numpy)
    if words is not None:
        _arrays.torch_or_none().set_rng_state(words)


class RandomStates(Stateful):
    """The global random states as a part of a state."""

    def cairn_save(self) -> Any:
        return random_state()

    def cairn_load(self, state: Any) -> None:
        set_random_state(state)
