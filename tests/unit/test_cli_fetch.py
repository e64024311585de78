"""`vllm-guard audit` of a requirement, which pip fetches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_cli_audit import VERSION, Captured, audit
from vllm_guard.cli import fetch


class Pip:
    """Stands for pip: puts a wheel where it is told to, or fails."""

    def __init__(self, wheel: Path | None, message: str = "") -> None:
        self.wheel = wheel
        self.message = message
        self.asked: list[str] = []

    def __call__(self, command: list[str], **_options: object) -> object:
        self.asked.append(command[-1])
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", self.message)
        folder = Path(command[command.index("--dest") + 1])
        (folder / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def test_a_requirement_is_fetched_once(
    make_wheel: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    """Into the user's cache folder, where the second call finds it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pip = Pip(make_wheel())
    monkeypatch.setattr(fetch.subprocess, "run", pip)
    for _ in range(2):
        assert audit("vllm==0.20.0") == 0
        assert f"vLLM {VERSION}" in capsys.readouterr().out
    assert pip.asked == ["vllm==0.20.0"]
    assert audit("vllm==0.21.0") == 0
    assert pip.asked == ["vllm==0.20.0", "vllm==0.21.0"]
    wheels = list((tmp_path / "cache/vllm-guard/wheels").iterdir())
    assert [wheel.name for wheel in wheels] == ["vllm-0.20.0-py3-none-any.whl"]


def test_a_requirement_that_pip_cannot_get_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """With what pip said, and what to do without a network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    message = "WARNING: Retrying\nERROR: No matching distribution found for vllm==0.20.0\nnotice"
    monkeypatch.setattr(fetch.subprocess, "run", Pip(None, message))
    assert audit("vllm==0.20.0") == 2
    assert capsys.readouterr().err == (
        "vllm-guard: vllm==0.20.0: pip could not get a wheel (ERROR: No matching distribution"
        " found for vllm==0.20.0); download it elsewhere and give its path\n"
    )


def test_a_cache_folder_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Naming the variable to set."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert audit("vllm==0.20.0") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "set XDG_CACHE_HOME" in line
