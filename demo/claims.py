"""What must hold in each act for the demo to succeed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.engine.load import REQUESTS_PER_ROUND, ROUNDS
from tests.engine.outcome import Outcome
from tests.engine.server import HEALTHY

REQUESTS = ROUNDS * REQUESTS_PER_ROUND


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


def claims(outcome: Outcome, reference: Outcome) -> Iterator[Claim]:
    """Yield what is claimed about an act.

    Args:
        outcome: Of the act.
        reference: Of the act without fault and guard.
    """
    arm = outcome.arm
    if arm.fault and not arm.guard:
        yield from _death(outcome)
    else:
        yield from _service(outcome)
    if arm.guard:
        yield Claim("the guard was in the scheduler", bool(outcome.replaced_methods))
        yield from _guarding(outcome, reference)
    else:
        yield Claim("nothing was wrapped in the scheduler", not outcome.replaced_methods)
    if arm.fault:
        yield Claim("the worker returned bogus tokens", outcome.injected > 0)


def _service(outcome: Outcome) -> Iterator[Claim]:
    yield Claim(f"all {REQUESTS} requests were answered in full", outcome.answered == REQUESTS)
    yield Claim("/health is 200 afterwards", outcome.health == HEALTHY)
    yield Claim("EngineCore is one process throughout", outcome.kept_engine is not None)


def _death(outcome: Outcome) -> Iterator[Claim]:
    source = outcome.crash.source if outcome.crash else ""
    yield Claim("EngineCore died of the placeholder assertion", "num_output_placeholders" in source)
    yield Claim("requests were lost", outcome.answered < REQUESTS)
    yield Claim("/health is not 200 afterwards", outcome.health != HEALTHY)
    yield Claim("EngineCore is gone", outcome.engine_processes[-1] is None)


def _guarding(outcome: Outcome, reference: Outcome) -> Iterator[Claim]:
    acts = (
        "each bogus token was dropped, and nothing else" if outcome.arm.fault else "it never acted"
    )
    yield Claim(acts, outcome.triggers == outcome.injected)
    different = outcome.different_from(reference)
    names = f" (not so: {', '.join(different)})" if different else ""
    yield Claim(f"every request got the same tokens as in act 1{names}", not different)
