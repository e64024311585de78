"""Which token belongs where: known without running anything, so that every result can be judged."""

from __future__ import annotations

from dataclasses import dataclass, field

TOKENS_PER_REQUEST = 1_000_000
"""Token ids of one request lie in one range of this size, so that a stray token names its owner."""

BOGUS_TOKEN = 7
"""What a faulty worker returns for a row that must not deliver; in no expected sequence."""


@dataclass(frozen=True)
class RequestPlan:
    """One request of a scenario.

    `key` is its number (each plan its own), `name` what results call it, `prompt_length` and
    `max_tokens` are in tokens. `arrives_at` is the engine step before which it is added.
    `stops_after` makes its n-th output token a stop token. `shared_prefix` is how many of its
    first prompt tokens it has in common with every other request. `request_id` is the name unless
    given. `structured` gives it a grammar that allows its expected tokens only. `pooled` asks for a
    vector instead of tokens: with its prompt computed it ends, and its vector holds the token that
    would have come next, by which it is judged as the others are. KV of its first `offered` tokens
    can be loaded; it `waits` for that before it is scheduled.
    """

    key: int
    name: str
    prompt_length: int
    max_tokens: int
    arrives_at: int = 0
    stops_after: int | None = None
    shared_prefix: int = 0
    prompt_logprobs: bool = False
    structured: bool = False
    pooled: bool = False
    offered: int = 0
    waits: bool = True
    request_id: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "request_id", self.request_id or self.name)

    def prompt(self) -> list[int]:
        """The prompt; its last token is the owner's, by which the worker knows the request."""
        own = [token_at(self.key, place) for place in range(self.shared_prefix, self.prompt_length)]
        return [token_at(0, place) for place in range(self.shared_prefix)] + own

    def expected_tokens(self) -> list[int]:
        """The output tokens that a right engine delivers, in order."""
        count = self.max_tokens if self.stops_after is None else self.stops_after
        count = 1 if self.pooled else count
        return [token_at(self.key, self.prompt_length + step) for step in range(count)]

    def stop_token(self) -> int | None:
        """The token on which the request stops before `max_tokens`, if it does."""
        return None if self.stops_after is None else self.expected_tokens()[-1]

    def expected_finish_reason(self) -> str:
        """`stop` or `length`, as vLLM spells them."""
        return "length" if self.stops_after is None and not self.pooled else "stop"


def token_at(key: int, position: int) -> int:
    """The token of request `key` at `position` (0-based, prompt included)."""
    return TOKENS_PER_REQUEST * (key + 1) + position


def owner_of(token: int) -> int:
    """The key of the request that `token` belongs to."""
    return token // TOKENS_PER_REQUEST - 1
