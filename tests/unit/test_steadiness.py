"""What counts as a leak: made-up processes that have one, and some that only look like it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.engine.steadiness import COUNT_GROWTH, Course, Sample, slope

LIMIT = 200.0
SECONDS = 120


def course(
    rss: Callable[[int], float] = lambda second: 500_000,
    descriptors: Callable[[int], float] = lambda second: 40,
    threads: Callable[[int], float] = lambda second: 9,
) -> Course:
    """Return a process that is flat in all that is not given."""
    return Course(
        "EngineCore (pid 7)",
        [
            Sample(
                second, round(rss(second)), 0, 0, round(descriptors(second)), round(threads(second))
            )
            for second in range(SECONDS)
        ],
    )


def complaints(watched: Course) -> list[str]:
    return list(watched.complaints(LIMIT))


def noise(low: int, high: int) -> Callable[[int], int]:
    generator = random.Random(0)
    return lambda second: generator.randint(low, high)


def test_a_flat_process_is_none() -> None:
    assert course().memory_slope == 0
    assert complaints(course()) == []


def test_noise_is_no_leak() -> None:
    steady = noise(0, 4_000)
    open_ones, running = noise(30, 44), noise(8, 11)
    assert complaints(course(lambda s: 500_000 + steady(s), open_ones, running)) == []


def test_shrinking_is_no_leak() -> None:
    assert complaints(course(lambda s: 500_000 - 50 * s, lambda s: 90 - s / 2)) == []


@pytest.mark.parametrize("noisy", [0, 4_000])
def test_memory_that_grows_every_second_is_a_leak(noisy: int) -> None:
    jitter = noise(0, noisy)
    leaking = course(lambda s: 500_000 + 10 * s + jitter(s))
    assert leaking.memory_slope == pytest.approx(600, abs=1 if not noisy else 300)
    (complaint,) = complaints(leaking)
    assert complaint.startswith("EngineCore (pid 7): memory grows by ")


def test_memory_that_grows_in_steps_is_a_leak() -> None:
    assert len(complaints(course(lambda s: 500_000 + 1_024 * (s // 20)))) == 1


def test_a_peak_of_some_seconds_is_no_leak() -> None:
    assert complaints(course(lambda s: 500_000 + 300_000 * (SECONDS - 15 < s < SECONDS - 5))) == []


def test_a_slope_at_the_limit_is_none_and_one_above_it_is() -> None:
    assert complaints(course(lambda s: 500_000 + s * LIMIT / 60)) == []
    assert len(list(course(lambda s: 500_000 + 5 * s).complaints(299))) == 1


@pytest.mark.parametrize("what", ["descriptors", "threads"])
def test_one_more_every_ten_seconds_is_a_leak(what: str) -> None:
    (complaint,) = complaints(course(**{what: lambda s: 40 + s / 10}))
    assert f"more {what} at the end than at first" in complaint


@pytest.mark.parametrize("what", ["descriptors", "threads"])
def test_a_leak_below_the_noise_of_connections_is_found(what: str) -> None:
    jitter = noise(0, 12)
    assert len(complaints(course(**{what: lambda s: 40 + s / 12 + jitter(s)}))) == 1


@pytest.mark.parametrize("more", [COUNT_GROWTH, COUNT_GROWTH + 1])
def test_so_many_more_at_once_are_allowed(more: int) -> None:
    grown = course(descriptors=lambda s: 40 + more * (s > 60))
    assert len(complaints(grown)) == (more > COUNT_GROWTH)


def test_slope_is_the_median_of_all_pairs() -> None:
    assert slope([(0, 0), (1, 1), (2, 2), (3, 100), (4, 4)]) == 1
    assert slope([(0, 3), (10, 1)]) == pytest.approx(-0.2)
