"""JSON, schema version 1.

``schema_version``: 1; it changes when a field is renamed, removed or means something else.
``vllm_guard``: version of this package.
``builds``: for each build that was judged ``input`` (as given), ``version`` (as the build says,
"unknown" if it does not; no verdict rests on it) and ``guards``: ``guard``, ``verdict`` and
``faults``: ``fault``, ``verdict``, ``evidence``. Verdicts are the words of `Verdict`.
``causes`` of a guard, with ``cause``, ``pull_request``, ``verdict`` and ``evidence``, are known
causes of its faults in single models; no verdict of a fault rests on them.
``errors``: for each input that could not be judged ``input`` and ``error``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from vllm_guard import __version__
from vllm_guard.cli.formats.audited import Audited, Failed

SCHEMA_VERSION = 1


def lines(audited: Sequence[Audited], failed: Sequence[Failed]) -> Iterable[str]:
    """Return the document's lines."""
    return json.dumps(document(audited, failed), indent=2).splitlines()


def document(audited: Sequence[Audited], failed: Sequence[Failed]) -> dict[str, Any]:
    """Return the document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "vllm_guard": __version__,
        "builds": [_build(item) for item in audited],
        "errors": [{"input": item.given, "error": item.message} for item in failed],
    }


def _build(item: Audited) -> dict[str, Any]:
    guards = [
        {
            "guard": guard,
            "verdict": str(item.judged.verdict(guard)),
            "faults": [
                {"fault": fault, "verdict": str(finding.verdict), "evidence": finding.evidence}
                for fault, finding in findings.items()
            ],
            "causes": [
                {
                    "cause": cause.name,
                    "pull_request": cause.pull_request,
                    "verdict": str(cause.finding.verdict),
                    "evidence": cause.finding.evidence,
                }
                for cause in item.judged.causes.get(guard, ())
            ],
        }
        for guard, findings in item.judged.findings.items()
    ]
    return {"input": item.given, "version": item.judged.build.version, "guards": guards}
