"""What interpreted code gets for Python's builtins and for modules outside of its source."""

from __future__ import annotations

import bisect
import builtins
import collections
import enum
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from vllm_guard.probes.standins import Anything
from vllm_guard.probes.static.arrays import NUMPY, TORCH
from vllm_guard.probes.static.errors import Budget, Unsupported
from vllm_guard.probes.static.values import get_attribute, set_attribute

_MISSING = object()


def _range(*limits: Any) -> range:
    made = range(*limits)
    if len(made) > Budget.SIZE:
        raise Unsupported("it counts too far")
    return made


def _getattr(thing: Any, name: str, default: Any = _MISSING) -> Any:
    try:
        return get_attribute(thing, name)
    except AttributeError:
        if default is _MISSING:
            raise
        return default


def _hasattr(thing: Any, name: str) -> bool:
    try:
        get_attribute(thing, name)
    except AttributeError:
        return False
    return True


def _isinstance(thing: Any, kinds: Any) -> bool:
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not isinstance(kind, type):
            raise Unsupported(f"it asks for a {kind}, which is not in this source")
        if isinstance(thing, kind):
            return True
    return False


def _iter(thing: Any) -> Any:
    return iter(thing)


CALLABLE_TYPES = frozenset(
    {
        *(list, dict, set, frozenset, tuple, int, float, bool, str, enumerate, zip, map, filter),
        *(reversed, object, property, staticmethod, classmethod, slice, collections.deque),
        *(collections.defaultdict, collections.OrderedDict, enum.auto, nullcontext),
    }
)
"""The classes of Python that interpreted code may make instances of."""

_EXCEPTIONS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}
_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(len, min, max, sum, any, all, sorted, abs, next, id, issubclass, callable, hash, round),
    *(divmod, repr),
)
BUILTINS: Mapping[str, Any] = {
    **_EXCEPTIONS,
    **{kind.__name__: kind for kind in CALLABLE_TYPES if kind.__module__ == "builtins"},
    **{function.__name__: function for function in _FUNCTIONS},
    "range": _range,
    "getattr": _getattr,
    "hasattr": _hasattr,
    "setattr": set_attribute,
    "isinstance": _isinstance,
    "iter": _iter,
    "type": type,
    "print": lambda *_args, **_kwargs: None,
    "NotImplemented": NotImplemented,
}
"""By name; what is missing is not supported."""

TRANSPARENT = frozenset(
    ("abstractmethod", "override", "final", "inference_mode", "no_grad", "deprecated", "overload")
)
"""Decorators that change nothing of what a function does here."""

_CLOCK = SimpleNamespace(
    time=lambda: 0.0, monotonic=lambda: 0.0, perf_counter=lambda: 0.0, time_ns=lambda: 0
)

LIBRARIES: Mapping[str, Any] = {
    "torch": TORCH,
    "numpy": NUMPY,
    "time": _CLOCK,
    "collections": SimpleNamespace(
        deque=collections.deque,
        defaultdict=collections.defaultdict,
        OrderedDict=collections.OrderedDict,
    ),
    "bisect": SimpleNamespace(
        bisect=bisect.bisect, bisect_left=bisect.bisect_left, bisect_right=bisect.bisect_right
    ),
    "contextlib": SimpleNamespace(nullcontext=nullcontext),
    "enum": SimpleNamespace(Enum=enum.Enum, IntEnum=enum.IntEnum, Flag=enum.Flag, auto=enum.auto),
    "typing": SimpleNamespace(TYPE_CHECKING=False, cast=lambda _kind, value: value),
    # Messages and traces: whatever is called is called for its name only.
    "logging": Anything(),
    "vllm.logger": Anything(),
    "vllm.tracing": Anything(),
}
"""By module name; all other modules outside of the source are unresolved."""
