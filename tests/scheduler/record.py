"""What one run of the simulator leaves behind."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.scheduler.workloads import Client


@dataclass(eq=False)
class Conversation:
    """One client and what it got: for each segment the tokens and the finish reason.

    `next_at` is the step at which the client acts next by itself, if it does.
    """

    client: Client
    sent: int = 0
    next_at: int | None = None
    answers: list[tuple[list[int], str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, int]] = field(default_factory=list)
    aborted: bool = False
    closed: bool = False

    @property
    def waits_for_answer(self) -> bool:
        """Whether a segment has been sent and not been answered to its end."""
        return not self.aborted and len(self.answers) < self.sent

    @property
    def is_over(self) -> bool:
        """Whether this client has nothing more to send."""
        return self.aborted or (self.closed and self.sent == len(self.client.segments))

    @property
    def delivered(self) -> int:
        """How many tokens the client has got, in all segments."""
        return sum(len(tokens) for tokens, _ in self.answers) + len(self.tokens)


@dataclass
class Run:
    """What one run showed. `problems` are violated invariants, `trace` is the schedule."""

    conversations: list[Conversation] = field(default_factory=list)
    crash: str | None = None
    stalled: bool = False
    leaked_blocks: int = 0
    preemptions: int = 0
    bogus_rows: int = 0
    wrong_reads: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    trace: list[dict[str, int]] = field(default_factory=list)


def describe(error: Exception) -> str:
    """An exception's type and the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
