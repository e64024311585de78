"""The frames in flight of one scheduler, and the rows in them that may not be delivered.

A frame is what one ``schedule()`` call hands to the worker; it is in flight until
``update_from_output`` gets its output. Nothing in vLLM says which frame a returned token belongs
to: the counters are on the request. The ledger does, so that a row can be refused by what its
frame really computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vllm_guard.guard import Guard

MAX_FRAMES = 64
"""Frames kept at most. Pipelines are a few frames deep; beyond it outputs have been lost."""


class Refusal(NamedTuple):
    """Why a row may not be delivered.

    Args:
        reason: The fault.
        request: The vLLM request the row was computed for; another may have its id by then.
        guard: Which guard says so; it counts, and it may only observe.
    """

    reason: str
    request: Any
    guard: Guard


@dataclass(eq=False)
class Frame:
    """One frame in flight.

    Args:
        output: vLLM's SchedulerOutput, held so that its identity stays unique.
        blank: Why each row that may not be delivered may not, by request id.
        suspect: Whether the counters of a request in it may not cover its row.
    """

    output: Any
    blank: dict[str, Refusal] = field(default_factory=dict)
    suspect: bool = False

    def carries(self, request_id: str) -> bool:
        """Whether the request was scheduled in this frame."""
        return request_id in self.output.num_scheduled_tokens


class KeptPromptLogprobs(NamedTuple):
    """Prompt logprobs that arrived with a row that was not delivered.

    Args:
        request: The vLLM request they belong to; an id may be reused.
        values: The values, by the name of the ModelRunnerOutput field they came in.
    """

    request: Any
    values: dict[str, Any]


class Ledger:
    """What is in flight for one scheduler.

    Nothing here runs once per request on ordinary frames: ``unsettled`` and ``suspects`` name
    the few requests that have to be looked at.

    Args:
        counts_placeholders: Whether the scheduler reserves placeholders (the AsyncScheduler).
    """

    def __init__(self, counts_placeholders: bool) -> None:
        self.counts_placeholders = counts_placeholders
        self.unsettled: set[str] = set()
        """Requests that entered and whose last prefill chunk has not been scheduled yet."""
        self.suspects: dict[str, set[int]] = {}
        """Requests whose placeholders may not cover their rows, with the ids of the frames that
        have to come home before they can be trusted again."""
        self.kept: dict[str, KeptPromptLogprobs] = {}
        self.preempted: dict[str, tuple[Any, bool]] = {}
        """Requests preempted with a frame in flight, by id, and whether that has been counted."""
        self.continued: list[Any] = []
        """Sessions that stopped and went on in the frame being booked."""
        self._frames: dict[int, Frame] = {}

    def open(self, output: Any) -> Frame:
        """Enter a frame that has just been scheduled.

        Args:
            output: The SchedulerOutput.
        """
        frame = self._frames[id(output)] = Frame(output)
        if len(self._frames) > MAX_FRAMES:
            del self._frames[next(iter(self._frames))]
        return frame

    def close(self, output: Any) -> Frame | None:
        """Take out the frame whose output has arrived; None if it was never entered.

        Args:
            output: The SchedulerOutput that ``update_from_output`` was given.
        """
        return self._frames.pop(id(output), None)

    def in_flight(self, request_id: str) -> Iterator[Frame]:
        """Yield the frames in flight that carry the request, oldest first."""
        return (frame for frame in self._frames.values() if frame.carries(request_id))

    def owing(self, request_id: str) -> Iterator[Frame]:
        """Yield the frames in flight whose row for the request is to be delivered."""
        return (frame for frame in self.in_flight(request_id) if request_id not in frame.blank)

    def blank(self, refusal: Refusal) -> bool:
        """Refuse the request's rows in all frames in flight.

        Args:
            refusal: Whose rows and why; one given earlier stands.

        Returns:
            Whether there is a frame in flight that carries it.
        """
        request_id = refusal.request.request_id
        found = False
        for frame in self.in_flight(request_id):
            frame.blank.setdefault(request_id, refusal)
            found = True
        return found

    def forget(self, request_id: str) -> None:
        """Drop what is remembered about a request that has finished."""
        self.unsettled.discard(request_id)
        self.suspects.pop(request_id, None)
        self.kept.pop(request_id, None)
        self.preempted.pop(request_id, None)

    def doubt(self, request_ids: Iterable[str]) -> None:
        """Look again at these requests, and at every frame in flight.

        Args:
            request_ids: Requests whose computed tokens may have been set back.
        """
        self.unsettled.update(request_ids)
        for frame in self._frames.values():
            frame.suspect = True
