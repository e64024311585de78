"""Where a build is that the user has named: a folder, a wheel, a requirement, or the installed."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_guard import installed
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.fetch import fetch

INSTALLED = "installed"


def path_of(given: str) -> Path:
    """Return the folder or the wheel file.

    Args:
        given: A folder that holds the package ``vllm``, a wheel, a requirement (its wheel is
            fetched with pip), or `INSTALLED`.

    Raises:
        CommandError: There is none, or it cannot be fetched.
    """
    if given == INSTALLED and not os.path.lexists(given):
        folder = installed.package_folder()
        if folder is None:
            raise CommandError("no vLLM is installed for this Python; give a folder or a wheel")
        return folder
    is_path = os.path.lexists(given) or os.sep in given or given.endswith((".whl", ".zip"))
    return Path(given) if is_path else fetch(given)
