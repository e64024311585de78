"""The miniature vLLM, for tests that need a process of their own; the wheel, for those of pip."""

from __future__ import annotations

import hashlib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.releases.isolated import REPOSITORY
from tests.runtime.cached import PYTHON, filled_once, pip
from tests.runtime.installing import STAND_INS, VirtualEnvironment, make_stand_in
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


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built with the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(
        *["wheel", "--no-deps", "--no-build-isolation", "--no-index"],
        *["--wheel-dir", str(folder), str(REPOSITORY)],
    )
    (built,) = folder.glob("vllm_guard-*.whl")
    return built


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="session")
def requirements(metadata: Message) -> list[str]:
    """What the wheel requires on this Python."""
    declared = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [str(one) for one in declared if one.marker is None or one.marker.evaluate()]


@pytest.fixture(scope="session")
def wheels(requirements: list[str]) -> Path:
    """A folder with wheels of the requirements; downloaded once."""
    stamp = hashlib.sha256(repr(sorted(requirements)).encode()).hexdigest()[:8]

    def download(folder: Path) -> None:
        pip("download", "--only-binary=:all:", "--dest", str(folder), *requirements)

    return filled_once(f"runtime-wheels-{PYTHON}-{stamp}", download)


@pytest.fixture
def vendors(tmp_path: Path) -> VirtualEnvironment:
    """An environment that holds a vendor's vLLM and torch, and nothing else."""
    environment = VirtualEnvironment(tmp_path / "environment")
    made = [make_stand_in(tmp_path, name, version) for name, version in STAND_INS.items()]
    environment.install(*map(str, made))
    return environment
