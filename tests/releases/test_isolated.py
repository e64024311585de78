"""Running code on a release: in a tree that is ours, with an environment that is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases import isolated
from tests.releases.cache import RELEASES
from tests.releases.isolated import SubprocessFailed, clean_environment, run_isolated

MADE_UP = "1.0"

REPORT = """
import os, vllm
from tests.releases.isolated import print_result
print_result({"vllm_file": vllm.__file__, "environment": dict(os.environ)})
"""


@pytest.fixture
def made_up_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `vllm` of two lines in place of a release, so that a subprocess takes no time."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    monkeypatch.setattr(isolated, "release_tree", lambda release: tmp_path)
    return tmp_path


def run(code: str, timeout: float = 30) -> dict[str, object]:
    result: dict[str, object] = run_isolated(MADE_UP, ["-c", code], timeout=timeout)
    return result


def test_the_tree_is_what_is_imported(made_up_tree: Path) -> None:
    assert run(REPORT)["vllm_file"] == str(made_up_tree / "vllm" / "__init__.py")


def test_switches_of_the_caller_do_not_reach_the_subprocess(
    made_up_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLMGUARD", "off")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    environment = run(REPORT)["environment"]
    assert isinstance(environment, dict)
    assert not {"VLLMGUARD", "VLLM_USE_V2_MODEL_RUNNER"} & set(environment)


def test_variables_can_be_added() -> None:
    environment = clean_environment(isolated.INSTALLED, {"VLLMGUARD_CLAMP": "off"})
    assert environment["VLLMGUARD_CLAMP"] == "off"


@pytest.mark.usefixtures("made_up_tree")
def test_output_around_the_result_does_no_harm() -> None:
    assert run(f"print('noise'){REPORT}print('more noise')")


@pytest.mark.usefixtures("made_up_tree")
def test_an_exception_is_shown_with_the_end_of_stderr() -> None:
    with pytest.raises(SubprocessFailed, match=r"exit code 1(.|\n)*ZeroDivisionError"):
        run("1 / 0")


@pytest.mark.usefixtures("made_up_tree")
def test_a_subprocess_that_hangs_is_ended() -> None:
    with pytest.raises(SubprocessFailed, match="no result within 1 s"):
        run("import time; time.sleep(60)", timeout=1)


@pytest.mark.usefixtures("made_up_tree")
def test_a_subprocess_without_a_result_fails() -> None:
    with pytest.raises(SubprocessFailed, match="exit code 0, 0 results"):
        run("pass")


@pytest.mark.usefixtures("made_up_tree")
def test_another_vllm_than_asked_for_fails() -> None:
    code = (
        "from tests.releases.isolated import print_result;"
        "print_result({'vllm_file': '/elsewhere/vllm/__init__.py'})"
    )
    with pytest.raises(SubprocessFailed, match=r"imported /elsewhere.* expected it in"):
        run(code)


@pytest.mark.releases
@pytest.mark.parametrize("release", RELEASES)
def test_each_release_is_the_one_it_is_called(release: str) -> None:
    # Importing it takes seconds; `tests/scheduler` does, and finds the same file.
    code = (
        "import importlib.util, pathlib, runpy;"
        "from tests.releases.isolated import print_result;"
        "file = pathlib.Path(importlib.util.find_spec('vllm').origin);"
        "version = runpy.run_path(str(file.with_name('_version.py')))['__version__'];"
        "print_result({'vllm_file': str(file), 'version': version})"
    )
    assert run_isolated(release, ["-c", code], timeout=60)["version"] == release
