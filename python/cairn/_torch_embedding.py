"""torch modules on top of tables: forward looks up, backward applies."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from ._arguments import whole
from ._wording import a_type
from .errors import Invalid
from .table import EmbeddingTable, RowsById

__all__ = ["Embedding", "EmbeddingBag"]


class _Rows(torch.autograd.Function):
    """The rows of ids; the gradient goes into the table instead of a parameter."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, ids: torch.Tensor, table: EmbeddingTable
    ) -> torch.Tensor:
        ctx.table = table
        ctx.ids = ids.cpu()
        return torch.from_numpy(table.lookup(ctx.ids.numpy())).to(ids.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[None, None, None]:
        gradient = gradients[0].detach().to("cpu", torch.float32).contiguous()
        ctx.table.apply_gradients(ctx.ids.numpy(), gradient.numpy())
        return None, None, None


class Embedding(torch.nn.Module):
    """Like ``torch.nn.Embedding``, of any ids, on a table.

    ``backward`` applies the table's own optimizer at once; torch's optimizers do not see the rows.
    In evaluation (``eval()``, ``no_grad``) no rows are made. A checkpoint of the module, alone or
    inside of another, has the table's rows; a ``state_dict`` has none.

    Args:
        table: the rows.
        padding_idx: an id that gives zeros and gets no gradient.

    >>> import torch, cairn, cairn.torch
    >>> table = cairn.EmbeddingTable("words", 8, optimizer=cairn.optimizers.Adagrad(0.1))
    >>> words = cairn.torch.Embedding(table)
    >>> words(torch.tensor([[1, 2], [3, 10**12]])).sum().backward()
    >>> table.size()
    4
    """

    def __init__(self, table: EmbeddingTable, padding_idx: Optional[int] = None) -> None:
        super().__init__()
        if not isinstance(table, RowsById):
            raise Invalid(f"Embedding: the rows are those of a table, not of {a_type(table)}")
        self.table = table
        self.padding_idx = None if padding_idx is None else whole(padding_idx, "padding_idx")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`, in their shape with one more dimension.

        >>> import torch, cairn, cairn.torch
        >>> table = cairn.EmbeddingTable("words", 2, optimizer=cairn.optimizers.SGD(0.1),
        ...                              initializer=cairn.initializers.Constant(1.0))
        >>> words = cairn.torch.Embedding(table, padding_idx=0)
        >>> words(torch.tensor([[5, 0]])).tolist()
        [[[1.0, 1.0], [0.0, 0.0]]]
        """
        if not isinstance(ids, torch.Tensor):
            raise Invalid(f"Embedding {self.table.name!r}: ids must be a tensor, not {a_type(ids)}")
        if not _are_integers(ids):
            raise Invalid(f"Embedding {self.table.name!r}: ids must be integers, not {ids.dtype}")
        ids = ids.detach().to(torch.int64)
        if self.padding_idx is not None:
            kept = ids != self.padding_idx
            rows = self._lookup(ids[kept])
            return rows.new_zeros((*ids.shape, self.table.dim)).masked_scatter(
                kept.unsqueeze(-1).expand(*ids.shape, self.table.dim), rows
            )
        return self._lookup(ids)

    def _lookup(self, ids: torch.Tensor) -> torch.Tensor:
        if not (self.training and torch.is_grad_enabled()):
            rows = self.table.lookup(ids.cpu().numpy(), create=False)
            return torch.from_numpy(rows).to(ids.device)
        # Autograd calls backward only where something wants a gradient.
        anchor = torch.empty(0, requires_grad=True)
        result: torch.Tensor = _Rows.apply(anchor, ids, self.table)
        return result

    def extra_repr(self) -> str:
        return repr(self.table)


def _are_integers(values: torch.Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def module_tables(module: torch.nn.Module) -> List[EmbeddingTable]:
    """The tables of this process that a module and those inside of it look up in. Rows on parameter
    servers are not among them: the servers save them."""
    return [
        value
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, EmbeddingTable)
    ]


class EmbeddingBag(torch.nn.Module):
    """Like ``torch.nn.EmbeddingBag``: sums, means or maxima of bags of rows.

    Args:
        table: the rows.
        mode: "sum", "mean" or "max".
        include_last_offset: offsets end with one more, the number of ids.
        padding_idx: an id that counts in no bag, and gets no gradient.

    >>> import torch, cairn, cairn.torch
    >>> table = cairn.EmbeddingTable("tags", 4, optimizer=cairn.optimizers.SGD(0.1))
    >>> bag = cairn.torch.EmbeddingBag(table, mode="mean")
    >>> bag(torch.tensor([5, 6, 7]), offsets=torch.tensor([0, 2])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        table: EmbeddingTable,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: Optional[int] = None,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(table)
        self.include_last_offset = bool(include_last_offset)
        self.padding_idx = None if padding_idx is None else whole(padding_idx, "padding_idx")
        if mode not in ("sum", "mean", "max"):
            raise Invalid(
                f'EmbeddingBag {table.name!r}: mode is "sum", "mean" or "max", not {mode!r}'
            )
        self.mode = mode

    def forward(
        self,
        ids: torch.Tensor,
        offsets: Optional[torch.Tensor] = None,
        per_sample_weights: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Bags are the rows of a 2-d `ids`, or begin at `offsets` of a 1-d one.

        >>> import torch, cairn, cairn.torch
        >>> table = cairn.EmbeddingTable("tags", 2, optimizer=cairn.optimizers.SGD(0.1),
        ...                              initializer=cairn.initializers.Constant(1.0))
        >>> bag = cairn.torch.EmbeddingBag(table, mode="sum")
        >>> bag(torch.tensor([[5, 6, 7]])).tolist()
        [[3.0, 3.0]]
        >>> bag(torch.tensor([5, 6, 7]), offsets=torch.tensor([0, 2])).tolist()
        [[2.0, 2.0], [1.0, 1.0]]
        """
        name = self.embedding.table.name
        given = {"ids": ids, "offsets": offsets, "per_sample_weights": per_sample_weights}
        for what, value in given.items():
            if not isinstance(value, torch.Tensor) and (value is not None or what == "ids"):
                raise Invalid(
                    f"EmbeddingBag {name!r}: {what} must be a tensor, not {a_type(value)}"
                )
        if offsets is not None and (offsets.dim() != 1 or not _are_integers(offsets)):
            raise Invalid(f"EmbeddingBag {name!r}: offsets must be integers of 1 dimension")
        if per_sample_weights is not None and per_sample_weights.numel() != ids.numel():
            raise Invalid(
                f"EmbeddingBag {name!r}: {per_sample_weights.numel()} per_sample_weights for "
                f"{ids.numel()} ids"
            )
        if per_sample_weights is not None and self.mode != "sum":
            raise Invalid(f'EmbeddingBag {name!r}: per_sample_weights go with mode "sum" only')
        if ids.dim() == 2 and offsets is None:
            bags, size = ids.shape
            bag_of = torch.arange(bags, device=ids.device).repeat_interleave(size)
            ids = ids.reshape(-1)
        elif ids.dim() == 1 and offsets is not None:
            bag_of, bags = self._bags(offsets, ids.numel())
        else:
            raise Invalid(f"EmbeddingBag {name!r}: ids of 2 dimensions, or of 1 with offsets")
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1, 1)
        if self.padding_idx is not None:
            kept = ids != self.padding_idx
            ids, bag_of = ids[kept], bag_of[kept]
            weights = None if weights is None else weights[kept]
        rows = self.embedding(ids)
        return self._pool(rows if weights is None else rows * weights, bag_of, bags)

    def _bags(self, offsets: torch.Tensor, ids: int) -> Tuple[torch.Tensor, int]:
        """Of each id the bag that it is in; and how many bags there are."""
        name = self.embedding.table.name
        starts = offsets.to(torch.int64)
        if self.include_last_offset:
            if starts.numel() == 0 or int(starts[-1]) != ids:
                raise Invalid(
                    f"EmbeddingBag {name!r}: include_last_offset: the last of the offsets is the "
                    f"number of ids, {ids}"
                )
            starts = starts[:-1]
        lengths = torch.cat([starts[1:], starts.new_tensor([ids])[: starts.numel()]]) - starts
        begins = ids == 0 if starts.numel() == 0 else int(starts[0]) == 0
        if not begins or bool((lengths < 0).any()):
            raise Invalid(f"EmbeddingBag {name!r}: offsets must begin with 0 and not fall")
        bags = starts.numel()
        return torch.arange(bags, device=offsets.device).repeat_interleave(lengths), bags

    def _pool(self, rows: torch.Tensor, bag_of: torch.Tensor, bags: int) -> torch.Tensor:
        empty = rows.new_zeros((bags, rows.shape[1]))
        if self.mode == "max":
            index = bag_of.unsqueeze(1).expand_as(rows)
            return empty.scatter_reduce(0, index, rows, "amax", include_self=False)
        pooled = empty.index_add(0, bag_of, rows)
        if self.mode == "sum":
            return pooled
        counts = torch.bincount(bag_of, minlength=bags).clamp(min=1).to(rows.dtype)
        return pooled / counts.unsqueeze(1)
