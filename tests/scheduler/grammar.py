"""A grammar that allows one sequence only: it sees a token that is lost, doubled or out of order.

A token that a grammar rejects ends its request (0.20 on) or is only logged (before), so the
grammar keeps what it refused.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from tests.scheduler.oracle import RequestPlan


class ExactGrammar(StructuredOutputGrammar):
    """Accepts the expected tokens of `plan`, each once and in order."""

    def __init__(self, plan: RequestPlan) -> None:
        self._expected = plan.expected_tokens()
        self.accepted = 0
        self.refused: list[int] = []

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Whether `tokens` come next; then they count as seen."""
        if self.validate_tokens(tokens) != list(tokens):
            self.refused += tokens
            return False
        self.accepted += len(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Those first ones of `tokens` that come next."""
        following = self._expected[self.accepted : self.accepted + len(tokens)]
        matching = 0
        for token, right in zip(tokens, following, strict=False):
            if token != right:
                break
            matching += 1
        return list(tokens[:matching])

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens."""
        self.accepted -= num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """The simulated device needs no mask: it samples the right token or garbage."""

    def is_terminated(self) -> bool:
        """Whether the sequence is complete."""
        return self.accepted == len(self._expected)

    def reset(self) -> None:
        """Start over."""
        self.accepted = 0
