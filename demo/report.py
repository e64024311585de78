"""The demo's output for people."""

from __future__ import annotations

from collections.abc import Sequence

from demo.claims import Claim
from tests.engine.outcome import Outcome


def show_act(outcome: Outcome, act_claims: Sequence[Claim], remarks: Sequence[str] = ()) -> None:
    """Print what happened in an act.

    Args:
        outcome: Of the act.
        act_claims: What was claimed about it.
        remarks: What else there is to say.
    """
    lines = [
        f"{answered(outcome)} requests answered, /health: {outcome.health},"
        f" EngineCore: {engine(outcome)}"
    ]
    crashes = {"The worker": outcome.worker_crash, "EngineCore": outcome.crash}
    for process, crash in crashes.items():
        if crash:
            lines += [
                f"{process}'s traceback ends: {crash.exception}",
                f"  {crash.source}",
                f"  {crash.place}",
            ]
            break
    lines += remarks
    lines += [f"{'ok   ' if claim.holds else 'FALSE'} {claim.text}" for claim in act_claims]
    print(*(f"   {line}" for line in lines), f"   {outcome.seconds:.0f} s\n", sep="\n", flush=True)


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Print cells below each other.

    Args:
        rows: As many cells each; the first row is that of the headings.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def answered(outcome: Outcome) -> str:
    """Say how many requests of how many were answered in full."""
    return f"{outcome.answered} of {len(outcome.answers)}"


def engine(outcome: Outcome) -> str:
    """Say what became of EngineCore."""
    if outcome.engine_processes[-1] is None:
        return "died"
    if outcome.kept_engine is None:
        return "replaced"
    return f"pid {outcome.kept_engine.pid} kept"
