"""Where the guards of the scheduler meet: one set of wrappers, one ledger, rules in turn.

``clamp`` and ``stale`` both need to know which frames are in flight. The wrappers keep the ledger
and ask the rules of every active guard; a guard that is off, retired or disarmed has no say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from vllm_guard.booking import Booking
from vllm_guard.guard import Guard
from vllm_guard.holding import HeldBack
from vllm_guard.ledger import Frame, Ledger
from vllm_guard.rows import ReturnedRows
from vllm_guard.targets import Target, Wrapper

SCHEDULER = "vllm.v1.core.sched.scheduler"
ASYNC_SCHEDULER = "vllm.v1.core.sched.async_scheduler"

# Every guard of the scheduler needs these, for the ledger.
LEDGER_TARGETS = (
    Target(SCHEDULER, "Scheduler.schedule", ("self",)),
    Target(
        SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Target(SCHEDULER, "Scheduler._free_request", ("self", "request")),
)


class Rules:
    """What one guard does with frames; a rule that a guard does not have does nothing.

    Args:
        guard: Where to count and how to fail.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def hold(self, scheduler: Any, ledger: Ledger) -> Collection[Any]:
        """Return the requests that the coming ``schedule()`` may not see."""
        return ()

    def scheduled(self, scheduler: Any, ledger: Ledger, frame: Frame) -> None:
        """Judge the rows of a frame that has just been scheduled."""

    def returned(self, booking: Booking) -> Collection[AbstractContextManager[None]]:
        """Change what a frame brought before vLLM books it.

        Returns:
            What has to be in place while vLLM books it, if anything.
        """
        return ()

    def booked(self, scheduler: Any, ledger: Ledger) -> None:
        """Put right what is left after vLLM has booked a frame."""

    def finishing(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """A request ends, and vLLM is about to free it."""

    def stopping(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """A request has stopped; if it is resumable, its next segment is about to begin."""

    def next_segment(
        self, scheduler: Any, ledger: Ledger, session: Any
    ) -> AbstractContextManager[None] | None:
        """A session is about to be given its next segment.

        Returns:
            What has to be in place meanwhile, if anything.
        """
        return None

    def preempted(self, scheduler: Any, ledger: Ledger, request: Any) -> None:
        """A request has been preempted."""

    def were_reset(self, scheduler: Any, ledger: Ledger, requests: list[Any]) -> None:
        """``reset_prefix_cache`` has preempted these requests, which were running."""


class Pipeline:
    """The wrappers, and a ledger for each scheduler."""

    def __init__(self) -> None:
        self._rules: list[Rules] = []
        self._ledgers: WeakKeyDictionary[Any, Ledger | None] = WeakKeyDictionary()

    def attach(self, rules: Rules) -> Mapping[str, Wrapper]:
        """Let a guard's rules take part; return the wrappers by target path."""
        still_active = [other for other in self._rules if other.guard.active]
        if not still_active:
            self._ledgers.clear()
        self._rules = [*still_active, rules]
        return {
            "Scheduler.schedule": self.schedule,
            "Scheduler.update_from_output": self.update_from_output,
            "Scheduler._free_request": self.free_request,
            "Scheduler._preempt_request": self.preempt_request,
            "Scheduler._handle_stopped_request": self.handle_stopped_request,
            "Scheduler._update_request_as_session": self.update_request_as_session,
            "Scheduler.reset_prefix_cache": self.reset_prefix_cache,
        }

    def schedule(self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any) -> Any:
        """Hold back what may not be scheduled yet; enter the frame."""
        active, ledger = self._at(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        held: list[Any] = []
        if ledger.preempted:
            _ask(active, lambda rules: held.extend(rules.hold(scheduler, ledger)))
        if held:
            with HeldBack(scheduler, held, active[0].guard):
                output = wrapped(*args, **kwargs)
        else:
            output = wrapped(*args, **kwargs)
        with active[0].guard.failing_open:
            if output.num_scheduled_tokens:
                frame = ledger.open(output)
                _ask(active, lambda rules: rules.scheduled(scheduler, ledger, frame))
        return output

    def update_from_output(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Take out the refused rows, let vLLM book the frame, and put right what it left."""
        active, ledger = self._at(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        around: list[AbstractContextManager[None]] = []
        with active[0].guard.failing_open:
            booking = _booking(scheduler, ledger, *args, **kwargs)
            booking.refuse_rows()
            _ask(active, lambda rules: around.extend(rules.returned(booking)))
            booking.hand_over_prompt_logprobs()
        with around[0] if around else nullcontext():
            result = wrapped(*args, **kwargs)
        if ledger.continued:
            with active[0].guard.failing_open:
                _ask(active, lambda rules: rules.booked(scheduler, ledger))
                ledger.continued.clear()
        return result

    def free_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Let go of a request that has finished."""
        active, ledger = self._at(scheduler)
        if ledger is not None:
            with active[0].guard.failing_open:
                request = _request(*args, **kwargs)
                _ask(active, lambda rules: rules.finishing(scheduler, ledger, request))
                ledger.forget(request.request_id)
        return wrapped(*args, **kwargs)

    def preempt_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Note that a request has been preempted."""
        result = wrapped(*args, **kwargs)
        active, ledger = self._at(scheduler)
        if ledger is not None:
            with active[0].guard.failing_open:
                request = _request(*args, **kwargs)
                _ask(active, lambda rules: rules.preempted(scheduler, ledger, request))
        return result

    def handle_stopped_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Settle a session's segment before the next one begins."""
        active, ledger = self._at(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        with active[0].guard.failing_open:
            request = _request(*args, **kwargs)
            _ask(active, lambda rules: rules.stopping(scheduler, ledger, request))
        finished = wrapped(*args, **kwargs)
        if not finished:
            with active[0].guard.failing_open:
                ledger.continued.append(_request(*args, **kwargs))
        return finished

    def update_request_as_session(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Give a session its next segment."""
        active, ledger = self._at(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        around: list[AbstractContextManager[None] | None] = []
        with ExitStack() as stack:
            with active[0].guard.failing_open:
                session = _session(*args, **kwargs)
                _ask(
                    active,
                    lambda rules: around.append(rules.next_segment(scheduler, ledger, session)),
                )
                for manager in filter(None, around):
                    stack.enter_context(manager)
            return wrapped(*args, **kwargs)

    def reset_prefix_cache(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Settle the requests that a reset has preempted, also where vLLM then raises."""
        active, ledger = self._at(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        running = list(scheduler.running)
        try:
            return wrapped(*args, **kwargs)
        finally:
            preempted = [request for request in running if request.status.name == "PREEMPTED"]
            _ask(active, lambda rules: rules.were_reset(scheduler, ledger, preempted))

    def _at(self, scheduler: Any) -> tuple[list[Rules], Ledger | None]:
        """Return the rules in force and the scheduler's ledger; no ledger: nothing to do."""
        active = [rules for rules in self._rules if rules.guard.active]
        if active:
            with active[0].guard.failing_open:
                return active, self._ledger(scheduler)
        return active, None

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
            async_class = getattr(sys.modules.get(ASYNC_SCHEDULER), "AsyncScheduler", ())
            ledger = Ledger(counts_placeholders=isinstance(scheduler, async_class))
            # Requests that were running before the guard came.
            ledger.unsettled.update(scheduler.requests)
        self._ledgers[scheduler] = ledger
        return ledger


PIPELINE = Pipeline()


def _ask(active: list[Rules], question: Callable[[Rules], object]) -> None:
    for rules in active:
        with rules.guard.failing_open:
            question(rules)


def _booking(
    scheduler: Any,
    ledger: Ledger,
    scheduler_output: Any,
    model_runner_output: Any,
    *_args: Any,
    **_kwargs: Any,
) -> Booking:
    return Booking(
        scheduler,
        ledger,
        ledger.close(scheduler_output),
        ReturnedRows(scheduler_output, model_runner_output),
    )


def _request(request: Any, *_args: Any, **_kwargs: Any) -> Any:
    return request


def _session(session: Any, *_args: Any, **_kwargs: Any) -> Any:
    return session
