"""The demo's output for people."""

from __future__ import annotations

from demo.claims import REQUESTS, Claim
from tests.engine.arms import FAULT_RATE
from tests.engine.load import REQUESTS_PER_ROUND, ROUNDS
from tests.engine.outcome import Outcome

INTRODUCTION = f"""
vllm-guard demo: a real vLLM engine on this CPU, with asynchronous scheduling and a tiny model.
"No guard" is VLLMGUARD=off, with the package installed; it is checked that nothing is wrapped.
In each act {REQUESTS} requests in {ROUNDS} rounds of {REQUESTS_PER_ROUND} at a time: \
long and short prompts, streamed and not.
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


def show_act(outcome: Outcome, act_claims: list[Claim]) -> None:
    """Print what happened in an act.

    Args:
        outcome: Of the act.
        act_claims: What was claimed about it.
    """
    lines = [
        f"{outcome.answered} of {REQUESTS} requests answered, /health: {outcome.health},"
        f" EngineCore: {_engine(outcome)}"
    ]
    if outcome.crash:
        lines += [
            f"EngineCore's traceback ends: {outcome.crash.exception}",
            f"  {outcome.crash.source}",
            f"  {outcome.crash.place}",
        ]
    if outcome.arm.fault:
        lines.append(
            f"{outcome.injected} bogus tokens for {outcome.victims} requests"
            f" (of {outcome.unfinished_chunks} unfinished prompt chunks)"
        )
    lines += [f"{'ok   ' if claim.holds else 'FALSE'} {claim.text}" for claim in act_claims]
    print(*(f"   {line}" for line in lines), f"   {outcome.seconds:.0f} s\n", sep="\n", flush=True)


def show_table(outcomes: list[Outcome]) -> None:
    """Print one line for each act.

    Args:
        outcomes: Of all acts; the first is the reference.
    """
    rows = [HEADINGS, *(_row(outcome, outcomes[0]) for outcome in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _row(outcome: Outcome, reference: Outcome) -> tuple[str, ...]:
    same = REQUESTS - len(outcome.different_from(reference))
    return (
        outcome.arm.name,
        f"{outcome.answered} of {REQUESTS}",
        outcome.health,
        _engine(outcome),
        str(outcome.injected),
        str(outcome.triggers) if outcome.arm.guard else "-",
        "-" if outcome is reference else f"{same} of {REQUESTS}",
    )


def _engine(outcome: Outcome) -> str:
    if outcome.engine_processes[-1] is None:
        return "died"
    if outcome.kept_engine is None:
        return "replaced"
    return f"pid {outcome.kept_engine.pid} kept"
