"""The words for what a guard found, what it does and what it was told to do.

One enum each; code, JSON, logs and documents use the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class _Word(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class Verdict(_Word):
    """What this build's code does about one fault. Never derived from a version."""

    NEEDED = "needed"
    """The fault is there."""
    FIXED = "fixed"
    """The code handles it by itself."""
    ABSENT = "absent"
    """The function that would be guarded does not exist."""
    FOREIGN = "foreign"
    """Somebody else replaced or overrode that function."""
    UNKNOWN = "unknown"
    """A shape we do not recognise, or the probe failed."""


class State(_Word):
    """What a guard does in this process."""

    OFF = "off"
    """Switched off by the user; nothing is wrapped."""
    ARMED = "armed"
    """Waits for its module to be imported."""
    APPLIED = "applied"
    OBSERVING = "observing"
    """Counts and logs, and lets vLLM do what it does."""
    RETIRED = "retired"
    """This build holds the fix; nothing is wrapped."""
    SKIPPED = "skipped"
    """Absent, foreign or unknown; nothing is wrapped."""
    FAILED = "failed"
    """Wrapping failed; what was wrapped has been put back."""
    DISARMED = "disarmed"
    """Too many errors of our own; every call passes through."""
    NOT_LOADED = "not loaded"
    """vLLM does not load vllm-guard in this environment; only commands say so."""


class Mode(_Word):
    """What the user asked of one guard."""

    AUTO = "auto"
    OFF = "off"
    OBSERVE = "observe"
    FORCE = "force"
    """Apply also where the verdict is fixed, foreign or unknown."""


# From the least to the most alarming: a guard's own verdict is the worst of its faults'.
_SEVERITY = (Verdict.ABSENT, Verdict.FIXED, Verdict.NEEDED, Verdict.UNKNOWN, Verdict.FOREIGN)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most alarming of ``verdicts``, `Verdict.UNKNOWN` if there are none.

    >>> print(worst([Verdict.FIXED, Verdict.NEEDED, Verdict.ABSENT]))
    needed
    >>> print(worst([Verdict.NEEDED, Verdict.FOREIGN]))
    foreign
    """
    return max(verdicts, key=_SEVERITY.index, default=Verdict.UNKNOWN)


class Finding(NamedTuple):
    """A verdict and what it rests on.

    Args:
        verdict: What the code does.
        evidence: One line: where it was looked at and what was found.
    """

    verdict: Verdict
    evidence: str


def worse(known: Finding, other: Finding) -> Finding:
    """Return the more alarming of two findings about one fault, ``known`` where they are alike."""
    is_worse = worst((known.verdict, other.verdict)) is not known.verdict
    return other if is_worse else known


def merged(known: Mapping[str, Finding], others: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return findings by fault, of each fault the `worse`; what is given stays as it is.

    >>> fixed, needed = Finding(Verdict.FIXED, "here"), Finding(Verdict.NEEDED, "there")
    >>> found = merged({"reset": fixed}, {"reset": needed, "no-queue": fixed})
    >>> {fault: finding.evidence for fault, finding in found.items()}
    {'reset': 'there', 'no-queue': 'here'}
    """
    looked_at = {fault: worse(known.get(fault, other), other) for fault, other in others.items()}
    return {**known, **looked_at}
