"""What one process tells others about its guards: the content of its file in the state folder.

The file is JSON. Whoever reads one takes nothing in it for granted: types, sizes and characters are
checked, because names go into metrics and all of it onto somebody's terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SCHEMA = 1
"""Files of another schema are of another version of this package, and are passed over."""

_MAX_GUARDS = 32
_MAX_TRIGGERS = 256
_MAX_TEXT = 300
_MAX_COUNT = 2**63
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


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
        name: guard._replace(obstacle=_printable(guard.obstacle))._asdict()
        | {"triggers": [trigger._asdict() for trigger in guard.triggers]}
        for name, guard in report.guards.items()
    }
    return json.dumps(report._asdict() | {"schema": SCHEMA, "guards": guards}).encode()


def decode(content: bytes) -> ProcessReport:
    """Return the report that a file holds.

    Raises:
        ValueError: It is no report of this schema; the message says what is wrong.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    fields = _Fields(found)
    if fields.integer("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    guards = fields.mapping("guards", _MAX_GUARDS)
    return ProcessReport(
        pid=fields.integer("pid", least=1, below=2**31),
        started=fields.integer("started"),
        role=fields.name("role"),
        guards={_name(name): _decode_guard(_Fields(guard)) for name, guard in guards.items()},
    )


def _decode_guard(fields: _Fields) -> GuardReport:
    effective = fields.value("effective")
    if not (effective is None or isinstance(effective, bool)):
        raise ValueError("effective is neither true, false nor null")
    return GuardReport(
        verdict=fields.name("verdict"),
        state=fields.name("state"),
        effective=effective,
        obstacle=_printable(fields.text("obstacle")),
        triggers=tuple(map(_decode_trigger, fields.sequence("triggers", _MAX_TRIGGERS))),
        internal_errors=fields.integer("internal_errors"),
    )


def _decode_trigger(found: Any) -> Trigger:
    fields = _Fields(found)
    last = fields.value("last")
    # Also false for NaN, which is JSON to Python. 1e11 seconds are 3,000 years.
    if isinstance(last, bool) or not isinstance(last, int | float) or not 0 <= last < 1e11:
        raise ValueError("last is no time")
    return Trigger(fields.name("reason"), fields.name("action"), fields.integer("times"), last)


class _Fields:
    """The fields of a JSON object; each is checked when it is asked for."""

    def __init__(self, found: Any) -> None:
        if not isinstance(found, dict):
            raise ValueError("an object is expected")
        self._found = found

    def value(self, key: str) -> Any:
        if key not in self._found:
            raise ValueError(f"{key} is missing")
        return self._found[key]

    def integer(self, key: str, least: int = 0, below: int = _MAX_COUNT) -> int:
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < below:
            raise ValueError(f"{key} is no number from {least} to {below - 1}")
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise ValueError(f"{key} is no text")
        return value

    def name(self, key: str) -> str:
        return _name(self.value(key))

    def mapping(self, key: str, most: int) -> dict[str, Any]:
        value = self.value(key)
        if not isinstance(value, dict) or len(value) > most:
            raise ValueError(f"{key} is no object of at most {most}")
        return value

    def sequence(self, key: str, most: int) -> Iterable[Any]:
        value = self.value(key)
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"{key} is no list of at most {most}")
        return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError("a name is expected")
    return value


def _printable(text: str) -> str:
    """Return the text without anything that moves the cursor of a terminal, and not too long."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_TEXT])
