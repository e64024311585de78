"""Defining the functions and classes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import Enum
from types import new_class
from typing import Any

from vllm_guard.probes.static.expressions import Expressions
from vllm_guard.probes.static.libraries import TRANSPARENT
from vllm_guard.probes.static.values import INTERPRETED, Function, Scope, Unresolved

# Only the names of a class body have this one.
_CLASS_BODY = "__qualname__"

_DESCRIPTORS = (property, staticmethod, classmethod)


class Definitions(Expressions):
    """Makes functions with their decorators, and classes, of their definitions."""

    def run(self, body: Iterable[ast.stmt], scope: Scope) -> None:
        """Carry out statements."""
        raise NotImplementedError

    def make_class(self, node: ast.ClassDef, scope: Scope, prefix: str = "") -> type:
        """Define a class: a real one, whose methods are interpreted.

        What its body does otherwise is done as far as the interpreter knows it.
        """
        bases = [self._base(base, scope) for base in node.bases]
        known = tuple(base for base in bases if isinstance(base, type) and base is not object)
        inner = Scope(scope.module, scope)
        qualname = f"{prefix}{node.name}"

        def fill(namespace: dict[str, Any]) -> None:
            inner.names = namespace
            namespace["__module__"] = scope.module.__name__
            namespace["__qualname__"] = qualname
            for statement in node.body:
                self._fill(statement, inner, f"{qualname}.")
            if not any(issubclass(base, Enum) for base in known):
                namespace[INTERPRETED] = node.lineno

        made = new_class(node.name, known, {}, fill)
        if issubclass(made, Enum):
            setattr(made, INTERPRETED, node.lineno)
        for value in vars(made).values():
            for function in _functions_in(value):
                function.owner = made
        return made

    def decorated(self, node: ast.FunctionDef, scope: Scope, prefix: str = "") -> Any:
        """Define a function with its decorators; one that we do not know makes it uncallable."""
        function = self.function(node, scope, prefix)
        value: Any = function
        for decorator in reversed(node.decorator_list):
            text = ast.unparse(decorator)
            name = text.partition("(")[0].rpartition(".")[2]
            if name in TRANSPARENT:
                continue
            if name == "cached_property":
                value = property(value)
            elif name in ("property", "staticmethod", "classmethod"):
                value = {kind.__name__: kind for kind in _DESCRIPTORS}[name](value)
            elif name == "setter" and isinstance(scope.names.get(node.name), property):
                value = scope.names[node.name].setter(value)
            else:
                function.decorator = text
        return value

    def _base(self, node: ast.expr, scope: Scope) -> Any:
        try:
            return self.evaluate(node, scope)
        except Exception:
            return Unresolved(ast.unparse(node))

    def _fill(self, node: ast.stmt, scope: Scope, prefix: str) -> None:
        """Carry out a statement of a class body; what fails is left unresolved."""
        try:
            if isinstance(node, ast.FunctionDef):
                scope.names[node.name] = self.decorated(node, scope, prefix)
            elif isinstance(node, ast.ClassDef):
                scope.names[node.name] = self.make_class(node, scope, prefix)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                if "__slots__" not in _names_bound(node):
                    self.run([node], scope)
            elif isinstance(node, (ast.If, ast.For, ast.AsyncFunctionDef, ast.Try, ast.With)):
                for name in _names_bound(node):
                    scope.names[name] = Unresolved(name)
        except Exception:
            for name in _names_bound(node):
                scope.names[name] = Unresolved(name)


def closure(scope: Scope) -> Scope | None:
    """Return the names that a function defined in ``scope`` sees: a class body's are not."""
    found: Scope | None = scope
    while found is not None and _CLASS_BODY in found.names:
        found = found.outer
    return found


def _functions_in(value: Any) -> list[Function]:
    if isinstance(value, property):
        parts = (value.fget, value.fset)
    elif isinstance(value, (staticmethod, classmethod)):
        parts = (value.__func__, None)
    else:
        parts = (value, None)
    return [part for part in parts if isinstance(part, Function)]


def _names_bound(node: ast.stmt) -> Iterable[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield inner.name
