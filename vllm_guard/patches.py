"""The documents about each guard: ``patches/<guard>.toml``, shipped inside the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PACKAGE = Path(__file__).parent
# In the wheel the folder is part of the package; in a checkout it stands beside it.
_FOLDERS = (_PACKAGE / "patches", _PACKAGE.parent / "patches")


def names() -> list[str]:
    """Return the guards that have a document, in alphabetical order."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def read(guard: str) -> dict[str, Any]:
    """Read the document of ``guard``.

    Raises:
        FileNotFoundError: There is none of that name.
    """
    with (_folder() / f"{guard}.toml").open("rb") as file:
        document: dict[str, Any] = tomllib.load(file)
    return document


def _folder() -> Path:
    return next(folder for folder in _FOLDERS if folder.is_dir())
