"""Random traffic on real schedulers, and the proof that a fault in it would be found."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.releases.isolated import INSTALLED, run_isolated

EXAMPLES = 50
SEED = 3
"""One with several of each event, so that a few changed rules leave some."""
TIMEOUT_SECONDS = 600

HAPPENS = (
    *("plain", "structured", "prompt-logprobs", "pooling", "session"),
    *("segment-early", "segment-late", "abort-in-flight", "id-reuse-in-flight"),
    *("reset", "reset-running", "preemption", "bogus-row", "loads-kv", "failed-load"),
)
"""Without one of these the examples would not test what they are for."""

OLD = "0.20.0"
"""A release that has the faults of both guards."""

ARMS = {INSTALLED: ("both",), OLD: ("both", "none", "clamp", "stale")}

RELEASES = [
    pytest.param(INSTALLED, marks=pytest.mark.slow),
    pytest.param(OLD, marks=pytest.mark.releases),
]


@pytest.fixture
def arms(release: str) -> Any:
    """What happened with which guards on."""
    return _arms_of(release)


@cache
def _arms_of(release: str) -> Any:
    """The same examples each time."""
    arguments = ["-m", "tests.scheduler.machine", "--examples", str(EXAMPLES)]
    arguments += ["--seed", str(SEED)]
    arguments += [word for arm in ARMS[release] for word in ("--guards", arm)]
    return run_isolated(release, arguments, timeout=TIMEOUT_SECONDS)["arms"]


@pytest.mark.parametrize("release", RELEASES)
def test_random_traffic_is_exact(arms: Any) -> None:
    assert arms["both"]["failure"] is None, arms["both"]["failure"]
    assert arms["both"]["examples"] == EXAMPLES


@pytest.mark.parametrize("release", RELEASES)
def test_it_meets_what_it_is_for(arms: Any) -> None:
    found = arms["both"]
    assert [event for event in HAPPENS if not found["events"].get(event)] == []
    assert {name.partition("-")[0] for name in found["pipelines"]} == {"sync", "async"}
    assert {name[-1] for name in found["pipelines"]} == {"1", "2", "3", "4"}


@pytest.mark.releases
@pytest.mark.parametrize("release", [OLD])
@pytest.mark.parametrize("guards", ["none", "clamp", "stale"])
def test_without_a_guard_it_finds_a_failure(arms: Any, guards: str) -> None:
    """Neither guard is there in vain: alone, the other one is not enough."""
    assert arms[guards]["failure"] is not None
    assert "state.teardown()" in arms[guards]["failure"]
