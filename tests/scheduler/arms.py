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

CLAMP_SWITCH = "VLLMGUARD_CLAMP"


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
    with _unpatched_afterwards(arm.guard_mode):
        late = []
        if scenario.guard_from_frame is None:
            vllm_guard.register()
        else:
            late.append(RegisterLate(scenario.guard_from_frame, vllm_guard.register))
        outcome = _run(scenario, arm, late)
        guards = vllm_guard.status()["guards"]
        if not guards:
            raise RuntimeError(f"{scenario.name} ended before the guard came: {outcome.error}")
        return outcome.to_json() | {"guard": _report(guards["clamp"])}


def _run(scenario: Scenario, arm: Arm, meddlers: list[Meddler]) -> Outcome:
    worker = Worker(
        faults=Faults() if arm.is_healthy else scenario.faults,
        accept_all=scenario.accept_all_drafts,
    )
    meddlers = [*meddlers, scenario.make_meddler()]
    return Pipeline(scenario.setup, scenario.plans, worker, meddlers).run()


@contextmanager
def _unpatched_afterwards(mode: str) -> Iterator[None]:
    """Set the guard's switch, and put vLLM back in the end: the next arm may be unguarded."""
    os.environ[CLAMP_SWITCH] = mode
    try:
        yield
    finally:
        vllm_guard.unpatch()
        del os.environ[CLAMP_SWITCH]


def _report(clamp: dict[str, Any]) -> dict[str, Any]:
    """What the guard says of itself, and the errors of its own that it swallowed."""
    return {
        "state": clamp["state"],
        "effective": clamp["effective"],
        "triggers": clamp["triggers"],
        "internal_errors": [f"{guard}: {error!r}" for guard, error in runtime.internal_errors],
    }
