"""``vllm-guard audit``: the verdicts on builds that are not installed, from their source alone."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from vllm_guard.cli import builds
from vllm_guard.cli.errors import CommandError
from vllm_guard.cli.formats import FORMATS
from vllm_guard.cli.formats.audited import Audited, Failed
from vllm_guard.cli.output import Output
from vllm_guard.probes.static.sources import SourceError, open_source
from vllm_guard.probes.static.verdicts import judge_source

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "audit",
        help="which guards other builds need, without installing them",
        description="Judges builds of vLLM by their source: nothing of them is imported or run.",
        epilog="Exit code: 0 all were judged, whatever the verdicts; 2 some could not be.",
    )
    parser.add_argument(
        "builds",
        metavar="TREE|WHEEL|REQUIREMENT",
        nargs="+",
        help="a folder that holds the package vllm, a wheel file, a requirement such as"
        " vllm==0.31.0 (fetched with pip), or the word installed",
    )
    formats = ", ".join(f"{name} ({known.description})" for name, known in FORMATS.items())
    parser.add_argument(
        "--format", choices=list(FORMATS), default="text", help=f"one of: {formats}"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Output:
    """Return the lines about ``options.builds``."""
    audited, failed = [], []
    for given in options.builds:
        try:
            with closing(open_source(builds.path_of(given))) as source:
                audited.append(Audited(given, judge_source(source)))
        except (SourceError, CommandError) as error:
            failed.append(Failed(given, str(error)))
    lines = FORMATS[options.format].lines(audited, failed)
    if failed:
        raise CommandError(*(item.message for item in failed), output=lines)
    return Output(lines)
