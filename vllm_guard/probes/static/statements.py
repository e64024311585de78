"""Carrying out functions and statements of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from vllm_guard.probes.standins import Anything
from vllm_guard.probes.static.definitions import Definitions, closure
from vllm_guard.probes.static.errors import Budget, Unsupported
from vllm_guard.probes.static.imports import Importer, absolute, bound_by
from vllm_guard.probes.static.operators import combine
from vllm_guard.probes.static.values import Function, Scope


class _Return(BaseException):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(BaseException):
    pass


class _Continue(BaseException):
    pass


class Interpreter(Definitions):
    """Carries out the functions that the probes call.

    Args:
        budget: How much may be done.
        importer: Finds what the code imports.
    """

    def __init__(self, budget: Budget, importer: Importer) -> None:
        super().__init__(budget)
        self._importer = importer

    def run_function(self, function: Function, arguments: dict[str, Any]) -> Any:
        """Carry out a call whose arguments are bound."""
        scope = Scope(function.scope.module, closure(function.scope), function)
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

    def _Expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, scope)

    def _Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else bound_by(alias)
            scope.names[bound_by(alias)] = self._importer.imported(name)

    def _ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        package = absolute(node, scope.module)
        for alias in node.names:
            scope.names[bound_by(alias)] = self._importer.imported_from(package, alias.name)

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
