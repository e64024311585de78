"""One subprocess per vLLM runs everything of this folder; the tests look at its result."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.releases.isolated import INSTALLED, besides_installed
from tests.releases.pooled import run_on_releases
from tests.scheduler.matrix import RELEASES

TIMEOUT_SECONDS = 600

GUARDED = RELEASES[RELEASES.index("0.13.0") :]
VLLMS = [
    INSTALLED,
    *(pytest.param(name, marks=pytest.mark.releases) for name in besides_installed(GUARDED)),
]

SELF_FAULTS_ON = (INSTALLED, "0.20.0")
"""Where errors of our own are tried: the gather steps of both runners, old and new."""


@pytest.fixture(params=VLLMS, scope="session")
def release(request: pytest.FixtureRequest) -> str:
    """The vLLM under test."""
    return str(request.param)


@pytest.fixture(scope="session")
def embedding_runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """The results by release; all that this session needs are started at once."""
    more = {name: ["--self-faults"] for name in SELF_FAULTS_ON}
    command = ["-m", "tests.embeddings.run"]
    with run_on_releases(request, command, timeout=TIMEOUT_SECONDS, more=more) as runs:
        yield runs


@pytest.fixture
def result(release: str, embedding_runs: dict[str, Future[Any]]) -> Any:
    """What the subprocess printed for the vLLM under test."""
    return embedding_runs[release].result()
