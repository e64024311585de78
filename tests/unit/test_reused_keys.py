"""What stands in for a scheduler's method until refused requests are ended."""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.stand_ins import make_guard, make_module
from vllm_guard.guard import Guard
from vllm_guard.reused_keys import ReusedKeys

METHOD = "update_from_output"


class Status(Enum):
    """As vLLM's RequestStatus."""

    FINISHED_ERROR = "error"

    @staticmethod
    def get_finished_reason(status: Status) -> str:
        """Return what a client is told."""
        return status.value


class Scheduler:
    """One with two requests; a client has an output of each frame."""

    is_encoder_decoder = False

    def __init__(self) -> None:
        first, second = make_request("first", 3), make_request("second", 4)
        self.requests = {request.request_id: request for request in (first, second)}
        self.encoder_cache_manager = SimpleNamespace(cached={"key": {"first"}}, freeable={})
        self.booked: list[str] = []
        self.ended: list[str] = []

    def update_from_output(self, frame: str) -> dict[int, Any]:
        """Book a frame."""
        self.booked.append(frame)
        return {0: SimpleNamespace(outputs=[])}

    def finish_requests(self, request_ids: list[str], _status: Status) -> None:
        """End requests."""
        self.ended += request_ids


class Request(SimpleNamespace):
    """One that can be referred to weakly, as vLLM's can."""


def make_request(name: str, placeholders: int) -> Request:
    """Return a request with one item that has the cache key of the other's."""
    position = SimpleNamespace(offset=0, length=placeholders, get_num_embeds=placeholders)
    return Request(
        request_id=name,
        client_index=0,
        mm_features=[SimpleNamespace(identifier="key", mm_position=position)],
        trace_headers=None,
        take_events=list,
    )


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    """An applied guard, and what it takes from vLLM."""
    request, engine = ModuleType("vllm.v1.request"), ModuleType("vllm.v1.engine")
    vars(request)["RequestStatus"] = Status
    vars(engine)["EngineCoreOutput"] = vars(engine)["EngineCoreOutputs"] = SimpleNamespace
    monkeypatch.setitem(sys.modules, request.__name__, request)
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    applied = make_guard()
    applied.consider(make_module())
    return applied


def refuse_the_second(guard: Guard, scheduler: Scheduler) -> list[int]:
    """Have the second request's item scheduled; return the numbers of tokens that vLLM is asked."""
    asked: list[int] = []
    wrapper = ReusedKeys(guard).try_schedule_encoder_inputs
    arguments = (scheduler.requests["second"], 0, 4, 100)
    wrapper(lambda *given: asked.append(given[2]), scheduler, arguments, {})
    return asked


def test_it_ends_the_request_with_the_next_frame_and_steps_aside(guard: Guard) -> None:
    """The class's own method is called from then on."""
    scheduler = Scheduler()
    assert refuse_the_second(guard, scheduler) == [0]
    [told] = scheduler.update_from_output("frame")[0].outputs
    assert (told.request_id, told.finish_reason) == ("second", "error")
    assert METHOD not in vars(scheduler)
    assert scheduler.update_from_output("next")[0].outputs == []
    assert (scheduler.booked, scheduler.ended) == (["frame", "next"], ["second"])


def test_one_stands_in_for_all_that_are_refused_in_a_step(guard: Guard) -> None:
    """However often the same request is refused before a frame comes home."""
    scheduler = Scheduler()
    refuse_the_second(guard, scheduler)
    standing_in = vars(scheduler)[METHOD]
    refuse_the_second(guard, scheduler)
    assert vars(scheduler)[METHOD] is standing_in
    scheduler.update_from_output("frame")
    assert scheduler.ended == ["second"]


def test_a_method_that_somebody_put_on_this_scheduler_is_called_and_restored(guard: Guard) -> None:
    """It is not ours to remove."""
    scheduler, seen = Scheduler(), []

    def foreign(frame: str) -> dict[int, Any]:
        seen.append(frame)
        return Scheduler.update_from_output(scheduler, frame)

    vars(scheduler)[METHOD] = foreign
    refuse_the_second(guard, scheduler)
    scheduler.update_from_output("frame")
    assert vars(scheduler)[METHOD] is foreign
    assert (seen, scheduler.ended) == (["frame"], ["second"])


def test_what_was_put_over_it_stays(guard: Guard) -> None:
    """And calls it for good: it has nobody to end then."""
    scheduler = Scheduler()
    refuse_the_second(guard, scheduler)
    standing_in = vars(scheduler)[METHOD]

    def over(frame: str) -> Any:
        return standing_in(frame)

    vars(scheduler)[METHOD] = over
    scheduler.update_from_output("frame")
    scheduler.update_from_output("next")
    assert vars(scheduler)[METHOD] is over
    assert (scheduler.booked, scheduler.ended) == (["frame", "next"], ["second"])


def test_a_guard_that_is_off_ends_nobody(guard: Guard) -> None:
    """Unpatched between the two calls."""
    scheduler = Scheduler()
    refuse_the_second(guard, scheduler)
    guard.unwrap()
    assert scheduler.update_from_output("frame")[0].outputs == []
    assert (scheduler.ended, METHOD in vars(scheduler)) == ([], False)
