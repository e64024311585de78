"""The guards in simulated pipelines on real schedulers, and the simulator's proof of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from tests.releases.cache import RELEASES
from tests.releases.isolated import INSTALLED, run_isolated
from tests.releases.pooled import PARALLEL
from tests.scheduler.matrix import PRESSURE, REFERENCE, violations

SEEDS = 20
MANY = 100
TIMEOUT_SECONDS = 900

PREEMPTING = (*PRESSURE, "reset", "spec-reset")
REFUSING = ("faults", "aborts", "sessions", "spec-sessions")
GROUPS = (PREEMPTING, REFUSING)

Test = TypeVar("Test", bound=Callable[..., None])


Job = tuple[str, ...]
"""A release, a module of this folder, and its arguments."""


class _Jobs:
    """Runs each job once, in a subprocess of its own; some are begun before they are asked for."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._begun: dict[Job, Future[Any]] = {}

    def begin(self, job: Job) -> Future[Any]:
        if job not in self._begun:
            release, module, *arguments = job
            command = ["-m", f"tests.scheduler.{module}", *arguments]
            self._begun[job] = self._pool.submit(
                run_isolated, release, command, timeout=TIMEOUT_SECONDS
            )
        return self._begun[job]

    def end(self) -> None:
        self._pool.shutdown(cancel_futures=True)


_jobs: list[_Jobs] = []


@pytest.fixture(scope="module", autouse=True)
def jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Begin what the tests of this module say they need, in their order."""
    _jobs.append(_Jobs())
    for item in request.session.items:
        if isinstance(item, pytest.Function) and hasattr(item.function, "needed"):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            for job in item.function.needed(**parameters):
                _jobs[-1].begin(job)
    yield
    _jobs.pop().end()


def needs(jobs_of: Callable[..., list[Job]]) -> Callable[[Test], Test]:
    """Say what a test will ask for, given its parameters."""

    def said(test: Test) -> Test:
        vars(test)["needed"] = jobs_of
        return test

    return said


def result_of(job: Job) -> Any:
    """What a module of this folder prints on a release."""
    return _jobs[-1].begin(job).result()


def arms_of(release: str, *guards: str) -> Job:
    """All families."""
    arms = [word for name in guards for word in ("--guards", name)]
    return (release, "simulate", "--seeds", str(SEEDS), *arms)


def group_of(release: str, family: str, guards: str = "none", seeds: int = SEEDS) -> Job:
    """One family; with few seeds a group of families shares a job, or that of all families does."""
    if guards == "none" and seeds == SEEDS and release in (INSTALLED, *RELEASES):
        return arms_of(release, "none", "both")
    groups = GROUPS if seeds == SEEDS else ()
    group = next((group for group in groups if family in group), (family,))
    words = [word for name in group for word in ("--family", name)]
    return (release, "simulate", "--seeds", str(seeds), "--guards", guards, *words)


def tally(
    release: str, family: str, pipeline: str, guards: str = "none", seeds: int = SEEDS
) -> Any:
    """The counts of one family on one pipeline."""
    result = result_of(group_of(release, family, guards, seeds))
    return result["arms"][guards]["families"][family][pipeline]


@needs(lambda release: [arms_of(release, "none", "both")])
def test_guarded_runs_are_exact_and_leave_no_mark(release: str) -> None:
    """No crash, no wrong token, no stall, no leak; preemptions and schedules as they should be."""
    result = result_of(arms_of(release, "none", "both"))
    # Upstream's own fix under KV pressure; only where other releases may be downloaded.
    reference = None if release == INSTALLED else result_of(group_of(REFERENCE, PRESSURE[0]))
    assert list(violations(release, result, reference)) == []


@pytest.mark.releases
@pytest.mark.parametrize("pipeline", ["v1-depth3", "v2-depth3"])
@pytest.mark.parametrize("family", PREEMPTING)
@needs(lambda family, pipeline: [group_of("0.20.0", family, "stale")])
def test_stale_alone_is_enough_for_preemption_and_reset(family: str, pipeline: str) -> None:
    assert not tally("0.20.0", family, pipeline, "stale").get("failed")


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["v1-depth2", "v2-depth3"])
@pytest.mark.parametrize("family", REFUSING)
@needs(lambda family, pipeline: [group_of(INSTALLED, family, "clamp")])
def test_clamp_alone_is_enough_for_rows_that_may_not_deliver(family: str, pipeline: str) -> None:
    assert not tally(INSTALLED, family, pipeline, "clamp").get("failed")


MEASURED = ("0.20.0", "0.23.0", "0.26.0")


@pytest.mark.releases
@needs(lambda: [group_of(release, "kv-pressure", seeds=MANY) for release in MEASURED])
def test_unguarded_it_fails_under_pressure_as_measured_on_real_engines() -> None:
    """About half before 0.23, few per cent up to 0.26, none with one frame in flight."""
    failed = {
        release: tally(release, "kv-pressure", "v2-depth3", seeds=MANY) for release in MEASURED
    }
    assert 25 <= failed["0.20.0"]["failed"] <= 75
    assert any(place.startswith("AssertionError") for place in failed["0.20.0"]["crashes"])
    for release in ("0.23.0", "0.26.0"):
        assert 2 <= failed[release]["failed"] <= 15
    for release in failed:
        assert not tally(release, "kv-pressure", "v1-depth2", seeds=MANY).get("failed")


@pytest.mark.releases
@needs(lambda: [group_of("0.26.0", "spec-reset", seeds=MANY)])
def test_unguarded_a_reset_with_drafts_loses_tokens_in_silence_in_026() -> None:
    found = tally("0.26.0", "spec-reset", "v1-depth2", seeds=MANY)
    assert found["kinds"]["wrong"] > 25
    assert found["kinds"].get("crash", 0) < 5


@pytest.mark.releases
@pytest.mark.parametrize("family", PREEMPTING)
@pytest.mark.parametrize("release", ["0.27.1", INSTALLED, "0.33.0"])
@needs(lambda release, family: [group_of(release, family)])
def test_unguarded_newer_releases_survive_preemption_and_reset(release: str, family: str) -> None:
    for pipeline in ("v1-depth2", "v2-depth3"):
        assert not tally(release, family, pipeline).get("failed")


@pytest.mark.releases
@needs(lambda: [group_of(release, "sessions") for release in ("0.30.0", "0.31.0")])
def test_unguarded_sessions_go_wrong_up_to_030() -> None:
    assert tally("0.30.0", "sessions", "v1-depth2")["failed"] == SEEDS
    assert not tally("0.31.0", "sessions", "v1-depth2").get("failed")


@pytest.mark.slow
@needs(lambda: [(INSTALLED, "planted_bugs")])
def test_bugs_planted_into_the_scheduler_are_noticed() -> None:
    missed = [
        name
        for name, found in result_of((INSTALLED, "planted_bugs"))["failures"].items()
        if found is None
    ]
    assert missed == []


@pytest.mark.releases
@needs(lambda: [(release, "mutants") for release in ("0.12.0", "0.20.0")])
def test_every_mutant_of_our_rules_is_killed() -> None:
    """Some rules are needed in early releases only: drafts that outlive a preemption."""
    kills = [result_of((release, "mutants"))["failures"] for release in ("0.12.0", "0.20.0")]
    assert [name for name in kills[0] if not any(found[name] for found in kills)] == []


@pytest.mark.releases
def test_a_kv_producer_starts_over_where_others_are_held() -> None:
    found = result_of(("0.20.0", "mutants"))["kv_producer"]
    assert [name for name, failure in found.items() if failure] == []


@pytest.mark.slow
@pytest.mark.parametrize("where", [INSTALLED, pytest.param("0.20.0", marks=pytest.mark.releases)])
@needs(lambda where: [(where, "self_faults")])
def test_an_error_of_our_own_at_any_line_is_counted_and_not_noticed(where: str) -> None:
    found = result_of((where, "self_faults"))
    assert found["failures"] == {}
    assert found["lines"] > 100
