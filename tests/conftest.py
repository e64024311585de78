"""For every tier: no test leaves a guard or vLLM behind, and no swallowed error stays hidden."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vllm_guard
from tests.runtime.swallowed import SwallowedErrors

FOLDERS_FIRST = ("engine", "embeddings", "scheduler")
"""What takes longest, in this order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that several processes (pytest-xdist) end together."""
    order = {folder: place for place, folder in enumerate(FOLDERS_FIRST)}
    items.sort(key=lambda item: order.get(_folder(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole folders: their session fixtures are made once, one engine runs.

    Not where the command line says otherwise (``--dist``).
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _folder(nodeid)

    return ByFolder(config, log)


def _folder(nodeid: str) -> str:
    return nodeid.removeprefix("tests/").partition("/")[0]


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what is registered in this process out of the user's own state folder."""
    folder = tmp_path_factory.mktemp("state") / "vllm-guard"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLMGUARD_STATE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def no_vllm_here() -> Iterator[None]:
    """Fail the test that imports vLLM into this process: its logging set-up would stay for all."""
    was_there = "vllm.logger" in sys.modules
    yield
    assert was_there or "vllm.logger" not in sys.modules


@pytest.fixture(autouse=True)
def swallowed_errors() -> Iterator[SwallowedErrors]:
    """Undo what the test patched, then raise the errors it did not ``take()``."""
    errors = SwallowedErrors()
    errors.start()
    yield errors
    vllm_guard.unpatch()
    errors.stop()
    errors.raise_untaken()
