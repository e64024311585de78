"""The frames in flight and the rows in them that may not be delivered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.stand_ins import make_guard, make_request
from vllm_guard.ledger import MAX_FRAMES, KeptPromptLogprobs, Ledger, Refusal


def make_output(*request_ids: str) -> SimpleNamespace:
    """Return what is read of a SchedulerOutput that schedules these requests."""
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(request_ids, 1))


def make_refusal(reason: str) -> Refusal:
    """Return a refusal of the rows of request ``a``."""
    return Refusal(reason, make_request(request_id="a"), make_guard())


@pytest.fixture
def ledger() -> Ledger:
    """An empty ledger of an asynchronous scheduler."""
    return Ledger(counts_placeholders=True)


def test_a_frame_is_in_flight_from_open_to_close(ledger: Ledger) -> None:
    """It comes back with its own output, once."""
    output = make_output("a")
    frame = ledger.open(output)
    assert list(ledger.in_flight("a")) == [frame]
    assert ledger.close(output) is frame
    assert list(ledger.in_flight("a")) == []
    assert ledger.close(output) is None


def test_an_equal_output_is_not_the_same_frame(ledger: Ledger) -> None:
    """Frames are told apart by identity: two in a row may be equal."""
    ledger.open(make_output("a"))
    assert ledger.close(make_output("a")) is None


def test_frames_come_oldest_first_and_only_those_that_carry_the_request(ledger: Ledger) -> None:
    """A request's frames in flight are those it was scheduled in."""
    first, _, third = (ledger.open(make_output(*ids)) for ids in ("ab", "b", "a"))
    assert list(ledger.in_flight("a")) == [first, third]


def test_blanking_reaches_every_frame_in_flight_of_that_request_only(ledger: Ledger) -> None:
    """Neither other requests' rows nor later frames are touched."""
    first, second = ledger.open(make_output("a", "b")), ledger.open(make_output("b"))
    refusal = make_refusal("id-reuse")
    assert ledger.blank(refusal)
    later = ledger.open(make_output("a"))
    assert (first.blank, second.blank, later.blank) == ({"a": refusal}, {}, {})
    assert list(ledger.owing("a")) == [later]


def test_blanking_says_whether_anything_is_in_flight(ledger: Ledger) -> None:
    """A session that stops with nothing in flight needs no repair."""
    ledger.open(make_output("b"))
    assert not ledger.blank(make_refusal("session-border"))


def test_the_first_reason_for_a_blank_row_stands(ledger: Ledger) -> None:
    """A prefill's row stays one when the request is aborted later."""
    frame = ledger.open(make_output("a"))
    first = make_refusal("prefill-token")
    ledger.blank(first)
    ledger.blank(make_refusal("id-reuse"))
    assert frame.blank == {"a": first}


def test_a_finished_request_is_forgotten_everywhere(ledger: Ledger) -> None:
    """Whoever gets its id next starts with nothing; others keep what they have."""
    for request_id in ("a", "b"):
        ledger.unsettled.add(request_id)
        ledger.suspects[request_id] = {1}
        ledger.kept[request_id] = KeptPromptLogprobs(object(), {})
    ledger.forget("a")
    assert ledger.unsettled == set(ledger.suspects) == set(ledger.kept) == {"b"}
    ledger.forget("never seen")


def test_doubt_covers_the_requests_and_all_frames_in_flight(ledger: Ledger) -> None:
    """After computed tokens were set back, nothing in flight can be relied on."""
    frames = [ledger.open(make_output("a")), ledger.open(make_output("b"))]
    ledger.doubt(["a"])
    later = ledger.open(make_output("a"))
    assert ledger.unsettled == {"a"}
    assert [frame.suspect for frame in [*frames, later]] == [True, True, False]


def test_frames_whose_output_never_comes_do_not_pile_up(ledger: Ledger) -> None:
    """The oldest are given up, the newest kept."""
    outputs = [make_output("a") for _ in range(MAX_FRAMES + 3)]
    frames = [ledger.open(output) for output in outputs]
    assert list(ledger.in_flight("a")) == frames[3:]
    assert ledger.close(outputs[0]) is None
