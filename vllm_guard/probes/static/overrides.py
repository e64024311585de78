"""Does anything in a source override or replace the functions that the guards wrap?

A subclass whose method does not call that of its base class, and an assignment from outside, put
code of somebody else in the place of the target.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vllm_guard.probes.static.program import Program
from vllm_guard.probes.static.values import is_interpreted
from vllm_guard.targets import Target

# They begin with letters, which makes searching ten times faster.
_CLASS = re.compile(rb"class[ \t]+(\w+)[ \t]*\(([^)]*)\)")
_ALIAS = re.compile(rb" as ([A-Z]\w+)")
_LAST_WORD = re.compile(rb"(\w+)\s*$")
_ASSIGNED = re.compile(rb"\s*=[^=]")
_NAME = re.compile(rb"(\w+)\s*(?:,|$)")


class _Derived(NamedTuple):
    """A class by name, the names of its bases, and the file it is in."""

    name: str
    bases: frozenset[str]
    path: str


def find_overrides(program: Program, targets: Iterable[Target]) -> dict[Target, str]:
    """Look through all files of a source.

    Args:
        program: The source, interpreted.
        targets: What may be overridden.

    Returns:
        For each target that is, who does it and where.
    """
    targets = tuple(targets)
    owners = {target.owner for target in targets if target.owner}
    named = {(target.owner or target.attribute).encode() for target in targets}
    attributes = {target.attribute.encode() for target in targets}
    derived: list[_Derived] = []
    found: dict[Target, str] = {}
    for path in program.source.files():
        text = program.source.read(path)
        derived += _classes(path, text)
        if any(name in text for name in named) and _may_set(text, attributes):
            found |= _assigned(program, path, targets)
    for path in dict.fromkeys(item.path for item in _heirs(derived, owners)):
        for target, where in _overridden(program, path, targets):
            found.setdefault(target, where)
    return found


def _may_set(text: bytes, attributes: Iterable[bytes]) -> bool:
    """Whether a file may assign to one of these attributes; comments and texts count as well.

    Looking for the names and then at what is around them is ten times faster than one pattern.
    """
    for name in attributes:
        start = text.find(name)
        while start >= 0:
            end = start + len(name)
            before = text[start - 1 : start]
            if before == b"." and _ASSIGNED.match(text, end):
                return True
            if before in (b"'", b'"') and b"setattr" in text:
                return True
            start = text.find(name, end)
    return False


def _classes(path: str, text: bytes) -> Iterator[_Derived]:
    for match in _CLASS.finditer(text):
        bases = frozenset(name.decode() for name in _NAME.findall(match[2]))
        yield _Derived(match[1].decode(), bases, path)
    for match in _ALIAS.finditer(text):
        original = _LAST_WORD.search(text, max(0, match.start() - 80), match.start())
        if original is not None:
            yield _Derived(match[1].decode(), frozenset((original[1].decode(),)), path)


def _heirs(derived: list[_Derived], owners: set[str]) -> list[_Derived]:
    """Return what may derive from an owner, going by names alone."""
    names, heirs = set(owners), list[_Derived]()
    while True:
        new = [item for item in derived if item.bases & names and item not in heirs]
        if not new:
            return heirs
        heirs += new
        names |= {item.name for item in new}


def _overridden(
    program: Program, path: str, targets: tuple[Target, ...]
) -> Iterator[tuple[Target, str]]:
    module = program.module(_module_name(path))
    for node in ast.walk(program.tree(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        for target in targets:
            method = methods.get(target.attribute)
            if method is None or not target.owner or _calls(method, target.attribute):
                continue
            cls: Any = getattr(module, node.name, None)
            owner: Any = getattr(program.module(target.module), target.owner, None)
            both = is_interpreted(cls) and is_interpreted(owner)
            if both and cls is not owner and issubclass(cls, owner):
                where = f"{path}:{method.lineno} {node.name}.{target.attribute}"
                yield target, f"{where} overrides {target.path} and does not call it"


def _calls(method: ast.FunctionDef, name: str) -> bool:
    # A call of the base method, through super() or by class, names it.
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(method))


def _assigned(program: Program, path: str, targets: tuple[Target, ...]) -> dict[Target, str]:
    """Find ``Scheduler.schedule = ...`` and ``setattr(Scheduler, "schedule", ...)``."""
    found = {}
    nodes = list(ast.walk(program.tree(path)))
    aliases = {
        alias.asname: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes:
        for owner, attribute in _set_attributes(node):
            for target in targets:
                is_owner = target.owner in ("", aliases.get(owner, owner))
                if target.attribute == attribute and is_owner:
                    line = getattr(node, "lineno", 0)
                    found[target] = f"{path}:{line} replaces {target.path}"
    return found


def _set_attributes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the name of what gets an attribute, and the attribute's."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                yield _last_name(target.value), target.attr
    elif isinstance(node, ast.Call) and _last_name(node.func) == "setattr":
        for name in node.args[1:2]:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield _last_name(node.args[0]), name.value


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
