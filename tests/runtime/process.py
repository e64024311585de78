"""Programs run in a Python of their own, on the miniature vLLM or on the one installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.releases.isolated import PASSED_ON, REPOSITORY
from tests.runtime.inside import RESULT_MARK, SCHEDULER

_MINIATURE = Path(__file__).parent / "miniature"

_PRELUDE = """
import sys
import vllm_guard
from tests.runtime.inside import *
"""


@dataclass(frozen=True)
class Outcome:
    """What came of a program.

    Args:
        result: What it gave to ``report()``.
        log: Its standard error, where log lines go.
        swallowed: Errors of our own that production code swallowed.
    """

    result: Any
    log: str
    swallowed: list[str]

    def lines(self, level: str) -> list[str]:
        """Return the log lines of a level."""
        found = [line for line in self.log.splitlines() if line.startswith(f"{level} ")]
        return [line.removeprefix(f"{level} ") for line in found]


class ProgramFailed(Exception):
    """The program died, hung, gave no result or swallowed errors that nobody expected."""


def run_program(
    code: str,
    *,
    paths: tuple[Path, ...] = (),
    environment: dict[str, str] | None = None,
    swallows: bool = False,
    prelude: str = _PRELUDE,
    timeout: float = 30,
) -> Outcome:
    """Run ``code`` in a fresh Python and return what it reports.

    Args:
        code: Ends with a call of ``report()``.
        paths: Folders to import from, before anything else.
        environment: Added to a clean one.
        swallows: Whether errors of our own are expected to be swallowed.
        prelude: What runs before it; `tests.runtime.inside` and ``vllm_guard`` are at hand then.
        timeout: Seconds; a hanging program fails.
    """
    clean = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    clean["PYTHONPATH"] = os.pathsep.join(map(str, [*paths, REPOSITORY]))
    with tempfile.TemporaryDirectory(prefix="vllm-guard-test-") as state:
        clean["VLLMGUARD_STATE_DIR"] = state
        try:
            ended = subprocess.run(
                [sys.executable, "-c", prelude + dedent(code)],
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                env=clean | (environment or {}),
            )
        except subprocess.TimeoutExpired as expired:
            raise ProgramFailed(f"no end within {timeout:.0f} s: {expired.stderr!r}") from expired
    results = [line for line in ended.stdout.splitlines() if line.startswith(RESULT_MARK)]
    if ended.returncode != 0 or len(results) != 1:
        raise ProgramFailed(
            f"exit code {ended.returncode}, {len(results)} results:\n{ended.stderr[-3000:]}"
        )
    result, swallowed = json.loads(results[0].removeprefix(RESULT_MARK))
    if bool(swallowed) is not swallows:
        raise ProgramFailed(f"swallowed {swallowed}, expected some: {swallows}\n{ended.stderr}")
    return Outcome(result, ended.stderr, swallowed)


class Miniature:
    """A copy of the miniature vLLM that the test may change.

    Args:
        folder: Where to put it.
        bytecode: Where Python keeps the bytecode of everything that these programs import.
    """

    def __init__(self, folder: Path, bytecode: Path) -> None:
        self.folder = folder
        self._bytecode = bytecode
        shutil.copytree(_MINIATURE, folder, dirs_exist_ok=True)

    def path(self, module: str = SCHEDULER) -> Path:
        """Return the file of a module."""
        return self.folder / f"{module.replace('.', '/')}.py"

    def edit(self, old: str, new: str, module: str = SCHEDULER) -> None:
        """Replace ``old``, which must be there, in a module."""
        text = self.path(module).read_text()
        assert old in text
        self.path(module).write_text(text.replace(old, new))

    def append(self, code: str, module: str = SCHEDULER) -> None:
        """Let a module run ``code`` at its end."""
        self.path(module).write_text(self.path(module).read_text() + dedent(code))

    def run(
        self,
        code: str,
        *,
        paths: tuple[Path, ...] = (),
        swallows: bool = False,
        **environment: str,
    ) -> Outcome:
        """Run a program on it; see `run_program`."""
        return run_program(
            code,
            paths=(*paths, self.folder),
            environment={"PYTHONPYCACHEPREFIX": str(self._bytecode)} | environment,
            swallows=swallows,
        )
