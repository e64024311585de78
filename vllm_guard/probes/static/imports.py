"""What ``import`` statements mean, without importing anything."""

from __future__ import annotations

import ast
from types import ModuleType
from typing import Any, Protocol


class Importer(Protocol):
    """Finds what is imported."""

    def imported(self, name: str) -> Any:
        """Return what ``import name`` gives."""

    def imported_from(self, package: str, name: str) -> Any:
        """Return what ``from package import name`` gives."""


def bound_by(alias: ast.alias) -> str:
    """Return the name that an import binds; ``*`` for all names of a module."""
    return alias.asname or alias.name.partition(".")[0]


def absolute(node: ast.ImportFrom, module: ModuleType) -> str:
    """Return the full name of what ``module`` imports from."""
    if not node.level:
        return node.module or ""
    parts = (module.__package__ or "").split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
