"""Carrying out statements, functions and classes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from enum import Enum
from types import new_class
from typing import Any

from vllm_guard.probes.standins import Anything
from vllm_guard.probes.static.errors import Unsupported
from vllm_guard.probes.static.expressions import Expressions
from vllm_guard.probes.static.libraries import TRANSPARENT
from vllm_guard.probes.static.operators import combine
from vllm_guard.probes.static.values import INTERPRETED, Function, Scope, Unresolved

# Only the names of a class body have this one.
_CLASS_BODY = "__qualname__"

_DESCRIPTORS = (property, staticmethod, classmethod)


class _Return(BaseException):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(BaseException):
    pass


class _Continue(BaseException):
    pass


class Interpreter(Expressions):
    """Carries out the functions that the probes call."""

    def run_function(self, function: Function, arguments: dict[str, Any]) -> Any:
        """Carry out a call whose arguments are bound."""
        scope = Scope(function.scope.module, _closure(function.scope), function)
        scope.names.update(arguments)
        self.budget.enter()
        try:
            if isinstance(function.node, ast.Lambda):
                return self.evaluate(function.node.body, scope)
            self.run(function.node.body, scope)
        except _Return as returned:
            return returned.value
        except RecursionError:
            raise Unsupported("it nests too deeply") from None
        finally:
            self.budget.leave()
        return None

    def run(self, body: Iterable[ast.stmt], scope: Scope) -> None:
        """Carry out statements."""
        for node in body:
            self.budget.spend()
            method: Callable[[Any, Scope], None] | None
            method = getattr(self, f"_{type(node).__name__}", None)
            if method is None:
                raise Unsupported(f"line {node.lineno}: it uses {type(node).__name__}")
            method(node, scope)

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

    def _Expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, scope)

    def _Pass(self, node: ast.Pass, scope: Scope) -> None:
        pass

    def _FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope.names[node.name] = self.decorated(node, scope)

    def _ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.names[node.name] = self.make_class(node, scope)

    def _Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        target: Any = node.target
        old = getattr(self, f"_{type(target).__name__}")(target, scope)
        new = combine(self.budget, node.op, old, self.evaluate(node.value, scope), in_place=True)
        self.assign(target, new, scope)

    def _Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                del scope.names[target.id]
            elif isinstance(target, ast.Subscript):
                del self.evaluate(target.value, scope)[self.evaluate(target.slice, scope)]
            else:
                raise Unsupported(f"line {node.lineno}: it deletes {ast.unparse(target)}")

    def _If(self, node: ast.If, scope: Scope) -> None:
        self.run(node.body if self.evaluate(node.test, scope) else node.orelse, scope)

    def _While(self, node: ast.While, scope: Scope) -> None:
        while self.evaluate(node.test, scope):
            if not self._round(node.body, scope):
                return
        self.run(node.orelse, scope)

    def _For(self, node: ast.For, scope: Scope) -> None:
        for item in self.evaluate(node.iter, scope):
            self.budget.spend()
            self.assign(node.target, item, scope)
            if not self._round(node.body, scope):
                return
        self.run(node.orelse, scope)

    def _round(self, body: list[ast.stmt], scope: Scope) -> bool:
        try:
            self.run(body, scope)
        except _Continue:
            pass
        except _Break:
            return False
        return True

    def _Break(self, node: ast.Break, scope: Scope) -> None:
        raise _Break

    def _Continue(self, node: ast.Continue, scope: Scope) -> None:
        raise _Continue

    def _Return(self, node: ast.Return, scope: Scope) -> None:
        raise _Return(None if node.value is None else self.evaluate(node.value, scope))

    def _Assert(self, node: ast.Assert, scope: Scope) -> None:
        if not self.evaluate(node.test, scope):
            raise AssertionError(node.msg and str(self.evaluate(node.msg, scope)))

    def _Raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is None:
            raise scope.names["current exception"]
        error = self.evaluate(node.exc, scope)
        if isinstance(error, type) and issubclass(error, Exception):
            error = error()
        if not isinstance(error, Exception):
            raise Unsupported(f"line {node.lineno}: it raises {ast.unparse(node.exc)}")
        raise error

    def _Try(self, node: ast.Try, scope: Scope) -> None:
        try:
            try:
                self.run(node.body, scope)
            except (Unsupported, RecursionError):
                raise
            except Exception as error:
                handler = self._handler(node.handlers, error, scope)
                if handler is None:
                    raise
                scope.names["current exception"] = error
                if handler.name:
                    scope.names[handler.name] = error
                self.run(handler.body, scope)
            else:
                self.run(node.orelse, scope)
        finally:
            self.run(node.finalbody, scope)

    def _handler(
        self, handlers: list[ast.ExceptHandler], error: Exception, scope: Scope
    ) -> ast.ExceptHandler | None:
        for handler in handlers:
            if handler.type is None:
                return handler
            kinds = self.evaluate(handler.type, scope)
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise Unsupported(f"line {handler.lineno}: it catches {kind}")
                if isinstance(error, kind):
                    return handler
        return None

    def _With(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            manager = self.evaluate(item.context_expr, scope)
            if not isinstance(manager, (Anything, nullcontext)):
                raise Unsupported(f"line {node.lineno}: it enters {ast.unparse(item.context_expr)}")
            if item.optional_vars is not None:
                self.assign(item.optional_vars, Anything(), scope)
        self.run(node.body, scope)

    def _Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.not_local.update(node.names)


def _closure(scope: Scope) -> Scope | None:
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
