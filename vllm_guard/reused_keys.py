"""A cache key that stands for two media: the request that comes second is refused.

The encoder cache is asked by key alone up to 0.30, and a client may choose the key (vLLM #55546).
0.31 ends such a request with an error when its item is to be scheduled; so do we.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vllm_guard.embeddings import Once, count_placeholders
from vllm_guard.guard import Guard

REUSED_KEY = "reused-key"
_METHOD = "update_from_output"


class ReusedKeys:
    """The wrapper in the scheduler.

    Args:
        guard: Where to count and how to fail.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._counted = Once()

    def try_schedule_encoder_inputs(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Let a request with a reused key wait for its end; nothing of it is scheduled."""
        if self._guard.active:
            with self._guard.failing_open:
                args, kwargs = self._arguments(scheduler, *args, **kwargs), {}
        return wrapped(*args, **kwargs)

    def _arguments(  # noqa: PLR0913, PLR0917  vLLM's own parameters
        self,
        scheduler: Any,
        request: Any,
        num_computed_tokens: int,
        num_new_tokens: int,
        encoder_compute_budget: int,
        shift_computed_tokens: int = 0,
    ) -> tuple[Any, ...]:
        """Return the arguments to go on with: no token can be scheduled with a wrong key."""
        if not scheduler.is_encoder_decoder and self._is_refused(
            scheduler, request, num_computed_tokens
        ):
            num_new_tokens = 0
        return (
            request,
            num_computed_tokens,
            num_new_tokens,
            encoder_compute_budget,
            shift_computed_tokens,
        )

    def _is_refused(self, scheduler: Any, request: Any, computed: int) -> bool:
        mismatch = _mismatch(scheduler, request, computed)
        if mismatch is None:
            return False
        if self._counted.is_new(request):
            index, cached, placeholders = mismatch
            self._guard.counters.record(
                REUSED_KEY,
                "observed" if self._guard.observes else "refused",
                f"request {request.request_id}, item {index}: its cache key stands for an item of"
                f" {cached} embeddings, and it has {placeholders} placeholders",
                "A key chosen by the client must never be used for two media."
                " `vllm-guard explain mm_merge` says more.",
                alarming=True,
            )
        if not self._guard.observes:
            self._end_with_next_frame(scheduler, request.request_id)
        return not self._guard.observes

    def _end_with_next_frame(self, scheduler: Any, request_id: str) -> None:
        ending = vars(scheduler).get(_METHOD)
        if not isinstance(ending, _Ending):
            ending = vars(scheduler)[_METHOD] = _Ending(self._guard, scheduler)
        ending.request_ids.add(request_id)


class _Ending:
    """Stands in for ``scheduler.update_from_output`` once: it ends requests, and tells clients.

    It shadows the method on the instance, so that it costs nothing while no request is refused,
    and calls whatever the class finds.

    Args:
        guard: How to fail.
        scheduler: Whose method it shadows, as soon as it is put there.
    """

    def __init__(self, guard: Guard, scheduler: Any) -> None:
        self.request_ids: set[str] = set()
        self._guard = guard
        self._scheduler = scheduler
        self._book = getattr(scheduler, _METHOD)
        # Somebody may have put a method of their own on this scheduler.
        self._shadowed = vars(scheduler).get(_METHOD)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the frame booked, and end the refused requests with an error."""
        with self._guard.failing_open:
            self._step_aside()
        result = self._book(*args, **kwargs)
        with self._guard.failing_open:
            self._end_refused(result)
        return result

    def _step_aside(self) -> None:
        if vars(self._scheduler).get(_METHOD) is not self:
            return
        if self._shadowed is None:
            del vars(self._scheduler)[_METHOD]
        else:
            vars(self._scheduler)[_METHOD] = self._shadowed

    def _end_refused(self, result: Any) -> None:
        status = sys.modules["vllm.v1.request"].RequestStatus.FINISHED_ERROR
        requests = self._scheduler.requests
        while self.request_ids:
            request = requests.get(self.request_ids.pop())
            if request is not None and self._guard.active:
                _tell(result, request, status)
                # Last: who is ended and not told waits for ever, who is not ended is refused again.
                self._scheduler.finish_requests([request.request_id], status)


def _mismatch(scheduler: Any, request: Any, computed: int) -> tuple[int, int, int] | None:
    """Return index, cached embeddings and placeholders of the first item with a reused key.

    Args:
        scheduler: Whose encoder cache and requests are looked at.
        request: What is to be scheduled.
        computed: How many of its tokens are computed.
    """
    features = request.mm_features
    # What is computed needs its item no more, and another request may have its key now.
    if not features or _end(features[-1]) <= computed:
        return None
    own: dict[str, int] = {}
    for index, feature in enumerate(features):
        key = feature.identifier
        placeholders = count_placeholders(feature.mm_position)
        known = own.setdefault(key, placeholders)
        if known == placeholders and _end(feature) > computed:
            known = _cached_embeddings(scheduler, key, request.request_id) or placeholders
        if known != placeholders:
            return index, known, placeholders
    return None


def _end(feature: Any) -> int:
    position = feature.mm_position
    end: int = position.offset + position.length
    return end


def _cached_embeddings(scheduler: Any, key: str, request_id: str) -> int | None:
    """Return how many embeddings the encoder cache holds under a key, as far as can be told.

    The cache does not say: an entry in use has as many as its users have placeholders, one that
    nobody uses is noted with its number.
    """
    manager = scheduler.encoder_cache_manager
    user_ids = manager.cached.get(key, ())
    if request_id in user_ids:
        # It was judged before it became one.
        return None
    for user_id in user_ids:
        user = scheduler.requests.get(user_id)
        for feature in user.mm_features if user is not None else ():
            if feature.identifier == key:
                return count_placeholders(feature.mm_position)
    size: int | None = manager.freeable.get(key)
    return size


def _tell(result: Any, request: Any, status: Any) -> None:
    """Add the end of a request to what ``update_from_output`` returned.

    Args:
        result: By number of the client, its EngineCoreOutputs.
        request: The request, which has not been ended yet.
        status: What it will be ended with.
    """
    engine = sys.modules["vllm.v1.engine"]
    output = engine.EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        finish_reason=type(status).get_finished_reason(status),
        events=request.take_events(),
        trace_headers=request.trace_headers,
    )
    existing = result.get(request.client_index)
    if existing is None:
        result[request.client_index] = engine.EngineCoreOutputs(outputs=[output])
    else:
        existing.outputs.append(output)
