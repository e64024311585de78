"""One subprocess per vLLM runs all scenarios in all arms; the tests look at its result."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.releases.cache import RELEASES
from tests.releases.isolated import INSTALLED, run_isolated

PARALLEL = 2
TIMEOUT_SECONDS = 300

VLLMS = [INSTALLED, *(pytest.param(name, marks=pytest.mark.releases) for name in RELEASES)]


@pytest.fixture(params=VLLMS, scope="session")
def release(request: pytest.FixtureRequest) -> str:
    """The vLLM under test."""
    return str(request.param)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """The results by release; all that this session needs are started at once."""
    needed = {
        str(item.callspec.params["release"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and "runs" in item.fixturenames
        and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(PARALLEL) as pool:
        command = ["-m", "tests.scheduler.run"]
        yield {
            name: pool.submit(run_isolated, name, command, timeout=TIMEOUT_SECONDS)
            for name in sorted(needed)
        }
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def result(release: str, runs: dict[str, Future[Any]]) -> Any:
    """What the subprocess printed for the vLLM under test."""
    return runs[release].result()
