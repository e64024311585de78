"""The scenarios: a setup, the requests, what is wrong, and how unguarded vLLM takes it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tests.scheduler.experiment import Arm, Faults, Meddler, Setup, Symptom
from tests.scheduler.meddlers import IdReuse, LowerPlaceholders
from tests.scheduler.oracle import RequestPlan


@dataclass(frozen=True)
class Scenario:
    """One situation that every arm is run in.

    `symptom` is what unguarded vLLM does (none: not foreseen, and not looked at);
    `symptom_from_033`, where it differs, what it does since a token without any placeholder is no
    longer asserted. `faults` apply to all arms but the
    healthy ones; `own_triggers` are the triggers that the worker does not count, because the fault
    is not its own, and there is no healthy arm then. `added_later` are the plans that the meddler
    adds, `aborted` the names of those that do not run to their end. `guard_from_frame` is the
    number of the frame that is in flight, unknown to the guard, when the guard is registered
    (none: it is registered before the scheduler is built).
    """

    name: str
    symptom: Symptom | None
    plans: tuple[RequestPlan, ...]
    setup: Setup = field(default_factory=Setup)
    faults: Faults = field(default_factory=Faults)
    symptom_from_033: Symptom | None = None
    accept_all_drafts: bool = False
    make_meddler: Callable[[], Meddler] = Meddler
    added_later: tuple[RequestPlan, ...] = ()
    aborted: tuple[str, ...] = ()
    guard_from_frame: int | None = None
    has_healthy_arm: bool = True
    own_triggers: Mapping[str, int] = field(default_factory=dict)

    @property
    def arms(self) -> list[Arm]:
        """The arms that make sense."""
        return [
            arm
            for arm in Arm
            if (self.has_healthy_arm or not arm.is_healthy)
            and (self.symptom is not None or arm not in (Arm.UNGUARDED, Arm.OBSERVED))
        ]

    @property
    def finishing_plans(self) -> list[RequestPlan]:
        """The plans that run to their end."""
        return [plan for plan in self.plans + self.added_later if plan.name not in self.aborted]


LONG_AND_SHORT = (
    RequestPlan(1, "decoding", prompt_length=5, max_tokens=24),
    RequestPlan(2, "long", prompt_length=70, max_tokens=12, arrives_at=3),
    RequestPlan(3, "stopping", prompt_length=41, max_tokens=20, stops_after=6, arrives_at=4),
    RequestPlan(4, "short", prompt_length=3, max_tokens=1, arrives_at=8),
)
"""A request that decodes while others prefill in chunks; one stops on a token, one at once."""

SHARING_A_PREFIX = (
    RequestPlan(1, "first", prompt_length=40, max_tokens=8, shared_prefix=32),
    RequestPlan(2, "second", prompt_length=75, max_tokens=8, shared_prefix=32, arrives_at=12),
    RequestPlan(3, "third", prompt_length=52, max_tokens=9, shared_prefix=32, arrives_at=14),
)

WITH_PROMPT_LOGPROBS = (
    RequestPlan(1, "decoding", prompt_length=5, max_tokens=24),
    RequestPlan(2, "scored", prompt_length=50, max_tokens=6, arrives_at=3, prompt_logprobs=True),
    RequestPlan(3, "long", prompt_length=60, max_tokens=6, arrives_at=5),
)

TOO_MANY_FOR_THE_CACHE = tuple(
    RequestPlan(key, f"request-{key}", prompt_length=18 + key, max_tokens=24) for key in range(1, 6)
)

TOKEN_FOR_EVERY_ROW = Faults(prefill_tokens=True)

CRASH = Symptom.PLACEHOLDER_ASSERTION
WRONG = Symptom.WRONG_TOKENS


def _prefill_scenarios() -> list[Scenario]:
    pressed = Setup(kv_blocks=25)
    pressed_v2 = Setup(kv_blocks=25, model_runner_v2=True)
    caching = Setup(prefix_caching=True)
    three_frames = Setup(draft_tokens=2, frames_in_flight=3)
    return [
        Scenario(f"prefill-token{suffix}", CRASH, plans, setup, TOKEN_FOR_EVERY_ROW, from_033)
        for suffix, plans, setup, from_033 in (
            ("", LONG_AND_SHORT, Setup(), WRONG),
            ("-one-frame", LONG_AND_SHORT, Setup(frames_in_flight=1), WRONG),
            ("-three-frames", LONG_AND_SHORT, Setup(frames_in_flight=3), WRONG),
            # With drafts, 0.33 delivers the bogus token and dies later all the same.
            ("-spec-decode", LONG_AND_SHORT, Setup(draft_tokens=3), CRASH),
            ("-spec-decode-three-frames", LONG_AND_SHORT, three_frames, WRONG),
            ("-prefix-caching", SHARING_A_PREFIX, caching, WRONG),
            ("-kv-pressure", TOO_MANY_FOR_THE_CACHE, pressed, WRONG),
            ("-kv-pressure-runner-v2", TOO_MANY_FOR_THE_CACHE, pressed_v2, WRONG),
        )
    ]


def _last_chunk_scenarios() -> list[Scenario]:
    faults = Faults(last_but_one=True)
    return [
        Scenario(f"last-chunk{suffix}", WRONG, LONG_AND_SHORT, setup, faults, from_033)
        for suffix, setup, from_033 in (
            ("", Setup(), WRONG),
            ("-three-frames", Setup(frames_in_flight=3), WRONG),
            ("-spec-decode", Setup(draft_tokens=3), CRASH),
        )
    ]


def _synchronous_scenarios() -> list[Scenario]:
    return [
        Scenario(f"synchronous{suffix}", WRONG, LONG_AND_SHORT, setup, TOKEN_FOR_EVERY_ROW)
        for suffix, setup in (
            ("", Setup(asynchronous=False, frames_in_flight=1)),
            ("-two-frames", Setup(asynchronous=False, frames_in_flight=2)),
            ("-spec-decode", Setup(asynchronous=False, frames_in_flight=1, draft_tokens=2)),
        )
    ]


def _prompt_logprobs_scenarios() -> list[Scenario]:
    early = Faults(prefill_tokens=True, early_logprobs=True, no_final_logprobs=True)
    both = Faults(prefill_tokens=True, early_logprobs=True)
    last_chunk = Faults(last_but_one=True, early_logprobs=True)
    alone = Faults(early_logprobs_alone=True)
    without_tokens = Symptom.LOGPROBS_ASSERTION
    return [
        Scenario(
            f"prompt-logprobs-{name}", symptom, WITH_PROMPT_LOGPROBS, Setup(), faults, from_033
        )
        for name, symptom, faults, from_033 in (
            ("early", CRASH, early, WRONG),
            ("late", CRASH, TOKEN_FOR_EVERY_ROW, WRONG),
            ("early-and-late", CRASH, both, WRONG),
            ("last-chunk", WRONG, last_chunk, WRONG),
            ("empty-row", without_tokens, alone, without_tokens),
        )
    ]


def _overlong_row_scenarios() -> list[Scenario]:
    one_more = Faults(surplus=1, surplus_for=(1,), surplus_at=4)
    two_more = Faults(surplus=2, surplus_for=(1,), surplus_at=4)
    return [
        Scenario(
            f"overlong-row{suffix}",
            symptom,
            LONG_AND_SHORT,
            setup,
            faults,
            accept_all_drafts=True,
        )
        for suffix, symptom, setup, faults in (
            ("", WRONG, Setup(), one_more),
            ("-one-frame", CRASH, Setup(frames_in_flight=1), one_more),
            ("-beyond-all-frames", CRASH, Setup(), two_more),
            ("-spec-decode", Symptom.STATISTICS_ASSERTION, Setup(draft_tokens=2), one_more),
        )
    ]


def _id_reuse_scenarios() -> list[Scenario]:
    bystander = RequestPlan(3, "bystander", prompt_length=9, max_tokens=20)
    first = RequestPlan(1, "first", prompt_length=6, max_tokens=30, request_id="reused")
    short = RequestPlan(2, "second", prompt_length=7, max_tokens=6, request_id="reused")
    long = RequestPlan(2, "second", prompt_length=60, max_tokens=6, request_id="reused")
    return [
        Scenario(
            f"id-reuse{suffix}",
            symptom,
            (bystander, first),
            setup,
            symptom_from_033=from_033,
            accept_all_drafts=True,
            make_meddler=partial(IdReuse, first, second),
            added_later=(second,),
            aborted=("first",),
            has_healthy_arm=False,
            # All frames in flight but the one just returned carry the first request.
            own_triggers={"id-reuse": setup.frames_in_flight - 1},
        )
        for suffix, symptom, second, setup, from_033 in (
            ("", WRONG, short, Setup(), WRONG),
            ("-three-frames", WRONG, short, Setup(frames_in_flight=3), WRONG),
            ("-while-prefilling", CRASH, long, Setup(), WRONG),
            ("-spec-decode", CRASH, short, Setup(draft_tokens=2), CRASH),
        )
    ]


def _net_scenarios() -> list[Scenario]:
    plans = (
        RequestPlan(1, "victim", prompt_length=5, max_tokens=20),
        RequestPlan(2, "bystander", prompt_length=6, max_tokens=20),
    )
    frame = 3
    return [
        Scenario(
            name,
            CRASH,
            plans,
            Setup(frames_in_flight=1, draft_tokens=drafts),
            symptom_from_033=from_033,
            accept_all_drafts=True,
            make_meddler=partial(LowerPlaceholders, "victim", frame, taken),
            guard_from_frame=frame,
            has_healthy_arm=False,
            own_triggers={"surplus": 1},
        )
        for name, drafts, taken, from_033 in (
            ("partial-keep", 2, 2, CRASH),
            ("negative-counter", 0, 2, Symptom.NEVER_SCHEDULED),
            ("negative-counter-spec-decode", 2, 4, CRASH),
        )
    ]


def _random_workloads(count: int) -> list[Scenario]:
    """Seeded mixtures of what the named scenarios look at one by one."""
    return [_random_workload(random.Random(seed), f"workload-{seed}") for seed in range(count)]


def _random_workload(rng: random.Random, name: str) -> Scenario:
    setup = Setup(
        frames_in_flight=rng.choice((1, 2, 2, 3)),
        token_budget=rng.choice((9, 16, 25)),
        prefix_caching=rng.random() < 0.5,
        draft_tokens=rng.choice((0, 0, 1, 3)),
        model_runner_v2=rng.random() < 0.5,
    )
    if setup.frames_in_flight < 3 and rng.random() < 0.5:
        # Not with more frames: preemption itself goes wrong then, up to 0.26.
        setup = replace(setup, kv_blocks=40)
    # The first prompt takes several chunks, so that every workload meets the fault.
    plans = [RequestPlan(1, "request-1", prompt_length=90, max_tokens=10)]
    for key in range(2, 7):
        max_tokens = rng.randint(1, 25)
        plans.append(
            RequestPlan(
                key,
                f"request-{key}",
                prompt_length=rng.randint(9, 80),
                max_tokens=max_tokens,
                arrives_at=rng.randint(0, 20),
                stops_after=rng.choice((None, rng.randint(1, max_tokens))),
                shared_prefix=8,
            )
        )
    last_but_one = setup.frames_in_flight > 1 and rng.random() < 0.3
    faults = Faults(last_but_one=last_but_one, prefill_tokens=not last_but_one)
    return Scenario(name, None, tuple(plans), setup, faults)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        *_prefill_scenarios(),
        *_last_chunk_scenarios(),
        *_synchronous_scenarios(),
        *_prompt_logprobs_scenarios(),
        *_overlong_row_scenarios(),
        *_id_reuse_scenarios(),
        *_net_scenarios(),
        *_random_workloads(20),
    )
}
