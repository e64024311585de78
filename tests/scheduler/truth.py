"""What a faultless model would compute: the token of each request at each position.

A session's segment goes on from what came before it, less the last token sampled, which vLLM
drops; so positions count from the start of the session.
"""

from __future__ import annotations

from tests.scheduler.oracle import token_at
from tests.scheduler.workloads import Client


class Truth:
    """The right tokens of all clients, by the key of the segment that is being answered."""

    def __init__(self) -> None:
        self._inputs: dict[int, list[int]] = {}
        self._offsets: dict[int, int] = {}

    def add(self, client: Client) -> None:
        """Know what `client` will ask for."""
        known: list[int] = []
        for segment in client.segments:
            plan = segment.plan
            self._offsets[plan.key] = len(known)
            self._inputs[plan.key] = known = known + plan.prompt()
            known = known + plan.expected_tokens()[:-1]

    def token(self, key: int, position: int) -> int:
        """The token at `position` of the request or session that segment `key` belongs to."""
        known = self._inputs[key]
        if position < len(known):
            return known[position]
        return token_at(key, position - self._offsets[key])

    def tokens(self, key: int, end: int) -> list[int]:
        """The tokens at all positions before `end`."""
        known = self._inputs[key]
        return known[:end] + [self.token(key, place) for place in range(len(known), end)]
