"""Find Python interpreters, also those that a version manager keeps off the path."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from glob import glob
from pathlib import Path

MANAGED = (
    "~/.pyenv/versions/{version}*/bin",
    "~/.local/share/uv/python/cpython-{version}*/bin",
    "/opt/python/cp{digits}-cp{digits}/bin",
)


def interpreter_folder(version: str) -> Path | None:
    """Return a folder with a working ``pythonX.Y``, or None.

    `version` is X.Y. A version manager's stub for a version that is not selected does not work.
    """
    name = f"python{version}"
    return next((folder for folder in _folders(version) if _runs(folder / name, version)), None)


def _folders(version: str) -> Iterator[Path]:
    yield from map(Path, os.get_exec_path())
    for pattern in MANAGED:
        filled = pattern.format(version=version, digits=version.replace(".", ""))
        yield from map(Path, sorted(glob(os.path.expanduser(filled))))


def _runs(interpreter: Path, version: str) -> bool:
    if not interpreter.is_file():
        return False
    command = [str(interpreter), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    answer: str = finished.stdout.strip()
    return answer == version
