"""Families of seeded workloads: pure functions, the same on every release and in every arm."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.scheduler.experiment import Setup
from tests.scheduler.workloads import Builder, Workload


def _setup(rng: random.Random, **options: object) -> Setup:
    chosen: dict[str, object] = {
        "token_budget": rng.choice((12, 20, 40)),
        "max_requests": rng.choice((4, 8)),
        "prefix_caching": rng.random() < 0.5,
    }
    chosen |= options
    # vLLM wants room for one token of each request in a frame.
    chosen["max_requests"] = min(chosen["max_requests"], chosen["token_budget"])  # type: ignore[type-var]
    return Setup(**chosen)  # type: ignore[arg-type]


def _early_returns(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.3))


def quiet(rng: random.Random) -> Workload:
    """Nothing is tight and nothing goes wrong: the guards must not be noticed."""
    builder = Builder(rng)
    builder.add(rng.randint(3, 7), (2, 40), (1, 16))
    builder.share_prefixes()
    setup = _setup(rng, draft_tokens=rng.choice((0, 0, 2)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def chunked(rng: random.Random) -> Workload:
    """Long prompts in small frames, beside requests that decode."""
    builder = Builder(rng)
    builder.add(rng.randint(2, 3), (25, 70), (1, 10))
    builder.add(rng.randint(2, 4), (2, 12), (4, 20))
    builder.share_prefixes()
    setup = _setup(rng, token_budget=rng.choice((7, 9, 13)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def kv_pressure(rng: random.Random, drafts: int = 0) -> Workload:
    """More requests than KV blocks: the last to come are preempted."""
    builder = Builder(rng)
    builder.add(rng.randint(4, 7), (3, 22), (6, 24), latest=12)
    builder.share_prefixes()
    setup = _setup(rng, draft_tokens=drafts, kv_blocks=builder.tight_cache(drafts, (0, 6)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def priority(rng: random.Random) -> Workload:
    """KV pressure where the least important request is preempted, in the middle of a frame."""
    builder = Builder(rng)
    builder.add(rng.randint(4, 7), (3, 22), (6, 24), latest=16)
    builder.prioritise()
    setup = _setup(rng, policy="priority", kv_blocks=builder.tight_cache(0, (0, 6)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def spec_decode(rng: random.Random) -> Workload:
    """Drafts, some of them rejected."""
    builder = Builder(rng)
    builder.add(rng.randint(3, 6), (2, 40), (2, 20))
    setup = _setup(rng, draft_tokens=rng.randint(1, 3))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def spec_pressure(rng: random.Random) -> Workload:
    """Drafts and too few KV blocks."""
    return kv_pressure(rng, drafts=rng.randint(1, 3))


def aborts(rng: random.Random) -> Workload:
    """Clients hang up with frames in flight, and their ids are used again."""
    builder = Builder(rng)
    builder.add(rng.randint(4, 7), (3, 30), (4, 20), latest=10)
    builder.abort_some(0.5)
    setup = _setup(rng, draft_tokens=rng.choice((0, 0, 2)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def reset(rng: random.Random, drafts: int = 0) -> Workload:
    """The prefix cache is reset under running requests, which start over at once."""
    builder = Builder(rng)
    builder.add(rng.randint(3, 6), (3, 30), (4, 20), latest=10)
    builder.share_prefixes()
    blocks = rng.choice((400, builder.tight_cache(drafts, (4, 16))))
    setup = _setup(rng, draft_tokens=drafts, kv_blocks=blocks)
    resets = frozenset(rng.randint(2, 40) for _ in range(rng.randint(1, 4)))
    return Workload(setup, tuple(builder.clients), resets, early_return_share=_early_returns(rng))


def spec_reset(rng: random.Random) -> Workload:
    """Drafts and resets of the prefix cache."""
    return reset(rng, drafts=rng.randint(1, 3))


def prompt_logprobs(rng: random.Random) -> Workload:
    """Requests that want logprobs of their prompt, in chunks, under pressure or reset."""
    builder = Builder(rng)
    builder.add(rng.randint(3, 6), (8, 40), (3, 16), latest=10, prompt_logprobs=True)
    blocks = rng.choice((400, builder.tight_cache(0, (2, 10))))
    setup = _setup(rng, token_budget=rng.choice((9, 13)), kv_blocks=blocks, prefix_caching=False)
    resets = frozenset(rng.randint(2, 30) for _ in range(rng.randint(0, 2)))
    return Workload(setup, tuple(builder.clients), resets, early_return_share=_early_returns(rng))


def sessions(rng: random.Random, drafts: int = 0) -> Workload:
    """Resumable sessions beside plain requests; updates arrive early and late."""
    builder = Builder(rng)
    outputs = rng.randint(2, 9)
    for _ in range(rng.randint(2, 4)):
        builder.add_session((2, 14), outputs)
    builder.add(rng.randint(1, 3), (3, 24), (4, 20))
    setup = _setup(rng, draft_tokens=drafts)
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def spec_sessions(rng: random.Random) -> Workload:
    """Sessions with drafts."""
    return sessions(rng, drafts=rng.randint(1, 3))


def session_pressure(rng: random.Random) -> Workload:
    """Sessions that are the first to be preempted, and may stop while they are."""
    builder = Builder(rng)
    builder.add(rng.randint(4, 7), (3, 16), (8, 24), latest=12)
    for _ in range(rng.randint(1, 2)):
        builder.add_session((2, 8), rng.randint(2, 6), priority=3)
    setup = _setup(rng, policy="priority", kv_blocks=builder.tight_cache(0, (0, 2)))
    return Workload(setup, tuple(builder.clients), early_return_share=_early_returns(rng))


def faults(rng: random.Random) -> Workload:
    """The worker invents tokens for unfinished prefills; ids are used again with frames out."""
    builder = Builder(rng)
    builder.add(rng.randint(2, 3), (25, 70), (1, 10))
    builder.add(rng.randint(2, 4), (2, 12), (4, 20))
    builder.abort_some(0.3)
    setup = _setup(rng, token_budget=rng.choice((7, 9, 13)))
    share = rng.choice((0.2, 1.0))
    return Workload(setup, tuple(builder.clients), frozenset(), share, _early_returns(rng))


def structured_output(rng: random.Random) -> Workload:
    """Requests with a grammar beside plain ones: preempted, reset, aborted, and lied to."""
    builder = Builder(rng)
    builder.add(rng.randint(2, 4), (3, 40), (4, 20), latest=10, structured=True)
    builder.add(rng.randint(1, 3), (3, 22), (4, 20), latest=10)
    if rng.random() < 0.3:
        builder.abort_some(0.3)
    blocks = rng.choice((400, builder.tight_cache(0, (0, 8))))
    setup = _setup(rng, token_budget=rng.choice((9, 16)), kv_blocks=blocks)
    resets = frozenset(rng.randint(2, 30) for _ in range(rng.choice((0, 0, 2))))
    share = rng.choice((0.0, 0.3))
    return Workload(setup, tuple(builder.clients), resets, share, _early_returns(rng))


def mixture(rng: random.Random) -> Workload:
    """Everything at once, except sessions with drafts and what only one family is for."""
    builder = Builder(rng)
    drafts = rng.choice((0, 0, 1, 3))
    if not drafts and rng.random() < 0.5:
        builder.add_session((2, 12), rng.randint(2, 8))
    builder.add(rng.randint(4, 6), (3, 40), (2, 20), prompt_logprobs=rng.random() < 0.2)
    if rng.random() < 0.5:
        builder.share_prefixes()
    if rng.random() < 0.4:
        builder.abort_some(0.3)
    policy = rng.choice(("fcfs", "fcfs", "priority"))
    builder.prioritise()
    setup = _setup(
        rng,
        token_budget=rng.choice((9, 16, 32)),
        draft_tokens=drafts,
        policy=policy,
        kv_blocks=builder.tight_cache(drafts, (1, 10)),
    )
    resets = frozenset(rng.randint(2, 40) for _ in range(rng.choice((0, 0, 1, 3))))
    share = rng.choice((0.0, 0.0, 0.3))
    return Workload(setup, tuple(builder.clients), resets, share, _early_returns(rng))


FAMILIES: dict[str, Callable[[random.Random], Workload]] = {
    family.__name__.replace("_", "-"): family
    for family in (
        quiet,
        chunked,
        kv_pressure,
        priority,
        spec_decode,
        spec_pressure,
        aborts,
        reset,
        spec_reset,
        prompt_logprobs,
        sessions,
        spec_sessions,
        session_pressure,
        faults,
        structured_output,
        mixture,
    )
}

WITH_SESSIONS = ("sessions", "spec-sessions", "session-pressure")
"""Families that need resumable requests (0.15.1 on); the mixture leaves them out before."""

PREEMPTING_WITH_DRAFTS = ("spec-pressure", "spec-reset", "mixture")
"""Families in which drafts can outlive the preemption of their request (up to 0.13)."""

WITHOUT_PREEMPTION = ("quiet", "chunked", "spec-decode", "aborts", "sessions", "faults")
"""Families in which no request is ever preempted."""


def make_workload(family: str, seed: int, resumable: bool = True) -> Workload:
    """The workload `seed` of `family`; the same on every release and in every arm.

    `resumable` is false for a release without sessions: they are left out then.
    """
    workload = FAMILIES[family](random.Random(f"{family}/{seed}"))
    if resumable:
        return workload
    plain = tuple(client for client in workload.clients if not client.resumable)
    return replace(workload, clients=plain)
