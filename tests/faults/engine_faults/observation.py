"""Watches EngineCore and workers from where no guard wraps: the end of each of their steps."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from pathlib import Path
from types import FunctionType
from typing import Any

import wrapt

from .records import Records

# The runner of a CPU has it; most of its other methods are decorated by torch.
GATHER_STEPS = ("_gather_mm_embeddings",)


class Observer:
    """Writes what it sees whenever it differs from what it saw before.

    Args:
        records: Where to write.
        kind: Of the records about the class that is looked at.
        guard_kind: Of those about the guard.
    """

    def __init__(self, records: Records, kind: str, guard_kind: str) -> None:
        self._records = records
        self._kind = kind
        self._guard_kind = guard_kind
        self._seen: dict[str, dict[str, Any]] = {}
        self._has_guard = importlib.util.find_spec("vllm_guard") is not None

    def look(self, watched: object, names: Collection[str] | None = None) -> None:
        """Record the state of a class, and that of the guard if there is one.

        Args:
            watched: An instance of the class.
            names: The methods to look at; None: all.
        """
        replaced = _replaced_methods(type(watched), names)
        self._record(self._kind, {"class": type(watched).__name__, "replaced": replaced})
        if self._has_guard:
            import vllm_guard

            self._record(self._guard_kind, vllm_guard.status())

    def _record(self, kind: str, content: dict[str, Any]) -> None:
        if self._seen.get(kind) != content:
            self._records.write(kind, content)
            self._seen[kind] = content


def _replaced_methods(watched: type, names: Collection[str] | None) -> list[str]:
    """Name the methods that are not plain functions from a file of vLLM.

    Args:
        watched: Looked at with all its bases.
        names: The methods to look at; None: all.
    """
    import vllm

    package = Path(vllm.__file__).parent
    return [
        f"{owner.__name__}.{name}"
        for owner in watched.__mro__
        if owner.__module__.startswith("vllm.")
        for name, value in vars(owner).items()
        if (names is None or name in names)
        and callable(value)
        and not _is_function_below(package, getattr(value, "__func__", value))
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
    observer = Observer(records, "scheduler", "guard")

    def observed(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        observer.look(instance.scheduler)
        return result

    wrapt.wrap_function_wrapper(module, "EngineCore.post_step", observed)


def observe_worker(module: Any, records: Records) -> None:
    """Look at the model runner after each step of the worker, one that fails included.

    Args:
        module: The imported ``vllm.v1.worker.worker_base``.
        records: Where to write.
    """
    observer = Observer(records, "runner", "worker_guard")

    def observed(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            observer.look(instance.worker.model_runner, GATHER_STEPS)

    wrapt.wrap_function_wrapper(module, "WorkerWrapperBase.execute_model", observed)
