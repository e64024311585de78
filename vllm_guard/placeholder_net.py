"""The net below `clamp`: no more tokens than placeholders reach the placeholder assertion.

It is in place on one scheduler, for one frame, when the ledger cannot prove that the
placeholders suffice; a check on every request of every frame would cost 3 to 8 % of a step.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from vllm_guard.guard import Guard
from vllm_guard.ledger import KeptPromptLogprobs, Ledger
from vllm_guard.rows import ReturnedRows, describe

_METHOD = "_update_request_with_output"
SURPLUS = "surplus"


class PlaceholderNet:
    """Stands in for ``scheduler._update_request_with_output`` inside a ``with`` block.

    It shadows the method on the instance, so that it calls whatever the class finds, a vendor's
    override too.

    Args:
        guard: Where to count and how to fail.
        scheduler: An AsyncScheduler; a synchronous one never reserves a placeholder.
        ledger: Its ledger.
        rows: The rows of the frame being booked.
    """

    def __init__(self, guard: Guard, scheduler: Any, ledger: Ledger, rows: ReturnedRows) -> None:
        self._guard = guard
        self._scheduler = scheduler
        self._ledger = ledger
        self._rows = rows
        self._deliver = getattr(scheduler, _METHOD)
        # Somebody may have put a method of their own on this scheduler.
        self._shadowed = vars(scheduler).get(_METHOD)

    def __enter__(self) -> None:
        with self._guard.failing_open:
            vars(self._scheduler)[_METHOD] = self.update_request_with_output

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._guard.failing_open:
            if self._shadowed is None:
                vars(self._scheduler).pop(_METHOD, None)
            else:
                vars(self._scheduler)[_METHOD] = self._shadowed

    def update_request_with_output(
        self, request: Any, new_token_ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Deliver as many tokens as have a placeholder.

        Args:
            request: The vLLM request.
            new_token_ids: Token ids returned for it; never empty.
            *args: Passed on, as ``is_stale`` from 0.27 on.
            **kwargs: Passed on.

        Returns:
            What vLLM returns: the tokens delivered and whether the request stopped; ``([], False)``
            where nothing is left to deliver.
        """
        kept = new_token_ids
        with self._guard.failing_open:
            kept = self._covered(request, new_token_ids, bool(kwargs.get("is_stale", any(args))))
        if len(kept) == len(new_token_ids):
            return self._deliver(request, new_token_ids, *args, **kwargs)
        if not len(kept):
            with self._guard.failing_open:
                self._keep_prompt_logprobs(request)
                _roll_back(request)
            return [], False
        result = self._deliver(request, kept, *args, **kwargs)
        with self._guard.failing_open:
            _roll_back(request)
        return result

    def _covered(self, request: Any, new_token_ids: Any, is_stale: bool) -> Any:
        if is_stale or _about_to_be_discarded(request):
            return new_token_ids  # vLLM delivers or drops these on purpose
        placeholders = max(request.num_output_placeholders, 0)
        if len(new_token_ids) <= placeholders:
            return new_token_ids
        self._guard.counters.record(
            SURPLUS,
            "observed" if self._guard.observes else "dropped",
            describe(request, f"{len(new_token_ids)} token(s) returned"),
        )
        if self._guard.observes:
            return new_token_ids
        request.num_output_placeholders = placeholders
        return new_token_ids[:placeholders]

    def _keep_prompt_logprobs(self, request: Any) -> None:
        values = self._rows.take_prompt_logprobs(request.request_id)
        if values:
            self._ledger.kept[request.request_id] = KeptPromptLogprobs(request, values)


def _about_to_be_discarded(request: Any) -> bool:
    # After reset_prefix_cache: 0.12 to 0.21 and 0.22 to 0.26.
    return bool(
        getattr(request, "discard_latest_async_tokens", False)
        or getattr(request, "async_tokens_to_discard", 0) > 0
    )


def _roll_back(request: Any) -> None:
    """Take dropped tokens off ``num_computed_tokens`` where they had been counted.

    Otherwise the next frame has no more tokens than drafts, and the V1 runner reads another
    request's rows. A token that no frame had counted (a prefill's) leaves nothing to take off.
    """
    excess = request.num_computed_tokens + 1 - request.num_tokens - request.num_output_placeholders
    if excess > 0:
        request.num_computed_tokens -= excess
