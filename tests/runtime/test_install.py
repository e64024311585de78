"""Installing the wheel beside a vendor's build, which pip must not touch."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.releases.isolated import REPOSITORY
from tests.runtime.cached import PYTHON, filled_once, pip

STAND_INS = {"vllm": "0.20.0+das.dtk2604", "torch": "2.5.1+das.dtk2604"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built with the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(
        *["wheel", "--no-deps", "--no-build-isolation", "--no-index"],
        *["--wheel-dir", str(folder), str(REPOSITORY)],
    )
    (built,) = folder.glob("vllm_guard-*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def requirements(metadata: Message) -> list[str]:
    """What the wheel requires on this Python."""
    declared = map(Requirement, metadata.get_all("Requires-Dist", []))
    return [str(one) for one in declared if one.marker is None or one.marker.evaluate()]


@pytest.fixture(scope="module")
def wheels(requirements: list[str]) -> Path:
    """A folder with wheels of the requirements; downloaded once."""
    stamp = hashlib.sha256(repr(sorted(requirements)).encode()).hexdigest()[:8]

    def download(folder: Path) -> None:
        pip("download", "--only-binary=:all:", "--dest", str(folder), *requirements)

    return filled_once(f"runtime-wheels-{PYTHON}-{stamp}", download)


def make_stand_in(folder: Path, name: str, version: str) -> Path:
    """Write a wheel of a package that does nothing."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in_wheel, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(name_in_wheel, text)
    return path


class VirtualEnvironment:
    """A fresh one, worked on by the pip of the environment that runs the tests."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"

    def install(self, *arguments: str) -> None:
        """Install without a network."""
        pip("--python", str(self.python), "install", "--no-index", *arguments)

    def freeze(self) -> dict[str, str]:
        """Return name and version of everything that is installed."""
        lines = pip("--python", str(self.python), "list", "--format=freeze").split()
        return {
            canonicalize_name(name): version for name, version in (x.split("==") for x in lines)
        }

    def run(self, *arguments: str) -> str:
        """Run its Python, away from the checkout, and return what it prints."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM"))}
        ended = subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=self.python.parent,
            env=environment,
        )
        return ended.stdout


@pytest.fixture
def vendors(tmp_path: Path) -> VirtualEnvironment:
    """An environment that holds a vendor's vLLM and torch, and nothing else."""
    environment = VirtualEnvironment(tmp_path / "environment")
    made = [make_stand_in(tmp_path, name, version) for name, version in STAND_INS.items()]
    environment.install(*map(str, made))
    return environment


def test_installing_adds_what_is_missing_and_changes_nothing_else(
    vendors: VirtualEnvironment, wheel: Path, wheels: Path, requirements: list[str]
) -> None:
    """The vendor's build stays as it is; the guard and the command work beside it."""
    before = vendors.freeze()
    assert before == STAND_INS
    vendors.install("--find-links", str(wheels), str(wheel))
    after = vendors.freeze()
    names = {canonicalize_name(Requirement(text).name) for text in requirements}
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"vllm-guard", *names}
    described = vendors.run(
        "-c",
        "import vllm, vllm_guard; vllm_guard.register(); print(vllm_guard.status()['build'])",
    )
    assert "'vendor': 'Hygon DCU'" in described
    assert "clamp:" in vendors.run("-m", "vllm_guard", "explain", "clamp")


def test_installing_where_the_requirements_are_met_adds_only_the_guard(
    vendors: VirtualEnvironment, wheel: Path, wheels: Path, requirements: list[str]
) -> None:
    """A wrapt that vLLM's environment has already is not exchanged."""
    vendors.install("--find-links", str(wheels), *requirements)
    before = vendors.freeze()
    vendors.install(str(wheel))
    after = vendors.freeze()
    assert after.pop("vllm-guard")
    assert after == before


def test_the_wheel_holds_documents_and_type_marker(wheel: Path) -> None:
    """Every document of the checkout, and nothing beside the package and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    documents = {f"vllm_guard/patches/{p.name}" for p in (REPOSITORY / "patches").glob("*.toml")}
    assert documents
    assert documents | {"vllm_guard/py.typed"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vllm_guard"}


def test_the_metadata_requires_neither_vllm_nor_torch(metadata: Message) -> None:
    """On no Python and under no extra: pip must not touch a vendor's build."""
    declared = map(Requirement, metadata.get_all("Requires-Dist", []))
    assert {canonicalize_name(one.name) for one in declared} == {"wrapt", "packaging", "tomli"}
