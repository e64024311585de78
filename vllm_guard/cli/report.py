"""``vllm-guard report``: all that a maintainer would ask for, to paste into an issue."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_guard import __version__, installed, settings
from vllm_guard.cli import environment, processes
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.formats.standing import running_lines
from vllm_guard.cli.new_process import NewProcess, ask_new_process
from vllm_guard.cli.output import Output
from vllm_guard.probes.static.sources import SourceError, open_source
from vllm_guard.probes.static.verdicts import judge_source
from vllm_guard.states import Finding

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_LIBRARIES = ("wrapt", "packaging", "torch", "prometheus_client")
_PLUGINS = "vllm.general_plugins"
# Nothing else of the environment is shown: keys and tokens live there.
_SHOWN_VARIABLES = ("VLLM_PLUGINS",)


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="a block to paste into an issue",
        description="Prints versions, verdicts, states and counts. Of the environment it shows"
        f" {settings.PREFIX}* and {', '.join(_SHOWN_VARIABLES)} only; home folders become ~.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines; what cannot be found out is said in its place."""
    home = str(Path.home())
    lines = (line.replace(home, "~") if len(home) > 1 else line for line in _lines())
    return Output(["```text", *lines, "```"])


def _lines() -> Iterator[str]:
    yield f"vllm-guard {__version__}, Python {platform.python_version()}, {platform.platform()}"
    build, folder = installed.find(), installed.package_folder()
    yield f"{build} in {folder}" if build is not None else "no vLLM in this Python"
    yield from _section("installed by", (f"{n} {v}" for n, v in installed.distributions()))
    yield from _section("libraries", filter(None, map(_version, _LIBRARIES)))
    yield from _section(
        "plugins",
        (
            f"{plugin.name} = {plugin.value} ({plugin.dist.name} {plugin.dist.version})"
            for plugin in metadata.entry_points(group=_PLUGINS)
            if plugin.dist is not None
        ),
    )
    yield from _section("environment", _environment())
    if folder is not None:
        chosen = settings.read(os.environ)
        yield from _section("warnings", [*environment.warnings(), *chosen.problems])
        yield from _section("by its source", _by_source(folder))
        yield from _section("by running it", _by_running())
        yield from _section("processes", running_lines(processes.read(chosen.state_dir)))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""


def _environment() -> Iterator[str]:
    for name in sorted(os.environ):
        if name.startswith(settings.PREFIX) or name in _SHOWN_VARIABLES:
            yield f"{name}={os.environ[name]!r}"


def _by_source(folder: Path) -> Iterator[str]:
    try:
        with closing(open_source(folder)) as source:
            findings = judge_source(source).findings
    except SourceError as error:
        yield str(error)
        return
    for guard, faults in findings.items():
        yield guard
        yield from _faults(faults)


def _by_running() -> Iterator[str]:
    try:
        process: NewProcess = ask_new_process()
    except CommandError as error:
        yield from error.messages
        return
    yield from process.warnings
    for name, guard in process.guards.items():
        yield f"{name}: mode {guard['mode']}, state {guard['state']}, {guard['detail']}"
        yield from _faults(process.findings[name])


def _faults(findings: dict[str, Finding]) -> Iterator[str]:
    for fault, finding in findings.items():
        yield f"  {fault:<14} {finding.verdict:<8} {finding.evidence}"
