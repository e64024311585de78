"""A frame whose output has arrived, before vLLM books it: rows are taken out here."""

from __future__ import annotations

from typing import Any

from vllm_guard.guard import Guard
from vllm_guard.ledger import Frame, KeptPromptLogprobs, Ledger, Refusal
from vllm_guard.rows import ReturnedRows, describe

ID_REUSE = "id-reuse"
PROMPT_LOGPROBS = "prompt-logprobs"


class Booking:
    """One frame whose output has arrived, on its way into ``update_from_output``.

    Args:
        scheduler: The vLLM scheduler.
        ledger: Its ledger; the frame is taken out of it.
        scheduler_output: The SchedulerOutput of the frame.
        model_runner_output: What the worker returned for it.
    """

    def __init__(
        self,
        scheduler: Any,
        ledger: Ledger,
        scheduler_output: Any,
        model_runner_output: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        self.scheduler = scheduler
        self.ledger = ledger
        self.frame: Frame | None = ledger.close(scheduler_output)
        """None for a frame that was scheduled before the guard came."""
        self.rows = ReturnedRows(scheduler_output, model_runner_output)

    def refuse_rows(self) -> None:
        """Empty the rows that the frame may not deliver."""
        for request_id, refusal in self.frame.blank.items() if self.frame else ():
            request = self.live(request_id)
            if request is not None and refusal.guard.active:
                with refusal.guard.failing_open:
                    self._refuse(request, refusal)

    def hand_over_prompt_logprobs(self) -> None:
        """Give kept prompt logprobs to the requests that get an output in this frame."""
        refused = self.frame.blank if self.frame else ()
        for request_id, kept in list(self.ledger.kept.items()):
            if self.scheduler.requests.get(request_id) is not kept.request:
                del self.ledger.kept[request_id]
            elif len(self.rows.row(request_id)) and request_id not in refused:
                self.rows.give_prompt_logprobs(request_id, kept.values)
                del self.ledger.kept[request_id]

    def live(self, request_id: str) -> Any:
        """Return the request that would get the row; None where vLLM ignores it by itself."""
        request = self.scheduler.requests.get(request_id)
        return None if request is None or request.is_finished() else request

    def count(self, guard: Guard, request: Any, reason: str, action: str) -> None:
        """Count a trigger of ``guard`` for the request's row as it is now."""
        tokens = len(self.rows.row(request.request_id))
        guard.counters.record(
            reason,
            "observed" if guard.observes else action,
            describe(request, f"{tokens} token(s) returned"),
            f"`vllm-guard explain {guard.name}` says more.",
        )

    def _refuse(self, request: Any, refusal: Refusal) -> None:
        tokens = len(self.rows.row(request.request_id))
        belongs_to_another = refusal.request is not request
        if tokens:
            reason = ID_REUSE if belongs_to_another else refusal.reason
            self.count(refusal.guard, request, reason, "blanked")
        elif not belongs_to_another and self.rows.prompt_logprobs(request.request_id):
            self.count(refusal.guard, request, PROMPT_LOGPROBS, "kept")
        if refusal.guard.observes:
            return
        if tokens:
            self.rows.blank(request.request_id)
        if belongs_to_another:
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
