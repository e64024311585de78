"""Watches EngineCore from a place that no guard wraps: the end of each of its steps."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import wrapt

from .records import Records


class Observer:
    """Writes what it sees whenever it differs from what it saw before.

    Args:
        records: Where to write.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._seen: dict[str, dict[str, Any]] = {}
        self._has_guard = importlib.util.find_spec("vllm_guard") is not None

    def look(self, scheduler: object) -> None:
        """Record the state of the scheduler's class, and that of the guard if there is one.

        Args:
            scheduler: The engine's.
        """
        scheduler_class = type(scheduler)
        replaced = _replaced_methods(scheduler_class)
        self._record("scheduler", {"class": scheduler_class.__name__, "replaced": replaced})
        if self._has_guard:
            import vllm_guard

            self._record("guard", vllm_guard.status())

    def _record(self, kind: str, content: dict[str, Any]) -> None:
        if self._seen.get(kind) != content:
            self._records.write(kind, content)
            self._seen[kind] = content


def _replaced_methods(scheduler_class: type) -> list[str]:
    """Name the methods that are not plain functions from a file of vLLM.

    Args:
        scheduler_class: Looked at with all its bases.
    """
    import vllm

    package = Path(vllm.__file__).parent
    return [
        f"{owner.__name__}.{name}"
        for owner in scheduler_class.__mro__
        if owner.__module__.startswith("vllm.")
        for name, value in vars(owner).items()
        if callable(value) and not _is_function_below(package, getattr(value, "__func__", value))
    ]


def _is_function_below(package: Path, value: object) -> bool:
    # A proxy answers `__code__` and `isinstance` with what it wraps; its type is its own.
    if type(value) is not FunctionType:
        return False
    return package in Path(value.__code__.co_filename).parents


def observe_engine_core(module: Any, records: Records) -> None:
    """Look after each step of the engine.

    Args:
        module: The imported ``vllm.v1.engine.core``.
        records: Where to write.
    """
    observer = Observer(records)

    def observed(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        observer.look(instance.scheduler)
        return result

    wrapt.wrap_function_wrapper(module, "EngineCore.post_step", observed)
