"""``vllm-guard check``: the gate for CI. Is everything guarded, and is the fix there yet?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_guard import settings
from vllm_guard.cli import builds, environment, gate
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.formats.checked import FORMATS, Checked
from vllm_guard.cli.gate import Complaint, Known
from vllm_guard.cli.new_process import ask_new_process, installed_vllm
from vllm_guard.cli.output import FOUND, Output
from vllm_guard.probes.static.sources import SourceError, open_source
from vllm_guard.probes.static.verdicts import JudgedBuild, judge_source

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "check",
        help="the gate for CI: exit code 1 if there is something to do",
        description="Judges the vLLM of this Python by its source and by running it. A finding is"
        " a guard that is not certain of its verdict or cannot act where it is needed, source and"
        " behaviour that disagree, and what the options name. Guards that are needed and switched"
        " off are warnings.",
        epilog="Exit code: 0 nothing to do, 1 a finding, 2 it could not be checked.",
    )
    parser.add_argument(
        "build",
        metavar="BUILD",
        nargs="?",
        help="another build (a folder, a wheel, a requirement), judged by its source alone",
    )
    parser.add_argument(
        "--fail-on",
        metavar="VERDICT[,...]",
        default="",
        help="guards with this verdict are findings too, such as fixed: its upstream fix landed",
    )
    parser.add_argument(
        "--expect",
        metavar="GUARD[.FAULT]=VERDICT[,...]",
        default="",
        help="anything else is a finding",
    )
    parser.add_argument(
        "--require-fixed",
        metavar="GUARD",
        action="append",
        default=[],
        help="ask only this: is the upstream fix in this build? (may be repeated)",
    )
    parser.add_argument("--strict", action="store_true", help="warnings are findings too")
    parser.add_argument("--format", choices=list(FORMATS), default="text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines about the build, and whether there is a finding."""
    asked_only = [gate.parse_guard(name) for name in options.require_fixed]
    if asked_only and (options.fail_on or options.expect):
        raise CommandError("--require-fixed asks one thing only; use it without other gates")
    expectations = gate.parse_expectations(options.expect)
    fail_on = [gate.parse_verdict(word) for word in options.fail_on.split(",") if word.strip()]
    judged, known, warnings = _look(options.build)
    if asked_only:
        complaints = list(gate.not_fixed(known, asked_only))
    else:
        complaints = list(
            chain(
                gate.cannot_apply(known),
                gate.disagreeing(known),
                gate.counted_as_finding(known, fail_on),
                gate.unexpected(known, expectations),
                warnings if options.strict else (),
            )
        )
    checked = Checked(options.build or "installed", judged, known, complaints, warnings)
    return Output(FORMATS[options.format](checked), FOUND if complaints else 0)


def _look(given: str | None) -> tuple[JudgedBuild, Known, list[Complaint]]:
    """Return what is known of a build, and the warnings about the environment."""
    if given is not None:
        judged = _judge(builds.path_of(given))
        return judged, Known(judged.findings), []
    _, folder = installed_vllm()
    # Importing vLLM takes longest; its source is read meanwhile.
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_new_process)
        judged = _judge(folder)
        process = asked.result()
    known = Known(judged.findings, process.findings, process.guards)
    around = [Complaint("", warning) for warning in (*_warnings(), *process.warnings)]
    return judged, known, [*around, *gate.switched_off(known)]


def _judge(path: Path) -> JudgedBuild:
    try:
        with closing(open_source(path)) as source:
            return judge_source(source)
    except SourceError as error:
        raise CommandError(str(error)) from None


def _warnings() -> Iterator[str]:
    yield from environment.warnings()
    yield from settings.read(os.environ).problems
