"""The unit tests on every Python that the project supports and this machine has.

`make test` runs it in the engine environment, whose own Python is left out here: the unit tests
have run on it already.
"""

from __future__ import annotations

import os
import sys

import nox

from tools.cache import cache_folder
from tools.interpreters import interpreter_folder

OWN_VERSION = "{}.{}".format(*sys.version_info[:2])
VERSIONS = [
    version
    for version in nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
    if version != OWN_VERSION
]

nox.options.envdir = str(cache_folder() / "nox")
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
# A missing interpreter is told and skipped, also where nox would take it for an error (CI is set).
nox.options.error_on_missing_interpreters = False

# nox looks on the path only, and takes a version manager's stub that cannot run for an interpreter.
folders = [str(folder) for version in VERSIONS if (folder := interpreter_folder(version))]
os.environ["PATH"] = os.pathsep.join([*folders, os.environ["PATH"]])


nox.options.sessions = ["unit"]


@nox.session(python=False)
def matrix(session: nox.Session) -> None:
    """Hold the guards to the exact token on every release; takes hours."""
    arguments = session.posargs or ["--seeds", "200", "--releases", "all"]
    session.run(sys.executable, "-m", "tests.scheduler.matrix", *arguments)


@nox.session(python=False)
def machine(session: nox.Session) -> None:
    """Let hypothesis mix every fault on every release; takes hours."""
    arguments = session.posargs or ["--examples", "2000", "--releases", "all"]
    session.run(sys.executable, "-m", "tests.scheduler.machine", *arguments)


@nox.session(python=False)
def soak(session: nox.Session) -> None:
    """Ten minutes of a real engine under traffic and faults: nothing of it may keep growing."""
    arguments = session.posargs or ["--minutes", "10"]
    session.run(sys.executable, "-m", "tests.engine.soak", *arguments)


@nox.session(python=False)
def verdicts(session: nox.Session) -> None:
    """Ask every release for its verdicts, by source and by running it; write what they say."""
    session.run(sys.executable, "-m", "tests.releases.verdicts", *session.posargs)


@nox.session(python=VERSIONS)
def unit(session: nox.Session) -> None:
    """Run tests/unit where there is neither vLLM nor torch."""
    session.install("-q", "pytest", "hypothesis", "hatchling", "editables", "prometheus_client")
    session.install("-q", "--no-build-isolation", "--editable", ".")
    session.run("python", "-m", "pytest", "-q", "tests/unit", *session.posargs)
