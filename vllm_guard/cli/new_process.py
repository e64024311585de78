"""Asks a new process of this Python what its vLLM does, and what the guards would do there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from vllm_guard import installed
from vllm_guard.cli import environment
from vllm_guard.cli.errors import CommandError
from vllm_guard.states import Finding, State, Verdict

_TIMEOUT = 300.0
_COMMAND = "from vllm_guard.probes.live import main; main()"


class NewProcess(NamedTuple):
    """What a new process found and did.

    Args:
        findings: By guard and fault, what running the unpatched code has shown.
        failed: Why a module could not be imported, by its name.
        guards: What `vllm_guard.status` then says of each guard; state `State.NOT_LOADED` where
            vLLM would not have loaded them.
    """

    findings: dict[str, dict[str, Finding]]
    failed: dict[str, str]
    guards: dict[str, dict[str, Any]]

    @property
    def warnings(self) -> list[str]:
        """What is not known, and why."""
        return [
            f"{name} cannot be imported here, so nothing is known of it: {error}"
            for name, error in self.failed.items()
        ]


def installed_vllm() -> tuple[installed.Build, Path]:
    """Return the vLLM of this Python and its folder.

    Raises:
        CommandError: There is none.
    """
    build = installed.find()
    folder = installed.package_folder()
    if build is None or folder is None:
        raise CommandError(
            f"no vLLM in this Python ({sys.executable}); install vllm-guard into the environment"
            f" that runs vLLM"
        )
    return build, folder


def ask_new_process() -> NewProcess:
    """Import the vLLM of this Python in a new process, run the probes, and load the guards.

    Raises:
        CommandError: It could not be imported.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="vllm-guard-")
    except OSError as error:
        raise CommandError(f"no folder for temporary files: {error}; set TMPDIR") from None
    with folder:
        result = Path(folder.name, "report.json")
        command = [sys.executable, "-c", _COMMAND, str(result)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"importing vLLM took more than {_TIMEOUT:.0f} s") from None
        if done.returncode != 0 or not result.exists():
            raise _not_imported(_last_line(done))
        report: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return _parsed(report, _last_line(done))


def _parsed(report: dict[str, Any], last_line: str) -> NewProcess:
    if not report["process"]["guards"]:
        raise CommandError(f"vllm-guard could not start: {last_line}")
    reasons = [*report["failed"].values(), *report["missing"].values()]
    if reasons and not any(report["findings"].values()):
        raise _not_imported(reasons[0])
    findings = {
        guard: {fault: Finding(Verdict(verdict), why) for fault, (verdict, why) in faults.items()}
        for guard, faults in report["findings"].items()
    }
    return NewProcess(findings, report["failed"], _as_loaded_by_vllm(report["process"]["guards"]))


def _as_loaded_by_vllm(guards: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what guards do, or would do if vLLM did not refuse to load them as we just did."""
    reasons = "; ".join(environment.not_loaded())
    refused = {"state": str(State.NOT_LOADED), "detail": reasons} if reasons else {}
    return {
        name: guard if guard["state"] == State.OFF else {**guard, **refused}
        for name, guard in guards.items()
    }


def _not_imported(reason: str) -> CommandError:
    return CommandError(
        f"the vLLM of this Python ({sys.executable}) could not be imported: {reason}"
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
