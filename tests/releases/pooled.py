"""Starts what each release has to run once, for all tests of a session, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest

from tests.releases.isolated import run_isolated

PARALLEL = 2


@contextmanager
def run_on_releases(
    request: pytest.FixtureRequest,
    command: list[str],
    *,
    timeout: float,
    more: Mapping[str, list[str]] = MappingProxyType({}),
) -> Iterator[dict[str, Future[Any]]]:
    """Run ``python COMMAND`` on every release that tests of this fixture will ask for.

    `request` is that of a session fixture; its tests have a parameter ``release``. The results are
    given by release. `more` are arguments that some releases get beside.
    """
    needed = {
        str(item.callspec.params["release"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and request.fixturename in item.fixturenames
        and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(PARALLEL) as pool:
        yield {
            name: pool.submit(run_isolated, name, [*command, *more.get(name, [])], timeout=timeout)
            for name in sorted(needed)
        }
        pool.shutdown(cancel_futures=True)
