"""``clamp``: the worker returns a token that its frame may not deliver.

Reported as ``assert request.num_output_placeholders >= 0`` (vLLM #57562, #35755, #30142, #42492).
Each row is judged by what its frame computed, before vLLM sees it:

* frame rule: after this frame the request still has prompt left, so the row is empty;
* identity rule: the request has finished, so its rows in flight belong to nobody, whoever has
  its id by now;
* session rule: a resumable request has stopped, so its rows in flight belong to no segment;
* length rule: a frame samples one token, and one for each draft.

Where that cannot prove that the placeholders suffice, a net below stops the surplus.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm_guard.booking import ID_REUSE, Booking
from vllm_guard.definition import Definition
from vllm_guard.ledger import Frame, Ledger, Refusal
from vllm_guard.pipeline import LEDGER_TARGETS, PIPELINE, SCHEDULER, Rules
from vllm_guard.placeholder_net import PlaceholderNet
from vllm_guard.probes.delivery import probe
from vllm_guard.targets import Target

PREFILL_TOKEN = "prefill-token"
LAST_CHUNK = "last-chunk"
SESSION_BORDER = "session-border"
OVERLONG_ROW = "overlong-row"


class ClampRules(Rules):
    """The rules of the guard."""

    def scheduled(self, scheduler: Any, ledger: Ledger, frame: Frame) -> None:
        """Refuse the rows of prefills that this frame does not finish."""
        output = frame.output
        for new in output.scheduled_new_reqs:
            ledger.unsettled.add(new.req_id)
        ledger.unsettled.update(_resumed(output.scheduled_cached_reqs))
        if ledger.unsettled:
            for request_id in [*ledger.unsettled]:
                self._settle(scheduler, ledger, frame, request_id)
        if ledger.suspects:
            for request_id in [*ledger.suspects]:
                _watch(scheduler, ledger, frame, request_id)

    def returned(self, booking: Booking) -> PlaceholderNet | None:
        """Cut rows that are too long; spread the net where the placeholders may not suffice."""
        ledger, rows = booking.ledger, booking.rows
        if not ledger.counts_placeholders:
            return None
        for request_id, length in rows.overlong():
            request = booking.live(request_id)
            if request is not None:
                booking.count(self.guard, request, OVERLONG_ROW, "cut")
                if not self.guard.observes:
                    rows.cut(request_id, length)
        load_failed = rows.kv_load_failed
        if load_failed:
            ledger.doubt(rows.scheduled)
        if load_failed or booking.frame is None or booking.frame.suspect:
            return PlaceholderNet(self.guard, booking.scheduler, ledger, rows)
        return None

    def finishing(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """Refuse what is still in flight for a request that has finished."""
        ledger.blank(Refusal(ID_REUSE, request, self.guard))

    def stopping(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """Resume a session from what is known; what is in flight for the old segment is not.

        0.31 does this itself.
        """
        if not request.resumable or not self.guard.answers(SESSION_BORDER):
            return
        ledger.blank(Refusal(SESSION_BORDER, request, self.guard))
        if self.guard.observes:
            return
        # Not less by its placeholders: accepted drafts behind the stop have some too, and have
        # none in a synchronous scheduler. The last token has been sampled, not computed.
        known = request.num_tokens - 1
        request.num_computed_tokens = min(request.num_computed_tokens, known)
        request.num_output_placeholders = 0
        request.spec_token_ids = []

    def _settle(self, scheduler: Any, ledger: Ledger, frame: Frame, request_id: str) -> None:
        request = scheduler.requests.get(request_id)
        if request is None:
            ledger.forget(request_id)
        elif not frame.carries(request_id):
            return
        elif request.num_computed_tokens < request.num_tokens:
            # schedule() has advanced it already. Not is_prefill_chunk: that counts placeholders.
            frame.blank[request_id] = Refusal(PREFILL_TOKEN, request, self.guard)
        else:
            ledger.unsettled.discard(request_id)
            for other in ledger.in_flight(request_id):
                refusal = other.blank.get(request_id)
                if refusal is not None and refusal.reason == PREFILL_TOKEN:
                    other.blank[request_id] = Refusal(LAST_CHUNK, refusal.request, self.guard)
            if ledger.counts_placeholders:
                _audit(ledger, request, frame)


def _resumed(cached: Any) -> Collection[str]:
    resumed: Collection[str] | None = getattr(cached, "resumed_req_ids", None)
    if resumed is None:
        # Up to 0.11.2: a flag for each request.
        flags = cached.resumed_from_preemption
        return [id_ for id_, flag in zip(cached.req_ids, flags, strict=True) if flag]
    return resumed


def _balanced(request: Any) -> bool:
    """Whether the placeholders are exactly the tokens in flight, once its prefill is scheduled.

    Of all tokens computed or being computed, all but the last are known or have a placeholder.
    """
    return bool(
        request.num_computed_tokens + 1 == request.num_tokens + request.num_output_placeholders
    )


def _audit(ledger: Ledger, request: Any, frame: Frame) -> None:
    """Suspect a request that ends its prefill in this frame with counters that do not add up.

    They do not either while an older frame can still bring a row of it: its placeholder and
    this frame's are the same number on the request (a request resumed too early).
    """
    request_id = request.request_id
    owed = {id(other) for other in ledger.owing(request_id) if other is not frame}
    if owed or not _balanced(request):
        ledger.suspects[request_id] = owed | {id(frame)}


def _watch(scheduler: Any, ledger: Ledger, frame: Frame, request_id: str) -> None:
    """Mark the frame if it carries a suspect; clear the suspect once all is home and adds up."""
    request = scheduler.requests.get(request_id)
    if request is None:
        ledger.forget(request_id)
    elif frame.carries(request_id):
        in_flight = {id(other) for other in ledger.in_flight(request_id)}
        if _balanced(request) and not ledger.suspects[request_id] & in_flight:
            del ledger.suspects[request_id]
        else:
            frame.suspect = True


DEFINITION = Definition(
    name="clamp",
    faults=(PREFILL_TOKEN, LAST_CHUNK, SESSION_BORDER, ID_REUSE),
    targets=(
        *LEDGER_TARGETS,
        # Never replaced on the class: the net stands in for it on one scheduler for one frame.
        Target(
            SCHEDULER,
            "Scheduler._update_request_with_output",
            ("self", "request", "new_token_ids"),
            wrapped=False,
        ),
        Target(
            SCHEDULER,
            "Scheduler._handle_stopped_request",
            ("self", "request"),
            faults=(SESSION_BORDER,),
        ),
    ),
    probe=probe,
    wrappers=lambda guard: PIPELINE.attach(ClampRules(guard)),
)
