"""The rows that a medium was encoded to, and the placeholders that they are for.

torch is not imported: tensors make tensors like themselves.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

PADDED = "padded"
ZEROED = "zeroed"
CUT = "cut"

_LEAST_DELTA = 4
"""So many rows may always be missing: a share of a small item is less than one row."""


class Fitted(NamedTuple):
    """An item's rows after they were made to fit.

    Args:
        rows: Tensor of shape (placeholders, hidden size), the dtype and device of the original.
        action: ``padded``, ``zeroed`` or ``cut``.
    """

    rows: Any
    action: str


def fit(rows: Any, placeholders: int, max_delta: float, hidden_size: int | None = None) -> Fitted:
    """Make the rows of one item as many as its placeholders.

    A few missing ones are appended as zeros. Where more are missing, the rows are probably those
    of another medium (vLLM #55546), and none of them may be shown: all become zeros.

    Args:
        rows: Tensor of shape (rows, hidden size).
        placeholders: How many there must be.
        max_delta: Largest share of the placeholders that may be missing, 0 to 1; 0: always zero.
        hidden_size: What the second dimension must be; None: whatever it is.

    Returns:
        A new tensor with the attributes of the old one, and what was done.
    """
    given, width = rows.shape
    if hidden_size not in (None, width):
        return Fitted(_like(rows, rows.new_zeros((placeholders, hidden_size))), ZEROED)
    if given >= placeholders:
        return Fitted(_like(rows, rows[:placeholders].clone()), CUT)
    fitted = _like(rows, rows.new_zeros((placeholders, width)))
    missing = placeholders - given
    if not max_delta or missing > max(_LEAST_DELTA, max_delta * placeholders) or not given:
        return Fitted(fitted, ZEROED)
    fitted[:given] = rows
    return Fitted(fitted, PADDED)


def _like(old: Any, new: Any) -> Any:
    # Some models tell image from audio by an attribute of the tensor (vLLM #53700).
    vars(new).update(vars(old))
    return new


def count_placeholders(position: Any) -> int:
    """Return how many embeddings a vLLM PlaceholderRange takes; a property in 0.13 to 0.15.

    >>> from types import SimpleNamespace
    >>> count_placeholders(SimpleNamespace(offset=4, length=9, get_num_embeds=6))
    6
    >>> count_placeholders(SimpleNamespace(offset=4, length=9, get_num_embeds=lambda: 6))
    6
    """
    count = position.get_num_embeds
    return int(count() if callable(count) else count)


def is_rows(rows: Any) -> bool:
    """Whether this is a tensor of shape (rows, hidden size)."""
    return getattr(rows, "ndim", 0) == 2


class Once:
    """Remembers objects for as long as they live.

    >>> class Position: ...
    >>> once, position = Once(), Position()
    >>> once.is_new(position), once.is_new(position)
    (True, False)
    """

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Any]] = {}

    def is_new(self, thing: Any) -> bool:
        """Whether ``thing`` is seen for the first time."""
        key = id(thing)
        if key in self._seen:
            return False
        # No code of ours runs when it ends: nothing would catch an error of it there.
        self._seen[key] = weakref.ref(thing, partial(self._seen.pop, key))
        return True
