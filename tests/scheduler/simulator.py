"""Drives a real scheduler through a workload, in the order of the engine's batch queue.

As `EngineCore.step_with_batch_queue`: a frame is scheduled; the oldest frame in flight is returned
when the queue is full or nothing could be scheduled. Frames come back first in, first out.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vllm.v1.request import Request, RequestStatus

from tests.scheduler.adapter import (
    accepted,
    free_blocks,
    make_request,
    make_scheduler,
    preemptions_of,
)
from tests.scheduler.adapter import prompt_logprobs_labels as labels_of
from tests.scheduler.device import Device
from tests.scheduler.invariants import Invariants
from tests.scheduler.simulated_worker import SimulatedWorker
from tests.scheduler.truth import Truth
from tests.scheduler.views import ViewV1, ViewV2
from tests.scheduler.workloads import Client, Workload

MAX_STEPS = 3000
"""No workload comes near; a scheduler that makes no progress ends here instead of hanging."""

PATIENCE = 40
"""So many steps in a row with nothing to wait for and nothing done: the scheduler has stalled."""


@dataclass
class Conversation:
    """One client and what it got: for each segment the tokens and the finish reason."""

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


class Simulation:
    """One scheduler, one worker, the queue between them and the clients.

    `workload` is what happens; its setup says how many frames the queue holds and which runner's
    view the worker has. `seed` decides what the workload leaves open.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload = workload
        self.setup = workload.setup
        self.scheduler = make_scheduler(self.setup)
        several = self.setup.frames_in_flight > 2
        view = ViewV2() if self.setup.model_runner_v2 else ViewV1(keeps_tokens=several)
        self.device = Device(Truth(workload.clients), seed)
        self.worker = SimulatedWorker(view, self.device, workload.bogus_share, seed)
        self.invariants = Invariants(self.scheduler)
        self.run_record = Run([Conversation(client) for client in workload.clients])
        self._frames: deque[Any] = deque()
        self._live: dict[str, Conversation] = {}
        self._requests: list[Request] = []
        self._grammars: list[tuple[Conversation, Any]] = []
        self._random = random.Random(seed)
        self._step_number = 0
        self._idle_steps = 0

    def run(self) -> Run:
        """Run to the end, a crash or a stall, and return the record."""
        blocks = free_blocks(self.scheduler)
        for conversation in self.run_record.conversations:
            conversation.next_at = conversation.client.segments[0].delay
        try:
            while not self._is_over():
                self._clients_act()
                self._idle_steps = 0 if self._engine_step() else self._idle_steps + 1
                self._step_number += 1
        except Exception as error:
            self.run_record.crash = describe(error)
        else:
            self.run_record.stalled = self._is_stalled()
        self._record_end(blocks)
        return self.run_record

    def _is_over(self) -> bool:
        if self._step_number > MAX_STEPS or self._idle_steps > PATIENCE:
            return True
        return not self._frames and not self._is_expecting() and not self.scheduler.has_requests()

    def _is_expecting(self) -> bool:
        """Whether some client will still send something, or waits for an answer."""
        return any(
            not talk.is_over or talk.waits_for_answer for talk in self.run_record.conversations
        )

    def _is_stalled(self) -> bool:
        return self._step_number > MAX_STEPS or self._idle_steps > PATIENCE

    def _clients_act(self) -> None:
        if self._step_number in self.workload.resets:
            self._reset()
        for talk in self.run_record.conversations:
            if talk.aborted:
                continue
            if talk.next_at is not None and talk.next_at <= self._step_number:
                self._send(talk)
            client = talk.client
            hangs_up_at = client.segments[0].delay + (client.aborts_after or 0)
            if client.aborts_after is not None and self._step_number >= hangs_up_at:
                self._abort(talk)

    def _reset(self) -> None:
        # A session that waits for its next segment keeps its blocks, so vLLM refuses; its API
        # tells the caller, and the engine goes on.
        with suppress(RuntimeError):
            reset = self.scheduler.reset_prefix_cache
            reset(**accepted(type(self.scheduler).reset_prefix_cache, reset_running_requests=True))

    def _send(self, talk: Conversation) -> None:
        """Send the next segment, or the end of the session."""
        talk.next_at = None
        if talk.sent == len(talk.client.segments):
            self._close(talk)
            return
        segment = talk.client.segments[talk.sent]
        self._live[talk.client.request_id] = talk
        talk.sent += 1
        request = self._add(talk.client, segment.plan, resumable=talk.client.resumable)
        if request.use_structured_output:
            self._grammars.append((talk, request.structured_output_request.grammar))
        talk.closed = not talk.client.resumable
        if self._comes_early(talk):
            self._plan_next(talk)

    def _comes_early(self, talk: Conversation) -> bool:
        if talk.sent == len(talk.client.segments):
            return talk.client.closes_early
        return talk.client.segments[talk.sent].early

    def _plan_next(self, talk: Conversation) -> None:
        if talk.closed or talk.next_at is not None:
            return
        left = talk.client.segments[talk.sent :]
        talk.next_at = self._step_number + 1 + (left[0].delay if left else 1)

    def _close(self, talk: Conversation) -> None:
        talk.closed = True
        if talk.client.request_id in self.scheduler.requests:
            self._add(talk.client, talk.client.segments[-1].plan, resumable=False)

    def _add(self, client: Client, plan: Any, resumable: bool) -> Request:
        request = make_request(plan, self.setup)
        request.priority = client.priority
        # The clock must not decide who is preempted.
        request.arrival_time = self._step_number + len(self._requests) / 1000
        request.resumable = resumable
        if client.request_id not in self.scheduler.requests:
            self._requests.append(request)
        self.scheduler.add_request(request)
        return request

    def _abort(self, talk: Conversation) -> None:
        talk.aborted = True
        if self._live.get(talk.client.request_id) is talk:
            del self._live[talk.client.request_id]
            self.scheduler.finish_requests([talk.client.request_id], RequestStatus.FINISHED_ABORTED)

    def _engine_step(self) -> bool:
        """One `step_with_batch_queue`; tell whether anything was done."""
        computed = False
        if self.scheduler.has_requests():
            frame = self.scheduler.schedule()
            self._frames.append(frame)
            self.worker.compute(frame)
            computed = bool(frame.num_scheduled_tokens)
            self.run_record.trace.append(dict(frame.num_scheduled_tokens))
            self.invariants.after_schedule(frame)
            has_room = len(self._frames) < self.setup.frames_in_flight
            early = self._random.random() < self.workload.early_return_share
            if computed and has_room and not early:
                return True
        if not self._frames:
            return False
        return self._return_oldest_frame() or computed

    def _return_oldest_frame(self) -> bool:
        frame = self._frames.popleft()
        outputs = self.scheduler.update_from_output(frame, self.worker.answer())
        for core_outputs in outputs.values():
            for output in core_outputs.outputs:
                self._deliver(output)
        self.invariants.after_update(self._frames)
        return bool(frame.num_scheduled_tokens)

    def _deliver(self, output: Any) -> None:
        talk = self._live.get(output.request_id)
        if talk is None:
            self.invariants.problems.append(f"output for nobody: {output.request_id}")
            return
        before = sum(len(tokens) for tokens, _ in talk.answers) + len(talk.tokens)
        talk.prompt_logprobs += [(label, before) for label in labels_of(output)]
        talk.tokens += output.new_token_ids
        if output.finish_reason is not None:
            talk.answers.append((talk.tokens, str(output.finish_reason)))
            talk.tokens = []
            self._plan_next(talk)

    def _record_end(self, blocks_before: int) -> None:
        record = self.run_record
        record.preemptions = sum(map(preemptions_of, self._requests))
        record.wrong_reads = self.device.wrong_reads
        record.bogus_rows = self.worker.bogus_rows
        if not record.crash and not record.stalled:
            record.leaked_blocks = blocks_before - free_blocks(self.scheduler)
            self.invariants.at_end()
            self._check_grammars()
        record.problems = self.invariants.problems

    def _check_grammars(self) -> None:
        """A grammar must have seen what its client got, or it masks the wrong tokens."""
        for talk, grammar in self._grammars:
            delivered = sum(len(tokens) for tokens, _ in talk.answers) + len(talk.tokens)
            if grammar.refused or grammar.accepted != delivered:
                self.invariants.problems.append(
                    f"{talk.client.name}: grammar saw {grammar.accepted} of {delivered} tokens,"
                    f" refused {grammar.refused}"
                )


def simulate(workload: Workload, seed: int, **setup: Any) -> Run:
    """Run `workload` with `setup` changed: the depth of the queue and the view, usually."""
    changed = replace(workload, setup=replace(workload.setup, **setup))
    return Simulation(changed, seed).run()


def describe(error: Exception) -> str:
    """An exception's type and the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
