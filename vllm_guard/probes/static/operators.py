"""The operators of Python, as interpreted code may use them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from vllm_guard.probes.static.errors import Budget, Unsupported

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_IN_PLACE: dict[type, Callable[[Any, Any], Any]] = {
    **_BINARY,
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior,
}
UNARY: dict[type, Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


def combine(
    budget: Budget, kind: ast.operator, left: Any, right: Any, in_place: bool = False
) -> Any:
    """Carry out a binary operator, unless its result might be huge.

    Args:
        budget: Says what is.
        kind: The operator.
        left: Its first operand.
        right: Its second.
        in_place: Whether it is ``+=`` and the like.
    """
    operators = _IN_PLACE if in_place else _BINARY
    if type(kind) not in operators:
        raise Unsupported(f"it uses {type(kind).__name__}")
    if isinstance(left, str) and isinstance(kind, ast.Mod):
        return left  # a message; its width could be anything
    sizes = [size_of(left), size_of(right)]
    if isinstance(kind, ast.Mult):
        numbers = [n for n in (left, right) if isinstance(n, int)]
        is_sequence = len(numbers) == 1 and max(sizes) > 0
        budget.check_size(
            max(sizes) * numbers[0] if is_sequence else sum(n.bit_length() for n in numbers)
        )
    else:
        budget.check_size(sum(sizes))
    return operators[type(kind)](left, right)


def size_of(thing: Any) -> int:
    """Return the length of a container or string, 0 of anything else."""
    return len(thing) if isinstance(thing, (str, list, tuple, dict, set, frozenset)) else 0
