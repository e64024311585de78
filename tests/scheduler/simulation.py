"""Drives a real scheduler step by step, in the order of the engine's batch queue.

As `EngineCore.step_with_batch_queue`: a frame is scheduled; the oldest frame in flight is returned
when the queue is full or nothing could be scheduled. Frames come back first in, first out.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from vllm.v1.request import Request, RequestStatus

from tests.scheduler.adapter import (
    free_blocks,
    make_request,
    make_scheduler,
    preemptions_of,
)
from tests.scheduler.configuration import accepted
from tests.scheduler.device import Device
from tests.scheduler.experiment import Setup
from tests.scheduler.invariants import Invariants
from tests.scheduler.outputs import pooled_vector, propose_drafts
from tests.scheduler.outputs import prompt_logprobs_labels as labels_of
from tests.scheduler.record import Conversation, Run
from tests.scheduler.simulated_worker import SimulatedWorker
from tests.scheduler.truth import Truth
from tests.scheduler.views import ViewV1, ViewV2
from tests.scheduler.workloads import Client, Segment

MAX_STEPS = 3000
"""No workload comes near; a scheduler that makes no progress ends here instead of hanging."""

PATIENCE = 40
"""So many steps in a row with somebody waiting and nothing done: the scheduler has stalled."""


class Simulation:
    """One scheduler, one worker, the queue between them and the clients.

    `setup` says how many frames the queue holds and which runner's view the worker has. `seed`
    decides which drafts are accepted and which rows get an invented token.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.scheduler = make_scheduler(setup)
        # With more than one frame out a request may be left out of a frame while its token is away.
        keeps_tokens = setup.frames_in_flight > 2 or not setup.asynchronous
        view = ViewV2() if setup.model_runner_v2 else ViewV1(keeps_tokens)
        self.truth = Truth()
        self.device = Device(self.truth, seed)
        self.worker = SimulatedWorker(view, self.device, seed)
        self.invariants = Invariants(self.scheduler)
        self.run_record = Run(
            wrong_reads=self.device.wrong_reads, problems=self.invariants.problems
        )
        self.step_number = 0
        self._blocks = free_blocks(self.scheduler)
        self._frames: deque[Any] = deque()
        self._live: dict[str, Conversation] = {}
        self._requests: list[Request] = []
        self._grammars: list[tuple[Conversation, Any]] = []
        self._answered: list[Conversation] = []
        self._idle_steps = 0

    @property
    def is_stalled(self) -> bool:
        """Whether there is nothing more to hope for."""
        return self.step_number > MAX_STEPS or self._idle_steps > PATIENCE

    @property
    def is_idle(self) -> bool:
        """Whether no frame is in flight and no request is left."""
        return not self._frames and not self.scheduler.has_requests()

    def is_in_flight(self, request_id: str) -> bool:
        """Whether some frame in flight carries the request."""
        return any(request_id in frame.num_scheduled_tokens for frame in self._frames)

    def join(self, client: Client) -> Conversation:
        """Let a client in; it sends nothing yet."""
        self.truth.add(client)
        talk = Conversation(client)
        self.run_record.conversations.append(talk)
        return talk

    def send(self, talk: Conversation) -> None:
        """Send the next segment, or the end of the session."""
        if talk.sent == len(talk.client.segments):
            self._close(talk)
            return
        segment = talk.client.segments[talk.sent]
        self._live[talk.client.request_id] = talk
        talk.sent += 1
        request = self._add(talk.client, segment, resumable=talk.client.resumable)
        if request.use_structured_output:
            self._grammars.append((talk, request.structured_output_request.grammar))
        talk.closed = not talk.client.resumable

    def abort(self, talk: Conversation) -> None:
        """Let the client hang up."""
        talk.aborted = True
        if self._live.get(talk.client.request_id) is talk:
            del self._live[talk.client.request_id]
            self.scheduler.finish_requests([talk.client.request_id], RequestStatus.FINISHED_ABORTED)

    def reset(self, running: bool = True) -> None:
        """Reset the prefix cache; with `running` requests, which start over."""
        # A session that waits for its next segment keeps its blocks, so vLLM refuses; its API
        # tells the caller, and the engine goes on.
        with suppress(RuntimeError):
            reset = self.scheduler.reset_prefix_cache
            reset(
                **accepted(type(self.scheduler).reset_prefix_cache, reset_running_requests=running)
            )

    def step(self, returns_early: bool = False) -> None:
        """One `step_with_batch_queue`; `returns_early` if the oldest frame is home by its end."""
        is_awaited = any(talk.waits_for_answer for talk in self.run_record.conversations)
        did_something = self._engine_step(returns_early)
        self._idle_steps = self._idle_steps + 1 if is_awaited and not did_something else 0
        self.step_number += 1

    def take_answered(self) -> list[Conversation]:
        """Those who got the end of an answer since this was asked last."""
        answered, self._answered = self._answered, []
        return answered

    def end(self) -> Run:
        """Look at what is left, and return the record."""
        record = self.run_record
        record.stalled = not record.crash and self.is_stalled
        record.preemptions = sum(map(preemptions_of, self._requests))
        record.bogus_rows = self.worker.bogus_rows
        if not record.crash and not record.stalled:
            record.leaked_blocks = self._blocks - free_blocks(self.scheduler)
            self.invariants.at_end()
            self._check_grammars()
        return record

    def _close(self, talk: Conversation) -> None:
        talk.closed = True
        if talk.client.request_id in self.scheduler.requests:
            self._add(talk.client, talk.client.segments[-1], resumable=False)

    def _add(self, client: Client, segment: Segment, resumable: bool) -> Request:
        request = make_request(segment.plan, self.setup)
        request.priority = client.priority
        # The clock must not decide who is preempted.
        request.arrival_time = self.step_number + len(self._requests) / 1000
        request.resumable = resumable
        if client.request_id not in self.scheduler.requests:
            self._requests.append(request)
        self.scheduler.add_request(request)
        return request

    def _engine_step(self, returns_early: bool) -> bool:
        """Tell whether anything was done."""
        computed = False
        if self.scheduler.has_requests():
            frame = self.scheduler.schedule()
            self._frames.append(frame)
            self.worker.compute(frame)
            computed = bool(frame.num_scheduled_tokens)
            self.run_record.trace.append(dict(frame.num_scheduled_tokens))
            self.invariants.after_schedule(frame)
            has_room = len(self._frames) < self.setup.frames_in_flight
            if computed and has_room and not returns_early:
                return True
        if not self._frames:
            return False
        return self._return_oldest_frame() or computed

    def _return_oldest_frame(self) -> bool:
        frame = self._frames.popleft()
        answer = self.worker.answer()
        outputs = self.scheduler.update_from_output(frame, answer)
        for core_outputs in outputs.values():
            for output in core_outputs.outputs:
                self._deliver(output)
        if self.setup.draft_tokens and not self.setup.asynchronous:
            propose_drafts(self.scheduler, answer, self.setup.draft_tokens)
        self.invariants.after_update(self._frames)
        return bool(frame.num_scheduled_tokens)

    def _deliver(self, output: Any) -> None:
        talk = self._live.get(output.request_id)
        if talk is None:
            self.invariants.problems.append(f"output for nobody: {output.request_id}")
            return
        before = talk.delivered
        talk.prompt_logprobs += [(label, before) for label in labels_of(output)]
        talk.tokens += [*output.new_token_ids, *pooled_vector(output)]
        if str(output.finish_reason) == "error" and output.request_id in self.worker.failed_loads:
            # It was told to fail, with what it has got by then.
            talk.aborted = True
        elif output.finish_reason is not None:
            talk.answers.append((talk.tokens, str(output.finish_reason)))
            talk.tokens = []
            self._answered.append(talk)

    def _check_grammars(self) -> None:
        """A grammar must have seen what its client got, or it masks the wrong tokens."""
        for talk, grammar in self._grammars:
            if grammar.refused or grammar.accepted != talk.delivered:
                self.invariants.problems.append(
                    f"{talk.client.name}: grammar saw {grammar.accepted} of {talk.delivered}"
                    f" tokens, refused {grammar.refused}"
                )
