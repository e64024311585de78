"""How a scheduler may be configured under random traffic: every pipeline from 1 to 4 frames."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.scheduler.adapter import (
    can_guard_preemption,
    has_model_runner_v2,
    pipeline_stages,
    recovers_preempted,
)
from tests.scheduler.experiment import BLOCK_SIZE, Setup

PROMPTS = (2, 40)
OUTPUTS = (1, 16)
"""Fewest and most tokens of a plain request."""

CROWD_PROMPTS = (3, 22)
CROWD_OUTPUTS = (6, 24)
"""The same for requests that come together: they decode for long."""

SESSION_SEGMENTS = (2, 3)
SESSION_PROMPTS = (2, 8)
SESSION_OUTPUTS = 6
"""All segments of a session have this limit: before 0.24 vLLM goes on with that of the first."""

ROOMY = 400


def _blocks(tokens: int, setup: Setup) -> int:
    """KV blocks for so many tokens and whatever the frames in flight add to them."""
    lookahead = max(setup.frames_in_flight, 3) * (setup.draft_tokens + 1)
    return -(-(tokens + lookahead) // BLOCK_SIZE)


def has_room(setup: Setup, sessions: int) -> bool:
    """Whether so many sessions leave room for the largest request.

    vLLM never takes the blocks of a session that waits for its next segment, so each must have its
    own, or they could block each other for ever.
    """
    request = _blocks(PROMPTS[1] + OUTPUTS[1], setup)
    session = _blocks(SESSION_SEGMENTS[1] * (SESSION_PROMPTS[1] + SESSION_OUTPUTS), setup)
    return setup.kv_blocks >= request + sessions * session + 2


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """A setup that this release can have, with room for the largest request at least."""
    asynchronous = draw(st.sampled_from((True, True, False)))
    depth = draw(st.sampled_from(_depths(asynchronous)))
    v2 = has_model_runner_v2() and draw(st.booleans())
    drafts = draw(st.sampled_from((0, 0, 1, 3))) if _may_draft(asynchronous, depth) else 0
    budget = draw(st.sampled_from((7, 9, 13, 20, 40)))
    blocks = ROOMY
    if recovers_preempted() and (can_guard_preemption() or not drafts):
        blocks = draw(st.integers(22, 44) | st.just(ROOMY))
    return Setup(
        asynchronous=asynchronous,
        frames_in_flight=depth,
        pipeline_stages=pipeline_stages(depth, v2) if asynchronous else depth,
        model_runner_v2=v2,
        draft_tokens=drafts,
        token_budget=budget,
        max_requests=min(draw(st.sampled_from((4, 8))), budget),
        prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(("fcfs", "priority"))),
        kv_blocks=blocks,
    )


def _depths(asynchronous: bool) -> tuple[int, ...]:
    if not asynchronous:
        return (1, 2, 3, 4)
    # Before 0.12 no more than one frame is ahead of the one that is computed.
    return (2, 3, 4) if can_guard_preemption() else (2,)


def _may_draft(asynchronous: bool, depth: int) -> bool:
    """A synchronous scheduler gets its drafts from the worker after each frame.

    With further frames in flight they would be those of an older token.
    """
    return asynchronous or depth == 1
