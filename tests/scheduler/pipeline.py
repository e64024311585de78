"""Drives a real scheduler in the order of vLLM's batch queue and records what it delivers.

A frame is scheduled as long as the queue has room; else the oldest frame in flight is returned.
Frames come back first in, first out.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request, RequestStatus

from tests.scheduler.adapter import (
    counters_of,
    free_blocks,
    make_request,
    make_scheduler,
)
from tests.scheduler.experiment import Meddler, Setup
from tests.scheduler.oracle import RequestPlan
from tests.scheduler.outputs import prompt_logprobs_labels
from tests.scheduler.worker import Worker

MAX_STEPS = 400
"""No scenario comes near; a scheduler that makes no progress ends here instead of hanging."""


class NoProgress(Exception):
    """The scheduler has requests and never finishes them."""


@dataclass
class Delivered:
    """What the client of one request got, and how the request looked in the end."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    client: int | None = None
    """Which of the engine's clients the last output was meant for."""
    prompt_logprobs: list[tuple[int, int]] = field(default_factory=list)
    """Label of each delivery, and the number of tokens that had been delivered before it."""
    preemptions: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    in_flight_at_finish: bool = False
    """Whether rows of it were still in flight when it finished; vLLM forgets these uncounted."""


@dataclass
class RaisedError:
    """An exception of the scheduler: `where` is the last frame of its traceback."""

    type: str
    message: str
    where: str
    source: str


@dataclass
class Outcome:
    """All that one run of a scenario showed. Requests are called by the names of their plans."""

    requests: dict[str, Delivered] = field(default_factory=dict)
    error: RaisedError | None = None
    trace: list[dict[str, int]] = field(default_factory=list)
    free_blocks_before: int = 0
    free_blocks_after: int = 0
    unfinished_requests: int = 0
    frames_without_room: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    bogus_rows: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain lists and mappings."""
        return asdict(self)


class Pipeline:
    """One scheduler, one worker and the queue of frames between them.

    `plans` are added when their step comes; `meddlers` are called in order.
    """

    def __init__(
        self,
        setup: Setup,
        plans: Sequence[RequestPlan],
        worker: Worker,
        meddlers: Sequence[Meddler] = (),
    ) -> None:
        self.setup = setup
        self.worker = worker
        self.meddlers = meddlers
        self.scheduler = make_scheduler(setup)
        self.step_number = 0
        self.frames_returned = 0
        self.frames_in_flight: deque[Any] = deque()
        self.outcome = Outcome(free_blocks_before=free_blocks(self.scheduler))
        self._to_arrive = sorted(plans, key=lambda plan: plan.arrives_at)
        self._live: dict[str, RequestPlan] = {}
        self._requests: dict[str, Request] = {}

    def run(self) -> Outcome:
        """Step until nothing is left to do or the scheduler raises, and return the record."""
        try:
            while self._has_work():
                self._step()
        except Exception as error:
            self.outcome.error = _describe(error)
        self._record_end()
        return self.outcome

    def add(self, plan: RequestPlan) -> None:
        """Add a request to the scheduler."""
        request = self.make_request(plan)
        self._live[plan.request_id] = plan
        self._requests[plan.name] = request
        self.outcome.requests[plan.name] = Delivered()
        self.scheduler.add_request(request)

    def make_request(self, plan: RequestPlan) -> Request:
        """The real request of a plan."""
        return make_request(plan, self.setup)

    def abort(self, request_id: str) -> None:
        """Finish a request as a client that hung up does."""
        self.scheduler.finish_requests([request_id], RequestStatus.FINISHED_ABORTED)

    def request(self, name: str) -> Request:
        """The real request of the plan called `name`."""
        return self._requests[name]

    def is_in_flight(self, request_id: str) -> bool:
        """Whether some frame in flight carries the request."""
        return any(request_id in frame.num_scheduled_tokens for frame in self.frames_in_flight)

    def _has_work(self) -> bool:
        return bool(self._to_arrive or self.frames_in_flight or self.scheduler.has_requests())

    def _step(self) -> None:
        if self.step_number == MAX_STEPS:
            raise NoProgress(f"no end after {MAX_STEPS} steps")
        while self._to_arrive and self._to_arrive[0].arrives_at <= self.step_number:
            self.add(self._to_arrive.pop(0))
        for meddler in self.meddlers:
            meddler.before_step(self)
        self.step_number += 1
        scheduled = self.scheduler.has_requests() and self._schedule()
        room_left = len(self.frames_in_flight) < self.setup.frames_in_flight
        if self.frames_in_flight and not (scheduled and room_left):
            self._return_oldest_frame()

    def _schedule(self) -> bool:
        """Schedule a frame and put it in flight; tell whether it computes anything."""
        frame = self.scheduler.schedule()
        self.frames_in_flight.append(frame)
        self.worker.compute(frame)
        self._record_frame(frame)
        return frame.total_num_scheduled_tokens > 0

    def _return_oldest_frame(self) -> None:
        frame = self.frames_in_flight.popleft()
        self.frames_returned += 1
        answer = self.worker.answer()
        for meddler in self.meddlers:
            meddler.before_return(self, self.frames_returned)
        for client, outputs in self.scheduler.update_from_output(frame, answer).items():
            for output in outputs.outputs:
                self._record_output(output, client)
        if self.setup.draft_tokens and not self.setup.asynchronous and answer.req_ids:
            self._propose_drafts(answer.req_ids)

    def _propose_drafts(self, request_ids: list[str]) -> None:
        # What the drafts are does not matter: the worker decides how many it accepts.
        drafts = [[0] * self.setup.draft_tokens for _ in request_ids]
        self.scheduler.update_draft_token_ids(DraftTokenIds(request_ids, drafts))

    def _record_frame(self, frame: Any) -> None:
        names = {request_id: plan.name for request_id, plan in self._live.items()}
        self.outcome.trace.append(
            {names[request_id]: count for request_id, count in frame.num_scheduled_tokens.items()}
        )
        for request_id, drafts in frame.scheduled_spec_decode_tokens.items():
            scheduled = frame.num_scheduled_tokens[request_id]
            if scheduled <= len(drafts):
                self.outcome.frames_without_room.append(
                    f"frame {len(self.outcome.trace)}: {names[request_id]} has {scheduled} "
                    f"scheduled tokens and {len(drafts)} drafts"
                )

    def _record_output(self, output: Any, client: int) -> None:
        delivered = self.outcome.requests[self._live[output.request_id].name]
        delivered.client = client
        delivered.prompt_logprobs += [
            (label, len(delivered.tokens)) for label in prompt_logprobs_labels(output)
        ]
        delivered.tokens += output.new_token_ids
        if output.finish_reason is not None:
            delivered.finish_reason = str(output.finish_reason)
            delivered.in_flight_at_finish = self.is_in_flight(output.request_id)

    def _record_end(self) -> None:
        self.outcome.free_blocks_after = free_blocks(self.scheduler)
        self.outcome.unfinished_requests = self.scheduler.get_num_unfinished_requests()
        self.outcome.gaps = self.worker.gaps
        self.outcome.bogus_rows = dict(self.worker.bogus_rows)
        for name, request in self._requests.items():
            self.outcome.requests[name].preemptions = request.num_preemptions
            self.outcome.requests[name].counters = counters_of(request)


def _describe(error: Exception) -> RaisedError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return RaisedError(
        type=type(error).__name__,
        message=str(error),
        where=f"{Path(last.filename).name}:{last.lineno}",
        source=last.line or "",
    )
