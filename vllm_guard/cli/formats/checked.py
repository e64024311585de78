"""The formats of what `vllm-guard check` has found.

JSON is the document of `vllm-guard audit` (see `machine`) with the verdicts that count, and two
more fields: ``findings``, each with ``guard`` (empty where it is about the environment) and
``message``; ``warnings``, lines. ``ok`` is true where there is no finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from vllm_guard import __version__
from vllm_guard.cli.formats.audited import Audited
from vllm_guard.cli.formats.github import annotation
from vllm_guard.cli.formats.machine import document
from vllm_guard.cli.formats.text import shown_cause
from vllm_guard.cli.gate import FAULTS, Complaint, Known
from vllm_guard.probes.static.verdicts import JudgedBuild


class Checked(NamedTuple):
    """A build that was checked.

    Args:
        given: How the user named it.
        judged: What its source says.
        known: What is known of it in all.
        complaints: What was found.
        warnings: What is no finding: about the environment, and guards switched off.
    """

    given: str
    judged: JudgedBuild
    known: Known
    complaints: list[Complaint]
    warnings: list[Complaint]


def _text(checked: Checked) -> Iterator[str]:
    known = checked.known
    how = "source read" if known.live is None else "source read, code run"
    yield f"vllm-guard {__version__} on {checked.judged.build} ({how})"
    for guard in FAULTS:
        state = known.guards.get(guard, {}).get("state")
        yield f"  {guard:<10} {known.verdict(guard):<8}{f' {state}' if state else ''}"
        for fault, finding in known.findings(guard).items():
            yield f"    {fault:<14} {finding.verdict:<8} {finding.evidence}"
        for cause in checked.judged.causes.get(guard, ()):
            yield f"    cause, for information: {shown_cause(cause)}"
    for warning in checked.warnings:
        yield f"warning: {warning}"
    for complaint in checked.complaints:
        yield f"finding: {complaint}"
    if not checked.complaints:
        yield "no finding, but warnings" if checked.warnings else "nothing to do"


def _json(checked: Checked) -> Iterable[str]:
    findings = {guard: checked.known.findings(guard) for guard in FAULTS}
    audited = Audited(checked.given, checked.judged._replace(findings=findings))
    return json.dumps(
        document([audited], [])
        | {
            "ok": not checked.complaints,
            "findings": [complaint._asdict() for complaint in checked.complaints],
            "warnings": list(map(str, checked.warnings)),
        },
        indent=2,
    ).splitlines()


def _github(checked: Checked) -> Iterator[str]:
    for guard in FAULTS:
        verdict = checked.known.verdict(guard)
        message = f"{checked.judged.build}: {checked.known.evidence(guard, [verdict])}"
        yield annotation("notice", f"vllm-guard: {guard} {verdict}", message)
    for warning in checked.warnings:
        yield annotation("warning", "vllm-guard", str(warning))
    for complaint in checked.complaints:
        yield annotation("error", f"vllm-guard check {complaint.guard}".strip(), complaint.message)


FORMATS: dict[str, Callable[[Checked], Iterable[str]]] = {
    "text": _text,
    "json": _json,
    "github": _github,
}
"""By the name that ``--format`` takes."""
