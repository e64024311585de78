"""The terms in which a scenario is described. Nothing here imports vLLM.

So pytest can collect and judge scenarios without it; only the subprocess that runs them pays for
the import.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.scheduler.pipeline import Pipeline

BLOCK_SIZE = 4
"""Tokens in a KV block."""

EARLY_LOGPROBS = 1
"""Label of prompt logprobs returned with an unfinished prefill chunk, where they do not belong."""

FINAL_LOGPROBS = 2
"""Label of prompt logprobs returned with the frame that finishes the prefill."""


class Arm(str, Enum):
    """Who is at fault and what the guard may do."""

    HEALTHY = "healthy"
    UNGUARDED = "unguarded"
    GUARDED = "guarded"
    HEALTHY_GUARDED = "healthy-guarded"
    OBSERVED = "observed"

    @property
    def is_healthy(self) -> bool:
        """Whether the worker makes no mistake in this arm."""
        return self in (Arm.HEALTHY, Arm.HEALTHY_GUARDED)

    @property
    def guard_mode(self) -> str | None:
        """The guard's switch in this arm; none where it is not registered."""
        if self in (Arm.HEALTHY, Arm.UNGUARDED):
            return None
        return "observe" if self is Arm.OBSERVED else "auto"


class Symptom(str, Enum):
    """What a scheduler does that gets a token it did not expect."""

    PLACEHOLDER_ASSERTION = "num_output_placeholders >= 0"
    """EngineCore dies on this assertion: the public reports."""

    LOGPROBS_ASSERTION = "not prompt_logprobs_tensors"
    """EngineCore dies on this assertion."""

    STATISTICS_ASSERTION = "num_accepted_tokens <= self.num_spec_tokens"
    """EngineCore dies on this assertion, if it keeps statistics (the default)."""

    NEVER_SCHEDULED = "never scheduled again"
    """No error, but a request is never scheduled again."""

    WRONG_TOKENS = "wrong tokens"
    """No error, but a foreign token is delivered, and a right one lost if `max_tokens` ends it."""

    NONE = "none"
    """Every request gets exactly its tokens."""


@dataclass(frozen=True)
class Setup:
    """How a scheduler is configured.

    `frames_in_flight` is the size of the engine's batch queue: 1 returns each frame before the
    next is scheduled. `token_budget` is the largest frame, in tokens. `draft_tokens` is the number
    of drafts per decode (0: no speculative decoding). `kv_blocks` includes vLLM's null block.
    `model_runner_v2` chooses the worker that frames are meant for: it gets resumed requests as new.
    `policy` is vLLM's scheduling policy; `pipeline_stages` is its pipeline parallel size.
    `kv_load_failures` is what vLLM does when KV cannot be loaded, `recompute` or `fail`; with none
    there is nothing to load from.
    """

    asynchronous: bool = True
    frames_in_flight: int = 2
    token_budget: int = 16
    max_requests: int = 8
    prefix_caching: bool = False
    draft_tokens: int = 0
    kv_blocks: int = 400
    model_runner_v2: bool = False
    policy: str = "fcfs"
    pipeline_stages: int = 1
    kv_load_failures: str = ""


@dataclass(frozen=True)
class Faults:
    """What a faulty worker does.

    `prefill_tokens`: a bogus token for every unfinished prefill chunk. `last_but_one`: a bogus
    token only for a chunk whose final chunk is in flight already. `early_logprobs`: prompt
    logprobs with the first unfinished chunk that gets a bogus token. `early_logprobs_alone`: with
    the first unfinished chunk, whatever its row. `no_final_logprobs`: none with the final chunk.
    `surplus`: that many bogus tokens beyond the frame's reservation, in the row of the requests
    `surplus_for` that begins with output token number `surplus_at`, if all its drafts are accepted
    (bogus tokens in the place of rejected drafts could not be told from accepted ones).
    """

    prefill_tokens: bool = False
    last_but_one: bool = False
    early_logprobs: bool = False
    early_logprobs_alone: bool = False
    no_final_logprobs: bool = False
    surplus: int = 0
    surplus_for: tuple[int, ...] = ()
    surplus_at: int = 0


class Meddler:
    """What somebody does to a pipeline while it runs: abort, add, change a counter.

    The methods of this base do nothing. One object meddles with one run only, so it may keep state.
    """

    def before_step(self, pipeline: Pipeline) -> None:
        """Called before each engine step."""

    def before_return(self, pipeline: Pipeline, frame: int) -> None:
        """Called when frame number `frame` (from 1) was computed and is about to be returned."""
