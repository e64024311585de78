"""Runs one arm of a scenario: the fault or a healthy worker, with or without the guard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import vllm_guard
from tests.scheduler.experiment import Arm, Faults, Meddler
from tests.scheduler.pipeline import Outcome, Pipeline
from tests.scheduler.scenarios import Scenario
from tests.scheduler.worker import Worker
from vllm_guard import runtime
from vllm_guard.settings import guard_variable


class RegisterLate(Meddler):
    """Registers the guard while frame `frame` is in flight, which it therefore does not know."""

    def __init__(self, frame: int, register: Callable[[], None]) -> None:
        self.frame = frame
        self.register = register

    def before_return(self, pipeline: Pipeline, frame: int) -> None:
        if frame == self.frame:
            self.register()


def run_arm(scenario: Scenario, arm: Arm) -> dict[str, Any]:
    """Run `scenario` in `arm`: the outcome, and under `guard` what the guard says of itself."""
    if arm.guard_mode is None:
        return _run(scenario, arm, []).to_json()
    with unpatched_afterwards("clamp", arm.guard_mode):
        late = []
        if scenario.guard_from_frame is None:
            vllm_guard.register()
        else:
            late.append(RegisterLate(scenario.guard_from_frame, vllm_guard.register))
        outcome = _run(scenario, arm, late)
        if not vllm_guard.status()["guards"]:
            raise RuntimeError(f"{scenario.name} ended before the guard came: {outcome.error}")
        return outcome.to_json() | {"guard": report("clamp")}


def _run(scenario: Scenario, arm: Arm, meddlers: list[Meddler]) -> Outcome:
    worker = Worker(
        faults=Faults() if arm.is_healthy else scenario.faults,
        accept_all=scenario.accept_all_drafts,
    )
    meddlers = [*meddlers, scenario.make_meddler()]
    return Pipeline(scenario.setup, scenario.plans, worker, meddlers).run()


@contextmanager
def unpatched_afterwards(guard: str, mode: str) -> Iterator[None]:
    """Set a guard's switch, and put vLLM back in the end: the next arm may be unguarded."""
    switch = guard_variable(guard)
    os.environ[switch] = mode
    try:
        yield
    finally:
        vllm_guard.unpatch()
        del os.environ[switch]


def report(guard: str) -> dict[str, Any]:
    """What a guard says of itself, and the errors of our own that were swallowed."""
    status = vllm_guard.status()["guards"][guard]
    return {
        "state": status["state"],
        "effective": status["effective"],
        "faults": status["faults"],
        "triggers": status["triggers"],
        "internal_errors": [f"{guard}: {error!r}" for guard, error in runtime.internal_errors],
    }
