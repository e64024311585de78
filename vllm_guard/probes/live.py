"""The verdicts that come from running the code: each module as it is imported, nothing patched.

For a process of its own: ``python -c "from vllm_guard.probes.live import main; main()" FILE``.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import vllm_guard
from vllm_guard.guards import DEFINITIONS
from vllm_guard.states import Finding, worse


class Examined(NamedTuple):
    """What this process could import, and what it does about each fault.

    Args:
        findings: By guard and fault, the worst that any module shows.
        failed: Why a module could not be imported, by its name.
        missing: The same for modules that this release does not have.
    """

    findings: dict[str, dict[str, Finding]]
    failed: dict[str, str]
    missing: dict[str, str]


def examine(modules: Container[str] | None = None) -> Examined:
    """Import the modules that the guards are for, and run the probes on them.

    Args:
        modules: Only these; None for all. None may be patched yet.
    """
    examined = Examined({}, {}, {})
    for definition in DEFINITIONS:
        findings = examined.findings[definition.name] = {}
        for name in definition.modules:
            if modules is not None and name not in modules:
                continue
            try:
                module = importlib.import_module(name)
            except Exception as error:
                # Some releases do not have all of them.
                is_missing = name.startswith(getattr(error, "name", None) or "?")
                reasons = examined.missing if is_missing else examined.failed
                reasons[name] = f"{type(error).__name__}: {error}"
                continue
            for fault, finding in definition.examine(module).items():
                findings[fault] = worse(findings.get(fault, finding), finding)
    return examined


def main() -> None:
    """Examine, then load the guards as vLLM would, and write what came of both as JSON."""
    # Collecting what vLLM's thousands of modules make would take a quarter of the time.
    gc.disable()
    examined = examine()
    vllm_guard.register()
    report: dict[str, Any] = examined._asdict() | {"process": vllm_guard.status()}
    Path(sys.argv[1]).write_text(json.dumps(report), encoding="utf-8")
    if report["process"]["guards"]:
        # Nor is it collected at exit, about which libraries complain on standard error: where the
        # guards could not start, the reason is its last line and has to stay that.
        gc.freeze()
