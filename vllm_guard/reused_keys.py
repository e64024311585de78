"""A cache key that stands for two media: the request that comes second is refused.

The encoder cache is asked by key alone up to 0.30, and a client may choose the key (vLLM #55546).
0.31 ends such a request with an error when its item is to be scheduled; so do we.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from vllm_guard.embeddings import Once, count_placeholders
from vllm_guard.guard import Guard

REUSED_KEY = "reused-key"


class ReusedKeys:
    """The wrappers in the scheduler.

    Args:
        guard: Where to count and how to fail.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._counted = Once()
        # By scheduler: the ids of requests to end.
        self._refused: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()

    def try_schedule_encoder_inputs(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Let a request with a reused key wait for its end; nothing of it is scheduled."""
        if self._guard.active:
            with self._guard.failing_open:
                args, kwargs = self._arguments(scheduler, *args, **kwargs), {}
        return wrapped(*args, **kwargs)

    def update_from_output(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """End the refused requests with an error, and tell their clients."""
        result = wrapped(*args, **kwargs)
        if self._refused:
            with self._guard.failing_open:
                self._end_refused(scheduler, result)
        return result

    def _end_refused(self, scheduler: Any, result: Any) -> None:
        status = sys.modules["vllm.v1.request"].RequestStatus.FINISHED_ERROR
        names = self._refused.pop(scheduler, ())
        for request in [scheduler.requests[name] for name in names if name in scheduler.requests]:
            _tell(result, request, status)
            # Last: who is ended and not told waits for ever, who is not ended is refused again.
            scheduler.finish_requests([request.request_id], status)

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
            self._refused.setdefault(scheduler, set()).add(request.request_id)
        return not self._guard.observes


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
