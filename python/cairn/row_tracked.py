"""Dense arrays that are used by row, with increments of the rows that changed."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from . import _arrays, _native
from ._arguments import text_argument, whole
from ._wording import a_type
from .errors import Invalid
from .table import batch

__all__ = ["RowTracked"]


class RowTracked:
    """Ordinary arrays whose rows belong together (an embedding, its optimizer's slots): a full
    checkpoint has all rows, an increment those that changed.

    Give it among the `tables` of a session, a Trainer, or CheckpointManager.save and restore, which
    fills the arrays in place. In checkpoints it is a table whose keys are the numbers of the rows.
    Whatever changes rows does so inside of :meth:`changing`: what is not told is not in increments.

    Args:
        name: of the variable. Pieces of one variable have the same name, in one process or in many.
        arrays: {name: NumPy array or CPU tensor}, contiguous, all with the same number of rows.
        first_row, whole_rows: of a piece: which rows of how many it has. See :meth:`partition`.
        side_buffer_bytes: as of an EmbeddingTable.

    >>> import numpy as np, cairn
    >>> weights = np.zeros((1000, 4), dtype=np.float32)
    >>> users = cairn.RowTracked("users", {"weights": weights})
    >>> with cairn.CheckpointManager("runs/a") as m:
    ...     _ = m.save(0, {}, tables=[users], blocking=True)
    ...     with users.changing([3, 5]) as rows:
    ...         weights[rows] += 1
    ...     h = m.save(1, {}, tables=[users], kind="cumulative", blocking=True)
    ...     h.wait().tables[0]["rows"]
    2
    """

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, Any],
        *,
        first_row: int = 0,
        whole_rows: Optional[int] = None,
        side_buffer_bytes: int = 512 << 20,
    ) -> None:
        text_argument(name, f"tracked arrays {name!r}: the name")
        if not isinstance(arrays, Mapping):
            raise Invalid(f"tracked arrays {name!r}: {{name: array}}, not {a_type(arrays)}")
        described: List[Tuple[str, str, int, int]] = []
        rows: Optional[int] = None
        for column, array in arrays.items():
            where = f"tracked arrays {name!r}: {column!r}"
            text_argument(column, where)
            if not _arrays.is_fillable(array):
                raise Invalid(f"{where} must be an array that can be changed, not {a_type(array)}")
            target = _arrays.target(array, where)
            if target.finish is not None:
                raise Invalid(f"{where} must be contiguous, on the CPU and in native byte order")
            if not target.shape:
                raise Invalid(f"{where} is a single number and has no rows")
            if rows is not None and target.shape[0] != rows:
                raise Invalid(f"{where} has {target.shape[0]} rows, others have {rows}")
            rows = target.shape[0]
            width = math.prod(target.shape[1:])
            described.append((column, target.stored, width, target.address))
        self.name = name
        self.arrays = dict(arrays)
        self.rows = rows or 0
        numbers = {
            "first_row": first_row,
            "whole_rows": 0 if whole_rows is None else whole_rows,
            "side_buffer_bytes": side_buffer_bytes,
        }
        for what, number in numbers.items():
            if whole(number, f"tracked arrays {name!r}: {what}") < 0:
                raise Invalid(f"tracked arrays {name!r}: {what} must not be negative: {number}")
        self.first_row = first_row
        self._native = _native.RowTracked.make(name, self.rows, described, *numbers.values())
        self._native._keep = self.arrays  # whose memory it borrows

    @classmethod
    def partition(cls, name: str, arrays: Mapping[str, Any], pieces: int) -> List["RowTracked"]:
        """One variable in so many pieces of about the same size; the arrays stay as they are, and
        those of a piece are views of them.

        >>> import numpy as np, cairn
        >>> [p.rows for p in cairn.RowTracked.partition("v", {"w": np.zeros((10, 2))}, 4)]
        [3, 2, 3, 2]
        """
        if not arrays:
            raise Invalid(f"tracked arrays {name!r}: no arrays are given")
        if whole(pieces, f"tracked arrays {name!r}: pieces") < 1:
            raise Invalid(f"tracked arrays {name!r}: pieces must be at least 1, not {pieces}")
        rows = {int(np.shape(array)[0]) for array in arrays.values()}
        if len(rows) != 1:
            raise Invalid(f"tracked arrays {name!r}: different numbers of rows: {sorted(rows)}")
        every = rows.pop()
        ends = [-(-every * piece // pieces) for piece in range(pieces + 1)]
        return [
            cls(
                name,
                {column: array[begin:end] for column, array in arrays.items()},
                first_row=begin,
                whole_rows=every,
            )
            for begin, end in zip(ends, ends[1:])
        ]

    def touch(self, rows: Any) -> None:
        """Tells that these rows (numbers within this piece) are about to change; inside of
        :func:`cairn.table.batch`.

        >>> import numpy as np, cairn
        >>> weights, counts = np.zeros((1000, 4)), np.zeros(1000)
        >>> users = cairn.RowTracked("users", {"weights": weights, "counts": counts})
        >>> with cairn.table.batch():                    # no save falls between the two
        ...     users.touch([3])
        ...     weights[3] += 1
        ...     users.touch([5])
        ...     counts[5] += 1
        """
        self._native.touch(_numbers(self.name, rows))

    @contextlib.contextmanager
    def changing(self, rows: Any) -> Iterator[np.ndarray]:
        """A ``with`` block that may change these rows (numbers within this piece), and that no save
        divides. Gives their numbers, which are those of the rows in :attr:`arrays`.

        >>> import numpy as np, cairn
        >>> weights = np.zeros((10, 2))
        >>> pieces = cairn.RowTracked.partition("v", {"w": weights}, 2)
        >>> with pieces[1].changing([0]) as rows:
        ...     pieces[1].arrays["w"][rows] += 1
        >>> weights[5].tolist()
        [1.0, 1.0]
        """
        numbers = _numbers(self.name, rows)
        with batch():
            self._native.touch(numbers)
            yield numbers

    def size(self) -> int:
        """How many rows there are.

        >>> import numpy as np, cairn
        >>> cairn.RowTracked("users", {"weights": np.zeros((1000, 4))}).size()
        1000
        """
        return self.rows

    def __repr__(self) -> str:
        return f"RowTracked({self.name!r}, {list(self.arrays)}, {self.rows} rows)"


def _numbers(name: str, rows: Any) -> np.ndarray:
    array = np.asarray(rows)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise Invalid(f"tracked arrays {name!r}: rows must be integers, not {array.dtype}")
    return np.ascontiguousarray(array.astype(np.int64, copy=False)).reshape(-1)
