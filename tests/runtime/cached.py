"""Folders in the cache that are filled once: complete or absent, also when a run is stopped."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.cache import cache_folder

PYTHON = "py{}.{}".format(*sys.version_info[:2])
"""Part of a folder's name where its content depends on the interpreter."""


def filled_once(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache, filled by ``fill(folder)`` if it is not there."""
    folder = cache_folder() / name
    if not folder.is_dir():
        workspace = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent))
        try:
            fill(workspace)
            workspace.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
    return folder


def pip(*arguments: str) -> str:
    """Run the pip of this Python and return its output; what it complains of is in the error."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout
