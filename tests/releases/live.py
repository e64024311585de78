"""The verdicts of the imported, unpatched modules of the vLLM on the path: ``python -m`` this."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.releases.isolated import print_result, run_isolated
from tests.scheduler.simulate import make_importable
from vllm_guard.probes.live import examine
from vllm_guard.states import Finding

TIMEOUT_SECONDS = 300

Verdicts = dict[str, dict[str, Finding]]
"""By guard and fault."""


def live_verdicts(release: str | Path, *modules: str) -> Verdicts:
    """Ask a release, or a tree, for its verdicts in a process of its own.

    Only `modules` are looked at, all that the guards know if none is named.
    """
    arguments = ["-m", "tests.releases.live", *modules]
    result = run_isolated(release, arguments, timeout=TIMEOUT_SECONDS)
    return {
        guard: {fault: Finding(*finding) for fault, finding in faults.items()}
        for guard, faults in result["findings"].items()
    }


def main() -> None:
    make_importable()
    import vllm

    examined = examine(sys.argv[1:] or None)
    assert not examined.failed, examined.failed
    print_result({"vllm_file": vllm.__file__, "findings": examined.findings})


if __name__ == "__main__":
    main()
