"""What was counted is logged when a process ends, however it was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Four triggers: one is logged at once, three are left for the end.
PROGRAM = """
import logging, multiprocessing, sys
from vllm_guard.counters import Counters, AtExit

logging.basicConfig(level=logging.WARNING)
counters = Counters("clamp")

def trigger():
    for _ in range(4):
        counters.record("id-reuse", "blanked", "request r")

def trigger_in_child():
    flush = AtExit(counters.flush)
    trigger()

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "itself":
        trigger_in_child()
    elif how == "inherited":
        flush = AtExit(counters.flush)
        child = multiprocessing.get_context("fork").Process(target=trigger)
    else:
        child = multiprocessing.get_context(how).Process(target=trigger_in_child)
    if how != "itself":
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize("how", ["itself", "spawn", "fork", "forkserver", "inherited"])
def test_the_rest_is_logged_once_at_the_end(how: str, tmp_path: Path) -> None:
    """By a plain process, each kind of child, and a fork of a process that had registered."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(program), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert ended.stderr.count("3 more of id-reuse") == 1
    assert "Traceback" not in ended.stderr
