"""The values that interpreted code works on, and which attributes of them it may touch.

Interpreted classes are real Python classes whose methods are `Function` objects, so that the
probes of imported modules (`vllm_guard.probes`) run on interpreted modules unchanged.
"""

from __future__ import annotations

import ast
import inspect
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

from vllm_guard.probes.static.errors import Unsupported

INTERPRETED = "_vllm_guard_interpreted"
"""Marks a class that was made from a syntax tree."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: dict[type, frozenset[str]] = {
    str: _words(
        "startswith endswith split rsplit strip lstrip rstrip lower upper join removeprefix"
        " removesuffix partition rpartition isdigit find"
    ),
    list: _words("append extend insert pop remove clear index count sort reverse copy"),
    tuple: _words("index count"),
    dict: _words("get items keys values pop popitem setdefault update clear copy"),
    set: _words(
        "add discard remove pop update clear copy difference difference_update union issubset"
        " intersection intersection_update issuperset isdisjoint"
    ),
    frozenset: _words("difference union intersection issubset issuperset isdisjoint"),
    deque: _words(
        "append appendleft pop popleft extend extendleft remove clear index count insert reverse"
        " copy rotate"
    ),
    BaseException: _words("args"),
    Enum: _words("name value"),
}


class Scope:
    """The names of a running function, class body or comprehension.

    Args:
        module: Where names are looked for last.
        outer: The scope around this one, if it is not the module.
        function: The function that runs, if one does.
    """

    def __init__(
        self, module: ModuleType, outer: Scope | None = None, function: Function | None = None
    ) -> None:
        self.module = module
        self.outer = outer
        self.function: Function | None = function
        if function is None and outer is not None:
            self.function = outer.function
        self.names: dict[str, Any] = {}
        self.not_local: set[str] = set()

    def home(self, name: str) -> dict[str, Any]:
        """Return the names among which ``name`` is assigned."""
        scope = self.outer if name in self.not_local else self
        while scope is not None and name in self.not_local and name not in scope.names:
            scope = scope.outer
        if scope is None:
            raise Unsupported(f"{name} is nowhere to be assigned")
        return scope.names


class Function:
    """A function or method of interpreted code; calling it carries its syntax tree out.

    Args:
        node: Its syntax tree, without decorators.
        scope: Where it was defined.
        qualname: As Python's ``__qualname__``.
        signature: Works out its parameters and their defaults; asked when it is first called.
        run: Carries it out.
    """

    def __init__(
        self,
        node: ast.FunctionDef | ast.Lambda,
        scope: Scope,
        qualname: str,
        signature: Callable[[], inspect.Signature],
        run: Callable[[Function, dict[str, Any]], Any],
    ) -> None:
        self.node = node
        self.scope = scope
        self.owner: type | None = None
        """The class whose body it stands in, for ``super()``."""
        self.decorator = ""
        """What wraps it in a way we do not know."""
        self._run = run
        self.__name__ = qualname.rpartition(".")[2]
        self.__qualname__ = qualname
        self.__module__ = scope.module.__name__
        self._signature = signature

    @cached_property
    def __signature__(self) -> inspect.Signature:
        return self._signature()

    def __get__(self, instance: Any, _owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Carry it out."""
        if self.decorator:
            raise Unsupported(f"{self.__qualname__} is decorated by {self.decorator}")
        if self._is_generator:
            raise Unsupported(f"{self.__qualname__} is a generator")
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._run(self, dict(bound.arguments))

    @cached_property
    def _is_generator(self) -> bool:
        nodes: list[ast.AST] = [self.node]
        while nodes:
            for child in ast.iter_child_nodes(nodes.pop()):
                if isinstance(child, (ast.Yield, ast.YieldFrom)):
                    return True
                if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
                    nodes.append(child)
        return False

    @property
    def first_argument(self) -> str:
        """Name of its first parameter, ``self`` in a method."""
        return next(iter(self.__signature__.parameters), "")


class Unresolved:
    """Something outside the source, or that it is too hard to work out.

    It may be passed on and named; whatever depends on what it is, is not supported.

    Args:
        name: What it is called there.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Unresolved(f"{self._name}.{attribute}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Nobody knows what would come of it."""
        raise Unsupported(f"it calls {self._name}, which is not in this source")

    def __bool__(self) -> bool:
        raise Unsupported(f"it depends on {self._name}, which is not in this source")

    def __iter__(self) -> Any:
        raise Unsupported(f"it goes through {self._name}, which is not in this source")

    def __str__(self) -> str:
        return self._name


def is_interpreted(kind: Any) -> bool:
    """Whether this is a class made from a syntax tree."""
    return isinstance(kind, type) and hasattr(kind, INTERPRETED)


def get_attribute(thing: Any, name: str) -> Any:
    """Return an attribute as interpreted code may see it.

    Raises:
        AttributeError: There is none.
        Unsupported: It is none of interpreted code's business, or we do not know it.
    """
    if name.startswith("__") and not (name == "__init__" and isinstance(thing, super)):
        if name == "__class__":
            return type(thing)
        if name in ("__name__", "__qualname__") and isinstance(thing, type):
            return getattr(thing, name)
        raise Unsupported(f"it looks at {name}")
    if _is_open(thing) or _is_open(type(thing)) or isinstance(thing, (super, property)):
        return getattr(thing, name)
    for kind, methods in _METHODS.items():
        if isinstance(thing, kind):
            if name in methods:
                return getattr(thing, name)
            break
    raise Unsupported(f"it looks at {type(thing).__name__}.{name}")


def set_attribute(thing: Any, name: str, value: Any) -> None:
    """Set an attribute, if interpreted code may."""
    if name.startswith("__") or isinstance(thing, (type, ModuleType)) or not _is_open(type(thing)):
        raise Unsupported(f"it sets {type(thing).__name__}.{name}")
    setattr(thing, name, value)


def _is_open(kind: Any) -> bool:
    """Whether interpreted code may touch all of it: its own classes, and the probes' stand-ins."""
    if isinstance(kind, (ModuleType, Unresolved)) or kind in (SimpleNamespace, ModuleType):
        return True
    if not isinstance(kind, type) or kind is Function:
        return False
    return is_interpreted(kind) or kind.__module__.startswith("vllm_guard.probes.")
