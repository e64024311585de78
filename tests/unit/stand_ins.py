"""Small modules, guards and requests for tests that need no vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

from vllm_guard import runtime
from vllm_guard.definition import Definition
from vllm_guard.guard import Guard
from vllm_guard.settings import Settings
from vllm_guard.states import Finding, Mode, Verdict
from vllm_guard.targets import Target

MODULE = "engine.scheduler"

SOURCE = """
    calls = []

    class Scheduler:
        def schedule(self):
            calls.append("schedule")
            return "scheduled"

        def update(self, output):
            calls.append(output)
            if isinstance(output, Exception):
                raise output
            return output
"""

SCHEDULE = Target(MODULE, "Scheduler.schedule", ("self",))
UPDATE = Target(MODULE, "Scheduler.update", ("self", "output"))


def make_module(source: str = SOURCE, name: str = MODULE) -> ModuleType:
    """Return a module made of ``source``, as if it had been imported."""
    module = ModuleType(name)
    exec(compile(dedent(source), f"<{name}>", "exec"), vars(module))
    return module


def call_through(wrapped: Callable[..., Any], _instance: Any, args: Any, kwargs: Any) -> Any:
    """Do nothing but call: the least that a wrapper can do."""
    return wrapped(*args, **kwargs)


def needed(_module: ModuleType, _loaded: object) -> Mapping[str, Finding]:
    """Find the one fault of the stand-in guard in whatever module."""
    return finds(Verdict.NEEDED)(_module)


def finds(verdict: Verdict) -> Callable[..., Mapping[str, Finding]]:
    """Return a probe that always finds ``verdict``."""
    return lambda *_: {"fault": Finding(verdict, f"the probe says {verdict}")}


def make_guard(mode: Mode = Mode.AUTO, **changes: Any) -> Guard:
    """Return a guard of both methods of the stand-in module; ``changes`` to its `Definition`."""
    declared: dict[str, Any] = {
        "name": "clamp",
        "faults": ("fault",),
        "targets": (SCHEDULE, UPDATE),
        "probe": needed,
        "wrappers": lambda _guard: {SCHEDULE.path: call_through, UPDATE.path: call_through},
    }
    definition = Definition(**(declared | changes))
    chosen = Settings(modes={definition.name: mode})
    return Guard(definition, chosen, runtime.internal_errors)


def make_request(**changes: Any) -> SimpleNamespace:
    """Return what our code reads of a request: half of its prompt is computed."""
    values = {
        "request_id": "r",
        "num_computed_tokens": 4,
        "num_tokens": 9,
        "num_output_placeholders": 0,
    }
    return SimpleNamespace(**(values | changes))
