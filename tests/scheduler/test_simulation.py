"""The guards in simulated pipelines on real schedulers, and the simulator's proof of itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.releases.isolated import INSTALLED, run_isolated
from tests.scheduler.matrix import PRESSURE, REFERENCE, violations

SEEDS = 20
MANY = 100
TIMEOUT_SECONDS = 900

PREEMPTING = (*PRESSURE, "reset", "spec-reset")
REFUSING = ("faults", "aborts", "sessions", "spec-sessions")
GROUPS = (PREEMPTING, REFUSING)


@cache
def module_result(release: str, *arguments: str) -> Any:
    """What a module of this folder prints on `release`; run once for all tests."""
    command = ["-m", f"tests.scheduler.{arguments[0]}", *arguments[1:]]
    return run_isolated(release, command, timeout=TIMEOUT_SECONDS)


def simulated(release: str, *options: str) -> Any:
    return module_result(release, "simulate", *options)


def tally(
    release: str, family: str, pipeline: str, guards: str = "none", seeds: int = SEEDS
) -> Any:
    """The counts of one family on one pipeline; a group of families shares a subprocess."""
    group = next((group for group in GROUPS if family in group), (family,))
    words = [word for name in group for word in ("--family", name)]
    result = simulated(release, "--seeds", str(seeds), "--guards", guards, *words)
    return result["arms"][guards]["families"][family][pipeline]


@pytest.fixture(scope="session")
def reference(release: str) -> Any:
    """Upstream's own fix under KV pressure; only where other releases may be downloaded."""
    if release == INSTALLED:
        return None
    families = [word for family in PRESSURE for word in ("--family", family)]
    return simulated(REFERENCE, "--seeds", str(SEEDS), "--guards", "none", *families)


def test_guarded_runs_are_exact_and_leave_no_mark(release: str, reference: Any) -> None:
    """No crash, no wrong token, no stall, no leak; preemptions and schedules as they should be."""
    result = simulated(release, "--seeds", str(SEEDS), "--guards", "none", "--guards", "both")
    assert list(violations(release, result, reference)) == []


@pytest.mark.releases
@pytest.mark.parametrize("pipeline", ["v1-depth3", "v2-depth3"])
@pytest.mark.parametrize("family", PREEMPTING)
def test_stale_alone_is_enough_for_preemption_and_reset(family: str, pipeline: str) -> None:
    assert not tally("0.20.0", family, pipeline, "stale").get("failed")


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["v1-depth2", "v2-depth3"])
@pytest.mark.parametrize("family", REFUSING)
def test_clamp_alone_is_enough_for_rows_that_may_not_deliver(family: str, pipeline: str) -> None:
    assert not tally(INSTALLED, family, pipeline, "clamp").get("failed")


@pytest.mark.releases
def test_unguarded_it_fails_under_pressure_as_measured_on_real_engines() -> None:
    """About half before 0.23, few per cent up to 0.26, none with one frame in flight."""
    failed = {
        release: tally(release, "kv-pressure", "v2-depth3", seeds=MANY)
        for release in ("0.20.0", "0.23.0", "0.26.0")
    }
    assert 25 <= failed["0.20.0"]["failed"] <= 75
    assert any(place.startswith("AssertionError") for place in failed["0.20.0"]["crashes"])
    for release in ("0.23.0", "0.26.0"):
        assert 2 <= failed[release]["failed"] <= 15
    for release in failed:
        assert not tally(release, "kv-pressure", "v1-depth2", seeds=MANY).get("failed")


@pytest.mark.releases
def test_unguarded_a_reset_with_drafts_loses_tokens_in_silence_in_026() -> None:
    found = tally("0.26.0", "spec-reset", "v1-depth2", seeds=MANY)
    assert found["kinds"]["wrong"] > 25
    assert found["kinds"].get("crash", 0) < 5


@pytest.mark.releases
@pytest.mark.parametrize("family", PREEMPTING)
@pytest.mark.parametrize("release", ["0.27.1", "0.29.0", "0.33.0"])
def test_unguarded_newer_releases_survive_preemption_and_reset(release: str, family: str) -> None:
    for pipeline in ("v1-depth2", "v2-depth3"):
        assert not tally(release, family, pipeline).get("failed")


@pytest.mark.releases
def test_unguarded_sessions_go_wrong_up_to_030() -> None:
    assert tally("0.30.0", "sessions", "v1-depth2")["failed"] == SEEDS
    assert not tally("0.31.0", "sessions", "v1-depth2").get("failed")


@pytest.mark.slow
def test_bugs_planted_into_the_scheduler_are_noticed() -> None:
    missed = [
        name
        for name, found in module_result(INSTALLED, "planted_bugs")["failures"].items()
        if found is None
    ]
    assert missed == []


@pytest.mark.releases
def test_every_mutant_of_our_rules_is_killed() -> None:
    """Some rules are needed in early releases only: drafts that outlive a preemption."""
    kills = [module_result(release, "mutants")["failures"] for release in ("0.12.0", "0.20.0")]
    assert [name for name in kills[0] if not any(found[name] for found in kills)] == []


@pytest.mark.releases
def test_a_kv_producer_starts_over_where_others_are_held() -> None:
    found = module_result("0.20.0", "mutants")["kv_producer"]
    assert [name for name, failure in found.items() if failure] == []
