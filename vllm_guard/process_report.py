"""What one process tells others about its guards: the content of its file in the state folder.

The file is JSON. This is the writing side; `vllm_guard.report_reader` is the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

SCHEMA = 1
"""Files of another schema are of another version of this package, and are passed over."""

_MAX_TEXT = 300


class Trigger(NamedTuple):
    """How often a guard did one thing for one reason.

    Args:
        reason: The fault, or the rule that noticed it.
        action: What was done.
        times: How often.
        last: When the guard last acted for that reason, in seconds since the epoch.
    """

    reason: str
    action: str
    times: int
    last: float


class GuardReport(NamedTuple):
    """What one guard does in one process.

    Args:
        verdict: A `Verdict`, or ``unasked`` before the guard has looked at any module.
        state: A `State`.
        effective: Whether its wrappers are what Python finds; None where nothing was built yet.
        obstacle: What keeps it from being effective, such as who has replaced it; may be empty.
        triggers: One for each reason and action that occurred.
        internal_errors: How many errors of its own were swallowed.
    """

    verdict: str
    state: str
    effective: bool | None
    obstacle: str
    triggers: tuple[Trigger, ...]
    internal_errors: int


class ProcessReport(NamedTuple):
    """What one process says about itself.

    Args:
        pid: Its number.
        started: Its `vllm_guard.this_process.start_time`.
        role: Its `vllm_guard.this_process.role`.
        guards: By name.
    """

    pid: int
    started: int
    role: str
    guards: Mapping[str, GuardReport]

    @property
    def has_counts(self) -> bool:
        """Whether anything would be missing from the counters without it."""
        return any(guard.triggers or guard.internal_errors for guard in self.guards.values())


def guard_report(status: Mapping[str, Any]) -> GuardReport:
    """Return the report of one guard.

    Args:
        status: What `vllm_guard.status` says of it.
    """
    return GuardReport(
        verdict=status["verdict"] or "unasked",
        state=status["state"],
        effective=status["effective"],
        obstacle="; ".join(status["obstacles"]),
        triggers=tuple(
            Trigger(reason, action, count, status["last_triggers"][reason])
            for reason, actions in status["triggers"].items()
            for action, count in actions.items()
        ),
        internal_errors=status["internal_errors"],
    )


def encode(report: ProcessReport) -> bytes:
    """Return the content of the report's file."""
    guards = {
        name: guard._replace(obstacle=printable(guard.obstacle))._asdict()
        | {"triggers": [trigger._asdict() for trigger in guard.triggers]}
        for name, guard in report.guards.items()
    }
    return json.dumps(report._asdict() | {"schema": SCHEMA, "guards": guards}).encode()


def printable(text: str) -> str:
    """Return the text without anything that moves the cursor of a terminal, and not too long.

    >>> printable("replaced by \\x1b[2Jvendor:schedule")
    'replaced by ?[2Jvendor:schedule'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_TEXT])
