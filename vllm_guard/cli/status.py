"""``vllm-guard status``: what the installed vLLM needs, and what processes do, new and running."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_guard import __version__, installed, settings
from vllm_guard.cli import processes
from vllm_guard.cli.errors import CommandError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ENTRY_POINT = "vllm_guard"
_TIMEOUT = 300.0

# Loads the guards as vLLM would, then the modules they wait for, and writes what came of it.
_PROBE = """
import importlib, json, sys
import vllm_guard
from vllm_guard.guards import DEFINITIONS
vllm_guard.register()
failed, missing = {}, {}
for name in dict.fromkeys(name for guard in DEFINITIONS for name in guard.modules):
    try:
        importlib.import_module(name)
    except Exception as error:
        # Some releases do not have all of them.
        is_missing = name.startswith(getattr(error, "name", None) or "?")
        (missing if is_missing else failed)[name] = f"{type(error).__name__}: {error}"
with open(sys.argv[1], "w") as file:
    json.dump(vllm_guard.status() | {"failed": failed, "missing": missing}, file)
"""


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("status", help="what the installed vLLM needs, and what is done")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines about the vLLM of this Python."""
    build = installed.find()
    folder = installed.package_folder()
    if build is None or folder is None:
        raise CommandError(
            f"no vLLM in this Python ({sys.executable}); install vllm-guard into the environment"
            f" that runs vLLM"
        )
    return _lines(build, folder)


def _lines(build: installed.Build, folder: Path) -> Iterator[str]:
    yield f"vllm-guard {__version__} on {build} in {folder}"
    chosen = settings.read(os.environ)
    for warning in [*_environment_warnings(), *chosen.problems]:
        yield f"warning: {warning}"
    report = _probe_in_new_process()
    for name, error in report["failed"].items():
        yield f"warning: {name} cannot be imported here, so nothing is known of it: {error}"
    yield "a new process of this environment:"
    for name, guard in report["guards"].items():
        yield (
            f"  {name:<10} mode {guard['mode']:<8} verdict {guard['verdict'] or 'not asked':<9}"
            f" state {guard['state']}"
        )
        for fault, finding in guard["faults"].items():
            yield f"    {fault:<14} {finding['verdict']:<8} {finding['evidence']}"
    yield from processes.lines(chosen.state_dir)


def _environment_warnings() -> Iterator[str]:
    found = dict(installed.distributions())
    if len(found) > 1:
        names = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
        yield f"{len(found)} distributions install vllm ({names}): uninstall all but one"
    plugins = metadata.entry_points(group="vllm.general_plugins")
    if _ENTRY_POINT not in {plugin.name for plugin in plugins}:
        yield (
            "vLLM does not load vllm-guard: its entry point is not installed in this environment"
            " (pip install vllm-guard)"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    # vLLM splits at commas and compares exactly, without stripping.
    if allowed is not None and _ENTRY_POINT not in allowed.split(","):
        yield (
            f"VLLM_PLUGINS={allowed!r} keeps vllm-guard out: add {_ENTRY_POINT} to it, without"
            f" spaces around the commas"
        )

    yield from _lost_with_ray()


def _lost_with_ray() -> Iterator[str]:
    if importlib.util.find_spec("ray") is None:
        return
    # What vLLM copies to workers of Ray besides its own variables, from 0.17 on.
    listed = os.environ.get("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "")
    names = {name.strip() for name in listed.split(",")}
    prefixes = os.environ.get("VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY", "").split(",")
    kept = tuple(prefix.strip() for prefix in prefixes if prefix.strip())
    lost = [
        name
        for name in sorted(os.environ)
        if name.startswith(settings.PREFIX) and name not in names and not name.startswith(kept)
    ]
    if lost:
        yield (
            f"Ray is installed, and its workers would not get {', '.join(lost)}: set"
            f" VLLM_RAY_EXTRA_ENV_VARS_TO_COPY={','.join(sorted({*names, *lost} - {''}))}"
            f" (before vLLM 0.17 set them where each node runs `ray start`)"
        )


def _probe_in_new_process() -> dict[str, Any]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="vllm-guard-")
    except OSError as error:
        raise CommandError(f"no folder for temporary files: {error}; set TMPDIR") from None
    with folder:
        result = Path(folder.name, "status.json")
        command = [sys.executable, "-c", _PROBE, str(result)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"importing vLLM took more than {_TIMEOUT:.0f} s") from None
        if done.returncode != 0 or not result.exists():
            raise CommandError(
                f"the vLLM of this Python ({sys.executable}) could not be imported:"
                f" {_last_line(done)}"
            )
        report: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if not report["guards"]:
            raise CommandError(f"vllm-guard could not start: {_last_line(done)}")
        reasons = [*report["failed"].values(), *report["missing"].values()]
        if reasons and not any(guard["faults"] for guard in report["guards"].values()):
            raise CommandError(
                f"the vLLM of this Python ({sys.executable}) could not be imported: {reasons[0]}"
            )
        return report


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
