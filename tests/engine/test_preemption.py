"""vLLM 0.23.0 preempts requests with output in flight, with and without the guard.

As many frames are in flight while one is scheduled as the pipeline has stages, less one; a single
stage has one all the same. Up to 0.26 a request that is resumed before its frames are home gets
wrong tokens, and only where two frames are in flight that can happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.arms import (
    LARGE_CACHE,
    PIPELINE_GUARDED,
    PIPELINE_UNGUARDED,
    SMALL_CACHE_GUARDED,
    SMALL_CACHE_UNGUARDED,
    Arm,
)
from tests.engine.load import REQUESTS_OF_CROWD

if TYPE_CHECKING:
    from tests.engine.outcome import Outcome

pytestmark = pytest.mark.engine

HEALTHY = "200"
Run = Callable[[Arm], "Outcome"]


def guards(outcome: Outcome) -> dict[str, Any]:
    """What the guards said in EngineCore when it last changed."""
    (status,) = outcome.recorded("guard")
    assert status["problems"] == []
    found: dict[str, Any] = status["guards"]
    assert [guard["internal_errors"] for guard in found.values()] == [0] * len(found)
    return found


@pytest.fixture(scope="session")
def large_cache(run_crowd: Run) -> Outcome:
    return run_crowd(LARGE_CACHE)


class TestLargeCache:
    def test_nothing_is_preempted(self, large_cache: Outcome) -> None:
        assert large_cache.preemptions == 0
        assert large_cache.answered == REQUESTS_OF_CROWD
        assert large_cache.recorded("scheduler") == [{"class": "AsyncScheduler", "replaced": []}]

    def test_the_load_would_show_a_mix_up(self, large_cache: Outcome) -> None:
        tokens = [answer.tokens for answer in large_cache.answers]
        assert len(set(tokens)) == REQUESTS_OF_CROWD


@pytest.mark.parametrize(
    "arm", [SMALL_CACHE_UNGUARDED, SMALL_CACHE_GUARDED, PIPELINE_GUARDED], ids=lambda arm: arm.name
)
def test_preempted_requests_get_the_tokens_of_a_large_cache(
    arm: Arm, run_crowd: Run, large_cache: Outcome
) -> None:
    outcome = run_crowd(arm)
    assert outcome.preemptions
    assert outcome.answered == REQUESTS_OF_CROWD
    assert outcome.different_from(large_cache) == []
    assert outcome.health == HEALTHY
    assert outcome.kept_engine is not None


def test_guards_never_act_with_one_frame_in_flight(run_crowd: Run) -> None:
    outcome = run_crowd(SMALL_CACHE_GUARDED)
    found = guards(outcome)
    assert (found["clamp"]["state"], found["stale"]["state"]) == ("applied", "applied")
    assert outcome.replaced_methods != []
    assert outcome.triggers == 0


def test_without_guard_two_frames_in_flight_mean_wrong_tokens(
    run_crowd: Run, large_cache: Outcome
) -> None:
    outcome = run_crowd(PIPELINE_UNGUARDED)
    assert outcome.preemptions
    assert outcome.replaced_methods == []
    assert outcome.different_from(large_cache) != []


def test_with_two_frames_in_flight_preempted_requests_are_held_back(run_crowd: Run) -> None:
    outcome = run_crowd(PIPELINE_GUARDED)
    found = guards(outcome)
    assert found["clamp"]["triggers"] == {}
    assert list(found["stale"]["triggers"]) == ["resume-early"]
    held = found["stale"]["triggers"]["resume-early"]["held"]
    assert outcome.preemptions is not None
    assert 0 < held <= outcome.preemptions
