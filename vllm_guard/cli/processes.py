"""What the guards of running servers do, as their processes have written it down."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from vllm_guard import report_reader, runs
from vllm_guard.private_folder import NotPrivate
from vllm_guard.process_report import GuardReport, ProcessReport
from vllm_guard.this_process import is_alive

_EFFECTIVE = {None: "nothing built yet", True: "effective", False: "NOT EFFECTIVE"}


def lines(folder: Path | None) -> Iterator[str]:
    """Yield the lines about all servers of this user.

    Args:
        folder: The state folder; None: the default one.
    """
    where = folder or runs.default_folder()
    try:
        found = list(report_reader.read_all(folder))
    except FileNotFoundError:
        found = []
    except (OSError, NotPrivate) as error:
        yield f"warning: what running processes do cannot be read: {error}"
        return
    if not any(reports for _, reports in found):
        yield f"no process of this user runs with guards (none has written to {where})"
    for run, reports in found:
        yield from _of_run(run, reports)


def _of_run(run: str, found: list[ProcessReport | str]) -> Iterator[str]:
    reports = [report for report in found if isinstance(report, ProcessReport)]
    if reports:
        yield f"server {run.partition('-')[0]}:"
    for report in reports:
        ended = "" if is_alive(report.pid, report.started) else ", ended"
        yield f"  pid {report.pid} {report.role}{ended}"
        for name, guard in report.guards.items():
            yield from _of_guard(name, guard)
    for problem in found:
        if isinstance(problem, str):
            yield f"warning: {problem}"


def _of_guard(name: str, guard: GuardReport) -> Iterator[str]:
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
