"""The recipe for a machine without a network is run: its script, then what its Dockerfile runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pip
import pytest

from tests.releases.isolated import REPOSITORY
from tests.runtime.installing import STAND_INS, VirtualEnvironment

FOLDER = REPOSITORY / "examples" / "docker"
DOCKERFILES = sorted(path.name for path in FOLDER.glob("Dockerfile*"))
# Nobody listens there: what asks for an index fails.
NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}


def instructions(name: str, word: str) -> list[str]:
    """Return the arguments of each such instruction of a Dockerfile, lines joined."""
    text = (FOLDER / name).read_text().replace("\\\n", " ")
    return re.findall(rf"^{word} (.*)$", text, re.MULTILINE)


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run what RUN would."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP", "VLLM"))}
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd="/",
        env=inherited | variables,
    )


@pytest.fixture(scope="module")
def pip_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variable by which a Python finds this environment's pip: images have one."""
    folder = tmp_path_factory.mktemp("pip")
    (folder / "pip").symlink_to(Path(pip.__file__).parent)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def carried(wheel: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the script fills."""
    folder = tmp_path_factory.mktemp("carried") / "wheels"
    ended = shell(
        f"sh {FOLDER / 'fetch_wheels.sh'}",
        PYTHON=sys.executable,
        VLLM_GUARD=str(wheel),
        WHEELS=str(folder),
        # In this test its index is the cache.
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(wheels),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "vllm_guard" in ended.stdout
    return folder


def test_the_offline_image_is_built_without_an_index(
    vendors: VirtualEnvironment, carried: Path, pip_alone: dict[str, str], tmp_path: Path
) -> None:
    """And the vendor's vLLM and torch stay what they are."""
    (copied,) = instructions("Dockerfile.offline", "COPY")
    source, destination = copied.split()
    assert source == carried.name
    placed = tmp_path / "placed"
    shutil.copytree(carried, placed)
    for command in instructions("Dockerfile.offline", "RUN"):
        ended = shell(
            command.replace(destination, str(placed)),
            PYTHON=str(vendors.python),
            **NO_INDEX,
            **pip_alone,
        )
        assert ended.returncode == 0, ended.stderr
    assert not placed.exists()
    after = vendors.freeze()
    assert {name: after[name] for name in STAND_INS} == STAND_INS
    assert "vllm-guard" in after


def test_without_what_the_script_fetched_the_offline_image_is_not_built(
    vendors: VirtualEnvironment, carried: Path, pip_alone: dict[str, str], tmp_path: Path
) -> None:
    """So nothing comes from anywhere else."""
    placed = tmp_path / "placed"
    shutil.copytree(carried, placed, ignore=shutil.ignore_patterns("wrapt-*"))
    install = instructions("Dockerfile.offline", "RUN")[0].replace("/tmp/wheels", str(placed))
    ended = shell(install, PYTHON=str(vendors.python), **NO_INDEX, **pip_alone)
    assert ended.returncode != 0
    assert "No matching distribution found for wrapt" in ended.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_last_step_refuses_an_image_without_vllm(
    name: str, carried: Path, tmp_path: Path
) -> None:
    bare = VirtualEnvironment(tmp_path / "bare")
    bare.install("--find-links", str(carried), "vllm-guard")
    ended = shell(instructions(name, "RUN")[-1], PYTHON=str(bare.python))
    assert ended.returncode == 2
    assert "no vLLM is installed for this Python" in ended.stderr
