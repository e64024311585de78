"""As much of a tensor as gathering and merging embeddings takes, in plain Python.

Sizes are a handful of numbers. What is not here is not supported, never guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from vllm_guard.probes.static.errors import Unsupported


class Tensor:
    """A vector, or a matrix as a list of rows.

    Args:
        data: Numbers or booleans; for a matrix lists of them, all of one length.
    """

    device = "cpu"
    is_cuda = False

    def __init__(self, data: list[Any]) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"it uses .{name} of a tensor")

    @property
    def shape(self) -> tuple[int, ...]:
        """Its size in each dimension."""
        is_matrix = bool(self.data) and isinstance(self.data[0], list)
        return (len(self.data), len(self.data[0])) if is_matrix else (len(self.data),)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """``bool`` for masks and ``number`` for all else."""
        return "bool" if _is_mask(self) else "number"

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __int__(self) -> int:
        return int(self.item())

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.item())

    def __getitem__(self, key: Any) -> Any:
        found = [self.data[place] for place in _selected(self, key)]
        if not isinstance(key, (Scalar, int)):
            return Tensor(found)
        return Tensor(found[0]) if isinstance(found[0], list) else Scalar(found[0])

    def __setitem__(self, key: Any, value: Any) -> None:
        places = _selected(self, key)
        rows = value.data if isinstance(value, Tensor) else [value] * len(places)
        if len(rows) == 1:
            rows = rows * len(places)
        if len(rows) != len(places):
            raise RuntimeError("shape mismatch")
        for place, row in zip(places, rows, strict=True):
            is_row = isinstance(self.data[place], list)
            self.data[place] = (
                [row] * self.shape[1] if is_row and not isinstance(row, list) else row
            )

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge)

    def __and__(self, other: Any) -> Any:
        return self._with(other, operator.and_)

    def __or__(self, other: Any) -> Any:
        return self._with(other, operator.or_)

    def __invert__(self) -> Tensor:
        return Tensor([not item for item in self.data])

    def _with(self, other: Any, combine: Callable[[Any, Any], Any]) -> Tensor:
        others = other.data if isinstance(other, Tensor) else [other] * len(self)
        if self.ndim != 1 or len(others) != len(self):
            raise Unsupported("it combines tensors of different shapes")
        return Tensor([combine(a, b) for a, b in zip(self.data, others, strict=True)])

    def tolist(self) -> Any:
        """Return its numbers as Python's."""
        return [list(row) if isinstance(row, list) else row for row in self.data]

    def item(self) -> Any:
        """Return its only number."""
        [number] = self.flatten().data
        return number

    def sum(self) -> Scalar:
        """Return the sum of its numbers."""
        return Scalar(sum(self.flatten().data))

    def any(self) -> Scalar:
        """Return whether any of it is true."""
        return Scalar(any(self.flatten().data))

    def all(self) -> Scalar:
        """Return whether all of it is true."""
        return Scalar(all(self.flatten().data))

    def numel(self) -> int:
        """Return the number of its numbers."""
        return len(self.flatten().data)

    def size(self, dimension: int | None = None) -> Any:
        """Return its shape, or its size in one dimension."""
        return self.shape if dimension is None else self.shape[dimension]

    def flatten(self, start: int = 0, end: int = -1) -> Tensor:
        """Return it with some dimensions made one."""
        if self.ndim == 1 or (start, end) == (0, -2):
            return self
        if (start, end) != (0, -1):
            raise Unsupported("it flattens some dimensions of a tensor")
        return Tensor([number for row in self.data for number in row])

    def unsqueeze(self, dimension: int) -> Tensor:
        """Return a mask of a single column."""
        if self.ndim != 1 or dimension not in (-1, 1):
            raise Unsupported("it adds a dimension to a tensor")
        return Tensor([[number] for number in self.data])

    def to(self, *_args: Any, **_kwargs: Any) -> Tensor:
        """Return itself: there is one device, and numbers have no precision."""
        return self

    cpu = cuda = contiguous = detach = type = expand_as = to

    def clone(self) -> Tensor:
        """Return a copy."""
        return Tensor(self.tolist())

    def new_zeros(self, *size: Any, **_options: Any) -> Tensor:
        """Return zeros of a shape."""
        return zeros(*size)

    def nonzero(self, as_tuple: bool = False) -> Any:
        """Return where it is true."""
        places = [place for place, item in enumerate(self.data) if item]
        return (Tensor(places),) if as_tuple else Tensor([[place] for place in places])

    def squeeze(self, _dimension: int = -1) -> Tensor:
        """Return a single column as a vector."""
        is_column = self.ndim == 2 and self.shape[1] == 1
        return Tensor([row[0] for row in self.data]) if is_column else self

    def masked_scatter_(self, mask: Tensor, source: Tensor) -> Tensor:
        """Write the rows of ``source``, in order, where ``mask`` is true."""
        numbers = iter(source.flatten().data)
        for row, marked in zip(self.data, mask.data, strict=True):
            marks = marked * len(row) if len(marked) == 1 else marked
            for column, mark in enumerate(marks):
                if not mark:
                    continue
                try:
                    row[column] = next(numbers)
                except StopIteration:
                    raise RuntimeError("source has too few elements") from None
        return self


class Scalar(Tensor):
    """A tensor of no dimension."""

    def __init__(self, number: Any) -> None:
        super().__init__([number])

    @property
    def shape(self) -> tuple[int, ...]:
        """None at all."""
        return ()

    def __eq__(self, other: object) -> bool:
        return bool(self.item() == (other.item() if isinstance(other, Tensor) else other))

    def __hash__(self) -> int:
        return hash(self.item())

    def _with(self, other: Any, combine: Callable[[Any, Any], Any]) -> Scalar:
        number = other.item() if isinstance(other, Tensor) else other
        return Scalar(combine(self.item(), number))

    def __radd__(self, other: Any) -> Scalar:
        return Scalar(other + self.item())

    def __rsub__(self, other: Any) -> Scalar:
        return Scalar(other - self.item())

    def __str__(self) -> str:
        return str(self.item())

    def flatten(self, start: int = 0, end: int = -1) -> Tensor:
        """Return itself."""
        return self

    def tolist(self) -> Any:
        """Return its number."""
        return self.item()


def _is_mask(key: Any) -> bool:
    return isinstance(key, Tensor) and all(isinstance(item, bool) for item in key.data)


def _slice(key: slice) -> slice:
    parts = (key.start, key.stop, key.step)
    return slice(*(None if part is None else operator.index(part) for part in parts))


def _selected(tensor: Tensor, key: Any) -> list[int]:
    """Return the rows that an index means."""
    every = list(range(len(tensor)))
    if _is_mask(key) and key.ndim == 1:
        if len(key) != len(tensor):
            raise IndexError("the mask has another length")
        return [place for place in every if key.data[place]]
    if isinstance(key, (Scalar, int)):
        return [every[operator.index(key)]]
    if isinstance(key, slice):
        return every[_slice(key)]
    if isinstance(key, Tensor) and key.ndim == 1:
        return [every[place] for place in key.data]
    raise Unsupported(f"it indexes a tensor with {type(key).__name__}")


def zeros(*size: Any, **_options: Any) -> Tensor:
    """Return a vector or matrix of zeros; of False where its dtype is ``bool``."""
    return filled(False if _options.get("dtype") == "bool" else 0.0, size)


def filled(number: Any, size: tuple[Any, ...]) -> Tensor:
    """Return a vector or matrix of one number."""
    rows, *columns = size[0] if isinstance(size[0], (tuple, list)) else size
    if len(columns) > 1 or rows * max(columns, default=1) > 10_000:
        raise Unsupported(f"it makes a tensor of shape {size}")
    return Tensor([[number] * columns[0] if columns else number for _ in range(rows)])
