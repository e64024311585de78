"""`vllm-guard status`: on a good build, on a broken one, on none, and its warnings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_guard
from tests.unit.site_folder import Site, alone
from vllm_guard import __version__
from vllm_guard.cli import main


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site that hides a vLLM installed for this Python."""
    return Site(tmp_path)


def assert_one_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of a command that could not be carried out."""
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("vllm-guard: ")
    return line


def test_status_without_vllm_is_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the Python it looked in."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(sys, "path", alone(site.folder))
    assert main(["status"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"vllm-guard: no vLLM in this Python ({sys.executable})")


def test_status_shows_verdict_state_and_evidence_of_each_guard(site: Site) -> None:
    """For a build that delivers the token of a prefill."""
    site.add_vllm()
    ended = site.run("status")
    assert (ended.returncode, ended.stderr) == (0, "")
    first, *lines = ended.stdout.splitlines()
    assert first == (
        f"vllm-guard {__version__} on vLLM 0.20.0+das.dtk2604 (release 0.20.0, Hygon DCU)"
        f" in {site.folder / 'vllm'}"
    )
    shown = [line.split() for line in lines]
    assert ["clamp", "mode", "auto", "verdict", "needed", "state", "applied"] in shown
    evidence = next(words for words in shown if words[0] == "prefill-token")
    assert " ".join(evidence[1:]) == "needed a token of an unfinished prefill is delivered"


def test_status_goes_by_the_switches_of_its_environment(site: Site) -> None:
    """And shows what is wrong with them."""
    site.add_vllm()
    ended = site.run("status", VLLMGUARD_CLAMP="off", VLLMGUARD_STRICT="maybe")
    assert "mode off" in ended.stdout
    assert "state off" in ended.stdout
    assert "warning: VLLMGUARD_STRICT='maybe' " in ended.stdout


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("raise OSError('libtorch_dcu.so: cannot open')\n", "libtorch_dcu.so: cannot open"),
        ("def broken(\n", "SyntaxError"),
        ("import sys; sys.exit(3)\n", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)\n", "exit code -11"),
    ],
    ids=["raises", "syntax", "exits", "crashes"],
)
def test_status_of_a_broken_vllm_is_one_line_with_the_reason(
    site: Site, package: str, reason: str
) -> None:
    """The last line of the traceback, not all of it."""
    site.add_vllm()
    site.write("vllm/__init__.py", package)
    line = assert_one_line(site.run("status"))
    assert reason in line
    assert "Traceback" not in line


def test_status_without_a_scheduler_module_is_one_line(site: Site) -> None:
    """A vLLM of before V1 has none."""
    site.write("vllm/__init__.py", "")
    assert "No module named 'vllm.v1'" in assert_one_line(site.run("status"))


ENTRY_POINT = "[vllm.general_plugins]\nvllm_guard = vllm_guard:register\n"


def warnings(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the warnings of ``status``."""
    assert ended.returncode == 0, ended.stderr
    return "\n".join(line for line in ended.stdout.splitlines() if line.startswith("warning:"))


@pytest.mark.parametrize("allowed", ["vllm_guard", "ascend,vllm_guard"])
def test_an_allow_list_with_us_on_it_is_no_warning(site: Site, allowed: str) -> None:
    """Nothing is wrong, so nothing is said."""
    site.add_vllm()
    site.add_distribution("vllm-guard", "", ENTRY_POINT)
    assert warnings(site.run("status", VLLM_PLUGINS=allowed)) == ""


@pytest.mark.parametrize("allowed", ["ascend, vllm_guard", "", "vllm-guard"])
def test_an_allow_list_that_keeps_us_out_is_a_warning(site: Site, allowed: str) -> None:
    """vLLM compares exactly: a stray space or another spelling is enough."""
    site.add_vllm()
    site.add_distribution("vllm-guard", "", ENTRY_POINT)
    ended = site.run("status", VLLM_PLUGINS=allowed)
    assert f"VLLM_PLUGINS={allowed!r} keeps vllm-guard out" in warnings(ended)
    shown = [line.split() for line in ended.stdout.splitlines()]
    assert ["clamp", "mode", "auto", "verdict", "needed", "state", "not", "loaded"] in shown


def test_two_distributions_that_install_vllm_are_a_warning(site: Site) -> None:
    """The second one has overwritten the first."""
    site.add_vllm()
    site.add_distribution("vllm", "vllm/__init__.py,,\n")
    site.add_distribution("vllm-acme", "vllm/__init__.py,,\n")
    line = warnings(site.run("status"))
    assert "vllm 1.0" in line
    assert "vllm-acme 1.0" in line
    assert "uninstall all but one" in line


@pytest.mark.parametrize("home", ["/nonexistent/home", "/proc"])
def test_a_home_that_cannot_be_used_does_not_matter(site: Site, home: str) -> None:
    """Neither missing nor not writable."""
    site.add_vllm()
    ended = site.run("status", HOME=home)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "state applied" in ended.stdout


def test_describing_before_registering_says_that_nothing_is_enabled() -> None:
    """As JSON, like everything that is described."""
    described = json.loads(json.dumps(vllm_guard.status()))
    assert described["enabled"] is False
    assert described["guards"] == {}
