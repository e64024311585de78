"""What a command that could be carried out hands back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FOUND = 1
"""Exit code of a gate that has found something."""


class Output(NamedTuple):
    """Lines for standard output, and the exit code.

    Args:
        lines: One each.
        exit_code: 0, or `FOUND`.
    """

    lines: Iterable[str]
    exit_code: int = 0
