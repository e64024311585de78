"""The miniature vLLM, for tests that need a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.process import Miniature


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for bytecode: what one program has compiled, the next finds."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture
def miniature(tmp_path: Path, bytecode: Path) -> Miniature:
    """A copy of the miniature vLLM."""
    return Miniature(tmp_path / "miniature", bytecode)


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A folder with a vendor's package that replaces ``Scheduler.schedule``."""
    (tmp_path / "vendor.py").write_text(
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "original = Scheduler.schedule\n"
        "def schedule(self):\n"
        "    return original(self)\n"
        "def replace():\n"
        "    Scheduler.schedule = schedule\n"
    )
    return tmp_path
