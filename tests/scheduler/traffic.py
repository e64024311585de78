"""Traffic of any kind on a real scheduler, one event after the other, as hypothesis chooses.

Each event is a rule. Hypothesis puts rules together and cuts a failure down to the few that it
takes. What each client must get and what must hold at any time is judged as in every run of the
simulator. Events that no guard of ours answers to are left out, each with its reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

from tests.scheduler.adapter import (
    drops_stale_frames,
    mixes_pooling,
    supports_grammars,
    supports_sessions,
)
from tests.scheduler.experiment import Setup
from tests.scheduler.oracle import RequestPlan
from tests.scheduler.record import Conversation, describe
from tests.scheduler.simulation import PATIENCE, Simulation
from tests.scheduler.simulator import Playback
from tests.scheduler.traffic_setups import (
    SESSION_OUTPUTS,
    crowds,
    has_room,
    loadable_prompts,
    offers,
    outputs,
    priorities,
    prompts,
    session_turns,
    setups,
    stops,
    survives_failed_frame,
)
from tests.scheduler.verdicts import LOST_LOGPROBS, judge
from tests.scheduler.workloads import SHARED_PREFIX, Client, Segment
from vllm_guard import runtime


class WrongRun(AssertionError):
    """The oracle refuses a run."""


@dataclass
class Tally:
    """What has happened in all examples, to be sure that they test what they are for.

    Hypothesis gives up an example that takes it too many choices; it is not among the `examples`.
    """

    examples: int = 0
    events: Counter[str] = field(default_factory=Counter)
    pipelines: Counter[str] = field(default_factory=Counter)
    only_lost_logprobs: int = 0


class Traffic(RuleBasedStateMachine):
    """One scheduler and its clients; `seed` is what the simulation leaves open."""

    clients: Bundle[Conversation] = Bundle("clients")
    sessions: Bundle[Conversation] = Bundle("sessions")

    def __init__(self, tally: Tally, seed: int) -> None:
        super().__init__()
        self.tally = tally
        self.seed = seed
        self.simulation: Simulation
        self._keys = 0
        self._sessions = 0

    @initialize(setup=setups())
    def start(self, setup: Setup) -> None:
        self.simulation = Simulation(setup, self.seed)
        kind = "async" if setup.asynchronous else "sync"
        self.tally.pipelines[f"{kind}-depth{setup.frames_in_flight}"] += 1

    @rule(
        target=clients,
        prompt=prompts,
        limit=outputs,
        stop=stops,
        priority=priorities,
        shares_prefix=st.booleans(),
    )
    def plain_request(
        self, prompt: int, limit: int, stop: int | None, priority: int, shares_prefix: bool
    ) -> Conversation:
        shared = SHARED_PREFIX if shares_prefix and prompt > SHARED_PREFIX else 0
        plan = self._plan(prompt, limit, stop, shared_prefix=shared)
        return self._join("plain", Client((Segment(plan, 0),), priority=priority))

    @rule(target=clients, shapes=crowds)
    def crowd(self, shapes: list[tuple[int, int, int]]) -> Any:
        """Several requests at once: where KV blocks are few, they preempt each other."""
        talks = []
        for prompt, limit, priority in shapes:
            segment = Segment(self._plan(prompt, limit, None), 0)
            talks.append(self._join("plain", Client((segment,), priority=priority)))
        return multiple(*talks)

    @precondition(lambda self: supports_grammars() and not self.simulation.setup.draft_tokens)
    @rule(target=clients, prompt=prompts, limit=outputs, stop=stops)
    def structured_request(self, prompt: int, limit: int, stop: int | None) -> Conversation:
        # Not with drafts: vLLM has the worker's drafts checked by the grammar between two frames.
        plan = self._plan(prompt, limit, stop, structured=True)
        return self._join("structured", Client((Segment(plan, 0),)))

    @rule(target=clients, prompt=prompts, limit=outputs, stop=stops)
    def request_with_prompt_logprobs(
        self, prompt: int, limit: int, stop: int | None
    ) -> Conversation:
        plan = self._plan(prompt, limit, stop, prompt_logprobs=True)
        return self._join("prompt-logprobs", Client((Segment(plan, 0),)))

    @precondition(lambda self: mixes_pooling())
    @rule(target=clients, prompt=prompts, priority=priorities)
    def pooling_request(self, prompt: int, priority: int) -> Conversation:
        plan = self._plan(prompt, 1, None, pooled=True)
        return self._join("pooling", Client((Segment(plan, 0),), priority=priority))

    @precondition(lambda self: self.simulation.setup.kv_load_failures)
    @rule(
        target=clients,
        prompt=loadable_prompts,
        limit=outputs,
        stop=stops,
        offered=offers,
        waits=st.booleans(),
        fails=st.booleans(),
    )
    def request_that_loads_kv(
        self, *, prompt: int, limit: int, stop: int | None, offered: int, waits: bool, fails: bool
    ) -> Conversation:
        waits = waits or not survives_failed_frame(self.simulation.setup)
        plan = self._plan(prompt, limit, stop, offered=offered, waits=waits)
        self.simulation.worker.failing_loads += fails
        return self._join("loads-kv", Client((Segment(plan, 0),)))

    @precondition(
        lambda self: supports_sessions() and has_room(self.simulation.setup, self._sessions + 1)
    )
    @rule(target=sessions, turns=session_turns, priority=priorities)
    def session(self, turns: list[tuple[int, int | None]], priority: int) -> Conversation:
        self._sessions += 1
        request_id = f"session-{self._sessions}"
        plans = [
            self._plan(prompt, SESSION_OUTPUTS, stop, request_id=request_id)
            for prompt, stop in turns
        ]
        segments = tuple(Segment(plan, 0) for plan in plans)
        return self._join("session", Client(segments, resumable=True, priority=priority))

    @rule(talk=sessions)
    def next_segment(self, talk: Conversation) -> None:
        """The session's next segment, or its end: early, if the last one has no answer yet."""
        if not talk.is_over:
            self.tally.events["segment-early" if talk.waits_for_answer else "segment-late"] += 1
            self._send(talk)

    @rule(talk=sessions)
    def next_segment_after_the_answer(self, talk: Conversation) -> None:
        for _ in range(PATIENCE):
            if talk.waits_for_answer:
                self._step()
        self.next_segment(talk)

    @rule(talk=consumes(clients) | consumes(sessions))
    def client_aborts(self, talk: Conversation) -> None:
        self._hang_up(talk)

    @rule(
        target=clients,
        talk=consumes(clients) | consumes(sessions),
        prompt=prompts,
        limit=outputs,
        stop=stops,
    )
    def id_is_used_again(
        self, talk: Conversation, prompt: int, limit: int, stop: int | None
    ) -> Conversation:
        self._hang_up(talk)
        request_id = talk.client.request_id
        if request_id in self.simulation.scheduler.requests:
            # Its KV is still being loaded; vLLM would forget its blocks.
            request_id = ""
        plan = self._plan(prompt, limit, stop, request_id=request_id)
        in_flight = self.simulation.is_in_flight(plan.request_id)
        kind = "id-reuse-in-flight" if in_flight else "id-reuse"
        return self._join(kind, Client((Segment(plan, 0),)))

    @rule(running=st.booleans())
    def reset_prefix_cache(self, running: bool) -> None:
        self.tally.events["reset-running" if running else "reset"] += 1
        with self._judged():
            self.simulation.reset(running)

    @rule(share=st.sampled_from((0.0, 0.3, 1.0)))
    def worker_invents_tokens(self, share: float) -> None:
        """From now on for so many of the rows of unfinished prefills."""
        self.simulation.worker.bogus_share = share

    @precondition(lambda self: self.simulation.setup.asynchronous)
    @rule(surplus=st.integers(0, 2))
    def worker_returns_surplus(self, surplus: int) -> None:
        """From now on in each row; a synchronous scheduler has no placeholders to count them by."""
        self.simulation.worker.surplus = surplus

    @rule(count=st.integers(1, 10))
    def engine_steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @rule()
    def engine_step_that_returns_early(self) -> None:
        self._step(returns_early=True)

    def teardown(self) -> None:
        """Let everybody end, and judge the whole run."""
        if sys.exc_info()[0] is not None or not hasattr(self, "simulation"):
            return  # It has failed already, or hypothesis has given it up.
        for talk in self.simulation.run_record.conversations:
            if not talk.is_over and not talk.waits_for_answer:
                talk.next_at = self.simulation.step_number
        run = Playback(self.simulation, self.seed).run()
        self.tally.events["preemption"] += run.preemptions
        self.tally.events["bogus-row"] += run.bogus_rows
        self.tally.events["failed-load"] += len(self.simulation.worker.failed_loads)
        self.tally.examples += 1
        self._judge()

    def _plan(self, prompt: int, limit: int, stop: int | None, **more: Any) -> RequestPlan:
        self._keys += 1
        return RequestPlan(
            key=self._keys,
            name=f"request-{self._keys}",
            prompt_length=prompt,
            max_tokens=limit,
            # Not on the last token allowed: which reason is given then depends on the release.
            stops_after=stop if stop is not None and stop < limit else None,
            **more,
        )

    def _join(self, kind: str, client: Client) -> Conversation:
        self.tally.events[kind] += 1
        talk = self.simulation.join(client)
        self._send(talk)
        return talk

    def _send(self, talk: Conversation) -> None:
        with self._judged():
            self.simulation.send(talk)

    def _hang_up(self, talk: Conversation) -> None:
        if talk.is_over and not talk.waits_for_answer:
            return
        in_flight = self.simulation.is_in_flight(talk.client.request_id)
        self.tally.events["abort-in-flight" if in_flight else "abort"] += 1
        with self._judged():
            self.simulation.abort(talk)

    def _step(self, returns_early: bool = False) -> None:
        with self._judged():
            self.simulation.step(returns_early)

    @contextmanager
    def _judged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.simulation.run_record.crash = describe(error)
        self._judge(so_far=True)

    def _judge(self, so_far: bool = False) -> None:
        if runtime.internal_errors:
            raise WrongRun(f"swallowed: {[repr(found.error) for found in runtime.internal_errors]}")
        verdict = judge(self.simulation.run_record, so_far)
        if verdict.kinds == [LOST_LOGPROBS] and drops_stale_frames():
            # Where vLLM drops a stale frame by itself, the prompt logprobs that ride on it are
            # lost, and its runner V1 does not compute them twice. No guard is in place there.
            self.tally.only_lost_logprobs += 1
        elif verdict.kinds:
            raise WrongRun(str(verdict))
