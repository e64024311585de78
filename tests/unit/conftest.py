"""Settings of the tools that these tests use, and the builds that the commands are asked about."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unit.site_folder import Site

# A busy machine is slow, not wrong.
settings.register_profile("vllm-guard", deadline=None)
settings.load_profile("vllm-guard")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a small vLLM that delivers whatever comes."""
    site = Site(tmp_path / "site")
    site.folder.mkdir()
    site.add_vllm()
    return site.folder


@pytest.fixture
def make_wheel(tree: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes a wheel of the tree, behind a hole of so many bytes."""

    def make(name: str = "vllm-0.20.0-py3-none-any.whl", hole: int = 0, prefix: str = "") -> Path:
        wheel = tmp_path / name
        with wheel.open("wb") as file:
            file.seek(hole)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in tree.rglob("*.py"):
                    archive.write(path, prefix + path.relative_to(tree).as_posix())
                archive.writestr("vllm/_C.abi3.so", b"\0" * 1000)
        return wheel

    return make
