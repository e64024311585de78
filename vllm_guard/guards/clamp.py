"""``clamp``: the worker returns a token that its frame may not deliver.

Reported as ``assert request.num_output_placeholders >= 0`` (vLLM #57562, #30142, #42492). Each
row is judged by what its frame computed, before vLLM sees it:

* frame rule: after this frame the request still has prompt left, so the row is empty;
* identity rule: the request has finished, so its rows in flight belong to nobody, whoever has
  its id by now;
* length rule: a frame samples one token, and one for each draft.

Where that cannot prove that the placeholders suffice, a net below stops the surplus.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from vllm_guard.booking import ID_REUSE, LAST_CHUNK, PREFILL_TOKEN, Booking
from vllm_guard.guard import Definition, Guard
from vllm_guard.ledger import Frame, Ledger
from vllm_guard.placeholder_net import PlaceholderNet
from vllm_guard.probes.delivery import probe
from vllm_guard.rows import ReturnedRows
from vllm_guard.targets import Target, Wrapper

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"

TARGETS = (
    Target(_SCHEDULER, "Scheduler.schedule", ("self",)),
    Target(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Target(_SCHEDULER, "Scheduler._free_request", ("self", "request")),
    # Never replaced on the class: the net stands in for it on one scheduler for one frame.
    Target(
        _SCHEDULER,
        "Scheduler._update_request_with_output",
        ("self", "request", "new_token_ids"),
        wrapped=False,
    ),
)


class Clamp:
    """The wrappers of the guard, and a ledger for each scheduler.

    Args:
        guard: Where to count and how to fail.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._ledgers: WeakKeyDictionary[Any, Ledger | None] = WeakKeyDictionary()

    def wrappers(self) -> Mapping[str, Wrapper]:
        """Return the wrappers by target path."""
        return {
            "Scheduler.schedule": self.schedule,
            "Scheduler.update_from_output": self.update_from_output,
            "Scheduler._free_request": self.free_request,
        }

    def schedule(self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any) -> Any:
        """Enter the scheduled frame, with the rows it may not deliver."""
        output = wrapped(*args, **kwargs)
        if self._guard.active:
            with self._guard.failing_open:
                self._enter(scheduler, output)
        return output

    def update_from_output(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Take out the refused rows, then let vLLM book the frame."""
        net = None
        if self._guard.active:
            with self._guard.failing_open:
                net = self._before_update(scheduler, *args, **kwargs)
        if net is None:
            return wrapped(*args, **kwargs)
        with net:
            return wrapped(*args, **kwargs)

    def free_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Refuse what is still in flight for a request that has finished."""
        if self._guard.active:
            with self._guard.failing_open:
                self._finish(scheduler, *args, **kwargs)
        return wrapped(*args, **kwargs)

    def _ledger(self, scheduler: Any) -> Ledger | None:
        """Return the scheduler's ledger; None where a frame's rows are not one token and drafts.

        A diffusion scheduler samples no token of its own in a step.
        """
        try:
            return self._ledgers[scheduler]
        except KeyError:
            pass
        ledger = None
        if getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1:
            async_class = getattr(sys.modules.get(_ASYNC_SCHEDULER), "AsyncScheduler", ())
            ledger = Ledger(counts_placeholders=isinstance(scheduler, async_class))
            # Requests that were running before the guard came.
            ledger.unsettled.update(scheduler.requests)
        self._ledgers[scheduler] = ledger
        return ledger

    def _enter(self, scheduler: Any, output: Any) -> None:
        ledger = self._ledger(scheduler)
        if ledger is None or not output.num_scheduled_tokens:
            return
        frame = ledger.open(output)
        ledger.unsettled.update(new.req_id for new in output.scheduled_new_reqs)
        ledger.unsettled.update(_resumed(output.scheduled_cached_reqs))
        for request_id in [*ledger.unsettled] if ledger.unsettled else ():
            self._settle(ledger, scheduler, frame, request_id)
        for request_id in [*ledger.suspects] if ledger.suspects else ():
            _watch(ledger, scheduler, frame, request_id)

    def _settle(self, ledger: Ledger, scheduler: Any, frame: Frame, request_id: str) -> None:
        request = scheduler.requests.get(request_id)
        if request is None:
            ledger.forget(request_id)
        elif not frame.carries(request_id):
            return
        elif request.num_computed_tokens < request.num_tokens:
            # schedule() has advanced it already. Not is_prefill_chunk: that counts placeholders.
            frame.blank[request_id] = PREFILL_TOKEN
        else:
            ledger.unsettled.discard(request_id)
            if ledger.counts_placeholders:
                _audit(ledger, request, frame)

    def _before_update(
        self,
        scheduler: Any,
        scheduler_output: Any,
        model_runner_output: Any,
        *_args: Any,
        **_kwargs: Any,
    ) -> PlaceholderNet | None:
        ledger = self._ledger(scheduler)
        if ledger is None:
            return None
        booking = Booking(
            self._guard,
            scheduler,
            ledger,
            ledger.close(scheduler_output),
            ReturnedRows(scheduler_output, model_runner_output),
        )
        booking.refuse_rows()
        if ledger.counts_placeholders:
            booking.cut_rows()
        booking.hand_over_prompt_logprobs()
        if not ledger.counts_placeholders:
            return None
        load_failed = _kv_load_failed(model_runner_output)
        if load_failed:
            ledger.doubt(scheduler_output.num_scheduled_tokens)
        return booking.net() if load_failed or booking.is_suspect else None

    def _finish(self, scheduler: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
        ledger = self._ledger(scheduler)
        if ledger is not None:
            ledger.blank(request.request_id, ID_REUSE)
            ledger.forget(request.request_id)


def _resumed(cached: Any) -> Any:
    resumed = getattr(cached, "resumed_req_ids", None)
    if resumed is None:
        # Up to 0.11.2: a flag for each request.
        flags = cached.resumed_from_preemption
        return [request_id for request_id, flag in zip(cached.req_ids, flags, strict=True) if flag]
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
    owed = {
        id(other)
        for other in ledger.in_flight(request_id)
        if other is not frame and request_id not in other.blank
    }
    if owed or not _balanced(request):
        ledger.suspects[request_id] = owed | {id(frame)}


def _watch(ledger: Ledger, scheduler: Any, frame: Frame, request_id: str) -> None:
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


def _kv_load_failed(model_runner_output: Any) -> bool:
    connector_output = getattr(model_runner_output, "kv_connector_output", None)
    return bool(getattr(connector_output, "invalid_block_ids", None))


DEFINITION = Definition(
    name="clamp",
    faults=(PREFILL_TOKEN, LAST_CHUNK, ID_REUSE),
    targets=TARGETS,
    probe=probe,
    wrappers=lambda guard: Clamp(guard).wrappers(),
)
