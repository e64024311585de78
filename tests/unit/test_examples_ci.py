"""The recipes for CI are run as they are, on small builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.site_folder import REPOSITORY, SCHEDULER, Site
from vllm_guard.cli import main
from vllm_guard.guards import DEFINITIONS

FOLDER = REPOSITORY / "examples" / "ci"
ENTRY_POINT = "[vllm.general_plugins]\nvllm_guard = vllm_guard:register\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with a small vLLM."""
    site = Site(tmp_path / "site")
    site.folder.mkdir()
    site.add_vllm()
    site.add_distribution("vllm-guard", "", ENTRY_POINT)
    return site


def run(
    site: Site, script: str, *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a recipe with the site's packages."""
    return subprocess.run(
        ["sh", str(FOLDER / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=site.folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(site.folder),
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(site.folder), str(REPOSITORY)]),
        }
        | variables,
    )


def test_the_gate_passes_with_what_it_prints_itself(site: Site) -> None:
    printed = run(site, "gate.sh", "--print")
    assert (printed.returncode, printed.stderr) == (0, "")
    expected = printed.stdout.strip()
    assert [item.split("=")[0] for item in expected.split(",")] == [d.name for d in DEFINITIONS]
    passed = run(site, "gate.sh", EXPECT=expected)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout.splitlines()[-1] == "nothing to do"


def test_the_gate_fails_on_another_build(site: Site) -> None:
    expected = run(site, "gate.sh", "--print").stdout.strip()
    site.add_vllm(SCHEDULER.replace("request.append_output_token_ids(token)", "pass"))
    failed = run(site, "gate.sh", EXPECT=expected, FORMAT="github")
    assert failed.returncode == 1
    assert "::error title=vllm-guard check clamp::" in failed.stdout


def test_the_gate_tells_a_build_that_cannot_be_checked(site: Site) -> None:
    site.write("vllm/__init__.py", "raise OSError('libtorch_dcu.so: cannot open')\n")
    failed = run(site, "gate.sh")
    assert failed.returncode == 2
    assert "libtorch_dcu.so: cannot open" in failed.stderr


def test_releases_that_need_no_guard_are_found(site: Site, tmp_path: Path) -> None:
    needs, empty = site.folder, Site(tmp_path / "empty")
    # Without any of the code that the faults are in, nothing is needed.
    empty.write("vllm/__init__.py", "")
    found = run(site, "find_release.sh", needs, empty.folder)
    assert (found.returncode, found.stdout.split()) == (0, [str(empty.folder)])
    none = run(site, "find_release.sh", needs)
    assert (none.returncode, none.stdout) == (1, "")
    failed = run(site, "find_release.sh", tmp_path / "missing")
    assert failed.returncode == 2
    assert "missing" in failed.stderr
    assert run(site, "find_release.sh").returncode == 2


def test_the_workflow_runs_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """With options that they take, and recipes that are beside it."""
    text = (FOLDER / "vllm-guard.yml").read_text(encoding="utf-8")
    for command, options in re.findall(r"vllm-guard (check|audit) ([^\n]*)", text):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        usage = capsys.readouterr().out
        assert all(option in usage for option in re.findall(r"--[\w-]+", options))
    recipes = set(re.findall(r"examples/ci/(\w+\.sh)", text))
    assert recipes == {path.name for path in FOLDER.glob("*.sh")}
