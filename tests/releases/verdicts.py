"""The verdicts of releases: from their source, from running them, and as they were measured.

``python -m tests.releases.verdicts`` measures all releases again (``nox -s verdicts``), and writes
``patches/releases.json``: the verdicts of the imported code, with the evidence of the source, which
has file and line. It ends with an error where the two do not agree.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.releases.cache import release_tree
from tests.releases.live import Verdicts, live_verdicts
from tests.scheduler.matrix import RELEASES
from tools.patches import MEASURED
from vllm_guard.probes.static.sources import Tree
from vllm_guard.probes.static.verdicts import JudgedBuild, judge_source
from vllm_guard.states import Finding, Verdict

Words = dict[str, dict[str, str]]
"""Verdicts by guard and fault."""


def static(release: str | Path) -> JudgedBuild:
    """What the source of a release, or of a tree, says."""
    return judge_source(Tree(release if isinstance(release, Path) else release_tree(release)))


def words(findings: Verdicts) -> Words:
    """The verdicts without their evidence."""
    return {
        guard: {fault: str(finding.verdict) for fault, finding in faults.items()}
        for guard, faults in findings.items()
    }


def measured(release: str) -> Words:
    """The verdicts that were measured on a release."""
    return words(measured_findings(release))


def measured_findings(release: str) -> Verdicts:
    """The verdicts that were measured on a release, with their evidence."""
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {
        guard: {
            fault: Finding(Verdict(found["verdict"]), found["evidence"])
            for fault, found in faults.items()
        }
        for guard, faults in document[release].items()
    }


def main() -> int:
    """Measure all releases."""
    document = {}
    for release in RELEASES:
        found = static(release).findings
        if words(found) != words(live_verdicts(release)):
            print(f"{release}: source and imported code do not agree", file=sys.stderr)
            return 1
        document[release] = {
            guard: {
                fault: {"verdict": str(finding.verdict), "evidence": finding.evidence}
                for fault, finding in faults.items()
            }
            for guard, faults in found.items()
        }
        print(release, flush=True)
    MEASURED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
