"""Gradients that are gathered over several batches, as a part of a state."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from . import _tree
from ._torch_names import uncompiled_name
from ._wording import a_type
from .errors import Invalid, Mismatch

__all__ = ["Gradients"]


class Gradients(_tree.Stateful):
    """The gradients of a module, for trainings that gather them over several batches: between two
    steps of the optimizer they are what the batches so far have given, and a checkpoint without them
    loses those batches. Give it as one of the things to save, to a Trainer (``state=``) or to
    :func:`cairn.torch.capture`.

    Args:
        module: whose parameters have the gradients.

    >>> import torch, cairn, cairn.torch
    >>> model = torch.nn.Linear(2, 1)
    >>> train = cairn.torch.capture(model=model, gradients=cairn.torch.Gradients(model))
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     handle = m.save(1, {"train": train})
    ...     model.zero_grad()
    ...     r = m.restore({"train": train})
    >>> model.weight.grad.tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise Invalid(f"Gradients: those of a torch.nn.Module, not of {a_type(module)}")
        self._module = module

    def _named(self) -> List[Tuple[str, torch.nn.Parameter]]:
        return [(uncompiled_name(name), p) for name, p in self._module.named_parameters()]

    def state_dict(self) -> Dict[str, Any]:
        """The gradients by the names of their parameters; those that have none are left out.

        >>> import torch, cairn.torch
        >>> model = torch.nn.Linear(1, 1)
        >>> model.bias.grad = torch.ones(1)
        >>> cairn.torch.Gradients(model).state_dict()
        {'bias': tensor([1.])}
        """
        return {
            name: _parts(parameter.grad) if parameter.grad.is_sparse else parameter.grad
            for name, parameter in self._named()
            if parameter.grad is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts gradients back; parameters without one in the state have none then. Mismatch, and
        nothing changed, for those of another module.

        >>> import torch, cairn.torch
        >>> model = torch.nn.Linear(1, 1)
        >>> cairn.torch.Gradients(model).load_state_dict({"bias": torch.ones(1)})
        >>> model.weight.grad, model.bias.grad
        (None, tensor([1.]))
        """
        found = {n: _whole(g) if isinstance(g, Mapping) else g for n, g in state.items()}
        self._check({name: tuple(gradient.shape) for name, gradient in found.items()})
        for name, parameter in self._named():
            gradient = found.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def _check(self, shapes: Mapping[str, Tuple[int, ...]]) -> None:
        wanted = {name: tuple(p.shape) for name, p in self._named()}
        lines = [f"{name}: there is no such parameter" for name in shapes if name not in wanted]
        lines += [
            f"{name}: stored {list(shape)}, wanted {list(wanted[name])}"
            for name, shape in shapes.items()
            if wanted.get(name, shape) != shape
        ]
        if lines:
            raise Mismatch(f"gradients of another module: {'; '.join(lines)}", mismatched=lines)

    # How a state takes it: compared before anything is changed, copied when it is read later.

    def cairn_save(self) -> Any:
        return self.state_dict()

    def cairn_save_lazily(self) -> Any:
        return _tree.copied(self.state_dict())

    def cairn_template(self, stored: _tree.Stored) -> Any:
        gradients = stored.skeleton()  # type: ignore[attr-defined]
        if not isinstance(gradients, dict):
            raise Mismatch(f"restore {stored.where}: there are no gradients")
        shapes = {n: g["shape"] if isinstance(g, dict) else g[1] for n, g in gradients.items()}
        pairs = {name for name, p in self._named() if p.is_complex()}  # stored as pairs of numbers
        self._check({n: tuple(s[:-1] if n in pairs else s) for n, s in shapes.items()})
        return None

    def cairn_load(self, state: Any) -> None:
        self.load_state_dict(state)


def _parts(gradient: torch.Tensor) -> Dict[str, Any]:
    whole = gradient.coalesce()
    return {"indices": whole.indices(), "values": whole.values(), "shape": list(whole.shape)}


def _whole(parts: Mapping[str, Any]) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        parts["indices"], parts["values"], parts["shape"], is_coalesced=True, check_invariants=True
    )
