"""The formats of what `vllm-guard status` shows.

JSON has ``schema_version`` 1 (it changes when a field is renamed, removed or means something
else), ``vllm_guard`` (the version of this package), ``build`` (``version``, ``folder``),
``warnings`` (lines), ``new_process`` and ``servers``.

``new_process``: what a new process of this environment would do: for each guard ``guard``,
``mode``, ``verdict`` (null where it was not asked), ``state`` and ``faults`` (``fault``,
``verdict``, ``evidence``).
``servers``: for each ``pid`` and ``processes``: ``pid``, ``role``, ``alive`` and ``guards``:
``guard``, ``verdict``, ``state``, ``effective`` (null where nothing was built yet), ``obstacle``
(may be empty), ``internal_errors`` and ``triggers`` (``reason``, ``action``, ``times``, and
``last``, in seconds since the epoch).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from vllm_guard import __version__
from vllm_guard.cli.processes import Process, Running, Server
from vllm_guard.installed import Build
from vllm_guard.process_report import GuardReport

SCHEMA_VERSION = 1

_EFFECTIVE = {None: "nothing built yet", True: "effective", False: "NOT EFFECTIVE"}


class Standing(NamedTuple):
    """How things stand.

    Args:
        build: The vLLM of this Python.
        folder: Where it is.
        warnings: Lines about the environment.
        guards: What `vllm_guard.status` says of each guard in a new process, by name.
        running: What running servers do.
    """

    build: Build
    folder: Path
    warnings: list[str]
    guards: dict[str, dict[str, Any]]
    running: Running


def _text(standing: Standing) -> Iterator[str]:
    yield f"vllm-guard {__version__} on {standing.build} in {standing.folder}"
    for warning in standing.warnings:
        yield f"warning: {warning}"
    yield "a new process of this environment:"
    for name, guard in standing.guards.items():
        yield (
            f"  {name:<10} mode {guard['mode']:<8} verdict {guard['verdict'] or 'not asked':<9}"
            f" state {guard['state']}"
        )
        for fault, finding in guard["faults"].items():
            yield f"    {fault:<14} {finding['verdict']:<8} {finding['evidence']}"
    yield from running_lines(standing.running)


def running_lines(running: Running) -> Iterator[str]:
    """Yield the lines about running servers."""
    if not (running.servers or running.problems):
        yield f"no process of this user runs with guards (none has written to {running.folder})"
    for server in running.servers:
        yield f"server {server.pid}:"
        for process in server.processes:
            report = process.report
            yield f"  pid {report.pid} {report.role}{'' if process.alive else ', ended'}"
            for name, guard in report.guards.items():
                yield from _guard_lines(name, guard)
    for problem in running.problems:
        yield f"warning: {problem}"


def _guard_lines(name: str, guard: GuardReport) -> Iterator[str]:
    errors = f", {guard.internal_errors} internal errors" if guard.internal_errors else ""
    yield (
        f"    {name:<10} verdict {guard.verdict:<9} state {guard.state:<9}"
        f" {_EFFECTIVE[guard.effective]}{errors}"
    )
    if guard.obstacle:
        yield f"      {guard.obstacle}"
    for trigger in guard.triggers:
        last = datetime.fromtimestamp(trigger.last).isoformat(" ", "seconds")
        yield f"      {trigger.reason}: {trigger.action} {trigger.times}, last {last}"


def _json(standing: Standing) -> Iterable[str]:
    document = {
        "schema_version": SCHEMA_VERSION,
        "vllm_guard": __version__,
        "build": {"version": standing.build.version, "folder": str(standing.folder)},
        "warnings": [*standing.warnings, *standing.running.problems],
        "new_process": [_new_guard(name, guard) for name, guard in standing.guards.items()],
        "servers": [_server(server) for server in standing.running.servers],
    }
    return json.dumps(document, indent=2).splitlines()


def _new_guard(name: str, guard: dict[str, Any]) -> dict[str, Any]:
    faults = [{"fault": fault, **finding} for fault, finding in guard["faults"].items()]
    shown = {key: guard[key] for key in ("mode", "verdict", "state")}
    return {"guard": name, **shown, "faults": faults}


def _server(server: Server) -> dict[str, Any]:
    return {"pid": server.pid, "processes": list(map(_process, server.processes))}


def _process(process: Process) -> dict[str, Any]:
    guards = [
        {"guard": name, **guard._asdict(), "triggers": [t._asdict() for t in guard.triggers]}
        for name, guard in process.report.guards.items()
    ]
    report = process.report
    return {"pid": report.pid, "role": report.role, "alive": process.alive, "guards": guards}


FORMATS: dict[str, Callable[[Standing], Iterable[str]]] = {"text": _text, "json": _json}
"""By the name that ``--format`` takes."""
