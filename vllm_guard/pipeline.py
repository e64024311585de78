"""Where the guards of the scheduler meet: one set of wrappers, one ledger, rules in turn.

``clamp`` and ``stale`` both need to know which frames are in flight. The wrappers keep the ledger
and ask the rules of every active guard; a guard that is off, retired or disarmed has no say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from vllm_guard.booking import Booking
from vllm_guard.guard import Guard
from vllm_guard.holding import HeldBack
from vllm_guard.ledger import Frame, Ledger
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

    def returned(self, booking: Booking) -> AbstractContextManager[None] | None:
        """Change what a frame brought before vLLM books it.

        Returns:
            What has to be in place while vLLM books it, if anything.
        """
        return None

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


_UNKNOWN: Any = object()


class Pipeline:
    """The wrappers, and a ledger for each scheduler.

    ``schedule`` and ``update_from_output`` run in every step: they ask only rules that have
    something to say, and catch errors without a context manager.
    """

    def __init__(self) -> None:
        self._rules: list[Rules] = []
        # By name of a method of `Rules`: who has one of its own.
        self._answering: Mapping[str, list[Rules]] = {}
        self._ledgers: WeakKeyDictionary[Any, Ledger | None] = WeakKeyDictionary()

    def attach(self, rules: Rules) -> Mapping[str, Wrapper]:
        """Let a guard's rules take part; return the wrappers by target path."""
        still_active = [other for other in self._rules if other.guard.active]
        if not still_active:
            self._ledgers.clear()
        self._rules = [*still_active, rules]
        self._answering = {
            question: [one for one in self._rules if question in vars(type(one))]
            for question, method in vars(Rules).items()
            if callable(method)
        }
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
        ledger = self._ledger(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        held = self._held(scheduler, ledger) if ledger.preempted else ()
        if held:
            with HeldBack(scheduler, held, self._first_guard()):
                output = wrapped(*args, **kwargs)
        else:
            output = wrapped(*args, **kwargs)
        try:
            if output.num_scheduled_tokens:
                self._ask("scheduled", scheduler, ledger, ledger.open(output))
        except Exception as error:
            self._first_guard().swallow(error)
        return output

    def update_from_output(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Take out the refused rows, let vLLM book the frame, and put right what it left."""
        ledger = self._ledger(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        around = None
        try:
            booking = Booking(scheduler, ledger, *args, **kwargs)
            if booking.frame is not None and booking.frame.blank:
                booking.refuse_rows()
            for answer in self._ask("returned", booking):
                around = around or answer
            if ledger.kept:
                booking.hand_over_prompt_logprobs()
        except Exception as error:
            self._first_guard().swallow(error)
        if around is None:
            result = wrapped(*args, **kwargs)
        else:
            with around:
                result = wrapped(*args, **kwargs)
        if ledger.continued:
            with self._first_guard().failing_open:
                self._ask("booked", scheduler, ledger)
                ledger.continued.clear()
        return result

    def free_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Let go of a request that has finished."""
        ledger = self._ledger(scheduler)
        if ledger is not None:
            with self._first_guard().failing_open:
                request = _request(*args, **kwargs)
                self._ask("finishing", scheduler, ledger, request)
                ledger.forget(request.request_id)
        return wrapped(*args, **kwargs)

    def preempt_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Note that a request has been preempted."""
        result = wrapped(*args, **kwargs)
        ledger = self._ledger(scheduler)
        if ledger is not None:
            with self._first_guard().failing_open:
                self._ask("preempted", scheduler, ledger, _request(*args, **kwargs))
        return result

    def handle_stopped_request(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Settle a session's segment before the next one begins."""
        ledger = self._ledger(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        with self._first_guard().failing_open:
            self._ask("stopping", scheduler, ledger, _request(*args, **kwargs))
        finished = wrapped(*args, **kwargs)
        if not finished:
            with self._first_guard().failing_open:
                ledger.continued.append(_request(*args, **kwargs))
        return finished

    def update_request_as_session(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Give a session its next segment."""
        ledger = self._ledger(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        with ExitStack() as stack:
            with self._first_guard().failing_open:
                session = _session(*args, **kwargs)
                for manager in self._ask("next_segment", scheduler, ledger, session):
                    if manager is not None:
                        stack.enter_context(manager)
            return wrapped(*args, **kwargs)

    def reset_prefix_cache(
        self, wrapped: Callable[..., Any], scheduler: Any, args: Any, kwargs: Any
    ) -> Any:
        """Settle the requests that a reset has preempted, also where vLLM then raises."""
        ledger = self._ledger(scheduler)
        if ledger is None:
            return wrapped(*args, **kwargs)
        running = list(scheduler.running)
        try:
            return wrapped(*args, **kwargs)
        finally:
            preempted = [request for request in running if request.status.name == "PREEMPTED"]
            self._ask("were_reset", scheduler, ledger, preempted)

    def _held(self, scheduler: Any, ledger: Ledger) -> list[Any]:
        answers = self._ask("hold", scheduler, ledger)
        return [request for answer in answers for request in answer]

    def _ask(self, question: str, *arguments: Any) -> list[Any]:
        """Have every active guard with such a rule answer; errors are its own."""
        answers = []
        for rules in self._answering[question]:
            guard = rules.guard
            if guard.active:
                try:
                    answers.append(getattr(rules, question)(*arguments))
                except Exception as error:
                    guard.swallow(error)
        return answers

    def _first_guard(self) -> Guard:
        """Return the guard that answers for what is nobody's rule."""
        return next((one.guard for one in self._rules if one.guard.active), self._rules[0].guard)

    def _ledger(self, scheduler: Any) -> Ledger | None:
        """Return the scheduler's ledger; None: no guard is active, or nothing is done for it.

        A frame's rows have to be one token and drafts. A diffusion scheduler samples no token of
        its own in a step.
        """
        for rules in self._rules:
            if rules.guard.active:
                try:
                    ledger = self._ledgers.get(scheduler, _UNKNOWN)
                    return self._begin(scheduler) if ledger is _UNKNOWN else ledger
                except Exception as error:
                    rules.guard.swallow(error)
                    return None
        return None

    def _begin(self, scheduler: Any) -> Ledger | None:
        ledger = None
        if getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1:
            async_class = getattr(sys.modules.get(ASYNC_SCHEDULER), "AsyncScheduler", ())
            ledger = Ledger(counts_placeholders=isinstance(scheduler, async_class))
            # Requests that were running before the guard came.
            ledger.unsettled.update(scheduler.requests)
        self._ledgers[scheduler] = ledger
        return ledger


PIPELINE = Pipeline()


def _request(request: Any, *_args: Any, **_kwargs: Any) -> Any:
    return request


def _session(session: Any, *_args: Any, **_kwargs: Any) -> Any:
    return session
