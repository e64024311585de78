"""The command and `explain`: what they print, and how wrong usage ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.site_folder import REPOSITORY
from vllm_guard import __version__, patches
from vllm_guard.cli import main


@pytest.mark.parametrize("guard", patches.names())
def test_explain_tells_all_there_is_to_know(guard: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything the document says, and the switch, within the width of a terminal."""
    assert main(["explain", guard]) == 0
    output = capsys.readouterr().out
    flat, document = " ".join(output.split()), patches.read(guard)
    texts = [document["title"], document["description"], document["changes"]]
    for text in [*texts, *document["symptom"], *document["bug"], *document["limits"]]:
        assert " ".join(text.split()) in flat
    assert f"VLLMGUARD_{guard.upper()}=auto|off|observe|force" in flat
    assert max(map(len, output.splitlines())) <= 100


def test_explain_of_an_unknown_guard_names_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, exit code 2."""
    assert main(["explain", "clmap"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "'clmap'" in line
    assert ", ".join(patches.names()) in line


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["explain"], ["status", "x"]])
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the usage, as everywhere."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: vllm-guard" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours, not vLLM's."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"vllm-guard {__version__}\n"


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    """``vllm-guard explain clamp | head -1`` ends quietly."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(
        [sys.executable, "-m", "vllm_guard", "explain", "clamp"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        cwd=REPOSITORY,
        env={"HOME": str(tmp_path)},
    )
    os.close(write_end)
    assert ended.stderr == ""
