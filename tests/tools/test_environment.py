"""What a user sees of `tools.environment` where something is missing, and at the second run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.cache import Lock
from tools.engines import ENGINES
from tools.interpreters import interpreter_folder

CHECKOUT = Path(__file__).resolve().parents[2]
TOO_OLD = ("3.6", "3.7", "3.8", "3.9")


def run_environment(
    *arguments: str, interpreter: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter, "-m", "tools.environment", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"
    finished = run_environment(GUARD_TEST_CACHE=str(cache))
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"error: cannot write to the cache folder {cache}")
    assert finished.stderr.count("\n") == 1
    assert finished.stdout == ""


def test_a_python_that_is_too_old_is_one_line() -> None:
    folders = {version: interpreter_folder(version) for version in TOO_OLD}
    at_hand = {version: folder for version, folder in folders.items() if folder}
    if not at_hand:
        pytest.skip(f"none of Python {', '.join(TOO_OLD)} is on this machine")
    for version, folder in at_hand.items():
        finished = run_environment(interpreter=str(folder / f"python{version}"))
        assert finished.returncode == 2
        assert "Python 3.10 or newer is needed" in finished.stderr
        assert finished.stderr.count("\n") == 1


def test_an_engine_that_is_not_in_the_table_is_one_line() -> None:
    finished = run_environment("--engine", "0.1.0")
    assert finished.returncode == 2
    assert finished.stderr == f"error: --engine needs one of {', '.join(ENGINES)}, not 0.1.0\n"
    assert finished.stdout == ""


def test_an_installation_that_fails_shows_the_end_of_its_output(tmp_path: Path) -> None:
    finished = run_environment(
        GUARD_TEST_CACHE=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path)
    )
    assert finished.returncode == 2
    assert "failed" in finished.stdout
    assert "pip" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_lock_that_is_shared_is_not_given_to_an_owner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = Lock(path), Lock(path)
    first.share()
    second.share()
    script = (
        f"from pathlib import Path; from tools.cache import Lock; Lock(Path({str(path)!r})).own()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert "waiting for another run" in owner.stdout.readline()
        time.sleep(0.2)
        assert owner.poll() is None
    finally:
        owner.kill()
        owner.communicate()


def test_no_interpreter_of_an_unknown_version_is_found() -> None:
    assert interpreter_folder("3.99") is None


def test_own_interpreter_is_found() -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    folder = interpreter_folder(version)
    assert folder is not None
    assert (folder / f"python{version}").is_file()
