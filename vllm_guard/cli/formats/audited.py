"""What there is to show."""

from __future__ import annotations

from typing import NamedTuple

from vllm_guard.probes.static.verdicts import JudgedBuild


class Audited(NamedTuple):
    """A build that was judged.

    Args:
        given: How the user named it.
        judged: What was found.
    """

    given: str
    judged: JudgedBuild


class Failed(NamedTuple):
    """An input that could not be judged.

    Args:
        given: How the user named it.
        message: One line: what, where, what was found, what to do.
    """

    given: str
    message: str
