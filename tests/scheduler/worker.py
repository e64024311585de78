"""A fabricated worker: from a real SchedulerOutput to a real ModelRunnerOutput, with no model.

It knows of each request only what scheduler outputs tell it, as a real worker does.

A healthy one returns an empty row for an unfinished prefill chunk. A faulty one is told by
`Faults` which rows to fill nevertheless; it does not repeat vLLM's own rule for discarding
tokens, since that rule is the suspect.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.scheduler.experiment import EARLY_LOGPROBS, FINAL_LOGPROBS, Faults
from tests.scheduler.oracle import BOGUS_TOKEN, owner_of, token_at
from tests.scheduler.outputs import make_output


@dataclass(eq=False)
class Known:
    """What the worker knows of a request: who it is, how long its prompt is, how far it got."""

    key: int
    prompt_length: int
    tokens: int
    computed: int
    wants_prompt_logprobs: bool
    early_logprobs_sent: bool = False


@dataclass(frozen=True)
class Row:
    """One request's share of one frame, as the worker computed it.

    `known` is the request itself, since its id may belong to another one when the frame returns.
    `start` is the first position computed, `end` one past the last that is kept (accepted drafts
    included), `rejected` the number of drafts that are not. `unfinished` says that tokens known
    beforehand remain to be computed; `tokens` are then none.
    """

    request_id: str
    known: Known
    start: int
    end: int
    tokens: list[int]
    rejected: int
    unfinished: bool


@dataclass
class Worker:
    """Computes frames in the order of scheduling and answers them in the same order.

    How many drafts it accepts is random, seeded by request and position; `accept_all` accepts
    every draft instead.
    """

    faults: Faults = field(default_factory=Faults)
    accept_all: bool = False
    requests: dict[str, Known] = field(default_factory=dict)
    in_flight: list[list[Row]] = field(default_factory=list)
    bogus_rows: Counter[str] = field(default_factory=Counter)
    gaps: list[str] = field(default_factory=list)

    def compute(self, scheduler_output: Any) -> None:
        """Take a frame in: positions and accepted drafts are settled now, in scheduling order."""
        for request_id in scheduler_output.finished_req_ids:
            self.requests.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._learn(new)
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, computed, outputs in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            resumed = request_id in cached.resumed_req_ids
            self._follow_scheduler(request_id, computed, outputs, resumed)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        self.in_flight.append(
            [
                self._compute_row(request_id, scheduled, len(drafts.get(request_id, ())))
                for request_id, scheduled in scheduler_output.num_scheduled_tokens.items()
            ]
        )

    def answer(self) -> Any:
        """Return the oldest frame in flight. What is in flight behind it is known by now."""
        rows = self.in_flight.pop(0)
        logprobs: dict[str, int] = {}
        tokens = []
        for row in rows:
            tokens.append(self._row_tokens(row))
            label = self._logprobs_label(row, bool(tokens[-1]))
            if label is not None:
                logprobs[row.request_id] = label
        return make_output([row.request_id for row in rows], tokens, logprobs)

    def _learn(self, new: Any) -> None:
        # Model runner V2 gets a resumed request as a new one, with its outputs in the prefill.
        tokens = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
        self.requests[new.req_id] = Known(
            key=owner_of(new.prompt_token_ids[-1]),
            prompt_length=len(new.prompt_token_ids),
            tokens=len(tokens),
            computed=new.num_computed_tokens,
            wants_prompt_logprobs=new.sampling_params.prompt_logprobs is not None,
        )

    def _follow_scheduler(
        self, request_id: str, computed: int, outputs: int, resumed: bool
    ) -> None:
        """Take the scheduler's word for the position, less what it cannot know yet.

        Its numbers assume that all drafts in flight will be accepted.
        """
        known = self.requests[request_id]
        unknown_to_scheduler = 0 if resumed else self._rejected_in_flight(known)
        start = computed - unknown_to_scheduler
        if start > known.computed and not resumed:
            self.gaps.append(f"{request_id}: {known.computed} computed, scheduled from {start}")
        known.computed = start
        known.tokens = min(known.tokens, known.prompt_length + outputs - unknown_to_scheduler)

    def _rows_in_flight(self, known: Known) -> list[Row]:
        return [row for frame in self.in_flight for row in frame if row.known is known]

    def _rejected_in_flight(self, known: Known) -> int:
        return sum(row.rejected for row in self._rows_in_flight(known))

    def _compute_row(self, request_id: str, scheduled: int, drafts: int) -> Row:
        known = self.requests[request_id]
        certain = known.computed + scheduled - drafts
        unfinished = certain < known.tokens
        accepted = 0 if unfinished else self._accepted(known.key, certain, drafts)
        row = Row(
            request_id=request_id,
            known=known,
            start=known.computed,
            end=certain + accepted,
            tokens=[]
            if unfinished
            else [token_at(known.key, certain + step) for step in range(accepted + 1)],
            rejected=drafts - accepted,
            unfinished=unfinished,
        )
        known.computed = row.end
        if not unfinished:
            known.tokens = row.end + 1
        return row

    def _accepted(self, key: int, position: int, drafts: int) -> int:
        if self.accept_all or not drafts:
            return drafts
        # Not one generator for the whole run: the arms may cut frames differently.
        return random.Random(f"{key}/{position}").randint(0, drafts)

    def _row_tokens(self, row: Row) -> list[int]:
        if row.unfinished:
            return [BOGUS_TOKEN] if self._invents_token(row) else []
        first_output = row.end + 1 - len(row.tokens) - row.known.prompt_length
        if (
            row.known.key in self.faults.surplus_for
            and first_output == self.faults.surplus_at
            and not row.rejected
        ):
            self.bogus_rows["overlong-row"] += 1
            return row.tokens + [BOGUS_TOKEN] * self.faults.surplus
        return row.tokens

    def _invents_token(self, row: Row) -> bool:
        final_in_flight = any(not later.unfinished for later in self._rows_in_flight(row.known))
        if final_in_flight and (self.faults.last_but_one or self.faults.prefill_tokens):
            self.bogus_rows["last-chunk"] += 1
            return True
        if self.faults.prefill_tokens:
            self.bogus_rows["prefill-token"] += 1
            return True
        return False

    def _logprobs_label(self, row: Row, has_tokens: bool) -> int | None:
        known = row.known
        if not known.wants_prompt_logprobs:
            return None
        if row.unfinished:
            early = self.faults.early_logprobs and has_tokens
            if known.early_logprobs_sent or not (early or self.faults.early_logprobs_alone):
                return None
            known.early_logprobs_sent = True
            return EARLY_LOGPROBS
        finishes_prompt = row.start < known.prompt_length <= row.end
        return FINAL_LOGPROBS if finishes_prompt and not self.faults.no_final_logprobs else None
