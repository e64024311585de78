"""Workflow commands of GitHub Actions: one annotation a guard and build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_guard.cli.formats.audited import Audited, Failed
from vllm_guard.states import Verdict


def lines(audited: Sequence[Audited], failed: Sequence[Failed]) -> Iterator[str]:
    """Yield a warning for what is needed or not certain, a notice for the rest."""
    for given, judged in audited:
        for guard, findings in judged.findings.items():
            verdict = judged.verdict(guard)
            level = "notice" if verdict in (Verdict.FIXED, Verdict.ABSENT) else "warning"
            shown = (
                f"{fault} {found.verdict}: {found.evidence}" for fault, found in findings.items()
            )
            message = "\n".join([f"{given}, {judged.build}", *shown])
            yield annotation(level, f"vllm-guard: {guard} {verdict}", message)
    for item in failed:
        yield annotation("error", "vllm-guard audit", item.message)


def annotation(level: str, title: str, message: str) -> str:
    """Return one annotation.

    Args:
        level: ``notice``, ``warning`` or ``error``.
        title: In one line.
        message: May have several.

    >>> annotation("warning", "clamp: needed", "at 100%:\\nupgrade")
    '::warning title=clamp%3A needed::at 100%25:%0Aupgrade'
    """
    title = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
