"""The modules of one source, interpreted as far as somebody asks for what is in them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from types import ModuleType
from typing import Any, NamedTuple

from vllm_guard.probes.static.errors import Budget, Unsupported
from vllm_guard.probes.static.imports import absolute, bound_by
from vllm_guard.probes.static.libraries import LIBRARIES
from vllm_guard.probes.static.sources import Source
from vllm_guard.probes.static.statements import Interpreter
from vllm_guard.probes.static.values import Scope, Unresolved

_CONDITIONAL = (ast.If, ast.For, ast.While, ast.With)


class _Binding(NamedTuple):
    """One place where a module gives a name a value, and whether it always does."""

    node: ast.stmt
    always: bool


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage: a growing syntax tree has none, and looking takes as long as parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Program:
    """A source whose modules can be looked at as if they were imported. Nothing of it is run.

    Args:
        source: Where its files are read from.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.budget = Budget()
        self._interpreter = Interpreter(self.budget, self)
        self._modules: dict[str, ModuleType | None] = {}
        self._trees: dict[str, ast.Module] = {}

    def module(self, name: str) -> ModuleType | None:
        """Return a module, its names resolved when they are asked for.

        Args:
            name: Absolute, as ``vllm.v1.request``.

        Returns:
            None where the source has no such module.

        Raises:
            Unsupported: It has, and it cannot be parsed.
        """
        if name not in self._modules:
            path = self.path(name)
            self._modules[name] = None if path is None else self._load(name, path)
        return self._modules[name]

    def path(self, name: str) -> str | None:
        """Return the file of a module, None where there is none."""
        stem = name.replace(".", "/")
        paths = (f"{stem}.py", f"{stem}/__init__.py")
        return next((path for path in paths if self.source.has(path)), None)

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a file.

        Raises:
            Unsupported: It cannot be parsed.
        """
        if path not in self._trees:
            text = self.source.read(path)
            try:
                with _no_collection():
                    self._trees[path] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Unsupported(f"{path} cannot be parsed: {error}") from None
        return self._trees[path]

    def outside(self, name: str) -> Any:
        """Return what stands for an imported module, as ``sys.modules.get`` would: `LIBRARIES`."""
        return LIBRARIES.get(name) or self.module(name)

    def imported(self, name: str) -> Any:
        """Return what ``import name`` gives, `Unresolved` where it is not in the source."""
        found = self.outside(name)
        return Unresolved(name) if found is None else found

    def imported_from(self, package: str, name: str) -> Any:
        """Return what ``from package import name`` gives."""
        module = self.outside(package)
        try:
            return getattr(module, name)
        except AttributeError:
            return self.imported(f"{package}.{name}")

    def renew_budget(self) -> None:
        """Start a new look: what was done so far no longer counts."""
        self.budget = self._interpreter.budget = Budget()

    def _load(self, name: str, path: str) -> ModuleType:
        tree = self.tree(path)
        module = ModuleType(name)
        is_package = path.endswith("/__init__.py")
        module.__package__ = name if is_package else name.rpartition(".")[0]
        bindings: dict[str, list[_Binding]] = {}
        for bound, binding in _bindings(tree.body, always=True):
            bindings.setdefault(bound, []).append(binding)
        resolver = _Resolver(self, self._interpreter, module, bindings)
        # As PEP 562 has it: called for names that are not there yet.
        vars(module)["__getattr__"] = resolver.resolve
        return module


class _Resolver:
    """Finds out what the names of one module stand for."""

    def __init__(
        self,
        program: Program,
        interpreter: Interpreter,
        module: ModuleType,
        bindings: dict[str, list[_Binding]],
    ) -> None:
        self._program = program
        self._interpreter = interpreter
        self._module = module
        self._bindings = bindings

    def resolve(self, name: str) -> Any:
        """Return the value of a name; AttributeError where the module does not bind it."""
        if name.startswith("__"):
            raise AttributeError(name)
        names = vars(self._module)
        # In case it needs itself.
        names[name] = Unresolved(f"{self._module.__name__}.{name}")
        try:
            names[name] = self._value(name)
        except AttributeError:
            del names[name]
            raise
        return names[name]

    def _value(self, name: str) -> Any:
        bindings = self._bindings.get(name)
        if bindings is None:
            return self._from_star(name)
        last = bindings[-1]
        where = f"{self._module.__name__}.{name}"
        if not last.always and not isinstance(last.node, (ast.Import, ast.ImportFrom)):
            return Unresolved(f"{where} (bound under a condition)")
        scope = Scope(self._module)
        try:
            return self._bound(last.node, name, scope)
        except AttributeError as error:
            return Unresolved(f"{where} ({error})")
        except Unsupported as error:
            return Unresolved(f"{where} ({error})")
        except Exception as error:
            return Unresolved(f"{where} ({error!r})")

    def _bound(self, node: ast.stmt, name: str, scope: Scope) -> Any:
        if isinstance(node, ast.FunctionDef):
            return self._interpreter.decorated(node, scope)
        if isinstance(node, ast.ClassDef):
            return self._interpreter.make_class(node, scope)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            # Only this name: the others may load modules that nobody asks for.
            named = [alias for alias in node.names if name == bound_by(alias)]
            node = copy(node)
            node.names = named[-1:]
        self._interpreter.run([node], scope)
        return scope.names[name]

    def _from_star(self, name: str) -> Any:
        for binding in self._bindings.get("*", ()):
            if isinstance(binding.node, ast.ImportFrom):
                module = self._program.outside(absolute(binding.node, self._module))
                if module is not None and hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(name)


def _bindings(body: list[ast.stmt], always: bool) -> Iterator[tuple[str, _Binding]]:
    """Yield the names that statements of a module bind, those of ``import *`` as ``*``."""
    for node in body:
        binding = _Binding(node, always)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, binding
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield bound_by(alias), binding
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield (
                        inner.id,
                        binding._replace(always=always and not isinstance(node, ast.AugAssign)),
                    )
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _bindings(node.orelse, always)
        elif isinstance(node, ast.Try):
            # What is bound when the import fails is bound under a condition.
            for handler in node.handlers:
                yield from _bindings(handler.body, always=False)
            yield from _bindings([*node.body, *node.orelse, *node.finalbody], always)
        elif isinstance(node, _CONDITIONAL):
            yield from _bindings([*node.body, *getattr(node, "orelse", ())], always=False)
