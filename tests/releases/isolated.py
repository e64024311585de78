"""Run a module or a snippet in a fresh interpreter on one vLLM, and get its JSON back."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.releases.cache import release_tree
from vllm_guard import installed

REPOSITORY = Path(__file__).resolve().parents[2]

INSTALLED = "installed"
"""In place of a release: the vLLM of the environment that runs the tests."""

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
"""All that a subprocess keeps of our environment: a developer's VLLM_* or VLLMGUARD_* variable
must not decide a test."""

JSON_MARK = "==JSON== "
"""Starts the one line of standard output that is the result; vLLM may print around it."""


class SubprocessFailed(Exception):
    """The subprocess died, hung, printed no result or ran on another vLLM."""


def besides_installed(releases: Iterable[str]) -> list[str]:
    """The releases without the one that is installed, which is tested as `INSTALLED`."""
    build = installed.find()
    return [release for release in releases if build is None or release != build.version]


def vllm_folder(release: str | Path) -> Path:
    """The folder whose `vllm` package a subprocess for `release` must import."""
    if isinstance(release, Path):
        return release
    if release != INSTALLED:
        return release_tree(release)
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SubprocessFailed(f"no vllm is installed for {sys.executable}")
    return Path(spec.origin).parents[1]


def clean_environment(release: str | Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a subprocess that imports `release` and this checkout's packages."""
    # The installed vLLM is found anyway; site-packages in front could hide standard modules.
    folders = [REPOSITORY] if release == INSTALLED else [vllm_folder(release), REPOSITORY]
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # No thread pools for a test that multiplies nothing.
        "OMP_NUM_THREADS": "1",
    }
    return environment | (extra or {})


def print_result(result: Any) -> None:
    """What the subprocess calls once, at its end, to hand its result over."""
    print(JSON_MARK + json.dumps(result), flush=True)
    # It ends, and collecting what vLLM's modules have made would take seconds.
    gc.freeze()


def run_isolated(
    release: str | Path,
    arguments: list[str],
    *,
    timeout: float,
    environment: dict[str, str] | None = None,
) -> Any:
    """Run `python ARGUMENTS` on `release` and return what it handed to `print_result`.

    `release` is a version, `INSTALLED` or the folder of a tree; `arguments` are the interpreter's
    (`["-m", "module"]`, `["-c", "code"]`); `environment` is added to the clean one. The result
    must be a mapping with the key `vllm_file`, which is checked against the tree.
    """
    folder = vllm_folder(release)
    try:
        finished = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=REPOSITORY,
            env=clean_environment(release, environment),
        )
    except subprocess.TimeoutExpired as error:
        stderr = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr
        raise SubprocessFailed(
            f"vLLM {release}: no result within {timeout:.0f} s:\n{_tail(stderr or '')}"
        ) from error
    lines = [line for line in finished.stdout.splitlines() if line.startswith(JSON_MARK)]
    if finished.returncode != 0 or len(lines) != 1:
        raise SubprocessFailed(
            f"vLLM {release}: exit code {finished.returncode}, {len(lines)} results:\n"
            f"{_tail(finished.stderr)}"
        )
    result = json.loads(lines[0].removeprefix(JSON_MARK))
    imported = Path(result["vllm_file"])
    if imported.parents[1] != folder:
        raise SubprocessFailed(f"vLLM {release}: imported {imported}, expected it in {folder}")
    return result


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
