"""Installing the wheel beside a vendor's build, which pip must not touch."""

from __future__ import annotations

import zipfile
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.releases.isolated import REPOSITORY
from tests.runtime.installing import STAND_INS, VirtualEnvironment


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
