"""Acts 1 to 4: a worker returns tokens for unfinished prompts, on vLLM 0.29.0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from demo.claims import Claim, death, same_tokens, service
from demo.report import answered, engine, show_act, show_table
from tests.engine.arms import (
    FAULT_GUARDED,
    FAULT_RATE,
    FAULT_UNGUARDED,
    HEALTHY_GUARDED,
    HEALTHY_UNGUARDED,
)
from tests.engine.experiment import Experiment
from tests.engine.load import REQUESTS_PER_ROUND, ROUNDS
from tests.engine.model import make_model
from tests.engine.outcome import Outcome

ACTS = (HEALTHY_UNGUARDED, FAULT_UNGUARDED, FAULT_GUARDED, HEALTHY_GUARDED)
INTRODUCTION = f"""
A real vLLM 0.29.0 engine, with asynchronous scheduling and a tiny model.
In each act {ROUNDS * REQUESTS_PER_ROUND} requests in {ROUNDS} rounds of {REQUESTS_PER_ROUND} at \
a time: long and short prompts, streamed and not.
The fault: for {FAULT_RATE:.0%} of the prompt chunks that are not a prompt's last, the worker \
returns a token.
"""
HEADINGS = (
    "",
    "answered",
    "/health",
    "EngineCore",
    "bogus tokens",
    "dropped",
    "tokens as in act 1",
)


def play(folder: Path) -> list[Claim]:
    """Play the acts and print what happens.

    Args:
        folder: For model, logs and records.

    Returns:
        All that was claimed.
    """
    print(INTRODUCTION, flush=True)
    experiment = Experiment(make_model(folder / "model"))
    outcomes: list[Outcome] = []
    all_claims: list[Claim] = []
    for number, arm in enumerate(ACTS, start=1):
        print(f"{number}. {arm.name}", flush=True)
        outcome = experiment.run(arm, folder / f"act-{number}")
        outcomes.append(outcome)
        act_claims = list(_claims(outcome, outcomes[0]))
        all_claims += act_claims
        show_act(outcome, act_claims, [_injected(outcome)] if arm.fault else [])
    show_table([HEADINGS, *(_row(outcome, outcomes[0]) for outcome in outcomes)])
    return all_claims


def _claims(outcome: Outcome, reference: Outcome) -> Iterator[Claim]:
    """Yield what is claimed about an act.

    Args:
        outcome: Of the act.
        reference: Of the act without fault and guard.
    """
    arm = outcome.arm
    if arm.fault and not arm.guard:
        source = outcome.crash.source if outcome.crash else ""
        yield Claim(
            "EngineCore died of the placeholder assertion", "num_output_placeholders" in source
        )
        yield Claim("requests were lost", outcome.answered < len(outcome.answers))
        yield from death(outcome)
    else:
        yield from service(outcome)
    if arm.guard:
        yield Claim("the guard was in the scheduler", bool(outcome.replaced_methods))
        acts = "each bogus token was dropped, and nothing else" if arm.fault else "it never acted"
        yield Claim(acts, outcome.triggers == outcome.injected)
        yield same_tokens("every request", outcome.different_from(reference), act=1)
    else:
        yield Claim("nothing was wrapped in the scheduler", not outcome.replaced_methods)
    if arm.fault:
        yield Claim("the worker returned bogus tokens", outcome.injected > 0)


def _injected(outcome: Outcome) -> str:
    return (
        f"{outcome.injected} bogus tokens for {outcome.victims} requests"
        f" (of {outcome.unfinished_chunks} unfinished prompt chunks)"
    )


def _row(outcome: Outcome, reference: Outcome) -> tuple[str, ...]:
    requests = len(outcome.answers)
    same = requests - len(outcome.different_from(reference))
    return (
        outcome.arm.name,
        answered(outcome),
        outcome.health,
        engine(outcome),
        str(outcome.injected),
        str(outcome.triggers) if outcome.arm.guard else "-",
        "-" if outcome is reference else f"{same} of {requests}",
    )
