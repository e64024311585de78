"""A frame whose output has arrived, before vLLM books it: rows are taken out here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_guard.guard import Guard
from vllm_guard.ledger import Frame, KeptPromptLogprobs, Ledger
from vllm_guard.placeholder_net import PlaceholderNet
from vllm_guard.rows import ReturnedRows, describe

# Why a row may not be delivered.
PREFILL_TOKEN = "prefill-token"
LAST_CHUNK = "last-chunk"
ID_REUSE = "id-reuse"
# What else is counted.
OVERLONG_ROW = "overlong-row"
PROMPT_LOGPROBS = "prompt-logprobs"

_ADVICE = "`vllm-guard explain clamp` says more."


@dataclass(frozen=True)
class Booking:
    """One frame whose output has arrived, on its way into ``update_from_output``.

    Args:
        guard: Where to count.
        scheduler: The vLLM scheduler.
        ledger: Its ledger.
        frame: The frame; None for one that was scheduled before the guard came.
        rows: What the worker returned for it.
    """

    guard: Guard
    scheduler: Any
    ledger: Ledger
    frame: Frame | None
    rows: ReturnedRows

    @property
    def is_suspect(self) -> bool:
        """Whether the placeholders may not cover the rows."""
        return self.frame is None or self.frame.suspect

    def net(self) -> PlaceholderNet:
        """Return the net for this frame."""
        return PlaceholderNet(self.guard, self.scheduler, self.ledger, self.rows)

    def refuse_rows(self) -> None:
        """Empty the rows that the frame may not deliver."""
        for request_id, reason in self.frame.blank.items() if self.frame else ():
            request = self._live(request_id)
            if request is not None:
                self._refuse(request, reason)

    def cut_rows(self) -> None:
        """Shorten the rows that are longer than the frame could have sampled."""
        for request_id, length in self.rows.overlong():
            request = self._live(request_id)
            if request is not None:
                self._count(request, OVERLONG_ROW, "cut")
                if not self.guard.observes:
                    self.rows.cut(request_id, length)

    def hand_over_prompt_logprobs(self) -> None:
        """Give kept prompt logprobs to the requests that get an output in this frame."""
        if not self.ledger.kept:
            return
        refused = self.frame.blank if self.frame else ()
        for request_id, kept in list(self.ledger.kept.items()):
            if self.scheduler.requests.get(request_id) is not kept.request:
                del self.ledger.kept[request_id]
            elif len(self.rows.row(request_id)) and request_id not in refused:
                self.rows.give_prompt_logprobs(request_id, kept.values)
                del self.ledger.kept[request_id]

    def _live(self, request_id: str) -> Any:
        """Return the request that would get the row; None where vLLM ignores it by itself."""
        request = self.scheduler.requests.get(request_id)
        return None if request is None or request.is_finished() else request

    def _refuse(self, request: Any, reason: str) -> None:
        tokens = len(self.rows.row(request.request_id))
        if reason == PREFILL_TOKEN and request.num_computed_tokens >= request.num_tokens:
            reason = LAST_CHUNK
        if tokens:
            self._count(request, reason, "blanked")
        elif reason != ID_REUSE and self.rows.prompt_logprobs(request.request_id):
            self._count(request, PROMPT_LOGPROBS, "kept")
        if self.guard.observes:
            return
        if tokens:
            self.rows.blank(request.request_id)
        if reason == ID_REUSE:
            self._keep_from(request)
        elif values := self.rows.take_prompt_logprobs(request.request_id):
            self.ledger.kept[request.request_id] = KeptPromptLogprobs(request, values)

    def _keep_from(self, request: Any) -> None:
        """Keep everything else that the frame brings from the request that has the id now.

        From 0.26 on vLLM takes the frame's tokens off the counters of whoever has the id.
        """
        assert self.frame is not None
        request_id = request.request_id
        self.rows.take_prompt_logprobs(request_id)
        self.rows.blank_pooled(request_id)
        scheduled = self.frame.output.num_scheduled_tokens[request_id]
        if hasattr(request, "num_in_flight_tokens"):
            request.num_in_flight_tokens += scheduled
        if getattr(request, "num_stale_output_tokens", 0) > 0:
            request.num_stale_output_tokens += scheduled

    def _count(self, request: Any, reason: str, action: str) -> None:
        tokens = len(self.rows.row(request.request_id))
        self.guard.counters.record(
            reason,
            "observed" if self.guard.observes else action,
            describe(request, tokens),
            _ADVICE,
        )
