"""One subprocess per vLLM runs all scenarios in all arms; the tests look at its result."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.releases.cache import RELEASES
from tests.releases.isolated import INSTALLED, besides_installed
from tests.releases.pooled import run_on_releases

TIMEOUT_SECONDS = 300

VLLMS = [
    INSTALLED,
    *(pytest.param(name, marks=pytest.mark.releases) for name in besides_installed(RELEASES)),
]


@pytest.fixture(params=VLLMS, scope="session")
def release(request: pytest.FixtureRequest) -> str:
    """The vLLM under test."""
    return str(request.param)


@pytest.fixture(scope="session")
def scenario_runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """The results by release; all that this session needs are started at once."""
    with run_on_releases(request, ["-m", "tests.scheduler.run"], timeout=TIMEOUT_SECONDS) as runs:
        yield runs


@pytest.fixture
def result(release: str, scenario_runs: dict[str, Future[Any]]) -> Any:
    """What the subprocess printed for the vLLM under test."""
    return scenario_runs[release].result()
