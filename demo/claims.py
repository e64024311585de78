"""What must hold in each act for the demo to succeed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.engine.outcome import Outcome
from tests.engine.server import HEALTHY


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


def service(outcome: Outcome) -> Iterator[Claim]:
    """Yield what is claimed of an act in which nothing is lost."""
    requests = len(outcome.answers)
    yield Claim(f"all {requests} requests were answered in full", outcome.answered == requests)
    yield Claim("/health is 200 afterwards", outcome.health == HEALTHY)
    yield Claim("EngineCore is one process throughout", outcome.kept_engine is not None)


def death(outcome: Outcome) -> Iterator[Claim]:
    """Yield what is claimed of an act in which the engine dies."""
    yield Claim("/health is not 200 afterwards", outcome.health != HEALTHY)
    yield Claim("EngineCore is gone", outcome.engine_processes[-1] is None)


def same_tokens(whose: str, different: list[str], act: int) -> Claim:
    """Claim that requests got the tokens of another act.

    Args:
        whose: The requests.
        different: Those that did not.
        act: Number of the other act.
    """
    names = f" (not so: {', '.join(different)})" if different else ""
    return Claim(f"{whose} got the same tokens as in act {act}{names}", not different)
