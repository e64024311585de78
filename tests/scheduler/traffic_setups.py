"""What random traffic may look like: pipelines of 1 to 4 frames, and what is asked of them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.scheduler.adapter import (
    can_guard_preemption,
    has_model_runner_v2,
    load_failure_policies,
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

prompts = st.integers(*PROMPTS)
outputs = st.integers(*OUTPUTS)
stops = st.none() | st.integers(1, OUTPUTS[1] - 1)
"""After which token a request stops by itself, if that is before its limit."""
priorities = st.integers(0, 3)
crowds = st.lists(
    st.tuples(st.integers(*CROWD_PROMPTS), st.integers(*CROWD_OUTPUTS), priorities),
    min_size=3,
    max_size=6,
)
session_turns = st.lists(
    st.tuples(st.integers(*SESSION_PROMPTS), stops),
    min_size=SESSION_SEGMENTS[0],
    max_size=SESSION_SEGMENTS[1],
)
"""The prompt length of each segment and where it stops."""
loadable_prompts = st.integers(BLOCK_SIZE + 1, PROMPTS[1])
offers = st.integers(BLOCK_SIZE, PROMPTS[1])
"""How many tokens of a prompt can be loaded instead of being computed."""


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


def survives_failed_frame(setup: Setup) -> bool:
    """Whether vLLM is right when KV fails to load in the very frame that is computed from it.

    Told to recompute, it takes back what the request has computed and keeps its placeholders (0.12
    to 0.33), and its frames in flight are delivered; and model runner V2 counts for itself. No
    guard answers to that.
    """
    is_alone = setup.frames_in_flight == 1 and not setup.model_runner_v2
    return setup.kv_load_failures == "fail" or is_alone


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
        kv_load_failures=draw(st.sampled_from(("", "", "", *load_failure_policies()))),
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
