"""Getting the wheel that a requirement names, with pip, into the user's cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from vllm_guard.cli.errors import CommandError

_TIMEOUT_SECONDS = 1800


def fetch(text: str) -> Path:
    """Return the wheel for a requirement; one that is in the cache is not downloaded again.

    Args:
        text: As pip takes it, ``vllm==0.31.0``.

    Raises:
        CommandError: It is no requirement, or pip cannot get a wheel for it.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise CommandError(
            f"{text}: neither a file nor a folder nor a requirement such as vllm==0.31.0"
        ) from None
    folder = wheel_folder()
    pins = [pin for pin in requirement.specifier if pin.operator == "=="]
    cached = [path for path in folder.glob("*.whl") if _fits(path, requirement)] if pins else []
    return cached[0] if cached else _download(requirement, folder)


def wheel_folder() -> Path:
    """Return the folder where wheels are kept, made if need be."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(caches).expanduser() / "vllm-guard" / "wheels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise CommandError(
            f"{folder}: cannot keep wheels there ({error}); set XDG_CACHE_HOME"
        ) from None
    return folder


def _fits(path: Path, requirement: Requirement) -> bool:
    try:
        name, version, *_ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return False
    return name == canonicalize_name(requirement.name) and requirement.specifier.contains(
        version, prereleases=True
    )


def _download(requirement: Requirement, folder: Path) -> Path:
    try:
        # Beside the other wheels, so that moving it there is all or nothing.
        workspace = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise CommandError(f"{folder}: cannot be written to ({error.strerror})") from None
    with workspace:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
        command += ["--retries", "1", "--dest", workspace.name, str(requirement)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"{requirement}: pip took more than {_TIMEOUT_SECONDS} s; download the wheel"
                f" elsewhere and give its path"
            ) from None
        wheels = list(Path(workspace.name).glob("*.whl"))
        if done.returncode or not wheels:
            raise CommandError(
                f"{requirement}: pip could not get a wheel ({_reason(done)}); download it elsewhere"
                f" and give its path"
            )
        return wheels[0].replace(folder / wheels[0].name)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    printed = done.stderr.strip().splitlines()
    errors = [line for line in printed if line.startswith("ERROR")]
    return (errors or printed or [f"exit code {done.returncode}"])[-1]
