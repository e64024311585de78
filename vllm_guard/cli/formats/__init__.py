"""The formats of what `vllm-guard audit` has found: for people, for programs, for GitHub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vllm_guard.cli.formats import github, machine, text
from vllm_guard.cli.formats.audited import Audited, Failed


class Format(NamedTuple):
    """One format.

    Args:
        lines: Turns the builds that were judged, and the inputs that could not be, into lines.
        description: For the usage.
    """

    lines: Callable[[Sequence[Audited], Sequence[Failed]], Iterable[str]]
    description: str


FORMATS = {
    "text": Format(text.lines, "for people"),
    "json": Format(machine.lines, "a versioned document"),
    "github": Format(github.lines, "annotations of a GitHub workflow"),
}
"""By the name that ``--format`` takes."""
