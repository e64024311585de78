"""``stale``: frames in flight of a request that has been preempted.

They come back after its counters were reset (vLLM #47900, #42043; fixed in 0.27.0 by PR #48245).
Up to 0.26 the counters balance by themselves if the request is not resumed before its frames are
home, so nothing is tagged, zeroed or delivered again:

* preempted: it is held back until its frames are home;
* preempted where its KV must be handed on when it ends (a KV producer), or by a cache reset: its
  rows in flight are refused, and it computes them again;
* a session that stopped while it was preempted, and is in no queue, is put into one.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from vllm_guard.definition import Definition
from vllm_guard.guard import Guard
from vllm_guard.ledger import Ledger, Refusal
from vllm_guard.pipeline import LEDGER_TARGETS, PIPELINE, SCHEDULER, Rules
from vllm_guard.probes.preemption import probe
from vllm_guard.rows import describe
from vllm_guard.targets import Target

RESUME_EARLY = "resume-early"
RESET = "reset"
NO_QUEUE = "no-queue"


class StaleRules(Rules):
    """The rules of the guard."""

    def hold(self, scheduler: Any, ledger: Ledger) -> Collection[Any]:
        """Hold preempted requests that a frame in flight still brings a row for."""
        held = []
        for request_id, preempted in list(ledger.preempted.items()):
            request, counted = preempted
            if request.status.name != "PREEMPTED" or not any(ledger.owing(request_id)):
                del ledger.preempted[request_id]
                continue
            if not counted:
                ledger.preempted[request_id] = (request, True)
                self._count(request, RESUME_EARLY, "held", "preempted with a frame in flight")
            held.append(request)
        return () if self.guard.observes else held

    def preempted(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """Note the request, or refuse its rows in flight where it may not end on one of them."""
        if not self.guard.answers(RESUME_EARLY):
            return
        if not self.guard.observes and request.spec_token_ids:
            # Up to 0.13 drafts outlive the preemption; they were for tokens computed again now.
            request.spec_token_ids = []
        if not any(ledger.owing(request.request_id)):
            return
        if _must_deliver_kv(scheduler):
            self._refuse(ledger, request, RESUME_EARLY)
        else:
            ledger.preempted[request.request_id] = (request, False)

    def were_reset(self, scheduler: Any, ledger: Ledger, requests: list[Any]) -> None:
        """Refuse the rows in flight of requests that start over from an empty cache."""
        if self.guard.answers(RESET):
            for request in requests:
                self._refuse(ledger, request, RESET)

    def booked(self, scheduler: Any, ledger: Ledger) -> None:
        """Put a session that goes on and was left in no queue into one."""
        if not self.guard.answers(NO_QUEUE):
            return
        for request in ledger.continued:
            if any(request in queue for queue in _queues(scheduler)):
                continue
            self._count(request, NO_QUEUE, "queued", "a session that goes on is in no queue")
            if not self.guard.observes:
                enqueue = getattr(scheduler, "_enqueue_waiting_request", None)
                (enqueue or scheduler.waiting.add_request)(request)

    def next_segment(
        self, scheduler: Any, ledger: Ledger, session: Any
    ) -> AbstractContextManager[None] | None:
        """Let a session that stopped while preempted keep its tokens."""
        if not self.guard.answers(NO_QUEUE) or self.guard.observes:
            return None
        return _KeepsTokens(session, self.guard)

    def finishing(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """Take a request that ends while preempted out of the queue that vLLM overlooks.

        0.18 to 0.26 look in ``waiting`` only, and raise when they find it finished later.
        """
        skipped = getattr(scheduler, "skipped_waiting", None)
        if self.guard.answers(RESUME_EARLY) and not self.guard.observes and skipped:
            skipped.remove_requests([request])

    def _refuse(self, ledger: Ledger, request: Any, reason: str) -> None:
        ledger.blank(Refusal(reason, request, self.guard))
        if self.guard.observes:
            return
        request.num_output_placeholders = 0
        # vLLM's own one-shot discards would now eat good tokens: 0.12 to 0.21, 0.22 to 0.26.
        if hasattr(request, "discard_latest_async_tokens"):
            request.discard_latest_async_tokens = False
        if hasattr(request, "async_tokens_to_discard"):
            request.async_tokens_to_discard = 0

    def _count(self, request: Any, reason: str, action: str, event: str) -> None:
        self.guard.counters.record(
            reason,
            "observed" if self.guard.observes else action,
            describe(request, event),
            "`vllm-guard explain stale` says more.",
        )


class _KeepsTokens:
    """Inside the ``with`` block the session looks as if its known tokens were computed.

    Up to 0.32 the next segment cuts it down to what is computed: to nothing, where it stopped
    while it was preempted. The last token was sampled and not computed; vLLM drops it.

    Args:
        session: The vLLM request.
        guard: How to fail.
    """

    def __init__(self, session: Any, guard: Guard) -> None:
        self._session = session
        self._guard = guard
        self._computed = session.num_computed_tokens

    def __enter__(self) -> None:
        with self._guard.failing_open:
            known = self._session.num_tokens - 1
            self._session.num_computed_tokens = max(self._computed, known)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._guard.failing_open:
            self._session.num_computed_tokens = self._computed


def _must_deliver_kv(scheduler: Any) -> bool:
    """Whether the KV of a request is handed on when it ends, so that it must still be there."""
    connector = scheduler.connector
    if connector is None:
        return False
    producer = scheduler.vllm_config.kv_transfer_config.is_kv_producer
    return bool(getattr(connector, "requires_kv_delivery", producer))


def _queues(scheduler: Any) -> list[Any]:
    names = ("running", "waiting", "skipped_waiting", "kv_holding_waiting", "deferred_waiting")
    return [queue for name in names if (queue := getattr(scheduler, name, None))]


DEFINITION = Definition(
    name="stale",
    faults=(RESUME_EARLY, RESET, NO_QUEUE),
    targets=(
        *LEDGER_TARGETS,
        Target(
            SCHEDULER,
            "Scheduler._preempt_request",
            ("self", "request", "timestamp"),
            faults=(RESUME_EARLY,),
        ),
        Target(SCHEDULER, "Scheduler.reset_prefix_cache", ("self",), faults=(RESET,)),
        Target(
            SCHEDULER,
            "Scheduler._handle_stopped_request",
            ("self", "request"),
            faults=(NO_QUEUE,),
        ),
        Target(
            SCHEDULER,
            "Scheduler._update_request_as_session",
            ("self", "session", "update"),
            faults=(NO_QUEUE,),
        ),
    ),
    probe=probe,
    wrappers=lambda guard: PIPELINE.attach(StaleRules(guard)),
)
