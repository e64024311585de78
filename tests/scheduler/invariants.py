"""What must hold of a scheduler at any time, whatever it delivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from tests.scheduler.adapter import counters_of

QUEUES = ("running", "waiting", "skipped_waiting", "kv_holding_waiting")


class Invariants:
    """Looks at `scheduler` between its calls and notes what is wrong in `problems`.

    Each kind of problem is noted once for each request.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.problems: list[str] = []
        self._noted: set[tuple[str, str]] = set()

    def after_schedule(self, frame: Any) -> None:
        """A frame has been scheduled: it computes more than drafts, for requests that run."""
        for request_id, drafts in frame.scheduled_spec_decode_tokens.items():
            scheduled = frame.num_scheduled_tokens.get(request_id, 0)
            if scheduled <= len(drafts):
                self._note(request_id, "drafts", f"{scheduled} tokens and {len(drafts)} drafts")

    def after_update(self, frames: Collection[Any]) -> None:
        """A frame has been booked: queues hold each request once, counters make sense."""
        places = Counter(
            request.request_id
            for name in QUEUES
            for request in getattr(self.scheduler, name, None) or ()
        )
        for request_id, request in self.scheduler.requests.items():
            if request.is_finished():
                continue
            if places[request_id] != 1:
                self._note(request_id, "queues", f"is in {places[request_id]} queues")
            carried = any(request_id in frame.num_scheduled_tokens for frame in frames)
            self._check_counters(request, carried)

    def at_end(self) -> None:
        """All is over: nothing is left."""
        for request_id in self.scheduler.requests:
            self._note(request_id, "left", "is left in the scheduler")

    def _check_counters(self, request: Any, carried: bool) -> None:
        for name, value in counters_of(request).items():
            if value < 0:
                self._note(request.request_id, name, f"{name} is {value}")
            elif value and not carried:
                self._note(request.request_id, name, f"{name} is {value} with nothing in flight")

    def _note(self, request_id: str, kind: str, problem: str) -> None:
        if (request_id, kind) not in self._noted:
            self._noted.add((request_id, kind))
            self.problems.append(f"{request_id} {problem}")
