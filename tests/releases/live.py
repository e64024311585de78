"""The verdicts of the imported, unpatched modules of the vLLM on the path: ``python -m`` this."""

from __future__ import annotations

import importlib
from typing import Any

from tests.releases.isolated import print_result, run_isolated
from vllm_guard.guards import DEFINITIONS
from vllm_guard.states import Finding, worse

TIMEOUT_SECONDS = 300

Verdicts = dict[str, dict[str, Finding]]
"""By guard and fault."""


def live_verdicts(release: str, environment: dict[str, str] | None = None) -> Verdicts:
    """Ask a release for its verdicts, in a process of its own.

    `environment` is added to that of the process.
    """
    arguments = ["-m", "tests.releases.live"]
    result = run_isolated(release, arguments, timeout=TIMEOUT_SECONDS, environment=environment)
    return findings_of(result)


def findings_of(result: Any) -> Verdicts:
    """The findings in what `main` has printed."""
    return {
        guard: {fault: Finding(*finding) for fault, finding in faults.items()}
        for guard, faults in result["findings"].items()
    }


def _examine() -> Verdicts:
    found: Verdicts = {}
    for definition in DEFINITIONS:
        findings = found[definition.name] = {}
        for name in definition.modules:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not name.startswith(error.name or "?"):
                    raise
                continue
            for fault, finding in definition.examine(module).items():
                findings[fault] = worse(findings.get(fault, finding), finding)
    return found


def main() -> None:
    import vllm

    print_result({"vllm_file": vllm.__file__, "findings": _examine()})


if __name__ == "__main__":
    main()
