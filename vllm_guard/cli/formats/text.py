"""For people: the evidence for one build, a table for several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllm_guard.cli.formats.audited import Audited, Failed
from vllm_guard.installed import UNKNOWN
from vllm_guard.probes.static.causes import Cause
from vllm_guard.probes.static.verdicts import JudgedBuild
from vllm_guard.states import Verdict


def lines(audited: Sequence[Audited], _failed: Sequence[Failed]) -> Iterator[str]:
    """Yield the lines; what could not be judged is told on standard error."""
    if len(audited) == 1:
        yield from _evidence(audited[0])
    elif audited:
        labels = _labels(audited)
        yield from _table(audited, labels)
        yield ""
        yield _answer(audited, labels)


def _evidence(item: Audited) -> Iterator[str]:
    yield f"{item.judged.build} in {item.given}"
    for guard, findings in item.judged.findings.items():
        yield f"  {guard:<10} {item.judged.verdict(guard)}"
        for fault, finding in findings.items():
            yield f"    {fault:<14} {finding.verdict:<8} {finding.evidence}"
        for cause in item.judged.causes.get(guard, ()):
            yield f"    cause, for information: {shown_cause(cause)}"


def shown_cause(cause: Cause) -> str:
    """Return what is known of a cause of a fault, in one line."""
    name, pull_request, (verdict, evidence) = cause
    known = {Verdict.FIXED: "fixed in this build", Verdict.NEEDED: "not fixed in this build"}
    return f"{name} (#{pull_request}) {known.get(verdict, 'unknown')}: {evidence}"


def _labels(audited: Sequence[Audited]) -> list[str]:
    """Name the builds by their versions, or as given where those do not tell them apart."""
    versions = Counter(item.judged.build.version for item in audited)
    return [
        item.judged.build.version
        if versions[item.judged.build.version] == 1 and item.judged.build.version != UNKNOWN
        else Path(item.given).name
        for item in audited
    ]


def _table(audited: Sequence[Audited], labels: list[str]) -> Iterator[str]:
    guards = audited[0].judged.findings
    columns = [(guard, fault) for guard, findings in guards.items() for fault in findings]
    widths = [max(len(fault), *map(len, Verdict)) for _, fault in columns]
    first = max(map(len, labels))
    shown = [guard if next(iter(guards[guard])) == fault else "" for guard, fault in columns]
    rows = [("", shown), ("", [fault for _, fault in columns])]
    for label, item in zip(labels, audited, strict=True):
        findings = item.judged.findings
        rows.append((label, [str(findings[guard][fault].verdict) for guard, fault in columns]))
    for label, cells in rows:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"{label:<{first}}  {'  '.join(padded)}".rstrip()


def _answer(audited: Sequence[Audited], labels: list[str]) -> str:
    """Say which of the builds need no guard."""
    left = [_left(item.judged) for item in audited]
    free = [label for label, faults in zip(labels, left, strict=True) if not faults]
    if free:
        return f"no guard is needed on: {', '.join(free)}"
    # Not the fewest that are left: the oldest releases lack functions, not faults.
    fixed = [_count_fixed(item.judged) for item in audited]
    best = fixed.index(max(fixed))
    alike = [label for label, faults in zip(labels, left, strict=True) if faults == left[best]]
    return (
        f"each of these needs a guard; the most fixes are in {', '.join(alike)};"
        f" left there: {', '.join(left[best])}"
    )


def _count_fixed(judged: JudgedBuild) -> int:
    findings = [finding for faults in judged.findings.values() for finding in faults.values()]
    return sum(finding.verdict is Verdict.FIXED for finding in findings)


def _left(judged: JudgedBuild) -> list[str]:
    """Return the faults that are there, or may be."""
    findings = (item for faults in judged.findings.values() for item in faults.items())
    harmless = (Verdict.FIXED, Verdict.ABSENT)
    return [fault for fault, finding in findings if finding.verdict not in harmless]
