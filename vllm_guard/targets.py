"""Finding the functions to wrap, judging whose they are, and putting wrappers in and out."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, NamedTuple

import wrapt

from vllm_guard.states import Finding, Verdict

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Target(NamedTuple):
    """A function that a guard wraps.

    Args:
        module: Absolute name of the module that defines it.
        path: ``Class.method``, or the name of a function of the module.
        parameters: Names its parameters must begin with, ``self`` first.
        wrapped: False for a function that is looked at and called, and never replaced.
        faults: The faults it is needed for; empty for all of the guard's.
    """

    module: str
    path: str
    parameters: tuple[str, ...]
    wrapped: bool = True
    faults: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The class's name; empty for a function of the module."""
        return self.path.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        """The name of the method or function."""
        return self.path.rpartition(".")[2]

    def owner_in(self, module: ModuleType) -> type | ModuleType | None:
        """Return the class, or the module itself; None where there is no such class."""
        if not self.owner:
            return module
        found = getattr(module, self.owner, None)
        return found if isinstance(found, type) else None


def exists(target: Target, module: ModuleType) -> bool:
    """Whether ``module`` has the function, or the class and the class itself the method."""
    owner = target.owner_in(module)
    return owner is not None and target.attribute in vars(owner)


def judge(target: Target, module: ModuleType) -> Finding | None:
    """Look at a target as it is now.

    Args:
        target: What to look at.
        module: The imported module ``target.module``.

    Returns:
        None when it can be wrapped, otherwise why not: absent, foreign or unknown.
    """
    where = f"{target.module}:{target.path}"
    if not exists(target, module):
        return Finding(Verdict.ABSENT, f"{where} does not exist")
    owner = target.owner_in(module)
    if isinstance(owner, type) and owner.__module__ != module.__name__:
        return Finding(Verdict.FOREIGN, f"{target.module}:{target.owner} is {owner.__module__}'s")
    found = vars(owner)[target.attribute]
    *_, innermost = unwrapped(found)
    if not isinstance(innermost, FunctionType) and innermost.__module__ == module.__name__:
        return Finding(Verdict.UNKNOWN, f"{where} is compiled")
    if not _defined_in(innermost, module):
        return Finding(Verdict.FOREIGN, f"{where} was replaced by {origin(innermost)}")
    return judge_parameters(target, innermost)


def judge_parameters(target: Target, function: Callable[..., Any]) -> Finding | None:
    """Return why a function cannot stand where the target does, None if its parameters fit."""
    parameters = tuple(inspect.signature(function).parameters)
    if parameters[: len(target.parameters)] == target.parameters:
        return None
    where = f"{target.module}:{target.path}"
    return Finding(Verdict.UNKNOWN, f"{where} takes ({', '.join(parameters)})")


def unwrapped(function: Any) -> Iterator[Any]:
    """Yield ``function`` and what it wraps, outermost first, along ``__wrapped__``.

    >>> import functools
    >>> def schedule(): ...
    >>> @functools.wraps(schedule)
    ... def traced(): ...
    >>> list(unwrapped(traced)) == [traced, schedule]
    True
    """
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def origin(function: Any) -> str:
    """Say where a function comes from, as ``package.module:name``."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"


def _defined_in(function: Any, module: ModuleType) -> bool:
    # functools.wraps copies __module__ and __name__; the code object cannot lie.
    return isinstance(function, FunctionType) and function.__globals__ is vars(module)


class Patch:
    """One wrapped attribute, and the exact object that was there.

    Guards that want the same wrapper at the same place share one patch: it goes in with the
    first of them and out with the last.

    Args:
        target: What is wrapped; `judge` had nothing against it, or the user forces it.
        module: The imported module ``target.module``.
        wrapper: Called as ``wrapper(wrapped, instance, args, kwargs)``.
    """

    _in_place: ClassVar[dict[tuple[type | ModuleType, str, Wrapper], Patch]] = {}

    @classmethod
    def shared(cls, target: Target, module: ModuleType, wrapper: Wrapper) -> Patch:
        """Return the patch that is in place with this wrapper, or a new one, and put it in."""
        patch = cls(target, module, wrapper)
        patch = cls._in_place.get(patch._key, patch)
        patch.apply()
        return patch

    def __init__(self, target: Target, module: ModuleType, wrapper: Wrapper) -> None:
        self.target = target
        owner = target.owner_in(module)
        if owner is None:
            raise AttributeError(f"{target.module} has no class {target.owner}")
        self.owner = owner
        self.original: Any = vars(self.owner)[target.attribute]
        self.replacement = wrapt.FunctionWrapper(self.original, wrapper)
        self._key = (self.owner, target.attribute, wrapper)
        self._users = 0

    def apply(self) -> None:
        """Put the wrapper in."""
        self._users += 1
        if self._users == 1:
            self._put(self.replacement, instead_of=self.original)
            self._in_place[self._key] = self

    def undo(self) -> bool:
        """Put the original object back; return false where somebody has wrapped ours since."""
        self._users -= 1
        if self._users:
            return True
        self._in_place.pop(self._key, None)
        if vars(self.owner).get(self.target.attribute) is not self.replacement:
            return False
        self._put(self.original, instead_of=self.replacement)
        return True

    def _put(self, function: Any, instead_of: Any) -> None:
        setattr(self.owner, self.target.attribute, function)
        if isinstance(self.owner, ModuleType):
            rebind(instead_of, function)

    def obstacle(self, cls: type) -> str:
        """Say what keeps the wrapper from running for instances of ``cls``; empty if nothing.

        An override that calls the method of its base class is no obstacle: the call reaches the
        wrapper. A wrapper put on top of ours is none either.
        """
        name = self.target.attribute
        if isinstance(self.owner, ModuleType):
            found = vars(self.owner).get(name)
            reached = any(link is self.replacement for link in unwrapped(found))
            return "" if reached else f"{self.target.path} was replaced by {origin(found)}"
        for base in cls.__mro__:
            found = vars(base).get(name)
            if found is None:
                continue
            chain = list(unwrapped(found))
            # By identity: a wrapper of wrapt equals what it wraps.
            if any(link is self.replacement for link in chain):
                return ""
            if base is self.owner:
                return f"{self.target.path} was replaced by {origin(chain[0])}"
            if not any(_mentions(link, name) for link in chain):
                return f"{origin(chain[-1])} overrides {self.target.path} and does not call it"
        return f"{cls.__module__}:{cls.__qualname__} is no {self.owner.__qualname__}"


_KNOW_NO_VLLM = sys.stdlib_module_names | {
    *("torch", "sympy", "transformers", "openai", "networkx", "opentelemetry", "numpy", "numba"),
    *("pydantic", "scipy", "PIL", "triton"),
}
"""Top-level packages most of whose modules are loaded with vLLM: looking into each takes a
millisecond a thousand."""


def rebind(old: Any, new: Any) -> None:
    """Put ``new`` wherever a module has imported ``old`` by name, under whatever name.

    Only what modules hold is looked at: asking them for an attribute could import more. Under
    another name it is looked for in modules of vLLM and its plugins; others are asked for the
    function's own name only, and the thousands of libraries that know no vLLM for nothing.
    """
    own_name = old.__name__
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in _KNOW_NO_VLLM:
            continue
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        if "vllm" not in module_name:
            if names.get(own_name) is old:
                names[own_name] = new
        # By identity, and in C: a module has up to a thousand names.
        elif True in map(is_, names.values(), repeat(old)):
            for name, value in list(names.items()):
                if value is old:
                    names[name] = new


def _mentions(function: Any, name: str) -> bool:
    # A call of the base method, through super() or by class, names it in the code.
    code = getattr(function, "__code__", None)
    return code is not None and _names(code, name)


def _names(code: CodeType, name: str) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return name in code.co_names or any(_names(constant, name) for constant in inner)
