"""Counting triggers, and how few log lines that makes."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from vllm_guard.counters import INTERVAL, Counters


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> Counters:
    """Counters of the guard ``clamp`` that go by ``clock``."""
    return Counters("clamp", clock)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages that an operator sees."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_first_trigger_is_a_warning_with_everything_in_it(
    counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """What happened, why, what was done, where to read on and how to switch the guard off."""
    counters.record("prefill-token", "blanked", "request r7: 1 token(s)", "Read on here.")
    (line,) = warnings(caplog)
    for part in ("request r7: 1 token(s)", "prefill-token", "blanked", "Read on here."):
        assert part in line
    assert "VLLMGUARD_CLAMP=off" in line


def test_later_triggers_are_debug_lines_with_their_numbers(
    counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody's log is flooded, and whoever looks finds each of them."""
    with caplog.at_level(logging.DEBUG):
        for number in range(3):
            counters.record("prefill-token", "blanked", f"request r{number}", "Read on here.")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert "request r2" in caplog.messages[-1]
    assert "Read on here." not in caplog.messages[-1]


def test_each_reason_has_a_first_warning_of_its_own(
    counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """One frequent fault does not hide a rare one."""
    for reason in ("prefill-token", "id-reuse", "prefill-token"):
        counters.record(reason, "blanked", "request r")
    assert len(warnings(caplog)) == 2


def test_a_summary_comes_with_the_first_trigger_after_a_minute(
    counters: Counters, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before, and with how many there were, in how long, and in all."""
    counters.record("id-reuse", "blanked", "request r")
    clock.now += INTERVAL - 1
    counters.record("id-reuse", "blanked", "request r")
    assert len(warnings(caplog)) == 1
    clock.now += 1
    counters.record("id-reuse", "blanked", "request r")
    (_, line) = warnings(caplog)
    assert line == "vllm-guard clamp: 2 more of id-reuse in the last 60 s, 3 in all."


def test_ten_thousand_triggers_give_a_line_a_minute_and_lose_none(
    counters: Counters, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of a flood add up to every trigger."""
    minutes = 10
    for number in range(10_000):
        counters.record("prefill-token", "blanked", f"request r{number}")
        clock.now += minutes * INTERVAL / 10_000
    counters.flush()
    (_, *summaries) = warnings(caplog)
    assert minutes - 1 <= len(summaries) <= minutes + 1
    counts = [int(re.search(r": (\d+) more", line)[1]) for line in summaries]  # type: ignore[index]
    assert 1 + sum(counts) == 10_000
    assert summaries[-1].endswith("10000 in all.")


def test_flushing_says_each_thing_once(
    counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that ends through two doors does not report twice, nor report nothing."""
    counters.flush()
    counters.record("id-reuse", "blanked", "request r")
    counters.flush()
    assert len(warnings(caplog)) == 1
    counters.record("id-reuse", "blanked", "request r")
    counters.flush()
    counters.flush()
    assert len(warnings(caplog)) == 2


def test_counts_are_by_reason_and_action(counters: Counters) -> None:
    """What status, metrics and reports show."""
    for reason, action in [("a", "blanked"), ("a", "observed"), ("b", "cut"), ("a", "blanked")]:
        counters.record(reason, action, "request r")
    assert counters.as_dict() == {"a": {"blanked": 2, "observed": 1}, "b": {"cut": 1}}


def test_threads_lose_no_trigger(counters: Counters, caplog: pytest.LogCaptureFixture) -> None:
    """Several threads may count at once; there is still one first line."""

    def record() -> None:
        for _ in range(500):
            counters.record("a", "blanked", "request r")

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.as_dict() == {"a": {"blanked": 2000}}
    assert len(warnings(caplog)) == 1
