"""Reads what processes wrote down about their guards.

Nothing in a file is taken for granted: types, sizes and characters are checked, because names go
into metrics and all of it onto somebody's terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vllm_guard import runs
from vllm_guard.private_folder import NotPrivate, PrivateFolder
from vllm_guard.process_report import SCHEMA, GuardReport, ProcessReport, Trigger, printable
from vllm_guard.this_process import is_run

_FILE = re.compile(r"(\d{1,10})-\d{1,20}\.json")
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_MAX_GUARDS = 32
_MAX_TRIGGERS = 256
_MAX_COUNT = 2**63


def read_run(folder: PrivateFolder) -> Iterator[ProcessReport | str]:
    """Yield the report of each process of a run, or a line about a file that is none."""
    for name in sorted(folder.names()):
        if (match := _FILE.fullmatch(name)) is None:
            continue
        try:
            report = decode(folder.read(name))
            if report.pid != int(match[1]):
                raise ValueError("it is of another process than its name says")
        except FileNotFoundError:
            continue  # its process has just ended
        except (OSError, ValueError, NotPrivate) as error:
            yield f"{folder.path}/{name} is passed over: {error}"
        else:
            yield report


def read_all(folder: Path | None) -> Iterator[tuple[str, list[ProcessReport | str]]]:
    """Yield each run that has not been cleaned up, and what `read_run` says of it.

    Args:
        folder: The state folder; None: the default one.

    Raises:
        NotPrivate: It cannot be trusted.
        OSError: It cannot be opened; `FileNotFoundError` where nothing ever ran.
    """
    with PrivateFolder(str(folder or runs.default_folder()), make=False) as root:
        for run in sorted(filter(is_run, root.names())):
            try:
                with PrivateFolder(run, root, make=False) as opened:
                    yield run, list(read_run(opened))
            except FileNotFoundError:
                continue
            except (OSError, NotPrivate) as error:
                yield run, [f"{root.path}/{run} is passed over: {error}"]


def decode(content: bytes) -> ProcessReport:
    """Return the report that a file holds.

    Raises:
        ValueError: It is no report of this schema; the message says what is wrong.

    >>> from vllm_guard.process_report import encode
    >>> report = ProcessReport(pid=4711, started=0, role="EngineCore", guards={})
    >>> decode(encode(report)) == report
    True
    >>> decode(b"{}")
    Traceback (most recent call last):
        ...
    ValueError: schema is missing
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
        obstacle=printable(fields.text("obstacle")),
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
